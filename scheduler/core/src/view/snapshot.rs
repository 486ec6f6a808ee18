//! Snapshot of the machine for `gpushare-ctl status`. The shell adds what only it knows: names, pids,
//! identities of cards.

use gpushare_proto::admin::{ClientView, GpuView, LockView, Mode, SessionGpuView, SessionState, SessionView};
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, GpuUuid, Nanos, SessionId};

use crate::card::Card;
use crate::events::{Place, WaitsFor};
use crate::machine::Core;
use crate::session::Session;
use crate::session::lock::Lock;

/// State of the whole machine at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of processes of the last daemon that are neither back nor dead. Grants on their cards wait for
    /// them.
    pub recovering: u32,
    /// Cards, by number.
    pub gpus: Vec<GpuSnapshot>,
    /// Sessions, by number.
    pub sessions: Vec<SessionSnapshot>,
}

/// State of one card: [`GpuView`] without its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSnapshot {
    /// Identifier of the card.
    pub gpu: GpuId,
    /// Total memory of the card.
    pub total_bytes: Bytes,
    /// Bytes that may be resident together.
    pub capacity_bytes: Bytes,
    /// Bytes that the sessions have allocated.
    pub allocated_bytes: Bytes,
    /// Allocated bytes that never move.
    pub fixed_bytes: Bytes,
    /// Bytes of contexts and of other driver memory, measured or assumed.
    pub overhead_bytes: Bytes,
    /// Most managed memory of all sessions together; [`Bytes::MAX`] for no limit.
    pub managed_limit_bytes: Bytes,
    /// Present mode of sharing.
    pub mode: Mode,
    /// Reason for the mode, in words.
    pub reason: String,
    /// Number of mode changes so far.
    pub mode_changes: u64,
    /// Sessions that hold the lock.
    pub holders: Vec<SessionId>,
    /// Sessions that wait for the lock, in order.
    pub queue: Vec<SessionId>,
    /// Length of the next turn.
    pub quantum_ns: Nanos,
    /// Number of turns granted so far.
    pub handoffs: u64,
    /// Number of drops whose gates were opened again.
    pub aborted_drops: u64,
    /// Latest drains, oldest first, at most 256.
    pub drains_ns: Vec<Nanos>,
    /// Moving average of the drains.
    pub expected_drain_ns: Nanos,
    /// Bytes that processes moved to the card on grants.
    pub moved_bytes: Bytes,
}

/// State of one session: [`SessionView`] without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSnapshot {
    /// Identifier of the session.
    pub session: SessionId,
    /// Quota on each card without a quota of its own; `None` for no limit.
    pub memory_limit_bytes: Option<Bytes>,
    /// Memory of the session on each card.
    pub gpus: Vec<SessionGpuView>,
    /// Processes of the session.
    pub clients: Vec<ClientSnapshot>,
    /// State of the session's lock, with numbers instead of names.
    pub lock: LockView,
    /// Reason for the session's wait, if it waits.
    pub waits_for: Option<WaitsFor>,
    /// Time that the session has waited for its turns so far.
    pub waited_ns: Nanos,
    /// Wall time that the session has held turns so far.
    pub held_ns: Nanos,
    /// Wall time in which the session could submit work: with the lock, and not known to be idle.
    pub gpu_time_ns: Nanos,
    /// Bytes that the session's processes brought in on grants.
    pub moved_bytes: Bytes,
    /// Number of refused allocations so far.
    pub refusals: u64,
}

/// State of one process: [`ClientView`] without its pid and its unknown functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// Identifier of the process.
    pub client: ClientId,
    /// State of the process's gate.
    pub gate: GateState,
    /// Whether a thread of the process sleeps at the gate.
    pub waiting: bool,
    /// Whether the process's memory may be moved off the card.
    pub evictable: bool,
}

impl Core {
    /// Returns the state of the whole machine.
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

    /// Returns the state of one session that ends, without its place in the queue.
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
    /// Adds the identity of the card.
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
    /// Adds the name of the session. `process` returns the pid of a process, and the driver functions that it
    /// was handed and that the library does not know.
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
        memory_limit_bytes: Some(session.quota.common()).filter(|&limit| limit != Bytes::MAX),
        gpus: session
            .cards
            .iter()
            .map(|(gpu, on)| SessionGpuView {
                gpu,
                limit_bytes: Some(session.quota.on(gpu)).filter(|&limit| limit != Bytes::MAX),
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
        waited_ns: session.usage.waited(now),
        held_ns: session.usage.held(now),
        gpu_time_ns: session.usage.gpu_time(now),
        moved_bytes: session.usage.moved(),
        refusals: session.usage.refusals(),
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
