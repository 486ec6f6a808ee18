//! Charges for the time of a card: its present holders pay for it in equal parts.
//!
//! ```text
//!   clock   Σ elapsed ÷ holders, the time that each present holder pays
//!   a holder pays  clock when it lets go − clock when it was granted
//! ```
//!
//! A grant and a release cost the same however many sessions hold the card. Time is conserved: `paid + owed +
//! undivided = time held + pauses paid by entrants`.

use gpushare_proto::Nanos;

/// Charge clock of one card, with the sums that prove conservation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    clock: u128,
    undivided: u128,
    sharers: u32,
    at: Nanos,
    /// Time since which the card has no holder although a session waits.
    vacant: Option<Nanos>,
    /// Time in which the card was held, plus the pauses that entrants paid.
    spent: u128,
    /// Time that sessions have paid so far.
    paid: u128,
}

impl Charge {
    /// Advances the clock to `now`.
    pub(crate) fn advance(&mut self, now: Nanos) {
        let elapsed = u128::from((now - self.at).0);
        self.at = self.at.max(now);
        if self.sharers > 0 {
            self.spent += elapsed;
            let sharers = u128::from(self.sharers);
            let sum = self.undivided + elapsed;
            self.clock += sum / sharers;
            self.undivided = sum % sharers;
        }
    }

    /// Adds a holder that waits since `asked`. Returns the reading of the clock, and the pause for which the
    /// holder pays.
    pub(crate) fn enter(&mut self, now: Nanos, asked: Nanos) -> (u128, Nanos) {
        self.advance(now);
        self.sharers += 1;
        let pause = self.vacant.take().map_or(Nanos::ZERO, |since| now - since.max(asked));
        self.spent += u128::from(pause.0);
        self.paid += u128::from(pause.0);
        (self.clock, pause)
    }

    /// Removes a holder that `entered` at that reading of the clock, and returns the time that it pays.
    pub(crate) fn leave(&mut self, now: Nanos, entered: u128, is_wanted: bool) -> Nanos {
        let owed = self.owed(now, entered);
        self.advance(now);
        self.sharers -= 1;
        self.vacant = (self.sharers == 0 && is_wanted).then_some(now);
        self.paid += u128::from(owed.0);
        owed
    }

    /// Charges a holder so far. Returns the time that it pays, and the reading at which it enters anew.
    pub(crate) fn pay_so_far(&mut self, now: Nanos, entered: u128) -> (Nanos, u128) {
        let owed = self.owed(now, entered);
        self.advance(now);
        self.paid += u128::from(owed.0);
        (owed, entered + u128::from(owed.0))
    }

    /// Time that a holder owes by now.
    pub(crate) fn owed(&self, now: Nanos, entered: u128) -> Nanos {
        let mut ahead = *self;
        ahead.advance(now);
        Nanos(u64::try_from(ahead.clock - entered).unwrap_or(u64::MAX))
    }

    /// Whether `spent = paid + owed + undivided`, where `owed` is the sum over all holders.
    pub(crate) fn is_conserved(&self, owed: u128) -> bool {
        self.spent == self.paid + owed + self.undivided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_share_the_time_and_nothing_is_lost() {
        let mut charge = Charge::default();
        let (a, pause) = charge.enter(Nanos(100), Nanos(0));
        assert_eq!(pause, Nanos::ZERO);
        let (b, _) = charge.enter(Nanos(110), Nanos(0));
        let (c, _) = charge.enter(Nanos(110), Nanos(0));
        let paid = [
            charge.leave(Nanos(120), a, true),
            charge.leave(Nanos(130), b, true),
            charge.leave(Nanos(135), c, true),
        ];
        assert_eq!(paid, [Nanos(13), Nanos(8), Nanos(14)]);
        assert!(charge.is_conserved(0), "35 ns were held: {charge:?}");
    }

    #[test]
    fn an_entrant_pays_for_the_pause_before_its_turn() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0));
        charge.leave(Nanos(10), a, true);
        let (_, pause) = charge.enter(Nanos(25), Nanos(12));
        assert_eq!(pause, Nanos(13), "it waits since 12");
        let (b, _) = charge.enter(Nanos(30), Nanos(0));
        assert_eq!(charge.owed(Nanos(40), b), Nanos(5));
    }

    #[test]
    fn nobody_pays_for_a_card_that_was_not_wanted() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0));
        charge.leave(Nanos(10), a, false);
        let (_, pause) = charge.enter(Nanos(1000), Nanos(1000));
        assert_eq!(pause, Nanos::ZERO);
    }
}
