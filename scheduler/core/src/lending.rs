//! Backfill while a gang waits for another card: holders whose quantum is over keep their cards, and free
//! room is lent to sessions behind the gang, other gangs included. The borrowers come in the usual order of
//! turns.
//!
//! ```text
//!   gpu0  ── holder ── quantum over ┄┄ goes on ┄┄┄┐
//!   gpu1  ── holder ── ends ┄┄ lent to the next ┄┄┤
//!   gpu2  ─────────────── holder ─────────────────┤ quantum over: all of them let go
//!                                                 └─▶ the gang begins on all three
//! ```
//!
//! A loan is examined again whenever anything changes on the cards that the gang ties together. So a loan
//! delays the gang by at most a drain, if the last holder that it waits for lets go early. A loan is charged
//! like a turn. A session that wakes waits for the end of the borrower's turn, or pays for an early switch
//! (preempt.rs). If that session goes before the gang, the gang waits for the rest of the turn too. No room
//! is kept free for a session behind the gang that is too large for it.

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::core::Core;
use crate::few::ByGpu;
use crate::gpu::{quantum, queue};
use crate::gpu_set::GpuSet;
use crate::session::lock::Lock;

/// Smallest length of a loan, as a number of switch costs. Two switches take half of that time, and the other
/// half is of use.
const WORTH_LENDING: u64 = 4;

impl Core {
    /// Lends free cards of a waiting gang to sessions behind it. Returns whether any card was lent.
    pub(crate) fn lend_cards(&mut self, tied: GpuSet) -> bool {
        if tied.len() < 2 || !tied.overlaps(self.wanted) {
            return false;
        }
        let line: Vec<SessionId> = self.admissible(tied).collect();
        let first_on = |gpu| line.iter().find(|id| self.turn_cards(**id).contains(gpu));
        let firsts = tied.into_iter().filter_map(|gpu| Some((gpu, *first_on(gpu)?)));
        let firsts: ByGpu<SessionId> = firsts.collect();
        let mut taken = self.occupancies(tied);
        // Most sessions of a long line want the same card.
        let (mut asked, mut until) = (GpuSet::default(), None);
        let mut lent = false;
        for &id in &line {
            let cards = self.turn_cards(id);
            if !queue::fits(cards, |gpu| self.need(id, gpu), &taken) {
                continue;
            }
            if cards != asked {
                let first = |gpu| firsts.get(gpu).copied();
                (asked, until) = (cards, self.useless_until_on(cards, cards, first, None));
            }
            if let Some(until) = until.filter(|&until| self.pays_to_lend(id, until)) {
                queue::enter(cards, |gpu| self.need(id, gpu), &mut taken);
                self.grant_loan(id, until);
                asked = GpuSet::default();
                lent = true;
            }
        }
        lent
    }

    /// Whether a loan until `until` is long enough to be worth the switches.
    fn pays_to_lend(&self, id: SessionId, until: Nanos) -> bool {
        let worth = Nanos(self.switch_cost(id).0.saturating_mul(WORTH_LENDING));
        until - self.now >= worth.max(quantum::SHORTEST)
    }

    /// Decides on a holder whose quantum is over while a gang waits for other cards. The holder releases the
    /// lock for a borrower that precedes it in the order of turns. Else it keeps its cards until `until`, for
    /// at most another quantum.
    pub(crate) fn go_on(&mut self, id: SessionId, until: Nanos) {
        let grant = self.sessions.get(id).and_then(|session| session.lock.holding());
        if grant.is_some_and(|grant| self.now >= grant.clock.end()) && self.yields_behind(id, until) {
            return self.begin_drop(id);
        }
        let turn = self.now + self.quantum(id, Nanos::ZERO);
        self.lend(id, until.min(turn));
    }

    /// Whether another session would borrow a holder's cards until `until`, and precedes the holder in the
    /// order of turns.
    fn yields_behind(&self, id: SessionId, until: Nanos) -> bool {
        let cards = self.turn_cards(id);
        let tied = self.tied_to(cards);
        let mut taken = self.occupancies(tied);
        queue::leave(cards, |gpu| self.need(id, gpu), &mut taken);
        let firsts = cards.into_iter().filter_map(|gpu| self.first_on(gpu));
        let firsts: Vec<SessionId> = firsts.collect();
        let mut line = self.admissible(tied).filter(|other| !firsts.contains(other));
        line.any(|other| {
            let wants = self.turn_cards(other);
            let fits = wants.overlaps(cards) && queue::fits(wants, |gpu| self.need(other, gpu), &taken);
            let mut contested = wants.and(cards).into_iter();
            fits && self.pays_to_lend(other, until) && contested.any(|gpu| self.yields_to(id, other, gpu))
        })
    }

    fn lend(&mut self, id: SessionId, until: Nanos) {
        if !self.is_lent(id) {
            self.keeps_gangs(id);
        }
        if let Some(session) = self.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock.lend(self.now, until);
            self.lent = self.lent.with(self.turn_cards(id));
        }
    }

    /// Point in time until which the first waiters on a holder's cards wait for something else: a gang for
    /// other cards, another waiter for the end of the holder's loan. `None` if one of them waits for this
    /// holder alone.
    pub(crate) fn useless_until(&self, id: SessionId) -> Option<Nanos> {
        let own = self.turn_cards(id);
        let first = |gpu| self.first_on(gpu);
        self.useless_until_on(own.and(self.wanted), own, first, self.borrowed_turn(id))
    }

    /// Earliest point in time until which the first waiters on `cards` wait for cards outside `own`, or for
    /// the end of a borrowed `turn`.
    fn useless_until_on(
        &self,
        cards: GpuSet,
        own: GpuSet,
        first: impl Fn(GpuId) -> Option<SessionId>,
        turn: Option<Nanos>,
    ) -> Option<Nanos> {
        let waits = cards.into_iter().map(|gpu| {
            let first = first(gpu)?;
            let wants = self.turn_cards(first);
            let elsewhere = wants.and(self.wanted).without(own);
            let times = elsewhere.into_iter().map(|gpu| self.room_at(gpu, first));
            let turn = turn.filter(|_| wants.len() < 2);
            times.chain(turn).max().filter(|&at| at > self.now)
        });
        waits.reduce(|least, wait| least.zip(wait).map(|(a, b)| a.min(b)))?
    }

    fn borrowed_turn(&self, id: SessionId) -> Option<Nanos> {
        let grant = self.sessions.get(id)?.lock.holding()?;
        grant.clock.is_lent().then(|| grant.clock.turn_end())
    }

    /// Earliest point in time at which a waiter may have room on a card, if holders release it as their turns
    /// end. Stuck holders count as never releasing it.
    fn room_at(&self, gpu: GpuId, waiter: SessionId) -> Nanos {
        let (Some(card), Some(mut occupancy)) = (self.cards.get(gpu), self.occupancy_on(gpu)) else {
            return self.now;
        };
        let here = card.census.holders.iter().copied();
        let ends = here.filter(|&holder| self.turn_cards(holder).contains(gpu) && !self.is_stuck(holder));
        let mut ends: Vec<_> = ends.map(|holder| (self.turn_ends(holder), holder)).collect();
        ends.sort_unstable();
        let mut at = self.now;
        for (end, holder) in ends {
            if occupancy.fits(self.need(waiter, gpu)) {
                break;
            }
            occupancy.leave(self.need(holder, gpu));
            at = at.max(end);
        }
        at
    }

    /// Earliest point in time at which a holder releases the lock. A holder kept by a gang counts as
    /// releasing it when only such holders keep the gang. Two of them would otherwise wait for each other.
    fn turn_ends(&self, id: SessionId) -> Nanos {
        let Some(grant) = self.sessions.get(id).and_then(|session| session.lock.holding()) else {
            return self.now;
        };
        let turn = match grant.clock.is_lent() {
            false => Some(grant.clock.earliest_end(self.now)),
            true => self.borrowed_turn(id).filter(|_| !self.is_kept_for_gangs(id)),
        };
        match turn.filter(|&end| end > self.now) {
            Some(end) => end,
            None if self.makes_way(id).is_some() => self.now,
            None => self.now + self.quantum(id, Nanos::ZERO),
        }
    }

    /// Whether a gang is the first waiter on any of a holder's cards.
    fn is_kept_for_gangs(&self, id: SessionId) -> bool {
        let mut wanted = self.turn_cards(id).and(self.wanted).into_iter();
        wanted.any(|gpu| self.first_on(gpu).is_some_and(|first| self.turn_cards(first).len() > 1))
    }

    /// Examines the loans on some cards again after a change there. Returns whether there were any loans.
    pub(crate) fn touch_lent(&mut self, tied: GpuSet) -> bool {
        let here = tied.and(self.lent);
        let holders = self.cards.among(here).flat_map(|(_, card)| &card.census.holders);
        let lent: Vec<SessionId> = holders.copied().filter(|&id| self.is_lent(id)).collect();
        lent.iter().for_each(|&id| self.touch(id));
        if lent.is_empty() {
            self.lent = self.lent.without(here);
        }
        !lent.is_empty()
    }

    /// Relies on all loans until their ends, unless an end was computed just now. Floors rise with time and
    /// reorder gangs, which is examined only when anything else changes.
    pub(crate) fn rely_on_loans(&mut self) {
        for id in self.sessions.ids() {
            if let Some(session) = self.sessions.get_mut(id)
                && let Lock::Holding(grant) = &mut session.lock
            {
                grant.clock.rely_on(self.now);
            }
        }
    }

    fn is_lent(&self, id: SessionId) -> bool {
        let grant = self.sessions.get(id).and_then(|session| session.lock.holding());
        grant.is_some_and(|grant| grant.clock.is_lent())
    }

    /// Whether other loans depended on a session that now releases the lock; those loans are examined again.
    pub(crate) fn frees_others(&mut self, id: SessionId) -> bool {
        self.touch_lent(self.tied_to(self.turn_cards(id)))
    }

    /// Returns `cards` with all cards that gangs tie to any of them.
    fn tied_to(&self, cards: GpuSet) -> GpuSet {
        let tied = cards.into_iter().map(|gpu| self.tied(gpu));
        tied.fold(GpuSet::default(), GpuSet::with)
    }
}
