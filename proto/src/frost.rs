//! Freezing of sessions: after which idle time, how far it is, and what stands in the way.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ranges::{self, OutOfRange};
use crate::units::{Nanos, UnitError};

/// Ability of a daemon to freeze processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezingView {
    /// Reasons why no process can be frozen, in words; empty if processes can be.
    pub obstacles: Vec<String>,
    /// Idle time after which sessions without a time of their own are frozen; none for never.
    pub freeze_after_ns: Option<Nanos>,
}

/// Extent to which a session is frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrostView {
    /// Stage of the session.
    pub stage: FrostStage,
    /// Reason why the session cannot be frozen, in words; none if it can.
    pub obstacle: Option<String>,
    /// Idle time after which the session is frozen; none for never.
    pub freeze_after_ns: Option<Nanos>,
    /// Time for which the session is idle; none if it works, is frozen, or is never frozen for that.
    pub idle_ns: Option<Nanos>,
}

/// Stage of a session on its way into a checkpoint of the driver and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrostStage {
    /// No process is frozen or about to be.
    Warm,
    /// The session is to be frozen.
    Freezing,
    /// All processes are frozen.
    Frozen,
    /// Processes come back.
    Thawing,
    /// No process is frozen or about to be, and one has not said yet what stands in the way.
    Unexamined,
}

/// Idle time after which a session is frozen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FreezeAfter {
    /// The daemon's key `freeze_after` decides.
    #[default]
    Usual,
    /// The session is frozen on request only.
    Never,
    /// The session is frozen after it was idle for so long.
    Idle(Nanos),
}

/// Text that is no idle time after which a session may be frozen.
#[derive(Debug, thiserror::Error)]
pub enum FreezeAfterError {
    /// The text is neither a duration nor one of the two words.
    #[error("{0}, or `off`, or `auto` for the daemon's freeze_after")]
    Unit(#[from] UnitError),
    /// The duration is too short or too long.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

impl FreezeAfter {
    /// Returns the idle time in force, if the daemon's own is `usual`; none for no freeze.
    pub fn in_force(self, usual: Option<Nanos>) -> Option<Nanos> {
        match self {
            Self::Usual => usual,
            Self::Never => None,
            Self::Idle(time) => Some(time),
        }
    }
}

impl FromStr for FreezeAfter {
    type Err = FreezeAfterError;

    fn from_str(text: &str) -> Result<Self, FreezeAfterError> {
        match text.trim() {
            "auto" => Ok(Self::Usual),
            "off" => Ok(Self::Never),
            time => Ok(Self::Idle(ranges::FREEZE_AFTER.check(time.parse()?)?)),
        }
    }
}

impl fmt::Display for FreezeAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("auto"),
            Self::Never => f.write_str("off"),
            Self::Idle(time) => time.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_time_is_a_duration_or_one_of_two_words() {
        for (text, shown) in [("10min", "600s"), ("off", "off"), ("auto", "auto")] {
            assert_eq!(text.parse::<FreezeAfter>().unwrap().to_string(), shown);
        }
        let error = |text: &str| text.parse::<FreezeAfter>().unwrap_err().to_string();
        assert!(error("soon").ends_with("or `off`, or `auto` for the daemon's freeze_after"));
        assert_eq!(error("10ms"), "freeze_after is 1s to 31536000s, not 10ms");
        let usual = Some(Nanos::from_secs(60));
        let own = FreezeAfter::Idle(Nanos::from_secs(5));
        let in_force = [FreezeAfter::Usual, FreezeAfter::Never, own].map(|after| after.in_force(usual));
        assert_eq!(in_force, [usual, None, Some(Nanos::from_secs(5))]);
    }
}
