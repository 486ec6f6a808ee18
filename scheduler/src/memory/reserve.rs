//! Decides memory requests: some at once, others after a wait.
//!
//! A request waits in two cases.
//!
//! The first case is a restart. The registry names the processes of a session, and each reports its usage
//! when it reconnects. Until then a lease could be bytes that another process of the session has. So a
//! session with a quota gets no lease while one of its processes is awaited. It gets none right after the
//! restart either: a process that joined just before the last daemon's death may not be in the registry.
//!
//! The second case is a full card or quota while a process that had memory has just ended: that memory is
//! about to be free (see clients/orphans.rs). For its session's quota only the session's own dead processes
//! count, for the card those of all sessions. A request waits only for processes that had ended when it first
//! found no room. So later deaths do not prolong the wait.

use gpushare_core::{Event, Kind};
use gpushare_proto::page::LimitKind;
use gpushare_proto::tenant::TenantReply;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::clock;

use super::postponed::{Reservation, Waiting};
use crate::connections::ConnectionId;
use crate::engine::Engine;

/// Decides a client's request for memory, or lets the request wait. An error ends the connection.
pub(crate) fn reserve(
    engine: &mut Engine,
    connection: ConnectionId,
    client: ClientId,
    reservation: Reservation,
) -> Result<(), String> {
    let waiting = Waiting { connection, reservation, short_since: None };
    match decide_or_wait(engine, client, waiting)? {
        Some(waiting) => engine.postponed.add(waiting),
        None => Ok(()),
    }
}

/// Decides the waiting requests that need not wait any longer, in order. Returns the connections to be
/// closed, each with the reason.
pub(crate) fn retry_postponed(engine: &mut Engine) -> Vec<(ConnectionId, String)> {
    let mut errors = Vec::new();
    for waiting in engine.postponed.take(clock::monotonic()) {
        let decided = match engine.peers.client(waiting.connection) {
            Some(client) => decide_or_wait(engine, client, waiting),
            None => Ok(None),
        };
        if let Ok(Some(waiting)) = decided {
            engine.postponed.put_back(waiting);
            continue;
        }
        engine.postponed.release(&waiting);
        errors.extend(decided.err().map(|message| (waiting.connection, message)));
    }
    errors
}

/// Takes back leased bytes that a client neither uses nor keeps free in its shared page.
pub(crate) fn give_up(engine: &mut Engine, client: ClientId, gpu: GpuId, bytes: Bytes) {
    engine.read_row(client, gpu);
    let page = engine.clients.get_mut(client).map(|client| &mut client.page);
    let bytes = page.map_or(Bytes::ZERO, |page| page.give_up(gpu, bytes));
    engine.feed(Event::Returned { client, gpu, bytes });
}

/// Decides a memory request, or returns the request if it must wait.
fn decide_or_wait(
    engine: &mut Engine,
    client: ClientId,
    mut waiting: Waiting,
) -> Result<Option<Waiting>, String> {
    let Reservation { request, gpu, bytes, kind } = waiting.reservation;
    if is_unsettled(engine, client, gpu) {
        return Ok(Some(waiting));
    }
    let process = engine.clients.get_mut(client);
    if process.is_some_and(|process| process.away.repeats((request, gpu, bytes))) {
        let reserved = TenantReply::Reserved { request, bytes };
        engine.peers.reply(waiting.connection, &reserved);
        return Ok(None);
    }
    let now = clock::monotonic();
    let short = *waiting.short_since.get_or_insert(now);
    if room_expected(engine, client, waiting.reservation, (short, now)).is_some() {
        return Ok(Some(waiting));
    }
    engine.clients.check_is_on(client, gpu)?;
    engine.read_row(client, gpu);
    engine.feed(match kind {
        Kind::Movable => Event::Reserve { client, gpu, request, bytes },
        Kind::Piece => Event::ReservePiece { client, gpu, request, bytes },
        Kind::Fixed => Event::ReserveFixed { client, gpu, request, bytes },
    });
    Ok(None)
}

/// Returns whether the memory of a client's session is not completely known yet after a restart.
fn is_unsettled(engine: &Engine, client: ClientId, gpu: GpuId) -> bool {
    let Some(session) = engine.clients.get(client).map(|client| client.session) else {
        return false;
    };
    let is_limited = engine.limit_on(session, gpu).is_some();
    is_limited && (is_young(engine) || engine.awaited.has_any_of(session))
}

/// Returns the point in time until which room for a request may be expected. Only processes count that had
/// ended when the request was first `short` of room.
fn room_expected(
    engine: &Engine,
    client: ClientId,
    Reservation { gpu, bytes, kind, .. }: Reservation,
    (short, now): (Nanos, Nanos),
) -> Option<Nanos> {
    let of = match engine.machine.limit_in_the_way(client, gpu, bytes, kind)? {
        LimitKind::Session => Some(engine.clients.get(client)?.session),
        LimitKind::Capacity | LimitKind::ManagedLimit | LimitKind::HostMemory => None,
    };
    let card = engine.cards.get(gpu)?.info.uuid;
    engine.orphans.expected_back(card, of, (short, now))
}

/// Returns whether processes without an entry in the registry may still reconnect.
fn is_young(engine: &Engine) -> bool {
    engine.machine.is_recovering() && clock::monotonic() < grown_up(engine)
}

fn grown_up(engine: &Engine) -> Nanos {
    engine.started + engine.settings.core.recovery_min
}
