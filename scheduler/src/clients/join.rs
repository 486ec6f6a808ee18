//! Turns the hello of a process into a client: finds its client number and its session.
//!
//! ```text
//!   returning, and the same process is away            the client that it was (returning.rs)
//!   returning, with the registry's pid and start time  the client that it was
//!   bound by its user or control group                 the session that it is bound to
//!   with a token                                       the session of the token, or a refusal
//!   else                                               the session of a parent (ancestry.rs), else the
//!                                                      implicit session of its user and container or job
//! ```
//!
//! The memory that a returning process claims to use is always booked, because used memory must count. Which
//! client it was is believed only if the kernel's facts agree.

use std::os::fd::OwnedFd;

use gpushare_core::Event;
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{Failure, FailureCode, PROTOCOL, Returning, ReturningGpu, TenantReply, Welcome};
use gpushare_proto::{Bytes, ClientId, GpuId, SessionId, Token};
use gpushare_sys::clock;

use super::hello::ClientHello;
use super::joined::JoinedProcess;
use super::page::ClientPage;
use super::returning::{becomes_away, check_away_limit, come_back, returning_client};
use super::table::Client;
use super::{ancestry, leave};
use crate::connections::ConnectionId;
use crate::engine::Engine;
use crate::identity::{PeerProcess, ProcessId};
use crate::input::Watched;
use crate::memory::host;
use crate::operation::{Operation, failure, plain};
use crate::registry::Origin;
use crate::report::status::memory_report;
use crate::sessions::Session;

pub(crate) fn join(
    engine: &mut Engine,
    connection: ConnectionId,
    peer: &PeerProcess,
    hello: &ClientHello,
) -> Result<(), Failure> {
    let (token, returning) = (hello.token.as_ref(), hello.returning.as_ref());
    let (file, page) = ClientPage::create().map_err(|cause| {
        failure(
            FailureCode::Unavailable,
            format!(
                "the daemon has no page for the process ({cause}); end other processes, or raise its limit of \
                 open files"
            ),
        )
    })?;
    if let Some(returning) = returning
        && let Some(client) = returning_client(engine, peer, returning)
    {
        return come_back(engine, connection, (client, peer), returning, (file, page));
    }
    check_away_limit(engine, peer)?;
    let Member { client: id, session, restored, frozen } = find_member(engine, peer, token, returning)?;
    let had = returning.map_or(&[][..], |returning| &returning.gpus);
    let gpus = match add_cards(engine, peer, had) {
        Ok(gpus) => gpus,
        Err(failure) => {
            engine.feed(Event::ClientGone { client: id });
            leave::leave_session(engine, session);
            return Err(failure);
        }
    };
    // Restores that begin later write it too.
    page.hold_back(engine.restores.held_back(), 0);
    let name = welcome(engine, connection, (id, session), gpus.clone(), file);
    let mut client = Client::new(session, peer, page, restored);
    client.connection = Some(connection);
    client.remaps = hello.remaps;
    engine.clients.insert(id, client);
    engine.persistence.client_changed(id);
    engine.persistence.count_from(clock::monotonic());
    Operation::of("process.join", session, &name)
        .peer(peer)
        .debug(format_args!("{id} is pid {} of {session}", peer.pid));
    let believed = returning.filter(|_| restored || may_be_unwritten(engine, peer));
    let holding = believed.and_then(|returning| returning.holding);
    engine.feed(Event::ClientJoined { client: id, session, holding });
    if frozen {
        engine.feed(Event::FrozenBefore { client: id });
    }
    if hello.remaps {
        host::budget_if_needed(engine);
        engine.feed(Event::Remaps { client: id });
    }
    for (gpu, had) in gpus.into_iter().zip(had) {
        let used = had.used.min(credible_bytes(engine, session, gpu, restored));
        engine.attach(id, gpu, used);
        engine.feed(Event::Contexts { client: id, gpu, live: had.contexts });
    }
    engine.update_poll();
    if returning.is_some_and(|returning| returning.waiting)
        && let Some(word) = engine.clients.get(id).map(|client| client.page.gate())
    {
        engine.feed(Event::Wait { client: id, word });
    }
    Ok(())
}

/// Answers the hello of a client, and sends the file of its shared page. Returns the name of its session.
pub(super) fn welcome(
    engine: &mut Engine,
    connection: ConnectionId,
    (client, session): (ClientId, SessionId),
    gpus: Vec<GpuId>,
    file: OwnedFd,
) -> String {
    let name = engine.sessions.name(session);
    let welcome = Welcome { protocol: PROTOCOL, client, session, name: name.clone(), gpus };
    let welcome = TenantReply::Welcome(welcome);
    engine.peers.send(connection, |outbox| outbox.send_with(&welcome, file));
    engine.peers.become_client(connection, client);
    name
}

pub(super) fn add_cards(
    engine: &mut Engine,
    peer: &PeerProcess,
    had: &[ReturningGpu],
) -> Result<Vec<GpuId>, Failure> {
    let add = |had: &ReturningGpu| Ok(engine.add_announced_card(&peer.principal, &had.info)?);
    had.iter().map(add).collect()
}

/// Returns the largest number of bytes of a card that a returning process may claim to use.
///
/// For a client in the registry this is the most that the card can ever back. For another process it is also
/// at most the unused quota of its session. An honest process loses nothing: all processes of its session
/// were within the quota when the last daemon ended, and nothing is leased until they are back.
pub(super) fn credible_bytes(engine: &Engine, session: SessionId, gpu: GpuId, restored: bool) -> Bytes {
    let Some(card) = engine.cards.get(gpu) else {
        return Bytes::ZERO;
    };
    match engine.limit_on(session, gpu) {
        Some(limit) if !restored => {
            let siblings = engine.clients.of(session);
            let leased: Bytes = siblings.filter_map(|client| client.page.leased(gpu)).sum();
            let left = engine.orphans.certain_bytes(session, card.info.uuid);
            card.most().min(limit - leased - left)
        }
        _ => card.most(),
    }
}

/// Returns whether a process without an entry in the registry may have been a client of the last daemon.
fn may_be_unwritten(engine: &Engine, peer: &PeerProcess) -> bool {
    let core = &engine.settings.core;
    let patience = core.recovery_min.max(core.stuck_after);
    let is_older = peer.id.is_some_and(|process| process.start <= engine.start_ticks);
    is_older && clock::monotonic() < engine.started + patience
}

/// Client and session of a process that joins.
struct Member {
    client: ClientId,
    session: SessionId,
    /// Whether pid and start time prove that the process is this client of the last daemon.
    restored: bool,
    /// Whether the driver has frozen the process once, by the registry.
    frozen: bool,
}

fn find_member(
    engine: &mut Engine,
    peer: &PeerProcess,
    token: Option<&Token>,
    returning: Option<&Returning>,
) -> Result<Member, Failure> {
    if let Some(&Returning { client, .. }) = returning
        && let Some(entry) = engine.awaited.take(client, peer)
    {
        // Its place in the session's count of clients becomes the returned client's.
        return Ok(Member { client, session: entry.session, restored: true, frozen: entry.frozen });
    }
    // A process that does not say who it was may still have what it had.
    let mut frozen = false;
    for entry in engine.awaited.take_all(peer) {
        frozen |= entry.frozen;
        engine.persistence.client_changed(entry.client);
        becomes_away(engine, entry, peer);
    }
    let session = match (engine.bound(peer), token) {
        // The kernel's word comes before the peer's.
        (Some(bound), _) => bound,
        (None, Some(token)) => by_token(engine, token, returning.is_some())?,
        (None, None) => match ancestry::session_of(engine, peer) {
            Some(session) => session,
            None => open_implicit(engine, peer)?,
        },
    };
    // If the process is dead, its pid was perhaps another process's when the kernel was asked about it.
    if peer.is_dead() {
        return Err(failure(FailureCode::Permission, "the process that connected is dead"));
    }
    engine.sessions.join(session);
    Ok(Member { client: engine.clients.new_id(), session, restored: false, frozen })
}

/// Returns the session of a token. A process may return to a session even with a revoked token.
fn by_token(engine: &Engine, token: &Token, returning: bool) -> Result<SessionId, Failure> {
    engine.sessions.by_token(token, returning).ok_or_else(|| {
        failure(
            FailureCode::NotFound,
            "this daemon knows no session with that token; start the program again with `gpushare-ctl run`",
        )
    })
}

fn open_implicit(engine: &mut Engine, peer: &PeerProcess) -> Result<SessionId, Failure> {
    if !engine.settings.implicit_sessions {
        return Err(failure(
            FailureCode::Permission,
            "this daemon serves only processes of a session; start the program with `gpushare-ctl run`",
        ));
    }
    let lineage = peer.lineage.get();
    let Some((key, program)) =
        lineage.and_then(|lineage| Some((lineage.own_key()?.clone(), &lineage.program)))
    else {
        return Err(failure(FailureCode::Unavailable, "the daemon does not know the process; try again"));
    };
    let (words, uid) = (key.to_string(), key.uid);
    let session = engine.open_session(
        |id| format!("{}-{}", plain(program), id.0),
        |name| Session::new(name, Terms::default(), Origin::Implicit(key), false, None),
    );
    let name = engine.sessions.name(session);
    Operation::of("session.open", session, &name)
        .user(uid)
        .info(format_args!("{session} is the session of {words}"));
    Ok(session)
}

/// Puts a process into the session of its token. A binding by user or control group takes precedence.
///
/// Refuses a process without a pid in the daemon's namespace, because its children could not be recognised.
pub(crate) fn enter(engine: &mut Engine, peer: &PeerProcess, token: &Token) -> Result<TenantReply, Failure> {
    let Some(session) = engine.bound(peer).or_else(|| engine.sessions.by_token(token, false)) else {
        return Ok(TenantReply::SessionMemory(None));
    };
    if let Some(process) = peer.id {
        check_limit(engine, peer, process)?;
        let watch = engine.watch(peer.pidfd.clone(), Watched::Joined(process));
        let joined = JoinedProcess { process, principal: peer.principal.clone() };
        let left = engine.joined.session_of(process);
        engine.joined.enter(joined, session, watch);
        let changed = left.into_iter().chain([session]);
        changed.for_each(|session| engine.persistence.session_changed(session));
        let name = engine.sessions.name(session);
        Operation::of("session.enter", session, &name)
            .peer(peer)
            .debug(format_args!("pid {} and all that it starts are of {name}", peer.pid));
    }
    Ok(TenantReply::SessionMemory(memory_report(engine, session, peer)))
}

fn check_limit(engine: &Engine, peer: &PeerProcess, process: ProcessId) -> Result<(), Failure> {
    let principal = &peer.principal;
    let is_in = engine.joined.session_of(process).is_some();
    if is_in || engine.limit.allows(principal, engine.joined.count_of(principal)) {
        return Ok(());
    }
    let most = engine.limit.most;
    Err(failure(
        FailureCode::Unavailable,
        format!("{principal} has {most} processes already that entered a session; end one first"),
    ))
}
