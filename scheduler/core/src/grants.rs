//! Who gets the lock: everybody in parallel mode, whose turn it is in serialized mode, and those who held it when
//! the last daemon ended.

use gpushare_proto::{ClientId, GpuId, Nanos, SessionId};

use crate::config::StuckPolicy;
use crate::core::Core;
use crate::demand::Demand;
use crate::event::Notice;
use crate::gpu::queue::{self, Room, Rooms};
use crate::session::Session;
use crate::session::client::Past;
use crate::session::clock::Clock;
use crate::session::drop::PendingDrop;
use crate::session::lock::{Entry, Grant, Lock, Ticket};

/// Why a session gets the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// Nobody has to wait for anybody.
    Parallel,
    /// It is its turn.
    Turn,
    /// It held the lock when the last daemon ended.
    Return,
}

impl Core {
    /// Holders of the last daemon run on under a fresh grant as soon as they announce a card. Those who only say that they held
    /// it are made to let go of it.
    pub(crate) fn resume_returned(&mut self, demand: &Demand) {
        let returned = |session: &Session| {
            let mut attached = session.attached();
            attached.any(|(_, client)| client.past != Past::Nothing)
        };
        let returned = self.sessions.iter().filter(|(_, session)| returned(session));
        let returned: Vec<SessionId> = returned.map(|(&id, _)| id).collect();
        for id in returned {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            let (mut held, mut claimants) = (false, Vec::new());
            let attached = session
                .clients
                .iter_mut()
                .filter(|(_, client)| client.is_attached());
            for (&client, process) in attached {
                match std::mem::take(&mut process.past) {
                    Past::Nothing => {}
                    Past::Held => held = true,
                    Past::Claims => claimants.push(client),
                }
            }
            match &session.lock {
                Lock::Idle | Lock::Waiting(_) if held => self.grant(id, Occasion::Return, demand),
                Lock::Idle | Lock::Waiting(_) => self.let_end(id, &claimants, demand),
                Lock::Dropping(grant, drop) => {
                    let epoch = grant.epoch;
                    match drop.is_reopened() {
                        true => session.open(epoch, false, &mut self.effects),
                        false => session.close_those(&claimants, epoch, &mut self.effects),
                    }
                }
                // Their gates open with the others'.
                Lock::Holding(_) => {}
            }
        }
    }

    /// The lock is a session's until the work of these processes has ended.
    fn let_end(&mut self, id: SessionId, claimants: &[ClientId], demand: &Demand) {
        let clock = self.clock(id, Nanos::ZERO, demand);
        let drop = PendingDrop::new(self.now, self.expected_drain(id), &self.config);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        self.last_epoch.counter += 1;
        let epoch = self.last_epoch;
        let entry = None;
        session.lock = Lock::Dropping(Grant { epoch, clock, entry }, drop);
        session.close_those(claimants, epoch, &mut self.effects);
    }

    /// Whoever has a thread at its gate waits; whoever has none any more does not.
    pub(crate) fn enqueue(&mut self) {
        for session in self.sessions.values_mut() {
            match (&session.lock, session.has_sleeper()) {
                (Lock::Idle, true) => {
                    self.last_ticket += 1;
                    session.lock = Lock::Waiting(Ticket(self.last_ticket));
                }
                (Lock::Waiting(_), false) => session.lock = Lock::Idle,
                _ => {}
            }
        }
    }

    /// Where nobody takes turns, everybody holds the lock; drops end.
    pub(crate) fn grant_parallel(&mut self, demand: &Demand) {
        let in_parallel = |(&id, session): (&SessionId, &Session)| {
            let uses_cards = || demand.of_session(id).next().is_some();
            let holds = matches!(session.lock, Lock::Holding(_));
            (!holds && uses_cards() && !self.takes_turns(id, demand)).then_some(id)
        };
        let in_parallel: Vec<SessionId> = self.sessions.iter().filter_map(in_parallel).collect();
        for id in in_parallel {
            let held_up = self.is_held_up(id, demand);
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            if !session.may_run() || held_up {
                continue;
            }
            match session.lock {
                Lock::Idle | Lock::Waiting(_) => self.grant(id, Occasion::Parallel, demand),
                Lock::Dropping(grant, _) => {
                    session.lock = Lock::Holding(grant);
                    session.open(grant.epoch, false, &mut self.effects);
                }
                _ => {}
            }
        }
    }

    /// Admits waiters in the order of their tickets.
    pub(crate) fn grant_turns(&mut self, demand: &Demand) {
        for card in self.cards.values_mut() {
            card.wanted = false;
        }
        let waiters = self
            .admissible(demand)
            .into_iter()
            .map(|id| (id, self.turn_needs(id, demand)));
        let admission = queue::admit(waiters, &mut self.rooms(demand));
        for gpu in &admission.wanted {
            if let Some(card) = self.cards.get_mut(gpu) {
                card.wanted = true;
            }
        }
        for id in admission.admitted {
            self.grant(id, Occasion::Turn, demand);
        }
    }

    /// Those of the waiting sessions that may be granted anything.
    pub(crate) fn candidates(&self) -> Vec<SessionId> {
        let mut queue = self.queue();
        queue.retain(|id| self.sessions.get(id).is_some_and(Session::may_run));
        queue
    }

    /// Those of them that need wait for nobody's return. The others reserve nothing: nobody knows until when.
    pub(crate) fn admissible(&self, demand: &Demand) -> Vec<SessionId> {
        let mut candidates = self.candidates();
        candidates.retain(|&id| !self.is_held_up(id, demand));
        candidates
    }

    /// Whether a client of the last daemon is awaited that may run on any of a session's cards.
    pub(crate) fn is_held_up(&self, id: SessionId, demand: &Demand) -> bool {
        self.recovery.holds_up(demand.of_session(id).map(|(gpu, _)| gpu))
    }

    /// The waiting sessions in the order of their tickets.
    pub(crate) fn queue(&self) -> Vec<SessionId> {
        let tickets = self.sessions.iter();
        let mut tickets: Vec<_> = tickets
            .filter_map(|(&id, session)| Some((session.lock.ticket()?, id)))
            .collect();
        tickets.sort_unstable();
        tickets.into_iter().map(|(_, id)| id).collect()
    }

    /// The cards that take turns, with those who hold the lock there.
    fn rooms(&self, demand: &Demand) -> Rooms {
        let mut rooms = self.empty_rooms();
        for (&id, session) in self
            .sessions
            .iter()
            .filter(|(_, session)| session.lock.grant().is_some())
        {
            let stuck = session.lock.dropping().is_some_and(|drop| drop.stuck().is_some());
            for (gpu, bytes) in demand.of_session(id) {
                if let Some(room) = rooms.get_mut(&gpu) {
                    room.enter(bytes);
                    if stuck && self.config.stuck_policy == StuckPolicy::RunOthers {
                        room.let_pass();
                    }
                }
            }
        }
        for (gpu, bytes) in self.recovery.passable() {
            if let Some(room) = rooms.get_mut(&gpu) {
                room.enter(bytes);
                room.let_pass();
            }
        }
        rooms
    }

    pub(crate) fn empty_rooms(&self) -> Rooms {
        let cards = self.cards.iter().filter(|(_, card)| card.takes_turns());
        cards
            .map(|(&gpu, card)| (gpu, Room::new(card.capacity())))
            .collect()
    }

    /// Gives the lock to a session that neither holds nor drops it.
    fn grant(&mut self, id: SessionId, occasion: Occasion, demand: &Demand) {
        let turn = occasion == Occasion::Turn;
        let expected_move = match turn {
            true => self.expected_move(id, demand),
            false => Nanos::ZERO,
        };
        let clock = self.clock(id, expected_move, demand);
        let entry = turn.then(|| self.entry(id, demand));
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        self.last_epoch.counter += 1;
        let epoch = self.last_epoch;
        session.lock = Lock::Holding(Grant { epoch, clock, entry });
        session.open(epoch, turn, &mut self.effects);
        if let Some(entry) = entry {
            let gpus: Vec<GpuId> = self.turn_cards(id, demand).collect();
            for gpu in &gpus {
                if let Some(card) = self.cards.get_mut(gpu) {
                    card.handoffs += 1;
                }
            }
            self.notice(Notice::Granted {
                session: id,
                epoch,
                quantum: clock.quantum(),
                gpus,
                waited: self.now - entry.asked,
            });
        }
    }

    /// When the way to a turn that is granted now began.
    fn entry(&self, id: SessionId, demand: &Demand) -> Entry {
        let asked = self
            .sessions
            .get(&id)
            .and_then(|session| session.waited.since())
            .unwrap_or(self.now);
        let cards = self.turn_cards(id, demand);
        let vacated = cards.filter_map(|gpu| Some(self.cards.get(&gpu)?.vacated)).max();
        Entry {
            asked,
            handing_over: vacated.unwrap_or_default().max(asked),
        }
    }

    /// Says how long the way to a turn was, once all of the session's memory is in.
    pub(crate) fn note_entries(&mut self, demand: &Demand) {
        let entering =
            |session: &Session| matches!(session.lock, Lock::Holding(grant) if grant.entry.is_some());
        let entered = self
            .sessions
            .iter()
            .filter(|(_, session)| entering(session) && !session.is_moving());
        let entered: Vec<SessionId> = entered.map(|(&id, _)| id).collect();
        for id in entered {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            if let Lock::Holding(grant) = &mut session.lock
                && let Some(entry) = grant.entry.take()
            {
                let gpus = self.turn_cards(id, demand).collect();
                self.notice(Notice::Entered {
                    session: id,
                    gpus,
                    waited: self.now - entry.asked,
                    handoff: self.now - entry.handing_over,
                });
            }
        }
    }

    /// The clock of a grant now: the longest quantum of the session's cards.
    pub(crate) fn clock(&self, id: SessionId, expected_move: Nanos, demand: &Demand) -> Clock {
        Clock::granted(self.now, self.quantum(id, expected_move, demand), expected_move)
    }

    pub(crate) fn quantum(&self, id: SessionId, expected_move: Nanos, demand: &Demand) -> Nanos {
        let cards = demand.of_session(id).filter_map(|(gpu, _)| self.cards.get(&gpu));
        let quanta = cards.map(|card| card.quantum(expected_move, &self.config));
        quanta.max().unwrap_or(self.config.quantum_min)
    }

    pub(crate) fn expected_move(&self, id: SessionId, demand: &Demand) -> Nanos {
        let needs = self.turn_needs(id, demand).into_iter();
        let moves =
            needs.filter_map(|(gpu, own)| Some(self.cards.get(&gpu)?.expected_move(own, demand.total(gpu))));
        moves.max().unwrap_or_default()
    }

    /// What the next turn on a card would last: that of the first in its queue, else one that moves nothing.
    pub(crate) fn next_quantum(&self, gpu: GpuId, demand: &Demand) -> Nanos {
        let waits_here = |id: &SessionId| demand.of_session(*id).any(|(card, _)| card == gpu);
        match (
            self.candidates().into_iter().find(waits_here),
            self.cards.get(&gpu),
        ) {
            (Some(id), _) => self.quantum(id, self.expected_move(id, demand), demand),
            (None, Some(card)) => card.quantum(Nanos::ZERO, &self.config),
            (None, None) => Nanos::ZERO,
        }
    }
}
