//! Requests on the socket for tenants.
//!
//! ```text
//!   request of any peer ──▶ answered here
//!   request of a client ──▶ answered here, or an event ──▶ decision machine
//! ```
//!
//! A message that makes no sense ends the connection: for example, one about a card that the process does not
//! use. A request that cannot be granted is answered, and the connection stays open.

use gpushare_core::{Event, Kind};
use gpushare_proto::codec::{self, HEADER};
use gpushare_proto::tenant::{CardPart, Failure, GpuInfo, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, ClientId, SessionId, Token};

use super::checks::unlimited_by_mistake;
use super::copies::ask_for_copy;
use super::dry_run::dry_run;
use super::frost::{self, obstacle_with_outer};
use super::imports::introduce;
use super::own::{of_own_user, resize, wait_of};
use super::register::register;
use super::sessions::limit_implicit;
use crate::clients::ancestry;
use crate::clients::join::enter;
use crate::clients::leave::refuse;
use crate::clients::returning::all_repeated;
use crate::connections::{ConnectionId, Dialect as _, End, Tenant};
use crate::copies::Key;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::memory::contradictions;
use crate::memory::postponed::Reservation;
use crate::memory::reserve::{give_up, reserve};
use crate::operation::{Operation, bad_request};
use crate::peers::PeerRole;
use crate::report::increments::own_sessions;
use crate::report::status::{memory_report, session_view};

/// Reason for which a message ends its connection.
enum Nonsense {
    /// Message of a client that was sent by a tool.
    NotAClient,
    Message(String),
}

impl From<String> for Nonsense {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}

pub(crate) fn handle(engine: &mut Engine, connection: ConnectionId, request: &TenantRequest) {
    let Some((role, peer)) = engine.peers.get(connection) else {
        return;
    };
    if role == PeerRole::Ending {
        return;
    }
    let peer = peer.clone();
    let event = carry_out(engine, connection, role, &peer, request);
    let message = match event {
        Ok(event) => return engine.feed_all(event),
        Err(Nonsense::Message(message)) => message,
        Err(Nonsense::NotAClient) => {
            // An administrator's message may read as another one here.
            if codec::encode(request).is_ok_and(|frame| Tenant::is_administration(&frame[HEADER..])) {
                let why = End::Administration.to_string();
                engine.audit.trespassed((peer.pid, peer.uid), why);
            }
            "only a process that shares a GPU may say that".to_owned()
        }
    };
    refuse(engine, connection, bad_request(message), TenantReply::Error);
}

/// Answers a request, or returns the event that passes it to the decision machine.
///
/// The decision machine decides by the free bytes in the process's shared page. So these bytes are read
/// before such an event.
fn carry_out(
    engine: &mut Engine,
    connection: ConnectionId,
    role: PeerRole,
    peer: &PeerProcess,
    request: &TenantRequest,
) -> Result<Option<Event>, Nonsense> {
    let client = || match role {
        PeerRole::Client(client) => Ok(client),
        PeerRole::Tool | PeerRole::Ending => Err(Nonsense::NotAClient),
    };
    let on = |engine: &Engine, gpu| {
        let client = client()?;
        engine.clients.check_is_on(client, gpu)?;
        Ok::<ClientId, Nonsense>(client)
    };
    let mut reply = None;
    let mut event = None;
    match *request {
        // Any peer may send these.
        TenantRequest::Register(ref wish) => {
            let answer = register(engine, peer, wish.clone());
            let line = engine.audit.registered(peer, wish.name.as_deref(), &answer, &engine.sessions);
            engine.reply_to_act(connection, answer, line);
        }
        TenantRequest::OwnSession => {
            let own = own_session(engine, role, peer).and_then(|session| session_view(engine, session));
            reply = Some(TenantReply::OwnSession(own.map(Box::new)));
        }
        TenantRequest::OwnWait => {
            let own = own_session(engine, role, peer);
            reply = Some(TenantReply::OwnWait(own.and_then(|own| wait_of(engine, peer, own))));
        }
        TenantRequest::Resize(ref quota) => {
            let own = own_session(engine, role, peer);
            let answer = resize(engine, peer, own, quota);
            let line = engine
                .audit
                .changed_own(peer, "session.set_memory", own, &answer, &engine.sessions);
            engine.reply_to_act(connection, answer, line);
        }
        TenantRequest::Freeze { ref which } => {
            let own = of_own_user(engine, peer, which);
            let answer = own.clone().and_then(|id| frost::freeze(engine, id)).map(frost_changed);
            let line = engine
                .audit
                .changed_own(peer, "session.freeze", own.ok(), &answer, &engine.sessions);
            engine.reply_to_act(connection, answer, line);
        }
        TenantRequest::Thaw { ref which } => {
            let own = of_own_user(engine, peer, which);
            let answer = own.clone().and_then(|id| frost::thaw_own(engine, id)).map(frost_changed);
            let line = engine
                .audit
                .changed_own(peer, "session.thaw", own.ok(), &answer, &engine.sessions);
            engine.reply_to_act(connection, answer, line);
        }
        TenantRequest::Frost { ref which } => {
            let view = of_own_user(engine, peer, which).map(|id| frost::view(engine, id));
            reply = Some(view.map_or_else(TenantReply::Error, TenantReply::Frost));
        }
        TenantRequest::Gpus => {
            let cards = engine.cards.iter().map(|(_, card)| card.info.clone());
            reply = Some(TenantReply::Gpus(cards.collect()));
        }
        TenantRequest::SessionMemory(ref token) => {
            let session = asked_session(engine, role, peer, token.as_ref());
            let report = session.and_then(|session| memory_report(engine, session, peer));
            reply = Some(TenantReply::SessionMemory(report));
        }
        TenantRequest::UtilizationParts(ref token) => {
            let session = asked_session(engine, role, peer, token.as_ref());
            let parts = session.map(|session| utilization_parts(engine, session));
            reply = Some(TenantReply::UtilizationParts(parts));
        }
        TenantRequest::OwnSessions => {
            let own = own_session(engine, role, peer);
            let increments = Box::new(own_sessions(engine, peer, own));
            reply = Some(TenantReply::OwnSessions(increments));
        }
        TenantRequest::Join(ref token) => {
            reply = Some(enter(engine, peer, token).unwrap_or_else(TenantReply::Error));
        }
        TenantRequest::DryRun(ref prospect) => {
            let forecast = dry_run(engine, peer, prospect.clone()).map(Box::new);
            reply = Some(forecast.map_or_else(TenantReply::Error, TenantReply::DryRun));
        }
        TenantRequest::Copy { request, name, bytes, chunks } => {
            ask_for_copy(engine, connection, peer, request, (Key { name, bytes }, chunks));
        }
        TenantRequest::EndCopy { name, bytes } => engine.copies.end(connection, Key { name, bytes }),
        // Only clients may send these.
        TenantRequest::Hello(_) => {
            client()?;
            return Err("the connection has had its hello".to_owned().into());
        }
        TenantRequest::Attach(ref info) => {
            reply = attach(engine, connection, client()?, info).err().map(TenantReply::Error);
        }
        TenantRequest::UnknownFunction { ref name, version } => {
            note_unknown(engine, client()?, name, version);
        }
        TenantRequest::Limits { ref memory, ref compute } => {
            limit_implicit(engine, client()?, memory, compute)?;
        }
        TenantRequest::Reserve { request, gpu, bytes } => {
            let reservation = Reservation { request, gpu, bytes, kind: Kind::Movable };
            reserve(engine, connection, client()?, reservation)?;
        }
        TenantRequest::ReservePiece { request, gpu, bytes } => {
            let reservation = Reservation { request, gpu, bytes, kind: Kind::Piece };
            reserve(engine, connection, client()?, reservation)?;
        }
        TenantRequest::ReserveFixed { request, gpu, bytes } => {
            let reservation = Reservation { request, gpu, bytes, kind: Kind::Fixed };
            reserve(engine, connection, client()?, reservation)?;
        }
        TenantRequest::Contexts { gpu, live } => {
            let client = on(engine, gpu)?;
            engine.metering.measure_soon();
            event = Some(Event::Contexts { client, gpu, live });
        }
        TenantRequest::Fixed { gpu, bytes } => {
            event = Some(Event::Fixed { client: on(engine, gpu)?, gpu, bytes });
        }
        TenantRequest::ReturnFixed { gpu, bytes } => {
            let client = on(engine, gpu)?;
            give_up(engine, client, gpu, bytes);
        }
        TenantRequest::Reconciled => all_repeated(engine, client()?),
        TenantRequest::Headroom { request, gpu, bytes } => {
            event = Some(Event::Room { client: on(engine, gpu)?, gpu, request, bytes });
        }
        TenantRequest::RefusedLocally { gpu, bytes } => {
            let client = on(engine, gpu)?;
            // For the figures in the refusal's record.
            engine.read_row(client, gpu);
            let times = engine.clients.get(client).map_or(1, |client| client.page.take_refusals(gpu));
            event = Some(Event::RefusedHere { client, gpu, bytes, times });
        }
        TenantRequest::Resides { gpu, seen, residence } => {
            let client = on(engine, gpu)?;
            engine.read_row(client, gpu);
            contradictions::note_claim(engine, client, gpu);
            event = Some(Event::Resides { client, gpu, seen, residence });
        }
        TenantRequest::MoveFailed { gpu, number } => {
            let refused = Bytes::ZERO;
            event = Some(Event::MoveFailed { client: on(engine, gpu)?, gpu, number, refused });
        }
        TenantRequest::CardFull { gpu, number, bytes: refused } => {
            event = Some(Event::MoveFailed { client: on(engine, gpu)?, gpu, number, refused });
        }
        TenantRequest::Import { request, export, meeting } => {
            client()?;
            introduce(engine, connection, request, export, meeting);
        }
        TenantRequest::Trim { gpu } => {
            let client = on(engine, gpu)?;
            engine.read_row(client, gpu);
            event = Some(Event::Trim { client, gpu });
        }
        TenantRequest::Wait { word } => {
            let client = client()?;
            engine.read_page(client);
            event = Some(Event::Wait { client, word });
        }
        TenantRequest::Entered { word, moved, took } => {
            event = Some(Event::Entered { client: client()?, word, moved, took });
        }
        TenantRequest::NearlyDrained { word } => {
            event = Some(Event::NearlyDrained { client: client()?, word });
        }
        TenantRequest::Freezable { obstacle } => {
            let client = client()?;
            event =
                Some(Event::Freezable { client, obstacle: obstacle_with_outer(engine, client, obstacle) });
        }
        TenantRequest::Parked { number } => {
            let client = client()?;
            // A late answer to an earlier request says nothing of this one.
            let is_current = engine
                .clients
                .get(client)
                .is_some_and(|found| found.page.is_last_freeze(number));
            event = is_current.then_some(Event::Parked { client });
        }
        TenantRequest::Called => event = Some(Event::Called { client: client()? }),
        TenantRequest::Held => {
            let client = client()?;
            // The next daemon must not kill it.
            engine.persistence.client_changed(client);
            event = Some(Event::FoundFrozen { client });
        }
        TenantRequest::Released { word, drain } => {
            let client = client()?;
            engine.read_page(client);
            event = Some(Event::Released { client, word, drain });
        }
    }
    if let Some(reply) = reply {
        engine.peers.reply(connection, &reply);
    }
    Ok(event)
}

fn frost_changed((old, new): (String, String)) -> TenantReply {
    TenantReply::FrostChanged { old, new }
}

/// Registers that a client uses a card. The client gets the card's number before any message about the card.
fn attach(
    engine: &mut Engine,
    connection: ConnectionId,
    client: ClientId,
    info: &GpuInfo,
) -> Result<(), Failure> {
    let Some(of) = engine.clients.get(client) else { return Ok(()) };
    let (session, principal) = (Some(of.session), of.peer.principal.clone());
    let gpu = engine.add_announced_card(&principal, info)?;
    if let Some(failure) = session.and_then(|session| unlimited_by_mistake(engine, session)) {
        return Err(failure);
    }
    let attached = TenantReply::Attached { uuid: info.uuid, gpu };
    engine.peers.reply(connection, &attached);
    if engine.clients.check_is_on(client, gpu).is_err() {
        engine.attach(client, gpu, Bytes::ZERO);
        engine.update_poll();
    }
    Ok(())
}

/// Records a driver function unknown to a process's library.
fn note_unknown(engine: &mut Engine, id: ClientId, name: &str, version: u32) {
    let Some(client) = engine.clients.get_mut(id) else { return };
    if !client.unknown.add(name, version) {
        return;
    }
    let (pid, name) = (client.peer.pid, client.unknown.list().join(", "));
    engine.watchers.note_changes(&[client.session]);
    let session = engine.sessions.name(client.session);
    Operation::of("process.unknown_function", client.session, &session)
        .peer(&client.peer)
        .warn(format_args!(
            "process {pid} of {session} was handed {name}, which this gpushare does not know: it is \
             reported as not evictable; update gpushare"
        ));
}

/// Returns the session that a peer asks about: that of its binding, of the token, or its own.
fn asked_session(
    engine: &Engine,
    role: PeerRole,
    peer: &PeerProcess,
    token: Option<&Token>,
) -> Option<SessionId> {
    match (engine.bound(peer), token) {
        (Some(bound), _) => Some(bound),
        (None, Some(token)) => engine.sessions.by_token(token, false),
        (None, None) => own_session(engine, role, peer),
    }
}

fn utilization_parts(engine: &Engine, session: SessionId) -> Vec<CardPart> {
    let part = |gpu| engine.utilization.part(&engine.clients, session, gpu);
    let cards = engine.cards.iter();
    cards
        .map(|(gpu, card)| CardPart { uuid: card.info.uuid, part: part(gpu) })
        .collect()
}

fn own_session(engine: &Engine, role: PeerRole, peer: &PeerProcess) -> Option<SessionId> {
    match role {
        PeerRole::Client(client) => engine.clients.get(client).map(|client| client.session),
        PeerRole::Tool | PeerRole::Ending => {
            let client = peer.id.and_then(|process| ancestry::client_session(engine, process));
            // A command in a pod has no parent there that uses the card.
            let bound = || engine.bound(peer);
            client.or_else(bound).or_else(|| ancestry::session_of(engine, peer))
        }
    }
}
