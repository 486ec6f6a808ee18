//! What follows from the facts, derived after every event for whatever is on the agenda: the modes of the cards, and who
//! holds the lock.
//!
//! ```text
//!   facts ─▶ modes ─▶ ┌ collect   who let go ─▶ idle
//!                     │ enqueue   a thread sleeps ─▶ waiting, with a ticket
//!                     │ stop      paused or over ─▶ dropping
//!                     │ grant     parallel: everybody; serialized: the head of the queue (gpu/queue.rs)
//!                     │ fit       holders that no longer fit together ─▶ dropping
//!                     │ expire    quantum over and somebody wants the card ─▶ dropping
//!                     │ push      late drops: reopen, close again, stuck (session/drop.rs)
//!                     └─ again while a drop completed, or became stuck, on the spot
//!             ─▶ gates of late joiners ─▶ flags, figures, places in the queue (tell.rs) ─▶ timers
//! ```
//!
//! Each step looks at the sessions on the agenda or at the cards on it, and puts there whom it changes.

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};

use crate::core::Core;
use crate::event::Notice;
use crate::gpu::Card;
use crate::session::Session;
use crate::session::lock::Lock;

impl Core {
    /// Derives everything that follows from the facts.
    pub(crate) fn settle(&mut self) {
        if let Some(after) = self.recovery.end(self.now) {
            self.notice(Notice::Recovered { after });
            self.touch_all();
        }
        self.ring();
        self.choose_modes();
        self.resume_returned();
        loop {
            self.collect();
            self.enqueue();
            self.stop_barred();
            self.grant_parallel();
            self.grant_turns();
            self.fit_holders();
            self.expire_quanta();
            let stuck = self.push_drops();
            if !stuck && self.who_let_go().is_empty() {
                break;
            }
        }
        self.spread_the_news();
        self.open_joiners();
        self.note_entries();
        self.run_stopwatches();
        self.tell();
        self.close_agenda();
    }

    fn choose_modes(&mut self) {
        let mut serialized = Vec::new();
        for gpu in self.agenda.cards() {
            let Some(card) = self.cards.get_mut(&gpu) else {
                continue;
            };
            if !card.choose_mode(self.now, &self.config) {
                continue;
            }
            if card.takes_turns() {
                serialized.push(gpu);
            }
            let notice = Notice::ModeChanged {
                gpu,
                mode: card.mode.mode(),
                reason: card.mode.reason().to_owned(),
            };
            self.notice(notice);
            self.touch_members(gpu);
        }
        if !serialized.is_empty() {
            self.grown = None;
            self.start_clocks(&serialized);
        }
    }

    /// The turns of those who held the lock in parallel mode begin now.
    fn start_clocks(&mut self, serialized: &[GpuId]) {
        for id in self.agenda.sessions() {
            let turns = self.turn_needs(id);
            if !turns.is_empty() && turns.keys().all(|gpu| serialized.contains(gpu)) {
                let clock = self.clock(id, Nanos::ZERO);
                if let Some(Lock::Holding(grant)) =
                    self.sessions.get_mut(&id).map(|session| &mut session.lock)
                {
                    grant.clock = clock;
                }
            }
        }
    }

    fn open_joiners(&mut self) {
        for id in self.agenda.sessions() {
            if let Some(session) = self.sessions.get_mut(&id) {
                let turns = takes_turns(&self.cards, session);
                session.open_joiners(|| turns, &mut self.effects);
            }
        }
    }

    fn run_stopwatches(&mut self) {
        for id in self.agenda.sessions() {
            if let Some(session) = self.sessions.get_mut(&id) {
                let waits = session.lock.ticket().is_some();
                let holds = session.lock.grant().is_some() && takes_turns(&self.cards, session);
                session.waited.run(waits, self.now);
                session.held.run(holds, self.now);
                session.gpu_time.run(session.may_be_working(), self.now);
            }
        }
    }

    /// Whether a session takes turns on any of its cards.
    pub(crate) fn takes_turns(&self, id: SessionId) -> bool {
        self.sessions
            .get(&id)
            .is_some_and(|session| takes_turns(&self.cards, session))
    }

    /// What a session needs on those of its cards that take turns.
    pub(crate) fn turn_needs(&self, id: SessionId) -> BTreeMap<GpuId, Bytes> {
        let needs = self.sessions.get(&id).into_iter().flat_map(Session::needs);
        needs.filter(|(gpu, _)| in_turns(&self.cards, *gpu)).collect()
    }

    /// The cards that a session takes turns on, in order.
    pub(crate) fn turn_cards(&self, id: SessionId) -> impl Iterator<Item = GpuId> {
        self.cards_of(id).filter(|gpu| in_turns(&self.cards, *gpu))
    }

    /// The cards that a session uses, in order.
    pub(crate) fn cards_of(&self, id: SessionId) -> impl Iterator<Item = GpuId> {
        let needs = self.sessions.get(&id).into_iter().flat_map(Session::needs);
        needs.map(|(gpu, _)| gpu)
    }

    /// When time alone changes what a session's lock is doing.
    pub(crate) fn lock_deadline(&self, session: &Session) -> Option<Nanos> {
        match &session.lock {
            Lock::Idle | Lock::Waiting(_) => None,
            Lock::Holding(grant) => {
                let wanted = session.needs().any(|(gpu, _)| self.is_wanted(gpu));
                wanted.then(|| grant.clock.end())
            }
            Lock::Dropping(_, drop) => drop.deadline(self.now, &self.config),
        }
    }

    /// What a session's lock does from now on.
    pub(crate) fn set_lock(&mut self, id: SessionId, lock: Lock) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.lock = lock;
            self.recount(id);
        }
    }
}

fn takes_turns(cards: &BTreeMap<GpuId, Card>, session: &Session) -> bool {
    session.needs().any(|(gpu, _)| in_turns(cards, gpu))
}

fn in_turns(cards: &BTreeMap<GpuId, Card>, gpu: GpuId) -> bool {
    cards.get(&gpu).is_some_and(Card::takes_turns)
}
