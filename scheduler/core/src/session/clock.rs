//! End of a quantum of a session that holds the lock.

use gpushare_proto::Nanos;

/// Number of expected move durations for which a grant waits for the process's report that its memory is in.
const PATIENCE: u64 = 4;

/// Clock of one grant: it decides when the quantum is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    quantum: Nanos,
    starts: Nanos,
    loan: Option<Loan>,
}

/// Loan of a card to its holder beyond the quantum, until a point in time or until anything changes.
#[derive(Clone, Copy, Debug)]
struct Loan {
    until: Nanos,
    /// Point in time at which the end of the loan was last computed.
    found: Nanos,
    /// Whether the loan is relied on until its end. Set only where the rules are checked (invariants.rs).
    relied_on: bool,
}

impl Clock {
    /// Creates the clock of a grant at the time `now`. The memory should be in after the duration
    /// `expected_move`.
    pub(crate) fn granted(now: Nanos, quantum: Nanos, expected_move: Nanos) -> Self {
        Self {
            quantum,
            starts: now + Nanos(expected_move.0.saturating_mul(PATIENCE)),
            loan: None,
        }
    }

    /// Starts the quantum at the time `now`, since the memory is in, unless the quantum has already begun.
    pub(crate) fn entered(&mut self, now: Nanos) {
        self.starts = self.starts.min(now);
    }

    /// Limits the length of the turn to `quantum`, and returns whether its end moved. A loan's end stays.
    pub(crate) fn shorten(&mut self, quantum: Nanos) -> bool {
        let shorter = quantum < self.quantum;
        self.quantum = self.quantum.min(quantum);
        shorter && !self.is_lent()
    }

    /// Ends the quantum and any loan at the time `now`.
    pub(crate) fn end_at(&mut self, now: Nanos) {
        self.starts = now - self.quantum;
        self.quantum = now - self.starts;
        self.loan = None;
    }

    /// Lends the card until the time `until` at most. A running loan with an earlier end keeps that end.
    pub(crate) fn lend(&mut self, now: Nanos, until: Nanos) {
        let before = self.loan.map(|loan| loan.until);
        let until = before.filter(|&end| end > now && end <= until).unwrap_or(until);
        let (found, relied_on) = (now, false);
        self.loan = Some(Loan { until, found, relied_on });
    }

    pub(crate) const fn is_lent(&self) -> bool {
        self.loan.is_some()
    }

    /// Relies on a loan until its end, unless that end was computed just now.
    pub(crate) fn rely_on(&mut self, now: Nanos) {
        if let Some(loan) = &mut self.loan {
            loan.relied_on = loan.found < now;
        }
    }

    /// Whether the holder's quantum, or its loan, may be over at the time `now`.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        self.loan.is_some_and(|loan| !loan.relied_on) || now >= self.end()
    }

    /// Duration for which the holder has the card; `now` is the time of the grant.
    pub(crate) fn lasts(&self, now: Nanos) -> Nanos {
        self.quantum.min(self.end() - now)
    }

    /// Earliest point in time at which the quantum or loan can end, as the memory may be in at any moment.
    pub(crate) fn earliest_end(&self, now: Nanos) -> Nanos {
        self.end().min(now + self.quantum)
    }

    pub(crate) fn end(&self) -> Nanos {
        self.loan.map_or(self.turn_end(), |loan| loan.until)
    }

    /// Point in time at which the quantum is over, whether the card is on loan or not.
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
