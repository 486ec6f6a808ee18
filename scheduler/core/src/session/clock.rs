//! End of a quantum of a session that holds the lock.

use gpushare_proto::Nanos;

/// Clock of one grant: it decides when the quantum is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    quantum: Nanos,
    starts: Nanos,
    /// Point in time by which a backfilled turn ends.
    limit: Option<Nanos>,
    is_interrupted: bool,
}

impl Clock {
    /// Creates the clock of a grant at the time `now`. The quantum begins when the memory is in, or after the
    /// duration `patience`. A backfilled turn ends at the time `limit` at the latest.
    pub(crate) fn granted(now: Nanos, quantum: Nanos, patience: Nanos, limit: Option<Nanos>) -> Self {
        Self { quantum, starts: now + patience, limit, is_interrupted: false }
    }

    /// Starts the quantum at the time `now`, since the memory is in, unless the quantum has already begun.
    pub(crate) fn entered(&mut self, now: Nanos) {
        self.starts = self.starts.min(now);
    }

    /// Limits the length of the turn to `quantum`, and returns whether its end moved.
    pub(crate) fn shorten(&mut self, quantum: Nanos) -> bool {
        let end = self.end();
        self.quantum = self.quantum.min(quantum);
        self.end() < end
    }

    /// Ends the quantum at the time `now` for the early turn of another session.
    pub(crate) fn interrupt(&mut self, now: Nanos) {
        self.end_at(now);
        self.is_interrupted = true;
    }

    /// Ends the quantum at the time `now`.
    pub(crate) fn end_at(&mut self, now: Nanos) {
        self.starts = now - self.quantum;
        self.quantum = now - self.starts;
    }

    /// Whether the quantum was ended for the early turn of another session.
    pub(crate) const fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether the turn is backfilled: it ends when a gang can begin.
    pub(crate) const fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Whether the holder's quantum is over at the time `now`.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        now >= self.end()
    }

    /// Duration for which the holder has the card; `now` is the time of the grant.
    pub(crate) fn lasts(&self, now: Nanos) -> Nanos {
        self.quantum.min(self.end() - now)
    }

    /// Earliest point in time at which the quantum can end, as the memory may be in at any moment.
    pub(crate) fn earliest_end(&self, now: Nanos) -> Nanos {
        self.end().min(now + self.quantum)
    }

    /// Point in time at which the quantum is over.
    pub(crate) fn end(&self) -> Nanos {
        let end = self.starts + self.quantum;
        self.limit.map_or(end, |limit| limit.min(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantum_begins_when_the_memory_is_in() {
        let mut clock = Clock::granted(Nanos(100), Nanos(1000), Nanos(200), None);
        assert_eq!(clock.end(), Nanos(1300), "while nobody says so: its patience");
        clock.entered(Nanos(160));
        assert_eq!(clock.end(), Nanos(1160));
        clock.entered(Nanos(200));
        assert_eq!(clock.end(), Nanos(1160), "said twice it does not start again");
    }
}
