//! Budget for early switches: switches that end a quantum for a session that just woke.
//!
//! The budget fills with the share ε of wall time that may be lost, and each early switch spends the cost of
//! both its handoffs. So a rare burst is served at once, while steady bursts wait instead of starving the
//! holder.

use gpushare_proto::{Nanos, Percent};

/// Number of tokens in a nanosecond: the share ε is in hundredths of a percent, so nothing is rounded.
const FINE: u128 = 10_000;

/// Budget of time that may be spent on early switches of one card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchBudget {
    tokens: u128,
    at: Nanos,
}

impl SwitchBudget {
    pub(crate) fn new(now: Nanos, most: Nanos) -> Self {
        Self { tokens: u128::from(most.0) * FINE, at: now }
    }

    /// Fills the budget up to the time `now`, and returns the time that may be spent.
    pub(crate) fn available(&mut self, now: Nanos, epsilon: Percent, most: Nanos) -> Nanos {
        let elapsed = u128::from((now - self.at).0);
        self.at = self.at.max(now);
        let filled = self.tokens + elapsed * u128::from(epsilon.0.min(10_000));
        self.tokens = filled.min(u128::from(most.0) * FINE);
        Nanos(u64::try_from(self.tokens / FINE).unwrap_or(u64::MAX))
    }

    pub(crate) fn spend(&mut self, cost: Nanos) {
        self.tokens = self.tokens.saturating_sub(u128::from(cost.0) * FINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_fills_at_epsilon_and_never_overflows() {
        let (epsilon, most) = (Percent(500), Nanos::from_secs(2));
        let mut budget = SwitchBudget::new(Nanos(0), most);
        assert_eq!(budget.available(Nanos::from_secs(3600), epsilon, most), most);
        budget.spend(Nanos::from_secs(5));
        let hour = Nanos::from_secs(3600);
        assert_eq!(budget.available(hour, epsilon, most), Nanos::ZERO);
        let later = hour + Nanos::from_secs(10);
        assert_eq!(budget.available(later, epsilon, most), Nanos::from_millis(500));
    }
}
