//! State of the daemon for `gpushare-ctl status` and for processes. It combines the decision
//! machine's figures with names, pids and states of processes.

use gpushare_core::snapshot::SessionSnapshot;
use gpushare_proto::admin::{DaemonView, LockView, SessionView, Status};
use gpushare_proto::session::Amount;
use gpushare_proto::tenant::{CardMemory, ProcessMemory, SessionMemory};
use gpushare_proto::{ClientId, SessionId};
use gpushare_sys::clock;

use super::log::stopped_clients;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::sessions::Session;
use crate::sessions::terms::memory_in_force;

pub(crate) fn status(engine: &mut Engine) -> Status {
    engine.read_pages(None);
    let now = clock::monotonic();
    let snapshot = engine.machine.snapshot(now);
    let cards = snapshot.gpus.into_iter().filter_map(|gpu| {
        let info = &engine.cards.get(gpu.gpu)?.info;
        Some(gpu.into_view(info.uuid, info.name.clone()))
    });
    Status {
        daemon: DaemonView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ns: now - engine.started,
            recovering: snapshot.recovering,
        },
        gpus: cards.collect(),
        sessions: snapshot.sessions.into_iter().map(|session| view(engine, session)).collect(),
    }
}

/// Returns the state of one session; none if the decision machine does not know the session.
pub(crate) fn session_view(engine: &mut Engine, session: SessionId) -> Option<SessionView> {
    engine.read_pages(Some(session));
    let snapshot = engine.machine.placed_snapshot(clock::monotonic(), session)?;
    Some(view(engine, snapshot))
}

fn view(engine: &Engine, snapshot: SessionSnapshot) -> SessionView {
    let sessions = &engine.sessions;
    let id = snapshot.session;
    let known = sessions.get(id);
    let implicit = known.is_some_and(Session::is_implicit);
    let mut state = known.map(|session| session.state(clock::boot())).unwrap_or_default();
    if let Some(session) = known {
        state.terms.memory = memory_in_force(session, &engine.cards);
    }
    let waits_for = snapshot.waits_for.clone();
    let process = |client: ClientId| {
        let client = engine.clients.get(client);
        client.map_or((0, Vec::new()), |client| (client.peer.pid, client.unknown.list()))
    };
    let mut view = snapshot.into_view(sessions.name(id), implicit, state, process);
    if let Some(Session { before, .. }) = known {
        view.waited_ns += before.waited;
        view.held_ns += before.held;
        view.refusals = view.refusals.saturating_add(before.refusals);
    }
    match (&mut view.lock, waits_for) {
        (LockView::Dropping { reason, .. }, _) => {
            if let Some(stopped) = stopped_clients(&engine.clients, id) {
                *reason = format!("{reason}; {stopped}");
            }
        }
        (LockView::Waiting { reason, .. }, Some(waits_for)) => {
            *reason = waits_for.words(|session| sessions.name(session));
            let awaited = engine.machine.awaited_by(id);
            if let Some(awaited) = engine.awaited.in_words(&waits_for, &awaited, sessions) {
                *reason = format!("{reason}: {awaited}");
            }
        }
        _ => {}
    }
    view
}

/// Returns a session's memory as CUDA, NVML and `nvidia-smi` show it inside, with pids as `asker` sees them.
pub(crate) fn memory_report(
    engine: &mut Engine,
    session: SessionId,
    asker: &PeerProcess,
) -> Option<SessionMemory> {
    engine.read_pages(Some(session));
    let Engine { machine, clients, cards, sessions, .. } = engine;
    let process = |(client, used)| {
        let peer = &clients.get(client)?.peer;
        Some(ProcessMemory { pid: peer.pid_as_seen_by(asker), outer_pid: peer.pid, used })
    };
    let accounts = machine.memory_figures(session)?.into_iter();
    let known = sessions.get(session)?;
    let quota = memory_in_force(known, cards);
    let cards = accounts.filter_map(|on_card| {
        Some(CardMemory {
            info: cards.get(on_card.gpu)?.info.clone(),
            total: on_card.total,
            used: on_card.used,
            free: on_card.free,
            processes: on_card.processes.into_iter().filter_map(process).collect(),
        })
    });
    Some(SessionMemory {
        session,
        name: known.name.clone(),
        limit: match quota.every {
            Some(Amount::Bytes(bytes)) => Some(bytes),
            _ => None,
        },
        cards: cards.collect(),
    })
}
