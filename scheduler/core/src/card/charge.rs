//! Charge clock of a card: the sessions that hold the lock pay for the card's time in equal parts. While some
//! of them bring memory in, only these pay.
//!
//! ```text
//!   moving clock    Σ elapsed ÷ movers, while any holder moves
//!   resident clock  Σ elapsed ÷ holders, while none moves
//!   a holder pays  its clock when it lets go, or is in − its clock when it began to hold, or to move
//! ```
//!
//! A grant and a release cost the same however many sessions hold the card. Time is conserved: `paid + owed +
//! undivided = time held + pauses paid by entrants`.

use gpushare_proto::Nanos;

/// Charge clock of one card, with the sums that prove that no time is lost or charged twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charge {
    resident: Group,
    moving: Group,
    undivided: u128,
    at: Nanos,
    /// Point in time since which no session holds the card although one waits.
    vacant: Option<Nanos>,
    /// Duration for which the card was held, plus the pauses that newly granted sessions paid for.
    spent: u128,
    /// Duration that sessions have paid for so far.
    paid: u128,
}

/// Sessions that hold the lock and pay by the same clock.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    clock: u128,
    payers: u32,
}

/// Reading of a charge clock at the moment when a session began to pay by that clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) clock: u128,
    /// Whether the reading is of the clock for sessions that bring their memory in.
    pub(crate) moves: bool,
}

impl Charge {
    pub(crate) fn advance(&mut self, now: Nanos) {
        let elapsed = u128::from((now - self.at).0);
        self.at = self.at.max(now);
        let moves = self.moving.payers > 0;
        let payers = u128::from(self.group(moves).payers);
        let sum = self.undivided + elapsed;
        if let Some(each) = sum.checked_div(payers) {
            self.group_mut(moves).clock += each;
            self.undivided = sum % payers;
            self.spent += elapsed;
        }
    }

    fn group(&self, moves: bool) -> Group {
        if moves { self.moving } else { self.resident }
    }

    fn group_mut(&mut self, moves: bool) -> &mut Group {
        if moves { &mut self.moving } else { &mut self.resident }
    }

    fn begin(&mut self, moves: bool) -> Reading {
        let group = self.group_mut(moves);
        group.payers += 1;
        Reading { clock: group.clock, moves }
    }

    /// Adds a holder that has waited since `asked`; `moves` says whether it first brings its memory in.
    /// Returns the reading of the holder's clock, and the pause for which the holder pays.
    pub(crate) fn enter(&mut self, now: Nanos, asked: Nanos, moves: bool) -> (Reading, Nanos) {
        self.advance(now);
        let pause = self.vacant.take().map_or(Nanos::ZERO, |since| now - since.max(asked));
        self.spent += u128::from(pause.0);
        self.paid += u128::from(pause.0);
        (self.begin(moves), pause)
    }

    /// Removes a holder that began to pay at the reading `entered`. Returns the time that it pays.
    pub(crate) fn leave(&mut self, now: Nanos, entered: Reading, is_wanted: bool) -> Nanos {
        let (owed, _) = self.pay_so_far(now, entered);
        self.group_mut(entered.moves).payers -= 1;
        let holders = self.resident.payers + self.moving.payers;
        self.vacant = (holders == 0 && is_wanted).then_some(now);
        owed
    }

    /// Charges a holder so far and changes its clock; `moves` says whether it brings memory in from now on.
    /// Returns the charged time, and the reading of the new clock.
    pub(crate) fn change(&mut self, now: Nanos, entered: Reading, moves: bool) -> (Nanos, Reading) {
        let (owed, _) = self.pay_so_far(now, entered);
        self.group_mut(entered.moves).payers -= 1;
        (owed, self.begin(moves))
    }

    /// Charges a holder for its time so far. Returns the charged time and the clock's present reading.
    pub(crate) fn pay_so_far(&mut self, now: Nanos, entered: Reading) -> (Nanos, Reading) {
        let owed = self.owed(now, entered);
        self.advance(now);
        self.paid += u128::from(owed.0);
        (owed, Reading { clock: entered.clock + u128::from(owed.0), ..entered })
    }

    /// Time that a holder will be charged for if its turn ends now.
    pub(crate) fn owed(&self, now: Nanos, entered: Reading) -> Nanos {
        let clock = self.clocks(now)[usize::from(entered.moves)];
        Nanos(u64::try_from(clock - entered.clock).unwrap_or(u64::MAX))
    }

    /// Resident clock and moving clock at the time `now`.
    pub(crate) fn clocks(&self, now: Nanos) -> [u128; 2] {
        let mut ahead = *self;
        ahead.advance(now);
        [ahead.resident.clock, ahead.moving.clock]
    }

    /// Whether `spent = paid + owed + undivided`; `owed` is the holders' time that is not charged yet.
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
        let (a, pause) = charge.enter(Nanos(100), Nanos(0), false);
        assert_eq!(pause, Nanos::ZERO);
        let (b, _) = charge.enter(Nanos(110), Nanos(0), false);
        let (c, _) = charge.enter(Nanos(110), Nanos(0), false);
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
        let (a, _) = charge.enter(Nanos(0), Nanos(0), false);
        charge.leave(Nanos(10), a, true);
        let (_, pause) = charge.enter(Nanos(25), Nanos(12), false);
        assert_eq!(pause, Nanos(13), "it waits since 12");
        let (b, _) = charge.enter(Nanos(30), Nanos(0), false);
        assert_eq!(charge.owed(Nanos(40), b), Nanos(5));
    }

    #[test]
    fn nobody_pays_for_a_card_that_was_not_wanted() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0), false);
        charge.leave(Nanos(10), a, false);
        let (_, pause) = charge.enter(Nanos(1000), Nanos(1000), false);
        assert_eq!(pause, Nanos::ZERO);
    }

    #[test]
    fn an_entrant_pays_for_its_whole_move_and_its_neighbour_for_none_of_it() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0), false);
        let (b, _) = charge.enter(Nanos(10), Nanos(0), true);
        assert_eq!([charge.owed(Nanos(50), a), charge.owed(Nanos(50), b)], [Nanos(10), Nanos(40)]);
        let (moved, b) = charge.change(Nanos(50), b, false);
        assert_eq!(moved, Nanos(40));
        let paid = [charge.leave(Nanos(60), a, true), charge.leave(Nanos(60), b, true)];
        assert_eq!(paid, [Nanos(15), Nanos(5)]);
        assert!(charge.is_conserved(0), "60 ns were held: {charge:?}");
    }

    #[test]
    fn sessions_that_move_at_once_share_that_time() {
        let mut charge = Charge::default();
        let (a, _) = charge.enter(Nanos(0), Nanos(0), false);
        let [b, c] = [(); 2].map(|()| charge.enter(Nanos(0), Nanos(0), true).0);
        let owed = |charge: &Charge| [a, b, c].map(|entered| charge.owed(Nanos(15), entered));
        assert_eq!(owed(&charge), [Nanos(0), Nanos(7), Nanos(7)]);
        charge.advance(Nanos(15));
        assert!(charge.is_conserved(14), "one nanosecond is undivided: {charge:?}");
    }
}
