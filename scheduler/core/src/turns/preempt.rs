//! Early end of a quantum, for a session that was idle and wakes. Its class must be higher than that of the
//! holders, or its virtual time must not be above theirs. The card's switch budget must cover the cost.
//!
//! The session then goes before all others in the queue. Where no memory moves, its turn begins at once, and
//! the work in flight of the others ends beside it (card/queue.rs). Only here are classes a strict order:
//! elsewhere a class is a factor of the weight. No quantum ends early where the administrator fixed its
//! length.
//!
//! An early turn that is not over at the end of its quantum goes on if only lower classes wait, for as long as
//! the budget pays for each quantum as for an early switch. So a burst that is longer than a quantum is not
//! cut in two.
//!
//! A notebook's cell or a rare request is thus served as soon as the holder has drained. A program that had
//! to release the lock and asks again at once was not idle, so it waits for its turn.

use std::cmp::Reverse;

use gpushare_proto::{GpuId, Nanos, SessionId};
use smallvec::SmallVec;

use crate::card::Card;
use crate::card::queue::Need;
use crate::machine::Core;
use crate::session::Session;
use crate::session::clock::Clock;
use crate::session::lock::Lock;
use crate::session::share::part;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

impl View {
    /// Holders on a card that must release the lock for a waiter, starting with the one that has had the most
    /// time. `None` if that would not help, or if another waiter of its class or a higher one goes first.
    fn in_the_way(&self, id: SessionId, gpu: GpuId) -> Option<Vec<SessionId>> {
        let first = self.first_on(gpu)?;
        let class = |id| self.sessions.get(id).map(|session| session.share.class);
        let card = self.cards.get(gpu).filter(|_| first == id || class(id) < class(first))?;
        let need = self.claim(id, gpu);
        let mut occupancy = self.occupancy_on(gpu)?;
        let mut staying: SmallVec<[SessionId; 16]> = SmallVec::new();
        let here = |holder| self.turn_cards(holder).contains(gpu) && !self.is_stuck(holder);
        for holder in card.index.holders.iter().copied().filter(|&holder| here(holder)) {
            match self.is_dropping(holder) {
                true => occupancy.end_drain(self.need(holder, gpu)),
                false => staying.push(holder),
            }
        }
        if occupancy.fits(need) {
            return Some(Vec::new());
        }
        let own = self.standing_in_line(id);
        let staying = staying.into_iter().map(|holder| (self.standing_in_line(holder), holder));
        let mut behind: Vec<_> = staying.filter(|&(standing, _)| own <= standing).collect();
        behind.sort_by_key(|&(standing, _)| Reverse(standing));
        let mut leave = Vec::new();
        for (_, holder) in behind {
            if occupancy.fits(need) {
                break;
            }
            occupancy.leave(self.need(holder, gpu));
            leave.push(holder);
        }
        occupancy.fits(need).then_some(leave)
    }

    /// Whether a session waits only for drains on some cards, beside which an early turn may begin.
    fn waits_for_drains(&self, id: SessionId, cards: GpuSet) -> bool {
        let drains = |(_, card): (_, &Card)| card.index.in_turn(card.takes_turns()).dropping > 0;
        let may_begin = |gpu| {
            let need = Need { early: true, ..self.claim(id, gpu) };
            self.occupancy_on(gpu).is_some_and(|occupancy| occupancy.fits(need))
        };
        self.overlaps(id) && self.cards.among(cards).any(drains) && cards.into_iter().all(may_begin)
    }

    /// Cost of an early turn of one quantum: two switches, to the session and back. A quantum pays for one switch,
    /// so early turns have half of the time at most in the long run, also if it is the shortest one.
    fn early_cost(&self, id: SessionId) -> Nanos {
        let cards = self.cards.among(self.turn_cards(id));
        let shortest = cards.map(|(_, card)| part(self.config.quantum_min, card.knobs.epsilon)).max();
        let once = self.switch_cost(id).max(shortest.unwrap_or_default()).max(Nanos(1));
        once + once
    }

    pub(crate) fn is_dropping(&self, id: SessionId) -> bool {
        let lock = self.sessions.get(id).map(|session| &session.lock);
        lock.is_some_and(|lock| lock.dropping().is_some())
    }
}

impl Core {
    /// Ends the quanta of holders that keep a session out that was idle and woke. The switch budgets of all
    /// its cards must allow that.
    pub(crate) fn preempt(&mut self) {
        for id in std::mem::take(&mut self.wakers) {
            let waits = |session: &Session| session.queued_ticket().is_some();
            if !self.view.sessions.get(id).is_some_and(waits) {
                continue;
            }
            let cards = self.view.turn_cards(id).and(self.view.wanted);
            // The cheap question first: most sessions that wake on a busy card find its budget spent.
            let least = self.view.config.switch_cost;
            if !self.is_in_budget(cards, least + least) {
                continue;
            }
            let cost = self.view.early_cost(id);
            if !self.is_in_budget(cards, cost) || !self.view.is_admissible(id) {
                continue;
            }
            let conflicts = cards.into_iter().map(|gpu| self.view.in_the_way(id, gpu));
            let Some(conflicts) = conflicts.collect::<Option<Vec<_>>>() else {
                continue;
            };
            if conflicts.iter().all(Vec::is_empty) && !self.view.waits_for_drains(id, cards) {
                continue;
            }
            if let Some(session) = self.view.sessions.get_mut(id) {
                session.urgent = true;
            }
            self.recount(id);
            self.reordered = true;
            self.spend(cards, cost);
            conflicts
                .into_iter()
                .flatten()
                .for_each(|holder| self.end_quantum(holder, Clock::interrupt));
        }
    }

    /// Whether an early turn at the end of its quantum goes on, since only lower classes wait and the switch
    /// budgets pay for it. Spends from them if so.
    pub(crate) fn pays_to_go_on(&mut self, id: SessionId) -> bool {
        let view = &self.view;
        let Some(session) = view.sessions.get(id) else {
            return false;
        };
        let cards = session.turn_cards(view.in_turns).and(view.wanted);
        let class = |id| view.sessions.get(id).map(|session: &Session| session.share.class);
        let outranks = |gpu| view.first_on(gpu).is_none_or(|first| class(id) < class(first));
        if !session
            .lock
            .holding()
            .is_some_and(|grant| grant.is_early && !grant.clock.is_limited())
            || !cards.into_iter().all(outranks)
        {
            return false;
        }
        let cost = view.early_cost(id);
        let pays = self.is_in_budget(cards, cost);
        if pays {
            self.spend(cards, cost);
        }
        pays
    }

    /// Whether the switch budgets of all of some cards cover a cost.
    fn is_in_budget(&mut self, cards: GpuSet, cost: Nanos) -> bool {
        let (now, config) = (self.view.now, &self.view.config);
        let mut cards = cards.into_iter();
        cards.all(|gpu| {
            let card = self.view.cards.get_mut(gpu);
            card.is_none_or(|card| card.budget(now, config) >= cost)
        })
    }

    /// Takes a cost from the switch budgets of some cards.
    fn spend(&mut self, cards: GpuSet, cost: Nanos) {
        for gpu in cards {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.budget.spend(cost);
            }
        }
    }

    /// Ends the quantum of a holder now, as `end` does it.
    pub(crate) fn end_quantum(&mut self, id: SessionId, end: fn(&mut Clock, Nanos)) {
        let now = self.view.now;
        if let Some(session) = self.view.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            end(&mut grant.clock, now);
        }
        self.touch(id);
    }
}
