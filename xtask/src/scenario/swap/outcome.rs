//! Result of many handoffs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Result of the handoffs.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub(super) backend: String,
    pub(super) seed: u64,
    /// Handoffs after which the entrant's contents were checked.
    pub(super) swaps: u64,
    /// Programs killed while memory moved.
    pub(super) kills: u64,
    /// Programs and daemons killed before memory moved or after it.
    pub(super) kills_at_rest: u64,
    /// Programs killed in a call of their own, by its kind.
    pub(super) killed_in: BTreeMap<&'static str, u64>,
    /// Calls that found no memory, by their kinds.
    pub(super) refused: BTreeMap<&'static str, u64>,
    /// Times for which a program waited because host memory had run out.
    pub(super) shortages: u64,
    /// Daemons killed while memory moved.
    pub(super) daemon_kills: u64,
    /// Blocks with wrong contents.
    pub(super) corrupted: u64,
    /// Calls of programs that failed.
    pub(super) failed: u64,
    /// Programs whose work was found in flight while their memory moved.
    pub(super) missed: u64,
    /// Handoffs that did not end.
    pub(super) hung: u64,
    /// Largest difference between the card's bytes of living programs and what the daemon says is resident, and
    /// bytes that are neither resident nor hosted, or are so without being allocated.
    pub(super) bytes_unaccounted: u64,
    pub(super) seconds: f64,
}

impl Outcome {
    /// Adds what happened on another card.
    pub(super) fn add(&mut self, other: &Self) {
        let merge = |into: &mut BTreeMap<&'static str, u64>, from: &BTreeMap<&'static str, u64>| {
            from.iter().for_each(|(kind, count)| *into.entry(kind).or_default() += count);
        };
        merge(&mut self.killed_in, &other.killed_in);
        merge(&mut self.refused, &other.refused);
        self.swaps += other.swaps;
        self.kills += other.kills;
        self.kills_at_rest += other.kills_at_rest;
        self.shortages += other.shortages;
        self.daemon_kills += other.daemon_kills;
        self.corrupted += other.corrupted;
        self.failed += other.failed;
        self.missed += other.missed;
        self.hung += other.hung;
        self.bytes_unaccounted = self.bytes_unaccounted.max(other.bytes_unaccounted);
    }

    /// Number of all that was lost, wrong or stuck.
    pub(super) fn faults(&self) -> u64 {
        self.corrupted + self.failed + self.missed + self.hung + self.bytes_unaccounted
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, swaps, kills, kills_at_rest, daemon_kills, shortages, seconds, .. } = self;
        let Self { corrupted, failed, missed, hung, bytes_unaccounted, .. } = self;
        let listed = |counts: &BTreeMap<&str, u64>| {
            let texts: Vec<_> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
            if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
        };
        write!(
            f,
            "{swaps} handoffs of {backend} memory in {seconds:.0} s; {kills} programs and {daemon_kills} daemons killed \
             half-way, {kills_at_rest} at rest; killed in calls: {}; calls refused: {}; {shortages} times without host memory: \
             {corrupted} wrong blocks, {failed} failed calls, {missed} times missed work, {hung} hung, \
             {bytes_unaccounted} bytes unaccounted",
            listed(&self.killed_in),
            listed(&self.refused),
        )
    }
}
