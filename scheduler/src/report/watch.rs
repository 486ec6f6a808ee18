//! Events for tools that watch the daemon (watchers).
//!
//! ```text
//!   notices of the decision machine ──────────────────┐
//!                                                     ├─▶ pending ── one frame per PAUSE ──▶ every watcher
//!   sessions that the machine looked at ─▶ difference ─┘
//! ```
//!
//! Nothing is computed while no tool watches. Afterwards each input costs as much as it changes: only
//! sessions that the decision machine looked at are compared. It looks at thousands in a second to tell them
//! figures that no watcher sees, so a session without a change is compared where it lies. A new watcher gets
//! the whole state, as the difference to an empty state. A watcher that does not read is disconnected, like
//! any other peer with a full outbox.
//!
//! While a handoff of remapped memory lasts longer than a second, watchers hear of its progress
//! (`progress.rs`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::{Core, Notice, SessionSight};
use gpushare_proto::admin::{Activity, AdminReply, Mode, WatchEvent, WatchEventKind};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};
use gpushare_sys::clock;

use super::progress::Progress;
use crate::cards::Cards;
use crate::clients::table::Clients;
use crate::connections::ConnectionId;
use crate::peers::Peers;
use crate::sessions::Sessions;

/// Shortest interval between two messages with events for watchers.
const PAUSE: Nanos = Nanos::from_millis(10);
/// Shortest interval between two messages with events while only the daemon's own page watches. The page sends
/// four messages a second itself.
pub(crate) const PAGE_PAUSE: Nanos = Nanos::from_millis(50);

/// Connections of watching tools, and the events that are not sent to them yet.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    connections: BTreeSet<ConnectionId>,
    /// Watchers that show why a session waits. Each reason costs a look at a whole queue.
    with_reasons: BTreeSet<ConnectionId>,
    /// State that the watchers know once all pending events are sent.
    known: State,
    /// Sessions that may have changed since `known` was updated.
    changed: BTreeSet<SessionId>,
    pending: Vec<WatchEvent>,
    progress: Progress,
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
#[derive(Debug, Default)]
struct State {
    cards: BTreeMap<GpuId, (Mode, String)>,
    sessions: BTreeMap<SessionId, SessionState>,
}

#[derive(Debug)]
struct SessionState {
    name: String,
    /// Activity of the session, without the reason for a wait.
    activity: Activity,
    clients: BTreeSet<ClientId>,
    allocated: BTreeMap<GpuId, Bytes>,
}

/// Present state of a session where it lies, to compare with what watchers know.
#[derive(Debug)]
struct Seen<'a> {
    name: Cow<'a, str>,
    sight: SessionSight<'a>,
}

impl Watchers {
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Returns the point in monotonic time of the next message to watchers, if events are pending or a handoff is
    /// running.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.message_due().into_iter().chain(self.progress.due()).min()
    }

    fn message_due(&self) -> Option<Nanos> {
        (!self.pending.is_empty()).then_some(self.next)
    }

    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
        self.with_reasons.remove(&connection);
    }

    /// Notes sessions that may have changed.
    pub(crate) fn note_changes(&mut self, sessions: &[SessionId]) {
        if !self.is_empty() {
            self.changed.extend(sessions);
        }
    }

    /// Adds a watcher and sends it the whole state. Without `reasons` it is not told why sessions wait, unless
    /// another watcher is.
    pub(crate) fn start(
        &mut self,
        connection: ConnectionId,
        reasons: bool,
        scene: &Scene<'_>,
        peers: &mut Peers,
    ) {
        if self.is_empty() {
            self.known = State::of(scene);
        } else {
            self.note_differences(scene);
            self.send(peers);
        }
        let mut events = vec![WatchEventKind::Watching {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }];
        for (&gpu, card) in &self.known.cards {
            scene.card_differences(gpu, None, card, &mut events);
        }
        for (&session, state) in &self.known.sessions {
            scene.session_differences(session, None, state, reasons, &mut events);
        }
        self.connections.insert(connection);
        if reasons {
            self.with_reasons.insert(connection);
        }
        peers.reply(connection, &AdminReply::Events(scene.at_now(events)));
    }

    /// Adds a notice of the decision machine to the pending events.
    pub(crate) fn note(&mut self, notice: &Notice, at_ns: Nanos) {
        if self.is_empty() {
            return;
        }
        let what = match notice.clone() {
            // A difference of states shows the first, the log and `status` show the second.
            Notice::ModeChanged { .. }
            | Notice::Overdue { .. }
            | Notice::Spared { .. }
            | Notice::Frozen { .. }
            | Notice::Thawed { .. }
            | Notice::FreezeRefused { .. }
            | Notice::FreezeBrokeOff { .. }
            | Notice::FrostKilled { .. } => return,
            Notice::Granted { session, quantum, waited, .. } => {
                WatchEventKind::Granted { session, quantum_ns: quantum, waited_ns: waited }
            }
            Notice::Entered { session, handoff, .. } => {
                WatchEventKind::Entered { session, handoff_ns: handoff }
            }
            Notice::Dropped { session, drain, .. } => WatchEventKind::Dropped { session, drain_ns: drain },
            Notice::DropReopened { session, tries } => WatchEventKind::DropReopened { session, tries },
            Notice::Stuck { session, reason } => WatchEventKind::Stuck { session, reason },
            Notice::Refused { client, session, gpu, refusal, .. } => {
                WatchEventKind::Refused { session, client, gpu, refusal }
            }
            Notice::Recovered { after } => WatchEventKind::Recovered { after_ns: after },
            Notice::HandedOver(handoff) => WatchEventKind::HandedOver(*handoff),
        };
        self.pending.push(WatchEvent { at_ns, what });
    }

    /// Adds the changes of the state to the pending events, and sends all events if the interval is over.
    pub(crate) fn update(&mut self, scene: &Scene<'_>, peers: &mut Peers) {
        if self.is_empty() {
            self.pending.clear();
            self.changed.clear();
            self.progress = Progress::default();
            return;
        }
        self.note_differences(scene);
        let now = clock::monotonic();
        let core = scene.core;
        let handoffs = self
            .progress
            .of(now, core.running_handoffs(), |gpu| core.running_handoff(now, gpu));
        let handoffs = handoffs.into_iter().map(WatchEventKind::HandingOver).collect();
        self.pending.extend(scene.at_now(handoffs));
        if self.message_due().is_some_and(|due| due <= now) {
            self.send(peers);
        }
    }

    /// Adds the differences of the changed sessions and of all cards, which are few.
    fn note_differences(&mut self, scene: &Scene<'_>) {
        let reasons = !self.with_reasons.is_empty();
        let State { cards, sessions } = &mut self.known;
        let mut events = Vec::new();
        for (gpu, mode, reason) in scene.core.modes() {
            if cards.get(&gpu).is_none_or(|(before, _)| *before != mode) {
                let now = (mode, reason);
                scene.card_differences(gpu, cards.get(&gpu), &now, &mut events);
                cards.insert(gpu, now);
            }
        }
        for session in std::mem::take(&mut self.changed) {
            let seen = scene.seen(session);
            let known = sessions.get(&session);
            if known.zip(seen.as_ref()).is_some_and(|(known, seen)| known.is_as(seen)) {
                continue;
            }
            match seen.as_ref().map(SessionState::of) {
                Some(now) => {
                    scene.session_differences(session, known, &now, reasons, &mut events);
                    sessions.insert(session, now);
                }
                None => {
                    let Some(before) = sessions.remove(&session) else { continue };
                    let left = before.clients.iter();
                    events.extend(left.map(|&client| WatchEventKind::ProcessLeft { session, client }));
                    events.push(WatchEventKind::SessionEnded { session });
                }
            }
        }
        self.pending.extend(scene.at_now(events));
    }

    fn send(&mut self, peers: &mut Peers) {
        if self.pending.is_empty() {
            return;
        }
        let frame = AdminReply::Events(std::mem::take(&mut self.pending));
        let pause = if self.with_reasons.is_empty() { PAGE_PAUSE } else { PAUSE };
        self.next = clock::monotonic() + pause;
        peers.reply_to_all(&self.connections, &frame);
    }
}

impl<'a> Scene<'a> {
    /// Returns the present state of a session; none if the session is over.
    fn seen(&self, session: SessionId) -> Option<Seen<'a>> {
        let sight = self.core.session_sight(session)?;
        let name = match self.sessions.get(session) {
            Some(known) => Cow::Borrowed(known.name.as_str()),
            // The daemon has removed the session, whose processes still end.
            None => Cow::Owned(self.sessions.name(session)),
        };
        Some(Seen { name, sight })
    }

    fn at_now(&self, events: Vec<WatchEventKind>) -> Vec<WatchEvent> {
        let at_ns = clock::monotonic() - self.started;
        events.into_iter().map(|what| WatchEvent { at_ns, what }).collect()
    }

    /// Appends the events that describe the difference between two states of a card.
    fn card_differences(
        &self,
        gpu: GpuId,
        before: Option<&(Mode, String)>,
        (mode, reason): &(Mode, String),
        events: &mut Vec<WatchEventKind>,
    ) {
        if let (None, Some(card)) = (before, self.cards.get(gpu)) {
            events.push(WatchEventKind::CardFound {
                gpu,
                uuid: card.info.uuid,
                name: card.info.name.clone(),
                total_bytes: card.info.total,
            });
        }
        events.push(WatchEventKind::ModeChanged { gpu, mode: *mode, reason: reason.clone() });
    }

    /// Appends the events that describe the difference between two states of a session.
    fn session_differences(
        &self,
        session: SessionId,
        before: Option<&SessionState>,
        now: &SessionState,
        reasons: bool,
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
        if before.is_none_or(|before| kind(&before.activity) != kind(&now.activity)) {
            let to = match &now.activity {
                Activity::Waiting { .. } if reasons => {
                    let waits_for = self.core.waits_for(session).unwrap_or_default();
                    Activity::Waiting { reason: waits_for.words(|session| self.sessions.name(session)) }
                }
                other => other.clone(),
            };
            events.push(WatchEventKind::Turned { session, to });
        }
    }
}

impl State {
    fn of(scene: &Scene<'_>) -> Self {
        let cards = scene.core.modes().map(|(gpu, mode, reason)| (gpu, (mode, reason)));
        let ids = scene.sessions.iter().map(|(id, _)| id);
        let sessions = ids.filter_map(|id| Some((id, SessionState::of(&scene.seen(id)?))));
        Self { cards: cards.collect(), sessions: sessions.collect() }
    }
}

impl SessionState {
    fn of(seen: &Seen<'_>) -> Self {
        Self {
            name: seen.name.clone().into_owned(),
            activity: seen.sight.activity(),
            clients: seen.sight.clients().collect(),
            allocated: seen.sight.allocated().collect(),
        }
    }

    /// Whether watchers would see no difference.
    fn is_as(&self, seen: &Seen<'_>) -> bool {
        let Self { name, activity, clients, allocated } = self;
        kind(activity) == kind(&seen.sight.activity())
            && seen.sight.allocated().eq(allocated.iter().map(|(&gpu, &bytes)| (gpu, bytes)))
            && seen.sight.clients().eq(clients.iter().copied())
            && *name == seen.name
    }
}

/// Kind of an activity. A new reason to wait is no event: reasons change often.
fn kind(activity: &Activity) -> std::mem::Discriminant<Activity> {
    std::mem::discriminant(activity)
}
