//! When a quantum ends. It begins when the memory is in, so that a slow move does not eat the turn; a client
//! that never says so has four times the expected move to itself, and no more. Its holder may go on beyond it while nobody could use
//! the card (lending.rs); a quantum that is set shorter meanwhile is this one's too.

use gpushare_proto::Nanos;

/// How many expected moves the clock waits for `Entered`.
const PATIENCE: u64 = 4;

/// The clock of one grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    quantum: Nanos,
    starts: Nanos,
    /// When it was last found to run beyond its quantum, as nobody could use the card before.
    lent: Option<Nanos>,
    /// Whether that is not looked at again before its end: only where the rules are checked (invariants.rs).
    relied_on: bool,
}

impl Clock {
    /// The clock of a grant at `now` after which memory should be in within `expected_move`.
    pub(crate) fn granted(now: Nanos, quantum: Nanos, expected_move: Nanos) -> Self {
        Self {
            quantum,
            starts: now + Nanos(expected_move.0.saturating_mul(PATIENCE)),
            lent: None,
            relied_on: false,
        }
    }

    /// The memory is in.
    pub(crate) fn entered(&mut self, now: Nanos) {
        self.starts = self.starts.min(now);
    }

    /// It lasts no longer than `quantum`; whether that is another end. Who goes on for others' sake is looked at anyway.
    pub(crate) fn shorten(&mut self, quantum: Nanos) -> bool {
        let shorter = !self.is_lent() && quantum < self.quantum;
        if shorter {
            self.quantum = quantum;
        }
        shorter
    }

    /// It ends at `now`.
    pub(crate) fn end_at(&mut self, now: Nanos) {
        self.starts = now - self.quantum;
        self.quantum = now - self.starts;
    }

    /// It goes on until `end`, at most. Where it does so already it is looked at again when that was to end.
    pub(crate) fn lend(&mut self, now: Nanos, end: Nanos) {
        let already = self.is_lent() && self.end() > now && self.end() <= end;
        if !already {
            self.end_at(end);
        }
        (self.lent, self.relied_on) = (Some(now), false);
    }

    pub(crate) const fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Where it runs beyond its quantum that is not looked at again before its end, unless it was at this moment.
    pub(crate) fn rely_on(&mut self, now: Nanos) {
        self.relied_on = self.lent.is_some_and(|at| at < now);
    }

    /// Whether its holder may have to let go by now.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        (self.is_lent() && !self.relied_on) || now >= self.end()
    }

    /// When it ends at the earliest: the memory may be in at any moment.
    pub(crate) fn earliest_end(&self, now: Nanos) -> Nanos {
        self.end().min(now + self.quantum)
    }

    pub(crate) const fn quantum(&self) -> Nanos {
        self.quantum
    }

    pub(crate) fn end(&self) -> Nanos {
        self.starts + self.quantum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantum_begins_when_the_memory_is_in() {
        let mut clock = Clock::granted(Nanos(100), Nanos(1000), Nanos(50));
        assert_eq!(
            clock.end(),
            Nanos(1300),
            "while nobody says so: four expected moves"
        );
        clock.entered(Nanos(160));
        assert_eq!(clock.end(), Nanos(1160));
        clock.entered(Nanos(200));
        assert_eq!(clock.end(), Nanos(1160), "said twice it does not start again");
    }
}
