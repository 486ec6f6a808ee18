//! Telling watchers what happens.
//!
//! ```text
//!   notices of the core ───────────────────────▶ ┐
//!   what status shows now, less what it showed ─▶ pending ── at most once per PAUSE, one frame ──▶ every watcher
//! ```
//!
//! Nothing is computed while nobody watches. A new watcher is told everything, as the difference to nothing. One that
//! does not read is disconnected like any other peer: its outbox is full, and nobody waits.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::Notice;
use gpushare_core::snapshot::Snapshot;
use gpushare_proto::admin::{Activity, AdminReply, LockView, Mode, WatchEvent, WatchEventKind};
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, SessionId};
use gpushare_sys::clock;

use super::Shell;
use crate::connections::ConnectionId;
use crate::sessions::Sessions;

/// How often watchers are told at most.
const PAUSE: Nanos = Nanos::from_millis(10);

/// Those who watch, and what they know.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    who: BTreeSet<ConnectionId>,
    known: View,
    pending: Vec<WatchEvent>,
    /// When they may be told again.
    next: Nanos,
}

/// What watchers are shown of the machine.
#[derive(Clone, Debug, Default)]
struct View {
    cards: BTreeMap<GpuId, (Mode, String)>,
    sessions: BTreeMap<SessionId, SessionShown>,
}

#[derive(Clone, Debug)]
struct SessionShown {
    name: String,
    activity: Activity,
    clients: BTreeSet<ClientId>,
    allocated: BTreeMap<GpuId, Bytes>,
}

impl Watchers {
    /// When there is something to tell.
    pub(super) fn due(&self) -> Option<Nanos> {
        (!self.pending.is_empty()).then_some(self.next)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.who.is_empty()
    }

    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.who.remove(&connection);
    }
}

impl Shell {
    /// Tells a peer everything from now on.
    pub(super) fn start_watch(&mut self, connection: ConnectionId) {
        self.look_at_all_pages();
        self.note_differences();
        self.tell_watchers();
        let now = clock::monotonic();
        let view = View::of(&self.core.snapshot(now), &self.sessions);
        let mut all = vec![WatchEventKind::Watching {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }];
        self.differences(&View::default(), &view, &mut all);
        self.watchers.known = view;
        self.watchers.who.insert(connection);
        let at_ns = now - self.started;
        let all = all.into_iter().map(|what| WatchEvent { at_ns, what }).collect();
        self.reply(connection, &AdminReply::Events(all));
        self.note_sharing();
    }

    /// Notes what the core says by itself.
    pub(super) fn watch_notice(&mut self, notice: &Notice) {
        if self.watchers.is_empty() {
            return;
        }
        let what = match notice.clone() {
            // Seen as a difference.
            Notice::ModeChanged { .. } => return,
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
            // The log and `status` name it.
            Notice::Overdue { .. } => return,
        };
        let at_ns = clock::monotonic() - self.started;
        self.watchers.pending.push(WatchEvent { at_ns, what });
    }

    /// Notes what has changed, and tells it if it is time.
    pub(super) fn serve_watchers(&mut self) {
        if self.watchers.is_empty() {
            self.watchers.pending.clear();
            return;
        }
        self.note_differences();
        if self.watchers.due().is_some_and(|due| due <= clock::monotonic()) {
            self.tell_watchers();
        }
    }

    fn note_differences(&mut self) {
        if self.watchers.is_empty() {
            return;
        }
        let now = clock::monotonic();
        let view = View::of(&self.core.snapshot(now), &self.sessions);
        let mut news = Vec::new();
        self.differences(&self.watchers.known, &view, &mut news);
        let at_ns = now - self.started;
        let news = news.into_iter().map(|what| WatchEvent { at_ns, what });
        self.watchers.pending.extend(news);
        self.watchers.known = view;
    }

    fn tell_watchers(&mut self) {
        if self.watchers.pending.is_empty() {
            return;
        }
        let news = AdminReply::Events(std::mem::take(&mut self.watchers.pending));
        self.watchers.next = clock::monotonic() + PAUSE;
        let who: Vec<ConnectionId> = self.watchers.who.iter().copied().collect();
        for connection in who {
            self.reply(connection, &news);
        }
    }

    /// What leads from one view to the other.
    fn differences(&self, from: &View, to: &View, news: &mut Vec<WatchEventKind>) {
        for (&gpu, (mode, reason)) in &to.cards {
            let before = from.cards.get(&gpu);
            if let (None, Some(card)) = (before, self.cards.get(gpu)) {
                news.push(WatchEventKind::CardFound {
                    gpu,
                    uuid: card.info.uuid,
                    name: card.info.name.clone(),
                    total_bytes: card.info.total,
                });
            }
            if before.is_none_or(|(before, _)| before != mode) {
                news.push(WatchEventKind::ModeChanged { gpu, mode: *mode, reason: reason.clone() });
            }
        }
        for (&session, shown) in &to.sessions {
            self.session_differences(session, from.sessions.get(&session), shown, news);
        }
        let over = from.sessions.iter().filter(|(id, _)| !to.sessions.contains_key(id));
        for (&session, before) in over {
            let left = before.clients.iter();
            news.extend(left.map(|&client| WatchEventKind::ProcessLeft { session, client }));
            news.push(WatchEventKind::SessionEnded { session });
        }
    }

    fn session_differences(
        &self,
        session: SessionId,
        before: Option<&SessionShown>,
        now: &SessionShown,
        news: &mut Vec<WatchEventKind>,
    ) {
        if before.is_none() {
            let name = now.name.clone();
            news.push(WatchEventKind::SessionBegan { session, name });
        }
        if before.is_some_and(|before| before.name != now.name) {
            let name = now.name.clone();
            news.push(WatchEventKind::SessionRenamed { session, name });
        }
        let nobody = BTreeSet::new();
        let were = before.map_or(&nobody, |before| &before.clients);
        for &client in now.clients.difference(were) {
            let pid = self.clients.get(&client).map_or(0, |client| client.peer.pid);
            news.push(WatchEventKind::ProcessJoined { session, client, pid });
        }
        for &client in were.difference(&now.clients) {
            news.push(WatchEventKind::ProcessLeft { session, client });
        }
        for (&gpu, &bytes) in &now.allocated {
            if before.and_then(|before| before.allocated.get(&gpu)) != Some(&bytes) {
                news.push(WatchEventKind::Allocated { session, gpu, bytes });
            }
        }
        // For whom a session waits may change often; that it waits is what counts.
        let kind = std::mem::discriminant::<Activity>;
        if before.is_none_or(|before| kind(&before.activity) != kind(&now.activity)) {
            let to = now.activity.clone();
            news.push(WatchEventKind::Turned { session, to });
        }
    }
}

impl View {
    fn of(snapshot: &Snapshot, sessions: &Sessions) -> Self {
        let shown = snapshot.sessions.iter().map(|session| {
            let moving = session.clients.iter().any(|client| client.gate == GateState::Moving);
            let activity = match &session.lock {
                LockView::Idle => Activity::Idle,
                LockView::Waiting { .. } => Activity::Waiting {
                    reason: session
                        .waits_for
                        .clone()
                        .unwrap_or_default()
                        .words(|session| sessions.name(session)),
                },
                LockView::Holding { .. } if moving => Activity::Moving,
                LockView::Holding { .. } => Activity::Holding,
                LockView::Dropping { .. } => Activity::Dropping,
            };
            let gpus = session.gpus.iter();
            let shown = SessionShown {
                name: sessions.name(session.session),
                activity,
                clients: session.clients.iter().map(|client| client.client).collect(),
                allocated: gpus.map(|gpu| (gpu.gpu, gpu.allocated_bytes)).collect(),
            };
            (session.session, shown)
        });
        let cards = snapshot.gpus.iter();
        Self {
            cards: cards.map(|gpu| (gpu.gpu, (gpu.mode, gpu.reason.clone()))).collect(),
            sessions: shown.collect(),
        }
    }
}
