//! Drops (requests for the lock) and their ends: holders that no longer fit together, quanta that are over,
//! late drops, and the release of drained locks.

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::card::queue;
use crate::events::{Effect, Notice};
use crate::machine::Core;
use crate::session::Session;
use crate::session::drop::{PendingDrop, Step};
use crate::session::lock::Lock;
use crate::turns::backfill::Prospect;
use crate::view::View;

/// Decision on a holder whose quantum is over.
enum AfterQuantum {
    /// The holder releases the lock for the first waiter on a card.
    MakeWay(GpuId),
    /// The holder releases the lock for a session whose turn is backfilled.
    Drop,
    /// Another quantum begins; if it is backfilled, it ends by the given time.
    Renew(Option<Nanos>),
}

impl View {
    fn after_quantum(&self, id: SessionId) -> AfterQuantum {
        let prospect = Prospect::new(self);
        match prospect.useless_until(id) {
            Some(until) if prospect.yields_behind(id, until) => AfterQuantum::Drop,
            Some(until) => AfterQuantum::Renew(Some(until)),
            None => prospect.makes_way(id).map_or(AfterQuantum::Renew(None), AfterQuantum::MakeWay),
        }
    }

    /// Whether a waiting session needs holders to make room on a card.
    pub(crate) fn is_wanted(&self, gpu: GpuId) -> bool {
        self.wanted.contains(gpu)
    }

    pub(crate) fn expected_drain(&self, id: SessionId) -> Nanos {
        let cards = self.cards.among(self.cards_of(id));
        let drains = cards.map(|(gpu, card)| self.drain_on(id, gpu, card).max(card.knobs.window_target));
        drains.max().unwrap_or_default()
    }
}

impl Core {
    /// Releases the locks of all sessions on the agenda that have drained. Returns whether there were any.
    pub(crate) fn collect(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.agenda.len() {
            let id = self.agenda.session(at);
            let session = self.view.sessions.get(id);
            if session.is_some_and(|session| session.has_let_go(self.view.on_demand)) {
                self.free(id);
                any = true;
            }
        }
        any
    }

    /// Releases the lock of a session that has drained, and records the duration of its drain.
    fn free(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let Some((epoch, is_turn)) = session.lock.grant().map(|grant| (grant.epoch, grant.is_turn)) else {
            return;
        };
        let drop = session.lock.dropping();
        let drain = drop.map(PendingDrop::drain);
        let vacated = drop.map_or(self.view.now, PendingDrop::since);
        session.shut();
        session.left = Some((self.view.now, drain.is_some()));
        // A holder without a turn may still bring its memory in, which makes its drain long.
        let typical = drain.filter(|&drain| is_turn || drain <= self.view.config.drain_target);
        for (_, on) in session.cards.iter_mut().filter(|(_, on)| on.is_attached()) {
            typical.into_iter().for_each(|drain| on.drained(drain));
        }
        let (cards, gpus) = (session.uses, session.turn_cards(self.view.in_turns));
        self.recount(id);
        for gpu in cards {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.vacated = card.vacated.max(vacated);
                drain.into_iter().for_each(|drain| card.drained(drain, typical.is_some()));
            }
        }
        // Turns are backfilled only where gangs wait.
        if self.view.cards.among(cards).any(|(_, card)| card.index.has_gangs()) {
            self.end_backfill(self.view.tied(cards));
        }
        self.notice(Notice::Dropped { session: id, epoch, gpus, drain });
    }

    /// Asks for the lock of holders that no longer fit together on a card. The session that grew stays first,
    /// then the earliest grants, and backfilled turns last.
    pub(crate) fn fit_holders(&mut self) {
        for gpu in self.agenda.cards() {
            let Some(card) = self.view.cards.get(gpu).filter(|card| !card.holders_fit()) else {
                continue;
            };
            let mut holders: Vec<_> = card
                .index
                .holders
                .iter()
                .filter(|id| self.view.turn_cards(**id).contains(gpu))
                .filter_map(|&id| match self.view.sessions.get(id)?.lock {
                    Lock::Holding(grant) => {
                        let grew = self.grown == Some(id);
                        Some((grant.clock.is_limited(), !grew, grant.epoch, id))
                    }
                    _ => None,
                })
                .collect();
            holders.sort_unstable();
            let mut taken = [(gpu, card.empty_occupancy())].into_iter().collect();
            let holders = holders.into_iter().map(|(.., id)| (id, self.view.turn_cards(id)));
            for id in queue::surplus(holders, |id, gpu| self.view.need(id, gpu), &mut taken) {
                self.begin_drop(id);
            }
        }
    }

    /// Handles the end of a quantum.
    fn expire_quantum(&mut self, id: SessionId) {
        let branch = self.view.sessions.get(id).map(Session::branch).unwrap_or_default();
        let cards = || self.view.cards.among(self.view.turn_cards(id));
        if cards().any(|(_, card)| card.groups.are_several(branch)) {
            // The order of users and classes counts what was charged.
            self.charge_so_far(id);
            self.recount(id);
        }
        let wanted = self.view.turn_cards(id).and(self.view.wanted);
        wanted.into_iter().for_each(|gpu| self.raise_floors(gpu, branch));
        match self.view.after_quantum(id) {
            AfterQuantum::MakeWay(gpu) => self.make_way(id, gpu),
            AfterQuantum::Drop => self.begin_drop(id),
            AfterQuantum::Renew(limit) => self.renew(id, limit),
        }
    }

    /// Starts a drop: asks a session for its lock by closing its gates.
    pub(crate) fn begin_drop(&mut self, id: SessionId) {
        let expected_drain = self.view.expected_drain(id);
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        if let Lock::Holding(grant) = session.lock {
            let drop = PendingDrop::new(self.view.now, expected_drain, &self.view.config);
            session.close(grant.epoch, &mut self.effects);
            self.set_lock(id, Lock::Dropping(grant, drop));
        }
    }

    /// Ends quanta that are over, and advances drops (`session/drop.rs`). Returns whether to look again: a
    /// holder became stuck, so that others may pass it.
    pub(crate) fn push_holders(&mut self) -> bool {
        let mut again = false;
        for at in 0..self.agenda.len() {
            let id = self.agenda.session(at);
            let Some(session) = self.view.sessions.get(id) else {
                continue;
            };
            match &session.lock {
                Lock::Holding(grant)
                    if grant.clock.is_over(self.view.now) && self.view.stands_in_the_way(session) =>
                {
                    self.expire_quantum(id);
                }
                Lock::Dropping(..) => {}
                _ => continue,
            }
            again |= self.advance_drop(id);
        }
        again
    }

    /// Advances a session's drop, and returns whether the session became stuck.
    fn advance_drop(&mut self, id: SessionId) -> bool {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return false;
        };
        let sleeper = session.has_sleeper();
        let Lock::Dropping(_, drop) = &mut session.lock else {
            return false;
        };
        let mut stuck = false;
        for step in drop.advance(self.view.now, sleeper, &self.view.config) {
            stuck |= matches!(step, Step::Report(_));
            self.push_drop(id, step);
        }
        self.recount(id);
        stuck
    }

    fn push_drop(&mut self, id: SessionId, step: Step) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let Lock::Dropping(grant, drop) = &session.lock else {
            return;
        };
        let (epoch, tries) = (grant.epoch, drop.tries());
        match step {
            Step::Close => session.close(epoch, &mut self.effects),
            Step::Reopen => {
                session.open(epoch, false, &mut self.effects);
                self.notice(Notice::DropReopened { session: id, tries });
                for gpu in self.view.cards_of(id) {
                    if let Some(card) = self.view.cards.get_mut(gpu) {
                        card.aborted_drops += 1;
                    }
                }
            }
            Step::Report(reason) => self.notice(Notice::Stuck { session: id, reason }),
            Step::Kill => self.effects.extend(session.in_flight().map(|client| Effect::Kill { client })),
        }
    }
}
