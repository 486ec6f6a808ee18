//! Backfill: while a gang waits for another card, sessions behind it may use its cards until it can begin.
//!
//! ```text
//!   gpu0  ── holder ── quantum over ┄┄ goes on ┄┄┄┄┄┄┄┐
//!   gpu1  ── holder ── ends ┄┄ backfilled turn ┄┄┄┄┄┄┄┤
//!   gpu2  ─────────────── holder ─────────────────────┤ its quantum is over: all of them let go
//!                                                     └─▶ the gang begins on all three
//! ```
//!
//! The start of a waiting gang is the latest time at which one of its cards has room, if holders let go as
//! their turns end. A session behind the gang is granted a turn if the turn can end before that start
//! (card/queue.rs). A holder whose quantum is over goes on until then. Both are charged as usual. Behind a
//! waiter for one card there is no backfill: its holders let go one after the other.
//!
//! When a session releases the lock or ends on one of these cards, the backfilled turns end too, unless the
//! gang still cannot begin.

use std::cell::RefCell;

use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};
use smallvec::SmallVec;

use crate::card::{quantum, queue};
use crate::machine::Core;
use crate::session::clock::Clock;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;
use crate::view::View;

/// Shortest backfilled turn, as a number of switch costs. Two switches take half of that time, and the other
/// half is of use.
const WORTH: u64 = 4;

/// Forecast of what waiters and holders do next if no event comes. Each fact about a card is found once,
/// however many sessions are asked about.
pub(crate) struct Prospect<'a> {
    view: &'a View,
    firsts: RefCell<ByGpu<Option<SessionId>>>,
    leaving: RefCell<ByGpu<Leaving>>,
}

/// Holders of a card by the end of their turns: the bytes that each leaves free, and whether it was already
/// asked for the card.
type Leaving = SmallVec<[(Nanos, Bytes, bool); 4]>;

impl<'a> Prospect<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        Self { view, firsts: RefCell::default(), leaving: RefCell::default() }
    }

    /// Earliest point in time at which a waiter that does not fit on the cards `misfits` can begin; the
    /// present if it waits for one card only.
    pub(crate) fn start(&self, id: SessionId, misfits: GpuSet) -> Nanos {
        let now = self.view.now;
        match self.view.turn_cards(id).len() {
            0 | 1 => now,
            _ => misfits.into_iter().map(|gpu| self.room_at(gpu, id)).max().unwrap_or(now),
        }
    }

    /// Point in time until which the first waiters on a holder's cards wait for other cards; `None` if one of
    /// them waits for this holder alone.
    pub(crate) fn useless_until(&self, id: SessionId) -> Option<Nanos> {
        let own = self.view.turn_cards(id);
        let waits = own.and(self.view.wanted).into_iter().map(|gpu| {
            let first = self.first_on(gpu)?;
            let elsewhere = self.view.turn_cards(first).and(self.view.wanted).without(own);
            Some(self.start(first, elsewhere)).filter(|&at| at > self.view.now)
        });
        waits.reduce(|least, wait| least.zip(wait).map(|(a, b)| a.min(b)))?
    }

    /// Whether another session would be granted a holder's cards until `until`, and precedes the holder in
    /// the order of turns.
    pub(super) fn yields_behind(&self, id: SessionId, until: Nanos) -> bool {
        let view = self.view;
        let cards = view.turn_cards(id);
        let mut taken = view.occupancies(view.tied(cards));
        queue::leave(cards, |gpu| view.claim(id, gpu), &mut taken);
        let firsts: SmallVec<[SessionId; 4]> =
            cards.into_iter().filter_map(|gpu| self.first_on(gpu)).collect();
        let mut line = view
            .admissible(cards)
            .filter(|other| !firsts.contains(other))
            .take(queue::DEPTH);
        line.any(|other| {
            let wants = view.turn_cards(other);
            let fits = queue::fits(wants, |gpu| view.claim(other, gpu), &taken);
            let mut contested = wants.and(cards).into_iter();
            fits && view.ends_before(other, until) && contested.any(|gpu| view.yields_to(id, other, gpu))
        })
    }

    /// Returns a card on which a holder whose quantum is over releases the lock for the first waiter.
    pub(crate) fn makes_way(&self, id: SessionId) -> Option<GpuId> {
        let mut cards = self.view.turn_cards(id).and(self.view.wanted).into_iter();
        cards.find(|&gpu| self.first_on(gpu).is_none_or(|first| self.view.yields_to(id, first, gpu)))
    }

    fn first_on(&self, gpu: GpuId) -> Option<SessionId> {
        let found = self.firsts.borrow().get(gpu).copied();
        found.unwrap_or_else(|| {
            let first = self.view.first_on(gpu);
            self.firsts.borrow_mut().insert(gpu, first);
            first
        })
    }

    /// Earliest point in time at which a waiter may have room on a card, if holders release it as their turns
    /// end. Stuck holders count as never releasing it.
    fn room_at(&self, gpu: GpuId, waiter: SessionId) -> Nanos {
        let now = self.view.now;
        let Some(mut occupancy) = self.view.occupancy_on(gpu) else { return now };
        if !self.leaving.borrow().contains(gpu) {
            let leaving = self.leaving_from(gpu);
            self.leaving.borrow_mut().insert(gpu, leaving);
        }
        let need = self.view.claim(waiter, gpu);
        let mut at = now;
        for &(end, bytes, asked) in self.leaving.borrow().get(gpu).into_iter().flatten() {
            if occupancy.fits(need) {
                break;
            }
            match asked {
                true => occupancy.end_drain(bytes),
                false => occupancy.leave(bytes),
            }
            at = at.max(end);
        }
        at
    }

    fn leaving_from(&self, gpu: GpuId) -> Leaving {
        let view = self.view;
        let here = view.cards.get(gpu).into_iter().flat_map(|card| &card.index.holders);
        let ends = here.filter(|&&holder| view.turn_cards(holder).contains(gpu) && !view.is_stuck(holder));
        let leaves =
            |&holder: &SessionId| (self.turn_ends(holder), view.need(holder, gpu), view.is_dropping(holder));
        let mut leaving: Leaving = ends.map(leaves).collect();
        leaving.sort_by_key(|&(end, ..)| end);
        leaving
    }

    /// Earliest point in time at which a holder releases the lock: the end of its quantum, or of the next one
    /// if it is about to begin another.
    fn turn_ends(&self, id: SessionId) -> Nanos {
        let (view, now) = (self.view, self.view.now);
        let Some(grant) = view.sessions.get(id).and_then(|session| session.lock.holding()) else {
            return now;
        };
        match grant.clock.earliest_end(now) {
            end if end > now => end,
            _ if self.makes_way(id).is_some() => now,
            _ => now + view.turn_length(id, Nanos::ZERO),
        }
    }
}

impl View {
    /// Whether a turn that begins now can end before `limit` and is worth its switches.
    pub(crate) fn ends_before(&self, id: SessionId, limit: Nanos) -> bool {
        let worth = Nanos(self.switch_cost(id).0.saturating_mul(WORTH));
        limit - self.now >= worth.max(quantum::SHORTEST)
    }
}

impl Core {
    /// Ends the backfilled turns on some cards. A holder goes on if its cards are still of no use to the gang.
    pub(crate) fn end_backfill(&mut self, cards: GpuSet) {
        let holders = self.view.cards.among(cards).flat_map(|(_, card)| &card.index.holders);
        let limited = |id: &SessionId| {
            let grant = self.view.sessions.get(*id).and_then(|session| session.lock.holding());
            grant.is_some_and(|grant| grant.clock.is_limited())
        };
        let backfilled: Vec<SessionId> = holders.copied().filter(limited).collect();
        backfilled.into_iter().for_each(|id| self.end_quantum(id, Clock::end_at));
    }
}
