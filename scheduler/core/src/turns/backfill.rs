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

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::card::{quantum, queue};
use crate::machine::Core;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

/// Shortest backfilled turn, as a number of switch costs. Two switches take half of that time, and the other
/// half is of use.
const WORTH: u64 = 4;

impl View {
    /// Earliest point in time at which a waiter that does not fit on the cards `misfits` can begin; the
    /// present if it waits for one card only.
    pub(crate) fn start(&self, id: SessionId, misfits: GpuSet) -> Nanos {
        match self.turn_cards(id).len() {
            0 | 1 => self.now,
            _ => misfits.into_iter().map(|gpu| self.room_at(gpu, id)).max().unwrap_or(self.now),
        }
    }

    /// Whether a turn that begins now can end before `limit` and is worth its switches.
    pub(crate) fn ends_before(&self, id: SessionId, limit: Nanos) -> bool {
        let worth = Nanos(self.switch_cost(id).0.saturating_mul(WORTH));
        limit - self.now >= worth.max(quantum::SHORTEST)
    }

    /// Point in time until which the first waiters on a holder's cards wait for other cards; `None` if one of
    /// them waits for this holder alone.
    pub(crate) fn useless_until(&self, id: SessionId) -> Option<Nanos> {
        let own = self.turn_cards(id);
        let waits = own.and(self.wanted).into_iter().map(|gpu| {
            let first = self.first_on(gpu)?;
            let elsewhere = self.turn_cards(first).and(self.wanted).without(own);
            Some(self.start(first, elsewhere)).filter(|&at| at > self.now)
        });
        waits.reduce(|least, wait| least.zip(wait).map(|(a, b)| a.min(b)))?
    }

    /// Whether another session would be granted a holder's cards until `until`, and precedes the holder in
    /// the order of turns.
    pub(super) fn yields_behind(&self, id: SessionId, until: Nanos) -> bool {
        let cards = self.turn_cards(id);
        let tied = self.tied(cards);
        let mut taken = self.occupancies(tied);
        queue::leave(cards, |gpu| self.need(id, gpu), &mut taken);
        let firsts: Vec<SessionId> = cards.into_iter().filter_map(|gpu| self.first_on(gpu)).collect();
        let mut line = self.admissible(tied).filter(|other| !firsts.contains(other));
        line.any(|other| {
            let wants = self.turn_cards(other);
            let fits = wants.overlaps(cards) && queue::fits(wants, |gpu| self.need(other, gpu), &taken);
            let mut contested = wants.and(cards).into_iter();
            fits && self.ends_before(other, until) && contested.any(|gpu| self.yields_to(id, other, gpu))
        })
    }

    /// Earliest point in time at which a waiter may have room on a card, if holders release it as their turns
    /// end. Stuck holders count as never releasing it.
    fn room_at(&self, gpu: GpuId, waiter: SessionId) -> Nanos {
        let (Some(card), Some(mut occupancy)) = (self.cards.get(gpu), self.occupancy_on(gpu)) else {
            return self.now;
        };
        let here = card.index.holders.iter().copied();
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

    /// Earliest point in time at which a holder releases the lock: the end of its quantum, or of the next one
    /// if it is about to begin another.
    fn turn_ends(&self, id: SessionId) -> Nanos {
        let Some(grant) = self.sessions.get(id).and_then(|session| session.lock.holding()) else {
            return self.now;
        };
        match grant.clock.earliest_end(self.now) {
            end if end > self.now => end,
            _ if self.makes_way(id).is_some() => self.now,
            _ => self.now + self.quantum(id, Nanos::ZERO),
        }
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
        backfilled.into_iter().for_each(|id| self.end_quantum(id));
    }
}
