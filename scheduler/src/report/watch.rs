//! Events for tools that watch the daemon (watchers).
//!
//! ```text
//!   notices of the decision machine ─────────┐
//!                                            ├─▶ pending ── one frame per PAUSE ──▶ every watcher
//!   difference of two states of the machine ─┘
//! ```
//!
//! Nothing is computed while no tool watches. A new watcher gets the whole state, as the difference to an
//! empty state. A watcher that does not read is disconnected, like any other peer with a full outbox.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::{Core, Notice};
use gpushare_proto::admin::{Activity, AdminReply, LockView, Mode, WatchEvent, WatchEventKind};
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, SessionId};
use gpushare_sys::clock;

use crate::cards::Cards;
use crate::clients::table::Clients;
use crate::connections::ConnectionId;
use crate::peers::Peers;
use crate::sessions::Sessions;

/// Shortest interval between two messages with events for watchers.
const PAUSE: Nanos = Nanos::from_millis(10);

/// Connections of watching tools, and the events that are not sent to them yet.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    connections: BTreeSet<ConnectionId>,
    /// State that the watchers know once all pending events are sent.
    known: State,
    pending: Vec<WatchEvent>,
    /// Earliest point in monotonic time of the next message to watchers.
    next: Nanos,
}

/// Sources of the state that watchers see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) core: &'a Core,
    pub(crate) cards: &'a Cards,
    pub(crate) sessions: &'a Sessions,
    pub(crate) clients: &'a Clients,
    /// Point in monotonic time of the daemon's start. Events carry the duration since then.
    pub(crate) started: Nanos,
}

/// Part of the daemon's state that watchers see.
#[derive(Clone, Debug, Default)]
struct State {
    cards: BTreeMap<GpuId, (Mode, String)>,
    sessions: BTreeMap<SessionId, SessionState>,
}

#[derive(Clone, Debug)]
struct SessionState {
    name: String,
    activity: Activity,
    clients: BTreeSet<ClientId>,
    allocated: BTreeMap<GpuId, Bytes>,
}

impl Watchers {
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Returns the point in monotonic time of the next message to watchers, if events are pending.
    pub(crate) fn due(&self) -> Option<Nanos> {
        (!self.pending.is_empty()).then_some(self.next)
    }

    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
    }

    /// Adds a watcher and sends it the whole state.
    pub(crate) fn start(&mut self, connection: ConnectionId, scene: &Scene<'_>, peers: &mut Peers) {
        self.note_differences(scene);
        self.send(peers);
        let state = State::of(scene);
        let mut events = vec![WatchEventKind::Watching {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }];
        scene.differences(&State::default(), &state, &mut events);
        self.known = state;
        self.connections.insert(connection);
        peers.reply(connection, &AdminReply::Events(scene.at_now(events)));
    }

    /// Adds a notice of the decision machine to the pending events.
    pub(crate) fn note(&mut self, notice: &Notice, at_ns: Nanos) {
        if self.is_empty() {
            return;
        }
        let what = match notice.clone() {
            // A difference of states shows the first, the log and `status` show the second.
            Notice::ModeChanged { .. } | Notice::Overdue { .. } => return,
            Notice::Granted { session, quantum, waited, .. } => {
                WatchEventKind::Granted { session, quantum_ns: quantum, waited_ns: waited }
            }
            Notice::Entered { session, handoff, .. } => {
                WatchEventKind::Entered { session, handoff_ns: handoff }
            }
            Notice::Dropped { session, drain, .. } => WatchEventKind::Dropped { session, drain_ns: drain },
            Notice::DropReopened { session, tries } => WatchEventKind::DropReopened { session, tries },
            Notice::Stuck { session, reason } => WatchEventKind::Stuck { session, reason },
            Notice::Refused { client, session, gpu, refusal } => {
                WatchEventKind::Refused { session, client, gpu, refusal }
            }
            Notice::Recovered { after } => WatchEventKind::Recovered { after_ns: after },
        };
        self.pending.push(WatchEvent { at_ns, what });
    }

    /// Adds the changes of the state to the pending events, and sends all events if the interval is over.
    pub(crate) fn update(&mut self, scene: &Scene<'_>, peers: &mut Peers) {
        if self.is_empty() {
            self.pending.clear();
            return;
        }
        self.note_differences(scene);
        if self.due().is_some_and(|due| due <= clock::monotonic()) {
            self.send(peers);
        }
    }

    fn note_differences(&mut self, scene: &Scene<'_>) {
        if self.is_empty() {
            return;
        }
        let state = State::of(scene);
        let mut events = Vec::new();
        scene.differences(&self.known, &state, &mut events);
        self.pending.extend(scene.at_now(events));
        self.known = state;
    }

    fn send(&mut self, peers: &mut Peers) {
        if self.pending.is_empty() {
            return;
        }
        let frame = AdminReply::Events(std::mem::take(&mut self.pending));
        self.next = clock::monotonic() + PAUSE;
        for &connection in &self.connections {
            peers.reply(connection, &frame);
        }
    }
}

impl Scene<'_> {
    fn at_now(&self, events: Vec<WatchEventKind>) -> Vec<WatchEvent> {
        let at_ns = clock::monotonic() - self.started;
        events.into_iter().map(|what| WatchEvent { at_ns, what }).collect()
    }

    /// Appends the events that describe the differences between two states.
    fn differences(&self, from: &State, to: &State, events: &mut Vec<WatchEventKind>) {
        for (&gpu, (mode, reason)) in &to.cards {
            let before = from.cards.get(&gpu);
            if let (None, Some(card)) = (before, self.cards.get(gpu)) {
                events.push(WatchEventKind::CardFound {
                    gpu,
                    uuid: card.info.uuid,
                    name: card.info.name.clone(),
                    total_bytes: card.info.total,
                });
            }
            if before.is_none_or(|(before, _)| before != mode) {
                events.push(WatchEventKind::ModeChanged { gpu, mode: *mode, reason: reason.clone() });
            }
        }
        for (&session, now) in &to.sessions {
            self.session_differences(session, from.sessions.get(&session), now, events);
        }
        let over = from.sessions.iter().filter(|(id, _)| !to.sessions.contains_key(id));
        for (&session, before) in over {
            let left = before.clients.iter();
            events.extend(left.map(|&client| WatchEventKind::ProcessLeft { session, client }));
            events.push(WatchEventKind::SessionEnded { session });
        }
    }

    fn session_differences(
        &self,
        session: SessionId,
        before: Option<&SessionState>,
        now: &SessionState,
        events: &mut Vec<WatchEventKind>,
    ) {
        match before {
            None => events.push(WatchEventKind::SessionBegan { session, name: now.name.clone() }),
            Some(before) if before.name != now.name => {
                events.push(WatchEventKind::SessionRenamed { session, name: now.name.clone() });
            }
            Some(_) => {}
        }
        let none = BTreeSet::new();
        let were = before.map_or(&none, |before| &before.clients);
        for &client in now.clients.difference(were) {
            let pid = self.clients.get(client).map_or(0, |client| client.peer.pid);
            events.push(WatchEventKind::ProcessJoined { session, client, pid });
        }
        for &client in were.difference(&now.clients) {
            events.push(WatchEventKind::ProcessLeft { session, client });
        }
        for (&gpu, &bytes) in &now.allocated {
            if before.and_then(|before| before.allocated.get(&gpu)) != Some(&bytes) {
                events.push(WatchEventKind::Allocated { session, gpu, bytes });
            }
        }
        // A new reason to wait is no event: reasons change often.
        let kind = std::mem::discriminant::<Activity>;
        if before.is_none_or(|before| kind(&before.activity) != kind(&now.activity)) {
            events.push(WatchEventKind::Turned { session, to: now.activity.clone() });
        }
    }
}

impl State {
    fn of(scene: &Scene<'_>) -> Self {
        let snapshot = scene.core.snapshot(clock::monotonic());
        let name = |session| scene.sessions.name(session);
        let sessions = snapshot.sessions.into_iter().map(|session| {
            let moving = session.clients.iter().any(|client| client.gate == GateState::Moving);
            let activity = match session.lock {
                LockView::Idle => Activity::Idle,
                LockView::Waiting { .. } => {
                    Activity::Waiting { reason: session.waits_for.unwrap_or_default().words(name) }
                }
                LockView::Holding { .. } if moving => Activity::Moving,
                LockView::Holding { .. } => Activity::Holding,
                LockView::Dropping { .. } => Activity::Dropping,
            };
            let gpus = session.gpus.iter();
            let state = SessionState {
                name: name(session.session),
                activity,
                clients: session.clients.iter().map(|client| client.client).collect(),
                allocated: gpus.map(|gpu| (gpu.gpu, gpu.allocated_bytes)).collect(),
            };
            (session.session, state)
        });
        let cards = snapshot.gpus.into_iter();
        Self {
            cards: cards.map(|gpu| (gpu.gpu, (gpu.mode, gpu.reason))).collect(),
            sessions: sessions.collect(),
        }
    }
}
