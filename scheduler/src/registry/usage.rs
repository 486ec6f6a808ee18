//! Usage of sessions: running totals, and sums by hour. No shorter period than an hour is stored.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use gpushare_proto::{Bytes, Nanos, SessionId};
use serde::{Deserialize, Serialize};

/// Resources that one session used: time, memory and moved bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// Duration, in wall time, in which the session could submit work.
    pub(crate) gpu_time: Nanos,
    pub(crate) waited: Nanos,
    /// Duration, in wall time, in which the session held the lock in serialized mode.
    pub(crate) held: Nanos,
    /// Number of bytes moved onto cards when the session was granted the lock.
    pub(crate) moved: Bytes,
    /// Largest number of bytes that the session had on one card.
    pub(crate) peak: Bytes,
    pub(crate) refusals: u64,
}

impl Figures {
    /// Returns the sum of both values. The peak is the larger one.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            gpu_time: self.gpu_time + other.gpu_time,
            waited: self.waited + other.waited,
            held: self.held + other.held,
            moved: self.moved + other.moved,
            peak: self.peak.max(other.peak),
            refusals: self.refusals.saturating_add(other.refusals),
        }
    }

    /// Returns the increase since `before`. The peak is the new one if it is larger, else 0.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            gpu_time: self.gpu_time - before.gpu_time,
            waited: self.waited - before.waited,
            held: self.held - before.held,
            moved: self.moved - before.moved,
            peak: if self.peak > before.peak { self.peak } else { Bytes::ZERO },
            refusals: self.refusals.saturating_sub(before.refusals),
        }
    }
}

/// Hour of the wall clock, as the number of hours since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hour(pub(crate) u64);

const SECONDS: u64 = 3600;
/// Number of hours with usage kept for each session: enough for thirty days.
pub(super) const KEPT: usize = 30 * 24;

impl Hour {
    pub(crate) fn now() -> Self {
        Self::back(Nanos::ZERO)
    }

    /// Returns the hour that contains the point in time `ago` before now.
    pub(crate) fn back(ago: Nanos) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(unix.saturating_sub(ago.into()).as_secs() / SECONDS)
    }

    pub(crate) fn began(self) -> u64 {
        self.0 * SECONDS
    }
}

/// Usage of one session in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) name: String,
    pub(crate) figures: Figures,
}

/// Usage by hour and session.
pub(crate) type Usage = BTreeMap<(Hour, SessionId), Spent>;

pub(super) fn add(usage: &mut Usage, more: Usage) {
    for (key, spent) in more {
        let sum = usage.entry(key).or_default();
        sum.figures = sum.figures.plus(spent.figures);
        sum.name = spent.name;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_counts_in_the_hour_in_which_it_was_reached() {
        let at = |held, peak| Figures { held: Nanos(held), peak: Bytes(peak), ..Figures::default() };
        assert_eq!(at(9, 70).since(at(4, 70)), at(5, 0));
        assert_eq!(at(9, 80).since(at(4, 70)), at(5, 80));
        assert_eq!(at(9, 80).plus(at(4, 70)), at(13, 80));
    }
}
