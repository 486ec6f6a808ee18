//! What `gpushare-ctl status` shows: the core's snapshot, with what only the shell and the kernel know.

use std::process;

use gpushare_core::snapshot::SessionSnapshot;
use gpushare_proto::admin::{DaemonView, LockView, SessionView, Status};
use gpushare_proto::{ClientId, SessionId};
use gpushare_sys::{clock, process as kernel};

use super::{Client, Shell};
use crate::sessions::Session;

impl Shell {
    pub(super) fn status(&mut self) -> Status {
        self.look_at_all_pages();
        let now = clock::monotonic();
        let snapshot = self.core.snapshot(now);
        Status {
            daemon: DaemonView {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: process::id(),
                uptime_ns: now - self.started,
                recovering: snapshot.recovering,
            },
            gpus: snapshot
                .gpus
                .into_iter()
                .filter_map(|gpu| {
                    let info = &self.cards.get(gpu.gpu)?.info;
                    Some(gpu.into_view(info.uuid, info.name.clone()))
                })
                .collect(),
            sessions: snapshot.sessions.into_iter().map(|session| self.view(session)).collect(),
        }
    }

    pub(super) fn session_view(&mut self, session: SessionId) -> Option<SessionView> {
        self.look_at_pages_of(session);
        let snapshot = self.core.snapshot(clock::monotonic());
        let found = snapshot.sessions.into_iter().find(|found| found.session == session)?;
        Some(self.view(found))
    }

    /// Reads what lies free in the pages of a session's clients.
    pub(super) fn look_at_pages_of(&mut self, session: SessionId) {
        let own = |(&id, client): (&ClientId, &Client)| (client.session == session).then_some(id);
        let clients: Vec<ClientId> = self.clients.iter().filter_map(own).collect();
        clients.into_iter().for_each(|client| self.look_at_page(client));
    }

    /// The processes of a session that are stopped, in words; nothing if none is.
    pub(super) fn stopped(&self, session: SessionId) -> Option<String> {
        let pids: Vec<String> = self
            .clients
            .values()
            .filter(|client| client.session == session)
            .filter_map(|client| {
                let pid = client.peer.pid;
                match client.connection {
                    None => Some(format!("pid {pid} hung up and lives")),
                    Some(_) => kernel::is_stopped(pid).then(|| format!("pid {pid} is stopped")),
                }
            })
            .collect();
        (!pids.is_empty()).then(|| pids.join(", "))
    }

    fn view(&self, snapshot: SessionSnapshot) -> SessionView {
        let id = snapshot.session;
        let known = self.sessions.get(id);
        let implicit = known.is_some_and(Session::is_implicit);
        let state = known.map(|session| session.state(clock::monotonic())).unwrap_or_default();
        let waits_for = snapshot.waits_for.clone();
        let process = |client: ClientId| {
            let client = self.clients.get(&client);
            client.map_or((0, Vec::new()), |client| (client.peer.pid, client.unknown.list()))
        };
        let mut view = snapshot.into_view(self.sessions.name(id), implicit, state, process);
        if let Some(Session { before, .. }) = known {
            view.waited_ns += before.waited;
            view.held_ns += before.held;
            view.refusals = view.refusals.saturating_add(before.refusals);
        }
        if let LockView::Dropping { reason, .. } = &mut view.lock
            && let Some(stopped) = self.stopped(id)
        {
            *reason = format!("{reason}; {stopped}");
        }
        if let (LockView::Waiting { reason, .. }, Some(waits_for)) = (&mut view.lock, waits_for) {
            *reason = waits_for.words(|session| self.sessions.name(session));
            if let Some(awaited) = self.awaited_in_words(id, &waits_for) {
                *reason = format!("{reason}: {awaited}");
            }
        }
        view
    }
}
