//! What follows from the facts, derived anew after every event: the modes of the cards, and who holds the lock.
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
//!             ─▶ gates of late joiners ─▶ flags, figures, places in the queue (tell.rs)
//! ```

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};

use crate::config::StuckPolicy;
use crate::core::Core;
use crate::demand::Demand;
use crate::event::{Effect, Notice};
use crate::gpu::Card;
use crate::session::Session;
use crate::session::lock::Lock;

impl Core {
    /// Derives everything that follows from the facts.
    pub(crate) fn settle(&mut self) {
        self.recover();
        let demand = Demand::new(&self.sessions);
        self.choose_modes(&demand);
        self.resume_returned(&demand);
        loop {
            self.collect(&demand);
            self.enqueue();
            self.stop_barred();
            self.grant_parallel(&demand);
            self.grant_turns(&demand);
            self.fit_holders(&demand);
            self.expire_quanta(&demand);
            let stuck = self.push_drops(&demand);
            if !stuck && self.who_let_go(&demand).is_empty() {
                break;
            }
        }
        self.open_joiners(&demand);
        self.note_entries(&demand);
        self.run_stopwatches(&demand);
        self.tell(&demand);
    }

    fn recover(&mut self) {
        let (overdue, ended) = self.recovery.advance(self.now);
        for client in overdue {
            let after = self.recovery.waited(self.now);
            self.notice(Notice::Overdue { client, after });
            if self.config.stuck_policy == StuckPolicy::Kill {
                self.effects.push_back(Effect::Kill { client });
            }
        }
        if let Some(after) = ended {
            self.notice(Notice::Recovered { after });
        }
    }

    /// Every session, by number.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    fn choose_modes(&mut self, demand: &Demand) {
        let mut serialized = Vec::new();
        for (&gpu, card) in &mut self.cards {
            let assumed = self.config.context_reserve;
            (card.reserve, card.fixed) = (Bytes::ZERO, Bytes::ZERO);
            for (_, book) in self.sessions.values().flat_map(|session| session.books(gpu)) {
                card.reserve += book.overhead(assumed);
                card.fixed += book.fixed();
            }
            let needed = demand.total(gpu) + self.recovery.used(gpu);
            if card.choose_mode(self.now, needed, &self.config) {
                self.effects.push_back(Effect::Notice(Notice::ModeChanged {
                    gpu,
                    mode: card.mode.mode(),
                    reason: card.mode.reason().to_owned(),
                }));
                if card.takes_turns() {
                    serialized.push(gpu);
                }
            }
        }
        if !serialized.is_empty() {
            self.grown = None;
            self.start_clocks(&serialized, demand);
        }
    }

    /// The turns of those who held the lock in parallel mode begin now.
    fn start_clocks(&mut self, serialized: &[GpuId], demand: &Demand) {
        for id in self.ids() {
            let turns = self.turn_needs(id, demand);
            if !turns.is_empty() && turns.keys().all(|gpu| serialized.contains(gpu)) {
                let clock = self.clock(id, Nanos::ZERO, demand);
                if let Some(Lock::Holding(grant)) =
                    self.sessions.get_mut(&id).map(|session| &mut session.lock)
                {
                    grant.clock = clock;
                }
            }
        }
    }

    fn open_joiners(&mut self, demand: &Demand) {
        for (&id, session) in &mut self.sessions {
            session.open_joiners(|| takes_turns(&self.cards, id, demand), &mut self.effects);
        }
    }

    fn run_stopwatches(&mut self, demand: &Demand) {
        for (&id, session) in &mut self.sessions {
            let waits = session.lock.ticket().is_some();
            let holds = session.lock.grant().is_some() && takes_turns(&self.cards, id, demand);
            session.waited.run(waits, self.now);
            session.held.run(holds, self.now);
            session.gpu_time.run(session.may_be_working(), self.now);
        }
    }

    /// Whether a session takes turns on any of its cards.
    pub(crate) fn takes_turns(&self, id: SessionId, demand: &Demand) -> bool {
        takes_turns(&self.cards, id, demand)
    }

    /// What a session needs on those of its cards that take turns.
    pub(crate) fn turn_needs(&self, id: SessionId, demand: &Demand) -> BTreeMap<GpuId, Bytes> {
        let needs = demand.of_session(id);
        needs.filter(|(gpu, _)| in_turns(&self.cards, *gpu)).collect()
    }

    /// The cards that a session takes turns on, in order.
    pub(crate) fn turn_cards(&self, id: SessionId, demand: &Demand) -> impl Iterator<Item = GpuId> {
        let cards = demand.of_session(id).map(|(gpu, _)| gpu);
        cards.filter(|gpu| in_turns(&self.cards, *gpu))
    }

    /// When time alone changes what a session's lock is doing.
    pub(crate) fn lock_deadline(&self, session: &Session) -> Option<Nanos> {
        match &session.lock {
            Lock::Idle | Lock::Waiting(_) => None,
            Lock::Holding(grant) => {
                let mut cards = session.attached().flat_map(|(_, client)| client.books.keys());
                cards.any(|gpu| self.is_wanted(*gpu)).then(|| grant.clock.end())
            }
            Lock::Dropping(_, drop) => drop.deadline(self.now, &self.config),
        }
    }
}

fn takes_turns(cards: &BTreeMap<GpuId, Card>, id: SessionId, demand: &Demand) -> bool {
    cards.values().any(Card::takes_turns) && demand.of_session(id).any(|(gpu, _)| in_turns(cards, gpu))
}

fn in_turns(cards: &BTreeMap<GpuId, Card>, gpu: GpuId) -> bool {
    cards.get(&gpu).is_some_and(Card::takes_turns)
}
