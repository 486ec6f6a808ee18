//! What a class is owed that waits behind another: a small share of the time, so that nobody starves.
//!
//! While somebody of the class waits and nobody of it holds the card, its debt grows at the trickle's share
//! of wall time. Once the debt pays for a turn and its handoff, the first of the class goes first, and the
//! turn is taken off the debt.

use gpushare_proto::{Nanos, Percent};

use crate::config::Config;

/// Parts of a nanosecond, as shares are in hundredths of a percent: nothing is rounded.
const FINE: u128 = 10_000;

/// Of one class on one card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trickle {
    owed: u128,
    at: Nanos,
    waits: bool,
}

impl Trickle {
    /// Time passes; from now on the class `waits` or does not.
    pub(crate) fn run(&mut self, now: Nanos, waits: bool, config: &Config) {
        if self.waits {
            // No more than two of the longest turns: who was held up for an hour does not hold the others up
            // for minutes.
            let most = fine(config.quantum_max + config.quantum_max);
            let owed = self.owed + u128::from((now - self.at).0) * u128::from(config.trickle.0);
            self.owed = owed.min(most.max(self.owed));
        }
        self.at = self.at.max(now);
        self.waits = waits;
    }

    /// Whether the class waits.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Whether anything is owed.
    pub(crate) const fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Whether a turn that costs `cost` is due.
    pub(crate) fn pays(&self, cost: Nanos) -> bool {
        self.owed >= fine(cost)
    }

    /// When that will be, while the class waits.
    pub(crate) fn due(&self, cost: Nanos, share: Percent) -> Option<Nanos> {
        let missing = fine(cost).saturating_sub(self.owed);
        let span = missing.div_ceil(u128::from(share.0).max(1));
        self.waits.then(|| self.at + Nanos(u64::try_from(span).unwrap_or(u64::MAX)))
    }

    /// One of the class was granted a turn.
    pub(crate) fn granted(&mut self, cost: Nanos) {
        self.owed = self.owed.saturating_sub(fine(cost));
    }
}

fn fine(span: Nanos) -> u128 {
    u128::from(span.0) * FINE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_waits_is_owed_a_twentieth_of_the_time() {
        let config = Config::default();
        let mut trickle = Trickle::default();
        trickle.run(Nanos::from_secs(1), true, &config);
        trickle.run(Nanos::from_secs(21), false, &config);
        trickle.run(Nanos::from_secs(900), true, &config);
        assert!(trickle.pays(Nanos::from_secs(1)));
        assert!(!trickle.pays(Nanos(1_000_000_001)));
        trickle.granted(Nanos::from_secs(5));
        assert!(!trickle.pays(Nanos(1)));
    }
}
