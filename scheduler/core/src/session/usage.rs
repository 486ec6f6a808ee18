//! Usage figures of one session since it was opened.

use gpushare_proto::{Bytes, Nanos};

use crate::values::stopwatch::{DividedStopwatch, Stopwatch};

/// Durations and counts of one session that `status` and the metrics show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    waited: Stopwatch,
    held: DividedStopwatch,
    gpu_time: Stopwatch,
    moved: Bytes,
    refusals: u64,
}

impl Usage {
    /// Starts and stops the stopwatches: from `now` on the session `waits`, has a turn that it divides with so
    /// many sessions (itself included, 0 without a turn), or may work on a number of cards.
    pub(super) fn run(&mut self, now: Nanos, waits: bool, sharers: u32, cards: u32) {
        self.waited.run(waits, now);
        self.held.run_divided(sharers, now);
        self.gpu_time.run_for(cards, now);
    }

    pub(crate) fn add_moved(&mut self, bytes: Bytes) {
        self.moved += bytes;
    }

    pub(crate) fn add_refusals(&mut self, times: u64) {
        self.refusals = self.refusals.saturating_add(times);
    }

    /// Point in time since which the session waits for its turn.
    pub(crate) fn waits_since(&self) -> Option<Nanos> {
        self.waited.since()
    }

    /// Duration for which the session has waited for its turns.
    pub(crate) fn waited(&self, now: Nanos) -> Nanos {
        self.waited.read(now)
    }

    /// Duration for which the session has had turns.
    pub(crate) fn held(&self, now: Nanos) -> Nanos {
        self.held.read(now)
    }

    /// Duration in which the session could submit work, times the number of its cards: it held the lock and
    /// was not known to be idle.
    pub(crate) fn gpu_time(&self, now: Nanos) -> Nanos {
        self.gpu_time.read(now)
    }

    /// Number of bytes that the session's processes brought in on grants.
    pub(crate) const fn moved(&self) -> Bytes {
        self.moved
    }

    pub(crate) const fn refusals(&self) -> u64 {
        self.refusals
    }
}
