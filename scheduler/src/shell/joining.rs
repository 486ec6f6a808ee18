//! From a hello to a client: which process of which session it is.
//!
//! ```text
//!   returning, and the same process is away ──▶ the client it was (away.rs)
//!   returning, and pid and start time are the registry's ──▶ the client it was
//!   else a token ──▶ the session that it opens, or none
//!   else ──▶ the implicit session of its user and container or job, where those are on
//! ```
//!
//! What a returning process claims to use is booked in either case, since memory that is there must count;
//! who it was is believed only by the kernel's word.

use std::collections::BTreeMap;

use gpushare_core::Event;
use gpushare_proto::admin::AdminReply;
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{
    Failure, FailureCode, PROTOCOL, Returning, ReturningGpu, Role, TenantReply, Welcome,
};
use gpushare_proto::{Bytes, ClientId, GpuId, SessionId, Token};
use gpushare_sys::{clock, process};

use super::away::Away;
use super::tenant::plain;
use super::unknown::UnknownFunctions;
use super::{Client, ConnectionRole, Shell, failure};
use crate::connections::{ConnectionId, Outbox, Socket};
use crate::identity::{ImplicitKey, PeerProcess};
use crate::operation::Operation;
use crate::pages::ClientPage;
use crate::registry::Origin;
use crate::sessions::Session;

/// Who a process turned out to be.
struct Member {
    client: ClientId,
    session: SessionId,
    /// Whether it is a client of the last daemon, by pid and start time.
    restored: bool,
}

impl Shell {
    pub(super) fn opened(
        &mut self,
        connection: ConnectionId,
        socket: Socket,
        peer: &PeerProcess,
        role: Role,
        outbox: Outbox,
    ) {
        self.admit(connection, peer.clone(), outbox);
        match (socket, role) {
            (Socket::Admin, _) => self.reply(connection, &AdminReply::Ready { protocol: PROTOCOL }),
            (Socket::Tenant, Role::Tool) => {
                self.reply(connection, &TenantReply::Ready { protocol: PROTOCOL })
            }
            (Socket::Tenant, Role::Client { token, returning }) => {
                if let Err(failure) = self.join(connection, peer, token.as_ref(), returning.as_ref()) {
                    self.refuse(connection, failure, TenantReply::Error);
                }
            }
        }
    }

    fn join(
        &mut self,
        connection: ConnectionId,
        peer: &PeerProcess,
        token: Option<&Token>,
        returning: Option<&Returning>,
    ) -> Result<(), Failure> {
        let (file, page) = ClientPage::create().map_err(|cause| {
            failure(
                FailureCode::Unavailable,
                format!("the daemon has no page for the process ({cause}); end other processes, or raise its limit of open files"),
            )
        })?;
        if let Some(returning) = returning
            && let Some(client) = self.who_returns(peer, returning)
        {
            return self.come_back(connection, (client, peer), returning, (file, page));
        }
        self.may_join(peer)?;
        let Member { client, session, restored } = self.member(peer, token, returning)?;
        let had = returning.map_or(&[][..], |returning| &returning.gpus);
        let gpus = match self.cards_of(had) {
            Ok(gpus) => gpus,
            Err(failure) => {
                self.feed(Event::ClientGone { client });
                self.leave(session);
                return Err(failure);
            }
        };
        let welcome = TenantReply::Welcome(Welcome {
            protocol: PROTOCOL,
            client,
            session,
            name: self.sessions.name(session),
            gpus: gpus.clone(),
        });
        self.push(connection, |outbox| outbox.send_with(&welcome, file));
        if let Some(open) = self.connections.get_mut(&connection) {
            open.role = ConnectionRole::Client(client);
        }
        self.clients.insert(
            client,
            Client {
                session,
                connection: Some(connection),
                peer: peer.clone(),
                away: Away::default(),
                restored,
                page,
                overheads: BTreeMap::new(),
                unknown: UnknownFunctions::default(),
            },
        );
        self.keeping.changed();
        self.keeping.count_from(clock::monotonic());
        let name = self.sessions.name(session);
        Operation::done("process.join")
            .of(session, &name)
            .process(peer.pid)
            .user(peer.uid)
            .debug(format_args!("{client} is pid {} of {session}", peer.pid));
        self.feed(Event::ClientJoined {
            client,
            session,
            holding: returning
                .filter(|_| restored || self.may_be_unwritten(peer))
                .and_then(|returning| returning.holding),
        });
        for (gpu, had) in gpus.into_iter().zip(had) {
            let used = had.used.min(self.credible(session, gpu, restored));
            self.attach(client, gpu, used);
            self.feed(Event::Contexts { client, gpu, live: had.contexts });
        }
        self.note_sharing();
        if returning.is_some_and(|returning| returning.waiting)
            && let Some(word) = self.clients.get(&client).map(|client| client.page.gate())
        {
            self.feed(Event::Wait { client, word });
        }
        Ok(())
    }

    pub(super) fn cards_of(&mut self, had: &[ReturningGpu]) -> Result<Vec<GpuId>, Failure> {
        had.iter().map(|had| Ok(self.add_card(&had.info)?)).collect()
    }

    /// The most that a returning process may say it uses of a card: what the card could ever back, and for one that the
    /// registry does not know, what is left of its session's quota. All that its session's processes had when the last daemon
    /// ended was within that, and nothing is leased until they are back, so it takes nothing from an honest one.
    pub(super) fn credible(&self, session: SessionId, gpu: GpuId, restored: bool) -> Bytes {
        let Some(card) = self.cards.get(gpu) else {
            return Bytes::ZERO;
        };
        match self.limit_on(session, gpu) {
            Some(limit) if !restored => {
                let siblings = self.clients.values().filter(|client| client.session == session);
                let leased: Bytes = siblings.filter_map(|client| client.page.leased(gpu)).sum();
                let left = self.orphans.certain_bytes(session, card.info.uuid);
                card.most().min(limit - leased - left)
            }
            _ => card.most(),
        }
    }

    fn member(
        &mut self,
        peer: &PeerProcess,
        token: Option<&Token>,
        returning: Option<&Returning>,
    ) -> Result<Member, Failure> {
        if let Some(returning) = returning
            && let Some(session) = self.take_expected(peer, returning)
        {
            return Ok(Member { client: returning.client, session, restored: true });
        }
        self.let_expected_be(peer);
        let session = match (self.bound_session(peer), token) {
            // The kernel's word before the peer's.
            (Some(bound), _) => bound,
            (None, Some(token)) => self.by_token(token, returning.is_some()).ok_or_else(|| {
                failure(
                    FailureCode::NotFound,
                    "this daemon knows no session with that token; start the program again with `gpushare-ctl run`",
                )
            })?,
            (None, None) => match self.by_descent(peer) {
                Some(session) => session,
                None => self.implicit(peer)?,
            },
        };
        // What the kernel said of its pid was said of another process if it is dead.
        if peer.is_ending() {
            return Err(failure(FailureCode::Permission, "the process that connected is dead"));
        }
        self.sessions.join(session);
        let client = ClientId(self.next_client);
        self.next_client += 1;
        Ok(Member { client, session, restored: false })
    }

    /// The session of a client of the last daemon, if this process is that client.
    fn take_expected(&mut self, peer: &PeerProcess, returning: &Returning) -> Option<SessionId> {
        let entry = self.expected.get(&returning.client)?;
        if peer.id != Some(entry.process) {
            return None;
        }
        // Its place in the session's count becomes the returned client's.
        self.expected.remove(&returning.client).map(|entry| entry.session)
    }

    /// A process that comes without saying who it was may have what it had all the same.
    fn let_expected_be(&mut self, peer: &PeerProcess) {
        let same = |process| peer.id == Some(process);
        let old: Vec<ClientId> = self
            .expected
            .iter()
            .filter(|(_, entry)| same(entry.process))
            .map(|(&client, _)| client)
            .collect();
        for client in old {
            if let Some(entry) = self.expected.remove(&client) {
                self.becomes_away(client, entry, peer);
            }
        }
    }

    /// The session that a process belongs to by its user or its control group.
    pub(super) fn bound_session(&self, peer: &PeerProcess) -> Option<SessionId> {
        self.sessions.by_binding([peer.uid, peer.user], || process::cgroups(peer.pid))
    }

    /// A session of peers without a token, of whom this is the first.
    fn implicit(&mut self, peer: &PeerProcess) -> Result<SessionId, Failure> {
        if !self.settings.implicit_sessions {
            return Err(failure(
                FailureCode::Permission,
                "this daemon serves only processes of a session; start the program with `gpushare-ctl run`",
            ));
        }
        let key = peer.implicit_key();
        let program = process::comm(peer.pid).unwrap_or_else(|| "process".to_owned());
        Ok(self.open_implicit(key, &program))
    }

    fn open_implicit(&mut self, key: ImplicitKey, program: &str) -> SessionId {
        let (words, uid) = (key.to_string(), key.uid);
        let session = self.open_session(
            |id| format!("{}-{}", plain(program), id.0),
            |name| Session::new(name, Terms::default(), Origin::Implicit(key), false, None),
        );
        let name = self.sessions.name(session);
        Operation::done("session.open")
            .of(session, &name)
            .user(uid)
            .info(format_args!("{session} is the session of {words}"));
        session
    }

    /// A new session, which the core hears of.
    pub(super) fn open_session(
        &mut self,
        name: impl FnOnce(SessionId) -> String,
        make: impl FnOnce(String) -> Session,
    ) -> SessionId {
        let id = self.sessions.add(name, make);
        self.keeping.changed();
        self.tell_terms(id);
        id
    }
}
