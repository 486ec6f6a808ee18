//! Settling: after every event, derives card modes, grants and drops for the sessions and cards on the
//! agenda.
//!
//! ```text
//!   facts ─▶ processes whose thaws are due (thaws.rs)
//!         ─▶ modes ─▶ ┌ collect   all gates released ─▶ lock idle
//!                     │ enqueue   a thread sleeps ─▶ waiting, with a ticket
//!                     │ stop      paused, over, or beyond its compute limit ─▶ dropping
//!                     │ grant     parallel: every session; turns: the first in line (card/queue.rs)
//!                     │ fit       holders that no longer fit together ─▶ dropping
//!                     │ preempt   a session woke that may go first (turns/preempt.rs) ─▶ quanta end
//!                     │ expire    quantum over, and it is another session's turn ─▶ dropping
//!                     │ push      late drops: reopen, close again, stuck (session/drop.rs)
//!                     └─ again while a drop completed or became stuck, a reason to go on ended, or
//!                        the order of gangs changed
//!             ─▶ goals for remapped memory (residency/plan.rs), and for managed memory (residency/hints.rs)
//!             ─▶ processes to freeze and thaw (frost.rs)
//!             ─▶ gates of late joiners ─▶ flags, figures, places in the queue (view/updates.rs) ─▶ timers
//! ```
//!
//! Each step looks at the sessions or cards on the agenda, and adds those that it changes.

use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::card::queue::Need;
use crate::config::StuckPolicy;
use crate::events::{Effect, Notice};
use crate::machine::Core;
use crate::session::Session;
use crate::session::lock::Lock;
use crate::turns::sharers;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

impl View {
    /// Duration that a session with a compute limit may run at once: a whole turn where its memory moves,
    /// else a slice.
    fn slice(&self, id: SessionId) -> Nanos {
        let cards = || self.cards.among(self.cards_of(id)).map(|(_, card)| card);
        if cards().any(Card::moves_memory) {
            return self.quantum(id, self.expected_move(id));
        }
        let slices = cards().map(|card| card.limit_slice(&self.config));
        slices.max().unwrap_or(self.config.quantum_min)
    }

    /// Whether a session takes turns on any of its cards.
    pub(crate) fn takes_turns(&self, id: SessionId) -> bool {
        !self.turn_cards(id).is_empty()
    }

    /// Working set (movable bytes) of a session on a card.
    pub(crate) fn need(&self, id: SessionId, gpu: GpuId) -> Bytes {
        let session = self.sessions.get(id);
        session.map_or(Bytes::ZERO, |session| session.sums(gpu).movable.get())
    }

    /// Working set of a session on a card, and whether its turn is early.
    pub(crate) fn claim(&self, id: SessionId, gpu: GpuId) -> Need {
        let session = self.sessions.get(id);
        session.map_or(Need { bytes: Bytes::ZERO, early: false }, |session| Need {
            bytes: session.sums(gpu).movable.get(),
            early: session.urgent,
        })
    }

    /// Cards on which a session takes turns.
    pub(crate) fn turn_cards(&self, id: SessionId) -> GpuSet {
        let session = self.sessions.get(id);
        session.map_or_else(GpuSet::default, |session| session.turn_cards(self.in_turns))
    }

    pub(crate) fn cards_of(&self, id: SessionId) -> GpuSet {
        self.sessions.get(id).map_or_else(GpuSet::default, |session| session.uses)
    }

    /// Whether another session waits for room on a card on which this one takes turns.
    pub(crate) fn stands_in_the_way(&self, session: &Session) -> bool {
        session.turn_cards(self.in_turns).overlaps(self.wanted)
    }

    /// Point in time at which the state of a session's lock changes if no event comes before.
    pub(crate) fn lock_deadline(&self, session: &Session) -> Option<Nanos> {
        let limit = |session: &Session| session.compute.deadline();
        match &session.lock {
            Lock::Idle => None,
            Lock::Waiting(_) => limit(session),
            Lock::Holding(grant) => {
                let wanted = self.stands_in_the_way(session);
                let quantum = wanted.then(|| grant.clock.end());
                quantum.into_iter().chain(limit(session)).min()
            }
            Lock::Dropping(_, drop) => drop.deadline(self.now, &self.config),
        }
    }
}

impl Core {
    /// Derives all decisions that follow from the noted facts.
    pub(crate) fn settle(&mut self) {
        self.recover();
        self.fire_timers();
        self.choose_due_thaws();
        loop {
            self.choose_modes_and_turns();
            self.place_memory();
            // Freezes and thaws change how much memory of the host is left, and which sessions have a use for a turn.
            if !self.begin_frosts() {
                break;
            }
        }
        self.place_managed();
        self.touch_members_of_changed_cards();
        self.look_each(Self::conclude);
        self.close_agenda();
    }

    fn choose_modes_and_turns(&mut self) {
        loop {
            self.choose_modes();
            let were_cold = !self.view.cold.is_empty();
            self.look_each(Self::judge_and_resume);
            // A session that has just ceased to be frozen wants its cards, and gets no turn in their old modes.
            if (were_cold || !self.view.cold.is_empty()) && self.is_mode_due() {
                continue;
            }
            self.collect();
            self.change_turns();
            // A session that just began or ceased to want its cards can change their modes.
            if !self.is_mode_due() {
                break;
            }
        }
    }

    /// Grants, preempts and drops until nothing more follows.
    fn change_turns(&mut self) {
        loop {
            self.reordered = false;
            self.look_each(Self::queue_or_run);
            self.grant_turns();
            self.fit_holders();
            self.preempt();
            let again = self.push_holders();
            if !self.collect() && !again && !self.reordered {
                break;
            }
        }
    }

    /// Applies a session's compute limit, and resumes the session if it is back after a restart.
    fn judge_and_resume(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        let returned = session.has_returned();
        let is_due = session.idle.is_due(self.view.now);
        let is_cold = session.is_cold() || is_due;
        if session.is_limited() {
            self.judge_compute_limit(id);
        }
        if is_due {
            self.freeze_idle(id);
        }
        if is_cold {
            self.judge_frost(id);
        }
        if returned {
            self.resume_returned(id);
        }
    }

    /// Calls `look` for each session on the agenda, and for those that are added meanwhile.
    pub(crate) fn look_each(&mut self, look: impl Fn(&mut Self, SessionId)) {
        let mut at = 0;
        while at < self.agenda.len() {
            look(self, self.agenda.session(at));
            at += 1;
        }
    }

    /// Opens gates of processes that joined late, runs the stopwatches and sends the updates of one session.
    fn conclude(&mut self, id: SessionId) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            let sharers = sharers(session, &self.view.cards, self.view.in_turns);
            session.open_joiners(self.view.on_demand, &mut self.effects);
            // All gates and frosts are as they stay now.
            session.excuse_drop(self.view.now);
            session.run_stopwatches(self.view.now, sharers, &self.view.config);
            session.note_idleness(self.view.now);
            if session.has_entered() {
                self.note_entry(id);
            }
            self.update_processes(id);
        }
    }

    /// Advances the recovery after a restart. When its state changes, everything is put on the agenda.
    fn recover(&mut self) {
        if self.view.recovery.is_over() {
            return;
        }
        let (overdue, ended) = self.view.recovery.advance(self.view.now);
        let cards = || self.view.cards.keys();
        let barred: GpuSet = cards().filter(|&gpu| self.view.recovery.holds_up(gpu.into())).collect();
        let returning: GpuSet = cards().filter(|&gpu| self.view.recovery.returns_to(gpu)).collect();
        let changed = (barred, returning) != (self.barred, self.returning);
        if changed || !overdue.is_empty() || ended.is_some() {
            (self.barred, self.returning) = (barred, returning);
            self.touch_all();
        }
        for client in overdue {
            let after = self.view.recovery.waited(self.view.now);
            self.notice(Notice::Overdue { client, after });
            if self.view.config.stuck_policy == StuckPolicy::Kill && !self.view.recovery.spares(client) {
                self.effects.push_back(Effect::Kill { client });
            }
        }
        if let Some(after) = ended {
            self.notice(Notice::Recovered { after });
        }
    }

    fn choose_modes(&mut self) {
        let mut turns = GpuSet::default();
        for gpu in self.agenda.cards() {
            let Some(card) = self.view.cards.get_mut(gpu) else {
                continue;
            };
            let changed = card.choose_mode(self.view.now, self.view.recovery.used(gpu), &self.view.config);
            let on_demand = card.runs_on_demand();
            let differs = on_demand != self.view.on_demand.contains(gpu);
            match on_demand {
                true => _ = self.view.on_demand.insert(gpu),
                false => self.view.on_demand.remove(gpu),
            }
            if !changed {
                if differs {
                    self.touch_members(gpu);
                }
                continue;
            }
            let begins = card.takes_turns() && !card.took_turns;
            card.took_turns = card.takes_turns();
            match card.takes_turns() {
                true => _ = self.view.in_turns.insert(gpu),
                false => self.view.in_turns.remove(gpu),
            }
            if begins {
                turns.insert(gpu);
            }
            let reason = card.mode.reason(&self.view.config);
            let notice = Notice::ModeChanged { gpu, mode: card.mode.mode(), reason };
            self.notice(notice);
            match begins {
                true => self.start_level(gpu),
                false => self.recount_members(gpu),
            }
            self.touch_members(gpu);
        }
        if !turns.is_empty() {
            self.grown = None;
            self.start_clocks(turns);
        }
    }

    /// Whether the facts from which the mode of a card on the agenda follows have changed since it was
    /// chosen.
    fn is_mode_due(&self) -> bool {
        let mut cards = self.view.cards.among(self.agenda.cards());
        cards.any(|(gpu, card)| card.is_mode_due(self.view.recovery.used(gpu)))
    }

    /// Starts the quanta of sessions that held the lock in parallel mode.
    ///
    /// No switch began these turns, so they need not be long enough to pay for one. A new session has its
    /// first turn soon instead of after half a minute. Each later switch is paid for by the turn that it
    /// begins.
    fn start_clocks(&mut self, began: GpuSet) {
        for at in 0..self.agenda.len() {
            let id = self.agenda.session(at);
            let turns = self.view.turn_cards(id);
            if !turns.is_empty() && turns.is_within(began) {
                let clock = self.view.clock(id, false, None);
                if let Some(Lock::Holding(grant)) =
                    self.view.sessions.get_mut(id).map(|session| &mut session.lock)
                {
                    grant.clock = clock;
                }
            }
        }
    }

    /// Takes a session out of the queue when its compute limit is used up, and puts it back afterwards.
    fn judge_compute_limit(&mut self, id: SessionId) {
        let slice = self.view.slice(id);
        if let Some(session) = self.view.sessions.get_mut(id) {
            let before = session.is_throttled();
            session.compute.judge(self.view.now, slice, &self.view.config);
            if session.is_throttled() != before {
                self.recount(id);
            }
        }
    }

    /// Updates the index entries of all sessions on a card whose mode changed.
    fn recount_members(&mut self, gpu: GpuId) {
        let members = self.view.cards.get(gpu).map(|card| card.index.members.clone());
        members.into_iter().flatten().for_each(|id| self.recount(id));
    }

    pub(crate) fn set_lock(&mut self, id: SessionId, lock: Lock) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.urgent &= matches!(lock, Lock::Waiting(_));
            session.lock = lock;
            self.recount(id);
        }
    }
}
