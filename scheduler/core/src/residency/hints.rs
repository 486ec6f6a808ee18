//! Hints for managed memory on one card: the way out of sessions that let go, beside the way in of others.
//!
//! ```text
//!   a session lets go ─────▶ leavers: the last four
//!   another one comes in ──▶ room beside the holders ─▶ goals of the leavers that do not fit there
//!   nobody comes in ───────▶ the goals are lifted
//! ```
//!
//! The driver moves managed memory and tells nobody where it is. It evicts what was used longest ago, page by page, and
//! the entrant waits for that. A goal asks a process to move the same bytes out itself. If it does not, the driver
//! does. So only few leavers are kept, and nothing is estimated.
//!
//! Goals are not changed while they are in force. They end sooner if one of their sessions holds the lock again.

use gpushare_proto::page::GoalNumber;
use gpushare_proto::{Bytes, ClientId, SessionId};
use smallvec::SmallVec;

use crate::session::on_card::Listing;

/// Number of sessions that are kept after they let go.
const LEAVERS: usize = 4;

/// Sessions that last let go of one card, and the goals in force there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    /// Sessions that let go, in a ring. They may hold the lock again, or be in it twice.
    leavers: [Option<SessionId>; LEAVERS],
    /// Place in the ring of the longest gone.
    oldest: usize,
    /// Number of sessions that bring memory in.
    entrants: u32,
    /// Sessions with goals in force.
    hinted: SmallVec<[SessionId; LEAVERS]>,
    /// Whether the goals in force are to be lifted.
    are_over: bool,
    /// Number of the latest goal on the card, of any process.
    number: GoalNumber,
}

impl Hints {
    /// Whether a change of a session's entry in the card's index is to be noted.
    pub(crate) fn concern(old: &Listing, new: &Listing) -> bool {
        (old.holds(), old.moves) != (new.holds(), new.moves)
    }

    /// Notes a change of a session's entry in the card's index. Returns whether goals are to be given or lifted.
    #[inline(never)]
    pub(crate) fn note(&mut self, id: SessionId, old: &Listing, new: &Listing) -> bool {
        self.entrants = self.entrants + u32::from(new.moves) - u32::from(old.moves);
        if !new.holds() {
            self.leavers[self.oldest] = Some(id);
            self.oldest = (self.oldest + 1) % LEAVERS;
        }
        if self.hinted.is_empty() {
            return new.moves;
        }
        self.are_over |= self.entrants == 0 || (!old.holds() && self.hinted.contains(&id));
        self.are_over
    }

    /// Lifts the goals in force if they are over. `managed` returns the processes of a session with their managed
    /// memory on the card, and `goal` takes each new goal.
    pub(crate) fn lift<P: Iterator<Item = (ClientId, Bytes)>>(
        &mut self,
        managed: impl Fn(SessionId) -> P,
        mut goal: impl FnMut(ClientId, GoalNumber, Bytes),
    ) {
        if !std::mem::take(&mut self.are_over) {
            return;
        }
        for (client, _) in std::mem::take(&mut self.hinted).into_iter().flat_map(managed) {
            self.number = self.number.next();
            goal(client, self.number, Bytes::MAX);
        }
    }

    /// Gives goals if a session comes in and none are in force: the last leavers keep what fits the `room` beside the
    /// holders. A leaver of which nothing stays is forgotten.
    pub(crate) fn give<P: Iterator<Item = (ClientId, Bytes)>>(
        &mut self,
        mut room: Bytes,
        managed: impl Fn(SessionId) -> P,
        mut goal: impl FnMut(ClientId, GoalNumber, Bytes),
    ) {
        if self.entrants == 0 || !self.hinted.is_empty() {
            return;
        }
        for back in 1..=LEAVERS {
            let at = (self.oldest + LEAVERS - back) % LEAVERS;
            let Some(id) = self.leavers[at] else { continue };
            let (before, mut fits) = (room, true);
            for (client, own) in managed(id) {
                let stays = own.min(room);
                room -= stays;
                if stays < own {
                    fits = false;
                    self.number = self.number.next();
                    goal(client, self.number, stays);
                }
            }
            if !fits {
                self.hinted.push(id);
            }
            // A session that left several times counts once. One of which nothing stays is forgotten.
            self.leavers = self.leavers.map(|leaver| leaver.filter(|&leaver| leaver != id));
            self.leavers[at] = Some(id).filter(|_| room < before);
        }
    }

    /// Sessions with goals in force.
    pub(crate) fn hinted(&self) -> &[SessionId] {
        &self.hinted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::on_card::Presence;

    fn gib(bytes: u64) -> Bytes {
        Bytes::gib(bytes)
    }

    fn listing(holds: bool, moves: bool) -> Listing {
        let presence = if holds { Presence::Holding } else { Presence::None };
        Listing { presence, moves, ..Listing::default() }
    }

    /// A card with sessions of one process each, which have as many GiB as their numbers say.
    #[derive(Default)]
    struct Card {
        hints: Hints,
        due: bool,
        holders: Vec<u64>,
    }

    impl Card {
        fn note(&mut self, id: u64, old: Listing, new: Listing) {
            self.due |= self.hints.note(SessionId(id), &old, &new);
        }

        fn leaves(&mut self, id: u64) {
            self.note(id, listing(true, false), listing(false, false));
        }

        fn comes(&mut self, id: u64) {
            self.note(id, listing(false, false), listing(true, true));
        }

        fn is_in(&mut self, id: u64) {
            self.note(id, listing(true, true), listing(true, false));
        }

        /// Goals that follow with so much room for leavers; `None` for those that are lifted.
        fn goals(&mut self, room: u64) -> Vec<(u64, Option<u64>)> {
            let mut goals = Vec::new();
            let managed = |id: SessionId| [(ClientId(id.0), gib(id.0))].into_iter();
            let mut goal = |client: ClientId, _, bytes: Bytes| {
                goals.push((client.0, (bytes != Bytes::MAX).then_some(bytes.0 >> 30)));
            };
            let left = |id: SessionId| managed(id).filter(|(client, _)| !self.holders.contains(&client.0));
            if std::mem::take(&mut self.due) {
                self.hints.lift(managed, &mut goal);
                self.hints.give(gib(room), left, goal);
            }
            goals
        }
    }

    #[test]
    fn the_last_leavers_keep_what_fits_and_the_others_give() {
        let mut card = Card::default();
        [2, 6, 3].into_iter().for_each(|id| card.leaves(id));
        card.comes(9);
        assert_eq!(card.goals(5), [(6, Some(2)), (2, Some(0))], "3 and 2 fit");
        card.is_in(9);
        assert_eq!(card.goals(5), [(6, None), (2, None)]);
        card.comes(8);
        assert_eq!(card.goals(5), [(6, Some(2))], "nothing of 2 is left");
    }

    #[test]
    fn leavers_that_fit_get_no_goal_and_give_to_a_later_entrant() {
        let mut card = Card::default();
        card.leaves(6);
        card.comes(1);
        assert_eq!(card.goals(7), []);
        card.comes(2);
        assert_eq!(card.goals(5), [(6, Some(5))]);
    }

    #[test]
    fn goals_last_until_nobody_comes_in() {
        let mut card = Card::default();
        card.leaves(6);
        card.comes(1);
        assert_eq!(card.goals(4), [(6, Some(4))]);
        card.leaves(3);
        card.comes(2);
        assert_eq!(card.goals(2), [], "goals are in force");
        card.is_in(1);
        assert_eq!(card.goals(2), []);
        card.is_in(2);
        assert_eq!(card.goals(2), [(6, None)]);
        card.comes(4);
        assert_eq!(card.goals(5), [(6, Some(2))], "3 let go later, and stays");
    }

    #[test]
    fn an_entrant_that_does_not_stay_gets_no_room() {
        let mut card = Card::default();
        card.leaves(6);
        card.comes(1);
        card.is_in(1);
        assert_eq!(card.goals(0), []);
    }

    #[test]
    fn a_leaver_that_holds_the_lock_again_ends_all_goals_and_gives_nothing() {
        let mut card = Card::default();
        [5, 6].into_iter().for_each(|id| card.leaves(id));
        card.comes(1);
        assert_eq!(card.goals(5), [(6, Some(5)), (5, Some(0))]);
        card.note(6, listing(false, false), listing(true, false));
        card.holders = vec![6];
        assert_eq!(card.goals(2), [(6, None), (5, None)]);
        card.comes(2);
        assert_eq!(card.goals(0), [], "5 has nothing left, and 6 holds the lock");
    }

    #[test]
    fn only_the_last_leavers_are_kept() {
        let mut card = Card::default();
        (1..=6).for_each(|id| card.leaves(id));
        card.comes(9);
        assert_eq!(card.goals(0).iter().map(|&(id, _)| id).collect::<Vec<_>>(), [6, 5, 4, 3]);
    }
}
