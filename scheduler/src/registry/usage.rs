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

    /// Returns the time by which rows are compared when some must be dropped.
    pub(super) fn weight(self) -> u64 {
        self.gpu_time.0.saturating_add(self.waited.0)
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

/// Consecutive hours of the wall clock for which usage is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hours {
    pub(crate) first: Hour,
    /// Hour after the last one.
    end: Hour,
}

impl Hours {
    /// Returns the hours that contain the seconds since 1970 from `from` up to, but without, `until`.
    pub(crate) fn of(from: u64, until: u64) -> Self {
        Self { first: Hour(from / SECONDS), end: Hour(until.div_ceil(SECONDS)) }
    }

    /// Returns the hours since the one that contains the point in time `ago` before now.
    pub(crate) fn since(ago: Nanos) -> Self {
        Self::from(Hour::back(ago))
    }

    /// Returns all hours from one on.
    pub(super) fn from(first: Hour) -> Self {
        Self { first, end: Hour(u64::MAX) }
    }

    pub(crate) fn contains(self, hour: Hour) -> bool {
        self.first <= hour && hour < self.end
    }
}

/// Usage of one session in one hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) name: String,
    /// User of the session, as an administrator names it; none if it has none.
    pub(crate) user: Option<String>,
    pub(crate) figures: Figures,
}

/// Usage by hour and session.
pub(crate) type Usage = BTreeMap<(Hour, SessionId), Spent>;

/// Largest number of rows that wait for the disk. While it is full, users may begin any number of sessions.
const MOST_WAITING: usize = 10_000;

/// Adds usage that waits for the disk. Beyond [`MOST_WAITING`] rows, those with the least usage are dropped.
pub(super) fn add(usage: &mut Usage, more: Usage) {
    for (key, spent) in more {
        let sum = usage.entry(key).or_default();
        sum.figures = sum.figures.plus(spent.figures);
        (sum.name, sum.user) = (spent.name, spent.user);
    }
    if usage.len() > MOST_WAITING {
        let mut rows: Vec<_> = usage.iter().map(|(key, spent)| (spent.figures.weight(), *key)).collect();
        rows.sort_unstable();
        // More than necessary, because each time all rows are read.
        let least = rows.len() - (MOST_WAITING - MOST_WAITING / 16);
        rows[..least].iter().for_each(|(_, key)| _ = usage.remove(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_that_waits_for_the_disk_is_bounded_and_the_most_is_kept() {
        let mut waiting = Usage::new();
        let spent = |gpu_time| Spent {
            figures: Figures { gpu_time: Nanos(gpu_time), ..Figures::default() },
            ..Spent::default()
        };
        for session in 0..3 * MOST_WAITING as u64 {
            let much = if session == 7 { 1_000_000 } else { session % 10 };
            add(&mut waiting, Usage::from([((Hour(1), SessionId(session)), spent(much))]));
            assert!(waiting.len() <= MOST_WAITING);
        }
        assert!(waiting.contains_key(&(Hour(1), SessionId(7))));
    }

    #[test]
    fn a_peak_counts_in_the_hour_in_which_it_was_reached() {
        let at = |held, peak| Figures { held: Nanos(held), peak: Bytes(peak), ..Figures::default() };
        assert_eq!(at(9, 70).since(at(4, 70)), at(5, 0));
        assert_eq!(at(9, 80).since(at(4, 70)), at(5, 80));
        assert_eq!(at(9, 80).plus(at(4, 70)), at(13, 80));
    }
}
