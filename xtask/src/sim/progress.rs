//! Tells on stderr how far a long run is.

use std::time::{Duration, Instant};

use gpushare_proto::Nanos;

use crate::output::progress;

/// Of one run.
#[derive(Debug)]
pub(super) struct Progress {
    begun: Instant,
    told: Instant,
    events: u64,
}

impl Progress {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, told: now, events: 0 }
    }

    /// One thing more happened.
    pub(super) fn tick(&mut self, policy: &str, now: Nanos, until: Nanos) {
        self.events += 1;
        if self.events.is_multiple_of(1024) && self.told.elapsed() > Duration::from_secs(5) {
            self.told = Instant::now();
            let seconds = |time: Nanos| time.0 / 1_000_000_000;
            progress(format_args!(
                "{policy}: {} of {} s, {} events in {:.0?}",
                seconds(now),
                seconds(until),
                self.events,
                self.begun.elapsed()
            ));
        }
    }
}
