//! The card's clock: real time, held back where the host is too slow.
//!
//! The card computes real results on a busy machine. If it did not keep up and time ran on, everything that
//! was due would pile up and the next input would wait for all of it. So the clock never runs more than a
//! moment ahead of what is due: it stands still meanwhile, and says by how much. Durations then are longer
//! than the model's, all of them alike, and the reader of a result sees it.

use std::time::{Duration, Instant};

use crate::ids::Time;

/// How late something may be done before the clock waits for it.
const LATE: Duration = Duration::from_millis(1);

/// Where the shell's time comes from.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    held_back: Duration,
}

impl Clock {
    /// Switched on now.
    pub fn start() -> Self {
        Self { started: Instant::now(), held_back: Duration::ZERO }
    }

    /// The time, given what is due next.
    pub fn now(&mut self, due: Option<Time>) -> Time {
        let now = self.started.elapsed().saturating_sub(self.held_back);
        let late = due.map_or(Duration::ZERO, |due| now.saturating_sub(due + LATE));
        self.held_back += late;
        now.saturating_sub(late)
    }

    /// By how much it was held back in all.
    pub fn held_back(&self) -> Duration {
        self.held_back
    }
}
