//! What the machine looks like from outside: everything that `gpushare-ctl status` shows, except what
//! only the shell knows (names, identities of cards, pids), which the shell adds.

use gpushare_proto::admin::{ClientView, GpuView, LockView, Mode, SessionGpuView, SessionState, SessionView};
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, GpuUuid, Nanos, SessionId};

use crate::card::Card;
use crate::events::WaitsFor;
use crate::machine::Core;
use crate::places::Place;
use crate::session::Session;
use crate::session::lock::Lock;

/// The whole machine at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Clients of the last daemon that are neither back nor dead; grants on their cards wait for them.
    pub recovering: u32,
    /// The cards, by number.
    pub gpus: Vec<GpuSnapshot>,
    /// The sessions, by number.
    pub sessions: Vec<SessionSnapshot>,
}

/// One card: [`GpuView`] without its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSnapshot {
    /// Its number.
    pub gpu: GpuId,
    /// Its memory.
    pub total_bytes: Bytes,
    /// What may be resident together.
    pub capacity_bytes: Bytes,
    /// What the sessions have allocated.
    pub allocated_bytes: Bytes,
    /// What of that never moves.
    pub fixed_bytes: Bytes,
    /// What contexts and the rest of the driver's memory take besides, measured or assumed.
    pub overhead_bytes: Bytes,
    /// The most managed memory of all sessions together; [`Bytes::MAX`] for no limit.
    pub managed_limit_bytes: Bytes,
    /// How it is shared now.
    pub mode: Mode,
    /// Why.
    pub reason: String,
    /// Mode changes so far.
    pub mode_changes: u64,
    /// Sessions that hold the lock.
    pub holders: Vec<SessionId>,
    /// Sessions that wait for it, in order.
    pub queue: Vec<SessionId>,
    /// The quantum of the next grant.
    pub quantum_ns: Nanos,
    /// Grants in serialized mode so far.
    pub handoffs: u64,
    /// Drops that were reopened.
    pub aborted_drops: u64,
    /// The latest drains, oldest first, at most 256.
    pub drains_ns: Vec<Nanos>,
    /// Moving average of the drain.
    pub expected_drain_ns: Nanos,
    /// Bytes moved to the card on grants.
    pub moved_bytes: Bytes,
}

/// One session: [`SessionView`] without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSnapshot {
    /// Its number.
    pub session: SessionId,
    /// Its quota on each card that has none of its own.
    pub memory_limit_bytes: Option<Bytes>,
    /// What it uses, per card.
    pub gpus: Vec<SessionGpuView>,
    /// Its processes.
    pub clients: Vec<ClientSnapshot>,
    /// What its lock is doing, with numbers for names.
    pub lock: LockView,
    /// For what it waits, if it does.
    pub waits_for: Option<WaitsFor>,
    /// Time spent waiting at the gate so far.
    pub waited_ns: Nanos,
    /// Wall time with an open gate in serialized mode so far.
    pub held_ns: Nanos,
    /// Wall time in any mode in which it could submit work: with the lock, and not known to be idle.
    pub gpu_time_ns: Nanos,
    /// Bytes brought in on grants.
    pub moved_bytes: Bytes,
    /// Refused allocations so far.
    pub refusals: u64,
}

/// One process: [`ClientView`] without what only the shell knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// Its number.
    pub client: ClientId,
    /// Its gate.
    pub gate: GateState,
    /// Whether one of its threads sleeps at the gate.
    pub waiting: bool,
    /// Whether its memory may be moved off the card.
    pub evictable: bool,
}

impl Core {
    /// What `status` shows.
    #[must_use]
    pub fn snapshot(&self, now: Nanos) -> Snapshot {
        let now = self.now.max(now);
        Snapshot {
            recovering: self.recovery.awaited(),
            gpus: self.cards.iter().map(|(gpu, card)| self.gpu_snapshot(gpu, card)).collect(),
            sessions: self
                .sessions
                .iter()
                .map(|(id, session)| session_snapshot(id, session, now, self.place(id)))
                .collect(),
        }
    }

    /// One session, as it is before it ends: without its place in the queue.
    #[must_use]
    pub fn session_snapshot(&self, now: Nanos, id: SessionId) -> Option<SessionSnapshot> {
        let session = self.sessions.get(id)?;
        Some(session_snapshot(id, session, self.now.max(now), None))
    }

    fn gpu_snapshot(&self, gpu: GpuId, card: &Card) -> GpuSnapshot {
        GpuSnapshot {
            gpu,
            total_bytes: card.total,
            capacity_bytes: card.capacity(),
            allocated_bytes: card.census.sums.used.get(),
            fixed_bytes: card.fixed(),
            overhead_bytes: card.reserve(),
            managed_limit_bytes: card.managed_limit(),
            mode: card.mode.mode(),
            reason: card.mode.reason().to_owned(),
            mode_changes: card.mode.changes(),
            holders: card.census.holders.iter().copied().collect(),
            queue: card.census.queue.iter().map(|&(_, id)| id).collect(),
            quantum_ns: self.next_quantum(card),
            handoffs: card.handoffs,
            aborted_drops: card.aborted_drops,
            drains_ns: card.drains(),
            expected_drain_ns: card.expected_drain(),
            moved_bytes: card.moved,
        }
    }
}

impl GpuSnapshot {
    /// The view of a card that the shell knows by `uuid` and `name`.
    #[must_use]
    pub fn into_view(self, uuid: GpuUuid, name: String) -> GpuView {
        GpuView {
            gpu: self.gpu,
            uuid,
            name,
            total_bytes: self.total_bytes,
            capacity_bytes: self.capacity_bytes,
            allocated_bytes: self.allocated_bytes,
            managed_limit_bytes: self.managed_limit_bytes,
            mode: self.mode,
            reason: self.reason,
            mode_changes: self.mode_changes,
            holders: self.holders,
            queue: self.queue,
            quantum_ns: self.quantum_ns,
            handoffs: self.handoffs,
            aborted_drops: self.aborted_drops,
            drains_ns: self.drains_ns,
            expected_drain_ns: self.expected_drain_ns,
            moved_bytes: self.moved_bytes,
        }
    }
}

impl SessionSnapshot {
    /// The view of a session that the shell knows by `name`, with the pid of each of its processes and the functions
    /// that it was handed and nobody knows.
    #[must_use]
    pub fn into_view(
        self,
        name: String,
        implicit: bool,
        state: SessionState,
        process: impl Fn(ClientId) -> (u32, Vec<String>),
    ) -> SessionView {
        SessionView {
            session: self.session,
            name,
            implicit,
            memory_limit_bytes: self.memory_limit_bytes,
            state,
            gpus: self.gpus,
            clients: self
                .clients
                .into_iter()
                .map(|client| {
                    let (pid, unknown_functions) = process(client.client);
                    ClientView {
                        client: client.client,
                        pid,
                        gate: client.gate,
                        waiting: client.waiting,
                        evictable: client.evictable,
                        unknown_functions,
                    }
                })
                .collect(),
            lock: self.lock,
            waited_ns: self.waited_ns,
            held_ns: self.held_ns,
            refusals: self.refusals,
        }
    }
}

fn session_snapshot(id: SessionId, session: &Session, now: Nanos, place: Option<Place>) -> SessionSnapshot {
    SessionSnapshot {
        session: id,
        memory_limit_bytes: Some(session.limit).filter(|&limit| limit != Bytes::MAX),
        gpus: session
            .cards
            .iter()
            .map(|(gpu, on)| SessionGpuView {
                gpu,
                limit_bytes: Some(session.limit(gpu)).filter(|&limit| limit != Bytes::MAX),
                allocated_bytes: on.sums.used.get(),
                leased_bytes: on.sums.leased.get(),
                peak_bytes: on.peak,
            })
            .collect(),
        clients: session
            .clients
            .iter()
            .map(|(client, process)| ClientSnapshot {
                client,
                gate: process.gate.state(),
                waiting: process.gate.waiting(),
                evictable: process.evictable,
            })
            .collect(),
        waits_for: place.as_ref().map(|place| place.reason.clone()),
        lock: lock_view(session, place),
        waited_ns: session.waited.read(now),
        held_ns: session.held.read(now),
        gpu_time_ns: session.gpu_time.read(now),
        moved_bytes: session.moved,
        refusals: session.refusals,
    }
}

fn lock_view(session: &Session, place: Option<Place>) -> LockView {
    match &session.lock {
        Lock::Idle => LockView::Idle,
        Lock::Waiting(_) => {
            let Place { ahead, reason } = place.unwrap_or_default();
            LockView::Waiting { ahead, reason: reason.to_string() }
        }
        Lock::Holding(grant) => LockView::Holding { epoch: grant.epoch },
        Lock::Dropping(_, drop) => LockView::Dropping {
            tries: drop.tries(),
            stuck: drop.stuck().is_some(),
            reason: drop.stuck().unwrap_or("its work in flight ends").to_owned(),
        },
    }
}
