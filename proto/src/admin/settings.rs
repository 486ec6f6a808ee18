//! What an administrator can set while the daemon runs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::GpuId;
use crate::units::{Bytes, Nanos, Percent};

/// A setting that can change while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// For one card, or for all.
    pub gpu: Option<GpuId>,
    /// What to change.
    pub knob: Knob,
}

/// The settings. Defaults are in one place, the core's `Config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Knob {
    /// A fixed time quantum; none computes it from the cost of a handoff.
    Quantum(Option<Nanos>),
    /// The mode; none lets the daemon choose.
    Mode(Option<Mode>),
    /// What may be resident together; none takes the card's total less the reserve.
    Capacity(Option<Bytes>),
    /// The most managed memory of all sessions together.
    ManagedLimit(Bytes),
    /// The share of time one is ready to lose to handoffs.
    Epsilon(Percent),
    /// How long the work in flight of a process may take: what its window aims at.
    WindowTarget(Nanos),
}

/// How a card is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The working sets fit: every gate is open.
    Parallel,
    /// They do not fit: sessions take turns.
    Serialized,
    /// They fit, and sessions take short turns, because they are not equal or their limits add up to the whole card.
    #[serde(rename = "time-sliced")]
    TimeSliced,
}

impl Mode {
    /// All of them, the one that holds up least first.
    pub const ALL: [Self; 3] = [Self::Parallel, Self::TimeSliced, Self::Serialized];

    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Serialized => "serialized",
            Self::TimeSliced => "time-sliced",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a mode; write parallel, time-sliced or serialized")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == word);
        named.ok_or_else(|| UnknownMode(word.to_owned()))
    }
}

/// A key of the configuration that is another one than what the daemon runs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// Which one: `scheduling.quantum_min`, or `quantum of gpu0`.
    pub key: String,
    /// What it was, in words.
    pub old: String,
    /// What the file says.
    pub new: String,
    /// Whether that is in effect; if not, it will be at the daemon's next start.
    pub live: bool,
}

/// The shortest quantum that is taken: shorter ones are spent on handoffs alone.
pub const MIN_QUANTUM: Nanos = Nanos::from_millis(1);
/// The least memory that is taken, of a card or a session: less holds no allocation.
pub const MIN_MEMORY: Bytes = Bytes::mib(1);
