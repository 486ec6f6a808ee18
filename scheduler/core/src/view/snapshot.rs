//! Snapshot of the decision machine for `gpushare-ctl status`. The daemon adds names, pids and identities of
//! cards, which the decision machine does not know.

use gpushare_proto::admin::{
    CapacityView, ClientView, FrostStage, GpuView, LockView, Mode, SessionGpuView, SessionState, SessionView,
};
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, GpuUuid, Nanos, SessionId};

use crate::card::Card;
use crate::events::{Place, WaitsFor};
use crate::machine::Core;
use crate::session::Session;
use crate::session::lock::Lock;
use crate::view::View;

/// State of the whole scheduler at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of processes of the last daemon that are neither back nor dead. Grants on their cards wait.
    pub recovering: u32,
    /// States of all cards, by number of the card.
    pub gpus: Vec<GpuSnapshot>,
    /// States of all sessions, by number of the session.
    pub sessions: Vec<SessionSnapshot>,
}

/// Remapped memory on a card, as far as the processes' reports are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedSnapshot {
    /// Bytes on the card.
    pub resident_bytes: Bytes,
    /// Bytes in host memory, or without a place yet.
    pub hosted_bytes: Bytes,
    /// Part of them that is mapped from the host, and reached at the speed of the bus.
    pub mapped_bytes: Bytes,
    /// Bytes that have to leave the card or to come in, as the goals ask.
    pub moving_bytes: Bytes,
    /// Bytes of host memory that are ready for what leaves the card, and not used.
    pub prepared_bytes: Bytes,
}

/// State of one card: a [`GpuView`] without the card's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSnapshot {
    /// Identifier of the card.
    pub gpu: GpuId,
    /// Total memory of the card, in bytes.
    pub total_bytes: Bytes,
    /// Largest sum of bytes that sessions may have on the card at once.
    pub capacity_bytes: Bytes,
    /// Number of bytes that all sessions have allocated.
    pub allocated_bytes: Bytes,
    /// Number of allocated bytes that never leave the card.
    pub fixed_bytes: Bytes,
    /// Remapped memory on the card, if there is any.
    pub remapped: Option<RemappedSnapshot>,
    /// Number of bytes of CUDA contexts and of other driver memory, measured or assumed.
    pub overhead_bytes: Bytes,
    /// Largest sum of managed memory of all sessions together; [`Bytes::MAX`] for no limit.
    pub managed_limit_bytes: Bytes,
    /// Present mode of the card: parallel, time-sliced or serialized.
    pub mode: Mode,
    /// Reason for the card's mode, in words.
    pub reason: String,
    /// Number of changes of the card's mode so far.
    pub mode_changes: u64,
    /// Sessions that hold the lock.
    pub holders: Vec<SessionId>,
    /// Sessions that wait for the lock, in the order of their turns.
    pub queue: Vec<SessionId>,
    /// Length of the next session's turn.
    pub quantum_ns: Nanos,
    /// Number of turns granted on the card so far.
    pub handoffs: u64,
    /// Number of drops (requests for the lock) that were late and whose gates were opened again.
    pub aborted_drops: u64,
    /// Durations of the latest drains, oldest first, at most 256.
    pub drains_ns: Vec<Nanos>,
    /// Moving average of the drain durations.
    pub expected_drain_ns: Nanos,
    /// Number of bytes that processes moved to the card on grants.
    pub moved_bytes: Bytes,
}

/// State of one session: a [`SessionView`] without the session's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSnapshot {
    /// Identifier of the session.
    pub session: SessionId,
    /// Memory quota on each card without a quota of its own; `None` for no limit.
    pub memory_limit_bytes: Option<Bytes>,
    /// Memory figures of the session on each card.
    pub gpus: Vec<SessionGpuView>,
    /// State of each process of the session.
    pub clients: Vec<ClientSnapshot>,
    /// State of the session's lock, with numbers in place of names.
    pub lock: LockView,
    /// Reason why the session waits; `None` if it does not wait.
    pub waits_for: Option<WaitsFor>,
    /// Duration for which the session has waited for its turns so far.
    pub waited_ns: Nanos,
    /// Duration, on the wall clock, for which the session has had turns so far.
    pub held_ns: Nanos,
    /// Duration for which the session could submit work, times the number of its cards: it held the lock and
    /// was not known to be idle.
    pub gpu_time_ns: Nanos,
    /// Number of bytes that the session's processes brought in on grants.
    pub moved_bytes: Bytes,
    /// Number of the session's refused allocations so far.
    pub refusals: u64,
}

/// State of one process: a [`ClientView`] without its pid and its unknown functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSnapshot {
    /// Identifier of the process.
    pub client: ClientId,
    /// State of the process's gate, as in its gate word.
    pub gate: GateState,
    /// Whether a thread of the process sleeps at the gate.
    pub waiting: bool,
}

impl View {
    fn gpu_snapshot(&self, gpu: GpuId, card: &Card) -> GpuSnapshot {
        GpuSnapshot {
            gpu,
            total_bytes: card.total,
            capacity_bytes: card.capacity(),
            allocated_bytes: card.index.sums.used.get(),
            fixed_bytes: card.fixed(),
            remapped: self.remapped.contains(gpu).then(|| self.remapped_snapshot(gpu)),
            overhead_bytes: card.reserve(),
            managed_limit_bytes: card.managed_limit(),
            mode: card.mode.mode(),
            reason: card.mode.reason(&self.config),
            mode_changes: card.mode.changes(),
            holders: card.index.holders.iter().copied().collect(),
            queue: card.groups.in_order(|_| true).collect(),
            quantum_ns: self.next_quantum(card),
            handoffs: card.handoffs,
            aborted_drops: card.aborted_drops,
            drains_ns: card.drains(),
            expected_drain_ns: card.usual_drain(),
            moved_bytes: card.moved,
        }
    }
}

impl Core {
    /// Returns the state of the whole scheduler.
    #[must_use]
    pub fn snapshot(&self, now: Nanos) -> Snapshot {
        let now = self.view.now.max(now);
        let mut places = self.view.places();
        let sessions = self.view.sessions.iter().map(|(id, session)| {
            let place = places.remove(&id).or_else(|| self.view.place(id));
            session_snapshot(id, session, now, place)
        });
        Snapshot {
            recovering: self.view.recovery.awaited(),
            gpus: self.card_snapshots(),
            sessions: sessions.collect(),
        }
    }

    /// Returns the states of all cards, by number of the card.
    #[must_use]
    pub fn card_snapshots(&self) -> Vec<GpuSnapshot> {
        let cards = self.view.cards.iter();
        cards.map(|(gpu, card)| self.view.gpu_snapshot(gpu, card)).collect()
    }

    /// Returns what the capacity of each card consists of, by number of the card.
    #[must_use]
    pub fn capacities(&self) -> Vec<CapacityView> {
        let view = |(gpu, card): (GpuId, &Card)| {
            let next = card.assumed();
            CapacityView {
                gpu,
                total_bytes: card.total,
                set_bytes: card.knobs.capacity,
                contexts_bytes: card.reserve(),
                fixed_bytes: card.fixed(),
                next_context_bytes: next,
                usable_bytes: match card.knobs.capacity {
                    Some(_) => card.capacity(),
                    None => card.capacity() - next,
                },
            }
        };
        self.view.cards.iter().map(view).collect()
    }

    /// Returns the number of processes of the last daemon that are neither back nor dead.
    #[must_use]
    pub fn recovering(&self) -> u32 {
        self.view.recovery.awaited()
    }

    /// Returns the mode of each card, with the reason in words.
    pub fn modes(&self) -> impl Iterator<Item = (GpuId, Mode, String)> {
        self.view
            .cards
            .iter()
            .map(|(gpu, card)| (gpu, card.mode.mode(), card.mode.reason(&self.view.config)))
    }

    /// Returns the number of bytes that all sessions have allocated on a card.
    #[must_use]
    pub fn allocated_bytes(&self, gpu: GpuId) -> Option<Bytes> {
        Some(self.view.cards.get(gpu)?.index.sums.used.get())
    }

    /// Returns the state of one session, without its place in the queue and the reason for its wait.
    #[must_use]
    pub fn session_snapshot(&self, now: Nanos, id: SessionId) -> Option<SessionSnapshot> {
        let session = self.view.sessions.get(id)?;
        Some(session_snapshot(id, session, self.view.now.max(now), None))
    }

    /// Returns the state of one session with its place in the queue, which costs more the longer the queue
    /// is.
    #[must_use]
    pub fn placed_snapshot(&self, now: Nanos, id: SessionId) -> Option<SessionSnapshot> {
        let session = self.view.sessions.get(id)?;
        Some(session_snapshot(id, session, self.view.now.max(now), self.view.place(id)))
    }
}

impl GpuSnapshot {
    /// Adds the identity of the card, which only the daemon knows.
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
    /// Completes the session's view with what the core does not know: its name, whether it is implicit, and
    /// its state. `process` returns a process's pid and its driver functions that gpushare does not know.
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
                        evictable: unknown_functions.is_empty(),
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
        // A paused session may wait.
        Lock::Idle | Lock::Waiting(_) if session.frost_stage() == FrostStage::Frozen => LockView::Frozen,
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
