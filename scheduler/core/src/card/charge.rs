//! Who pays for the time of a card that takes turns: whoever holds it, in equal parts.
//!
//! ```text
//!   clock   what each of the holders of now pays, added up:  elapsed ÷ holders
//!   a holder pays  clock when it lets go − clock when it was granted
//! ```
//!
//! So a grant and a release cost the same however many hold the card. Conserved: what everybody paid and still owes, and the
//! rest that could not be divided yet, is the time in which somebody held the card, and the pauses that were kept for an
//! entrant.

use gpushare_proto::Nanos;

/// The account of one card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    clock: u128,
    undivided: u128,
    sharers: u32,
    at: Nanos,
    /// Since when nobody holds it while somebody waits.
    vacant: Option<Nanos>,
    /// The time in which somebody held it, and the pauses that an entrant paid.
    spent: u128,
    /// What was paid of it.
    paid: u128,
}

impl Charge {
    /// Time passes.
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

    /// A session that waits since `asked` holds it. What it pays for the pause that was kept for it.
    pub(crate) fn enter(&mut self, now: Nanos, asked: Nanos) -> (u128, Nanos) {
        self.advance(now);
        self.sharers += 1;
        let pause = self.vacant.take().map_or(Nanos::ZERO, |since| now - since.max(asked));
        self.spent += u128::from(pause.0);
        self.paid += u128::from(pause.0);
        (self.clock, pause)
    }

    /// A session that `entered` lets go. What it pays.
    pub(crate) fn leave(&mut self, now: Nanos, entered: u128, somebody_waits: bool) -> Nanos {
        let owed = self.owed(now, entered);
        self.advance(now);
        self.sharers -= 1;
        self.vacant = (self.sharers == 0 && somebody_waits).then_some(now);
        self.paid += u128::from(owed.0);
        owed
    }

    /// A session that `entered` pays what it owes, and goes on. What it pays, and when it entered now.
    pub(crate) fn settle(&mut self, now: Nanos, entered: u128) -> (Nanos, u128) {
        let owed = self.owed(now, entered);
        self.advance(now);
        self.paid += u128::from(owed.0);
        (owed, entered + u128::from(owed.0))
    }

    /// What a session that `entered` owes by now.
    pub(crate) fn owed(&self, now: Nanos, entered: u128) -> Nanos {
        let mut ahead = *self;
        ahead.advance(now);
        Nanos(u64::try_from(ahead.clock - entered).unwrap_or(u64::MAX))
    }

    /// Whether everything was paid but what `owed` sums up and what could not be divided.
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
    fn the_pause_that_was_kept_for_an_entrant_is_the_entrants() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0));
        charge.leave(Nanos(10), a, true);
        let (_, pause) = charge.enter(Nanos(25), Nanos(12));
        assert_eq!(pause, Nanos(13), "it waits since 12");
        let (b, _) = charge.enter(Nanos(30), Nanos(0));
        assert_eq!(charge.owed(Nanos(40), b), Nanos(5));
    }

    #[test]
    fn a_card_that_nobody_waits_for_costs_nobody_anything() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0));
        charge.leave(Nanos(10), a, false);
        let (_, pause) = charge.enter(Nanos(1000), Nanos(1000));
        assert_eq!(pause, Nanos::ZERO);
    }
}
