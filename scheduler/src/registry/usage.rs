//! What sessions used: running totals of each, and what came to them hour by hour.
//!
//! An hour is the smallest step that is kept: thirty days of them are small, and nobody settles an account by
//! the minute.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use gpushare_proto::{Bytes, Nanos, SessionId};
use serde::{Deserialize, Serialize};

/// What a session has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Figures {
    /// Wall time in which it could submit work.
    pub(crate) gpu_time: Nanos,
    /// Time spent waiting at the gate.
    pub(crate) waited: Nanos,
    /// Wall time with the lock in serialized mode.
    pub(crate) held: Nanos,
    /// Bytes brought in on grants.
    pub(crate) moved: Bytes,
    /// The most memory on one card.
    pub(crate) peak: Bytes,
    /// Refused allocations.
    pub(crate) refusals: u64,
}

impl Figures {
    /// Both together. A peak is of one time or the other.
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

    /// What came since `before`. A peak counts if it is a new one.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            gpu_time: self.gpu_time - before.gpu_time,
            waited: self.waited - before.waited,
            held: self.held - before.held,
            moved: self.moved - before.moved,
            peak: match self.peak > before.peak {
                true => self.peak,
                false => Bytes::ZERO,
            },
            refusals: self.refusals.saturating_sub(before.refusals),
        }
    }
}

/// An hour, counted on the wall clock since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hour(pub(crate) u64);

/// Seconds of an hour.
const LONG: u64 = 3600;
/// How many hours of one session are kept, those in which it used something: thirty days at least.
pub(super) const KEPT: usize = 30 * 24;

impl Hour {
    pub(crate) fn now() -> Self {
        Self::back(Nanos::ZERO)
    }

    /// The one in which it was `ago` before now.
    pub(crate) fn back(ago: Nanos) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(unix.saturating_sub(ago.into()).as_secs() / LONG)
    }

    /// When it began, in seconds since 1970.
    pub(crate) fn began(self) -> u64 {
        self.0 * LONG
    }
}

/// What came to one session in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) name: String,
    pub(crate) figures: Figures,
}

/// By hour and session.
pub(crate) type Usage = BTreeMap<(Hour, SessionId), Spent>;

/// Adds to what is there.
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
    fn a_peak_is_counted_in_the_hour_that_it_was_reached_in() {
        let at = |held, peak| Figures { held: Nanos(held), peak: Bytes(peak), ..Figures::default() };
        assert_eq!(at(9, 70).since(at(4, 70)), at(5, 0));
        assert_eq!(at(9, 80).since(at(4, 70)), at(5, 80));
        assert_eq!(at(9, 80).plus(at(4, 70)), at(13, 80));
    }
}
