//! Ends of connections, clients and sessions, each with everything that ends with it.
//!
//! ```text
//!   hang-up, bad bytes, full outbox ──▶ connection ──▶ client, which is away while its process lives
//!                                                        │ the process is dead
//!                                                        ▼
//!                        orphan, while the driver has its memory (orphans.rs)
//!                                                        │
//!                                                        ▼
//!   death of an awaited process or a registrar ──▶ session, if nothing keeps it
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpushare_core::Event;
use gpushare_proto::audit::Outcome;
use gpushare_proto::codec::Message;
use gpushare_proto::tenant::Failure;
use gpushare_proto::{ClientId, SessionId};
use gpushare_sys::{clock, peer};

use super::returning::hang_up;
use crate::connections::ConnectionId;
use crate::engine::Engine;
use crate::input::Watched;
use crate::nvml::Usages;
use crate::operation::{Operation, code_name, outcome_of};
use crate::persist::usage;
use crate::registry::ClientEntry;
use crate::report::log;
use crate::sessions::Session;

pub(crate) fn close_connection(engine: &mut Engine, connection: ConnectionId) {
    end_requests(engine, connection);
    engine.peers.remove(connection);
    engine.watchers.forget(connection);
    engine.followers.forget(connection);
}

pub(crate) fn close_unsent(engine: &mut Engine) {
    while let Some((connection, why)) = engine.peers.next_unsent() {
        if let Some((_, peer)) = engine.peers.get(connection) {
            Operation::done("peer.close")
                .peer(peer)
                .failed(Outcome::Failed, "unsent")
                .warn(format_args!("closed {connection} of pid {}: {why}", peer.pid));
        }
        close_connection(engine, connection);
    }
}

/// Sends a failure as the last message of a connection.
pub(crate) fn refuse<M: Message>(
    engine: &mut Engine,
    connection: ConnectionId,
    failure: Failure,
    message: impl FnOnce(Failure) -> M,
) {
    if let Some((_, peer)) = engine.peers.get(connection) {
        Operation::done("peer.request")
            .peer(peer)
            .failed(outcome_of(failure.code), code_name(failure.code))
            .info(format_args!("refused pid {}, user {}: {}", peer.pid, peer.uid, failure.message));
    }
    engine.peers.send(connection, |outbox| outbox.send_last(&message(failure)));
    end_requests(engine, connection);
}

fn end_requests(engine: &mut Engine, connection: ConnectionId) {
    engine.unknown_pods.take(connection);
    engine.copies.close(connection);
    if let Some(client) = engine.peers.end(connection) {
        hang_up(engine, client);
    }
}

/// Removes a client that is dead or never used a card. Its memory counts until the driver has freed it.
pub(crate) fn remove_client(engine: &mut Engine, id: ClientId) {
    engine.read_page(id);
    let Some(client) = engine.clients.remove(id) else {
        return;
    };
    client.page.close();
    engine.restores.forget_slow(id);
    engine.persistence.client_changed(id);
    let name = engine.sessions.name(client.session);
    Operation::of("process.leave", client.session, &name)
        .peer(&client.peer)
        .debug(format_args!("{id} (pid {}) is gone", client.peer.pid));
    let left = client.entry(id, &engine.cards, false).filter(|entry| !entry.cards.is_empty());
    // Without NVML nobody says when an orphan's memory is free. The decision machine counts it for a moment.
    match left.filter(|_| client.peer.is_ending() && !engine.metering.off) {
        Some(entry) => {
            engine.feed(Event::ClientEnded { client: id });
            add_orphan(engine, entry, Some(client.peer.pidfd), true);
        }
        None => {
            engine.feed(Event::ClientGone { client: id });
            leave_session(engine, client.session);
        }
    }
    engine.update_poll();
    if engine.clients.is_empty() {
        engine.metering.rest();
    }
}

pub(crate) fn remove_awaited(engine: &mut Engine, client: ClientId) {
    if let Some(entry) = engine.awaited.remove(client) {
        engine.persistence.client_changed(client);
        engine.feed(Event::ExpectedGone { client });
        add_dead_of_last_daemon(engine, entry);
    }
}

/// Books the memory of a dead client of the last daemon as an orphan. The session counts the orphan in place
/// of the client.
pub(crate) fn add_dead_of_last_daemon(engine: &mut Engine, entry: ClientEntry) {
    engine.persistence.client_changed(entry.client);
    if entry.cards.is_empty() {
        return leave_session(engine, entry.session);
    }
    let client = entry.client;
    engine.feed(Event::ClientJoined { client, session: entry.session, holding: None });
    // It ends before it is on a card, so no other process makes room for it.
    engine.feed(Event::ClientEnded { client });
    for of in &entry.cards {
        if let Ok(gpu) = engine.add_card(&of.card) {
            engine.feed(Event::Attached { client, gpu, used: of.used });
        }
    }
    add_orphan(engine, entry, None, false);
}

/// Keeps the memory of an ended process booked. Watches `pidfd` if the process is ending and not dead yet.
fn add_orphan(engine: &mut Engine, entry: ClientEntry, pidfd: Option<Arc<OwnedFd>>, witnessed: bool) {
    let (id, now) = (entry.client, clock::monotonic());
    let alive = pidfd.filter(|pidfd| !peer::is_dead(pidfd));
    let watch = alive.map(|pidfd| engine.watch(pidfd, Watched::Orphan(id)));
    engine.orphans.add(entry, watch, witnessed, now, engine.metering.questions);
    if engine.metering.off {
        remove_orphan(engine, id);
    }
}

/// Releases the orphans (dead processes with memory) that NVML no longer lists in answer number `asked`.
pub(crate) fn remove_unlisted_orphans(engine: &mut Engine, usages: &Usages, asked: u64) {
    let now = clock::monotonic();
    let unlisted = engine.orphans.unlisted(usages, asked, now);
    unlisted.into_iter().for_each(|id| remove_orphan(engine, id));
    for entry in engine.orphans.newly_late(now) {
        log::memory_kept(entry, &engine.sessions.name(entry.session));
    }
}

pub(crate) fn remove_orphan(engine: &mut Engine, id: ClientId) {
    let Some((entry, logged)) = engine.orphans.remove(id) else {
        return;
    };
    engine.persistence.client_changed(id);
    if logged {
        let (pid, name) = (entry.process.pid, engine.sessions.name(entry.session));
        Operation::of("memory.return", entry.session, &name)
            .process(pid)
            .info(format_args!("the driver has taken back the memory of pid {pid} of {name}"));
    }
    engine.feed(Event::ClientGone { client: id });
    leave_session(engine, entry.session);
}

/// Reduces the number of a session's clients by one, and ends the session if nothing keeps it.
pub(crate) fn leave_session(engine: &mut Engine, session: SessionId) {
    if let Some(session) = engine.sessions.get_mut(session) {
        session.clients = session.clients.saturating_sub(1);
    }
    end_session_if_over(engine, session);
}

/// Ends a program's session if it has no client and the process that registered it is dead.
pub(crate) fn end_session_if_over(engine: &mut Engine, id: SessionId) {
    if let Some(session) = engine.sessions.take_if_over(id) {
        Operation::of("session.end", id, &session.name)
            .user(session.uid())
            .info(format_args!("session {} ({id}) is over", session.name));
        forget_session(engine, id, &session);
    }
}

/// Removes all traces of a session that was taken out of the table, and counts its last usage.
pub(crate) fn forget_session(engine: &mut Engine, id: SessionId, session: &Session) {
    engine.joined.remove_session(id);
    engine.refusals.forget(id);
    engine.last_handoffs.forget(id);
    engine.audit.forget(id, session);
    usage::count_last(engine, id, session);
    engine.metrics.keep_last(id, &session.name, &engine.machine);
    engine.followers.forget_session(id);
    engine.feed(Event::SessionClosed { session: id });
    engine.persistence.session_changed(id);
}
