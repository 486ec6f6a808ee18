//! When a quantum ends. It begins when the memory is in, so that a slow move does not eat the turn; a client
//! that never says so has four times the expected move to itself, and no more. Its holder may have the card
//! on loan, while the one whose turn it is could not use it (lending.rs): longer than the quantum, or
//! shorter. A quantum that is set shorter meanwhile is this one's too.

use gpushare_proto::Nanos;

/// How many expected moves the clock waits for `Entered`.
const PATIENCE: u64 = 4;

/// The clock of one grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    quantum: Nanos,
    starts: Nanos,
    loan: Option<Loan>,
}

/// The card is its holder's until then, or until anything changes.
#[derive(Clone, Copy, Debug)]
struct Loan {
    until: Nanos,
    /// When that was last found.
    found: Nanos,
    /// Whether it is not looked at again before its end: only where the rules are checked (invariants.rs).
    relied_on: bool,
}

impl Clock {
    /// The clock of a grant at `now` after which memory should be in within `expected_move`.
    pub(crate) fn granted(now: Nanos, quantum: Nanos, expected_move: Nanos) -> Self {
        Self {
            quantum,
            starts: now + Nanos(expected_move.0.saturating_mul(PATIENCE)),
            loan: None,
        }
    }

    /// The memory is in.
    pub(crate) fn entered(&mut self, now: Nanos) {
        self.starts = self.starts.min(now);
    }

    /// It lasts no longer than `quantum`; whether that is another end. A loan is looked at anyway.
    pub(crate) fn shorten(&mut self, quantum: Nanos) -> bool {
        let shorter = quantum < self.quantum;
        self.quantum = self.quantum.min(quantum);
        shorter && !self.is_lent()
    }

    /// It ends at `now`.
    pub(crate) fn end_at(&mut self, now: Nanos) {
        self.starts = now - self.quantum;
        self.quantum = now - self.starts;
        self.loan = None;
    }

    /// It is on loan until then, at most. Where it is already it is looked at again when that was to end.
    pub(crate) fn lend(&mut self, now: Nanos, until: Nanos) {
        let before = self.loan.map(|loan| loan.until);
        let until = before.filter(|&end| end > now && end <= until).unwrap_or(until);
        let (found, relied_on) = (now, false);
        self.loan = Some(Loan { until, found, relied_on });
    }

    pub(crate) const fn is_lent(&self) -> bool {
        self.loan.is_some()
    }

    /// A loan is not looked at again before its end, unless it was at this moment.
    pub(crate) fn rely_on(&mut self, now: Nanos) {
        if let Some(loan) = &mut self.loan {
            loan.relied_on = loan.found < now;
        }
    }

    /// Whether its holder may have to let go by now.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        self.loan.is_some_and(|loan| !loan.relied_on) || now >= self.end()
    }

    /// How long its holder has the card, from `now` that it is granted.
    pub(crate) fn lasts(&self, now: Nanos) -> Nanos {
        self.quantum.min(self.end() - now)
    }

    /// When it ends at the earliest: the memory may be in at any moment.
    pub(crate) fn earliest_end(&self, now: Nanos) -> Nanos {
        self.end().min(now + self.quantum)
    }

    pub(crate) fn end(&self) -> Nanos {
        self.loan.map_or(self.turn_end(), |loan| loan.until)
    }

    /// When its quantum is over, on loan or not.
    pub(crate) fn turn_end(&self) -> Nanos {
        self.starts + self.quantum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantum_begins_when_the_memory_is_in() {
        let mut clock = Clock::granted(Nanos(100), Nanos(1000), Nanos(50));
        assert_eq!(clock.end(), Nanos(1300), "while nobody says so: four expected moves");
        clock.entered(Nanos(160));
        assert_eq!(clock.end(), Nanos(1160));
        clock.entered(Nanos(200));
        assert_eq!(clock.end(), Nanos(1160), "said twice it does not start again");
    }
}
