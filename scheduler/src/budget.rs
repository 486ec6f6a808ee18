//! Budget of the daemon's time for one kind of work that strangers ask for.
//!
//! With such budgets the daemon is idle for a part of the time, so that it runs at once when a client wakes it,
//! on a busy machine too.

use gpushare_proto::Nanos;

/// Part of the daemon's time that one kind of work may take.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Divisor of the daemon's time: 4 allows a quarter.
    divisor: u64,
    /// Longest unused time that counts: a burst may take `credit` ÷ `divisor`.
    credit: Nanos,
    /// Point in monotonic time from which on the next piece of work may be done.
    next: Nanos,
}

impl Budget {
    /// Creates a budget of the time divided by `divisor`, of which unused time counts up to `credit`.
    pub(crate) const fn new(divisor: u64, credit: Nanos) -> Self {
        Self { divisor, credit, next: Nanos::ZERO }
    }

    /// Returns how long the next piece of work must wait, at point `now` in monotonic time.
    pub(crate) fn wait(&self, now: Nanos) -> Nanos {
        self.next - now
    }

    /// Charges a piece of work that took `cost` and ended at point `now` in monotonic time.
    pub(crate) fn charge(&mut self, cost: Nanos, now: Nanos) {
        self.next = self.next.max(now - self.credit) + Nanos(cost.0.saturating_mul(self.divisor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(100);
    const SECOND: Nanos = Nanos::from_secs(1);
    const COST: Nanos = Nanos(10_000);

    #[test]
    fn work_without_end_has_its_part_of_the_time_and_the_credit() {
        let credit = Nanos::from_millis(20);
        let (mut budget, mut now, mut done) = (Budget::new(4, credit), START, 0);
        while now < START + SECOND {
            now += budget.wait(now) + COST;
            budget.charge(COST, now);
            done += 1;
        }
        let pieces = |time: Nanos| time.0 / 4 / COST.0;
        assert!((pieces(SECOND)..=pieces(SECOND + credit) + 1).contains(&done), "{done}");
    }

    #[test]
    fn rare_work_does_not_wait() {
        let (mut budget, mut now) = (Budget::new(4, Nanos::ZERO), START);
        for _ in 0..100 {
            assert!(budget.wait(now).is_zero());
            now += COST;
            budget.charge(COST, now);
            now += Nanos(4 * COST.0);
        }
    }
}
