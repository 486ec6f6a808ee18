//! What a peer on the tenant socket may ask and say, and what becomes of it.
//!
//! A message that makes no sense (a card the process is not on, a client's message from a tool) ends the
//! connection; a wish that cannot be granted is answered and the connection goes on.

use gpushare_core::Event;
use gpushare_proto::codec::{self, HEADER};
use gpushare_proto::lookup::MAX_SESSION_NAME;
use gpushare_proto::tenant::{Failure, FailureCode, GpuInfo, TenantReply, TenantRequest};
use gpushare_proto::text::is_printable;
use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use super::{ConnectionRole, Shell, failure};
use crate::connections::{ConnectionId, Dialect as _, End, Tenant};
use crate::identity::{PeerProcess, ProcessId};
use crate::operation::Operation;

/// The longest name of a session or a card that is shown, in characters.
const MAX_NAME: usize = MAX_SESSION_NAME;

impl Shell {
    pub(super) fn tenant(&mut self, connection: ConnectionId, request: TenantRequest) {
        let Some(open) = self.connections.get(&connection) else {
            return;
        };
        let (role, peer) = (open.role, open.peer.clone());
        let sense = match (role, request) {
            (ConnectionRole::Ending, _) => Ok(()),
            (_, TenantRequest::Register(wish)) => {
                let wished = wish.name.clone();
                let answer = self.register(&peer, wish);
                let act = self.registered(&peer, wished.as_deref(), &answer);
                match answer {
                    Ok(done) => self.reply_when_kept(connection, &done, act),
                    Err(failure) => {
                        if let Some(act) = act {
                            self.write_act(act);
                        }
                        self.reply(connection, &TenantReply::Error(failure));
                    }
                }
                Ok(())
            }
            (_, TenantRequest::OwnSession) => {
                let own = self.own(role, &peer).and_then(|session| self.session_view(session));
                self.reply(connection, &TenantReply::OwnSession(own.map(Box::new)));
                Ok(())
            }
            (_, TenantRequest::Gpus) => {
                let cards = self.cards.iter().map(|(_, card)| card.info.clone()).collect();
                self.reply(connection, &TenantReply::Gpus(cards));
                Ok(())
            }
            (_, TenantRequest::SessionMemory(token)) => {
                let session = match (self.bound_session(&peer), token) {
                    (Some(bound), _) => Some(bound),
                    (None, Some(token)) => self.sessions.by_token(&token),
                    (None, None) => self.own(role, &peer),
                };
                let account = session.and_then(|session| self.account(session, &peer));
                self.reply(connection, &TenantReply::SessionMemory(account));
                Ok(())
            }
            (_, TenantRequest::Join(token)) => {
                let answer = self.enter(&peer, &token).unwrap_or_else(TenantReply::Error);
                self.reply(connection, &answer);
                Ok(())
            }
            (_, TenantRequest::DryRun(prospect)) => {
                let answer = self.foresee(&peer, prospect).map(Box::new);
                let answer = answer.map_or_else(TenantReply::Error, TenantReply::DryRun);
                self.reply(connection, &answer);
                Ok(())
            }
            (ConnectionRole::Client(client), TenantRequest::Attach(info)) => {
                if let Err(failure) = self.announced(connection, client, &info) {
                    self.reply(connection, &TenantReply::Error(failure));
                }
                Ok(())
            }
            (ConnectionRole::Client(client), TenantRequest::UnknownFunction { name, version }) => {
                self.handed_unknown(client, &name, version);
                Ok(())
            }
            (ConnectionRole::Client(client), TenantRequest::Limits { memory, compute }) => {
                self.limit_implicit(client, memory, compute)
            }
            (
                ConnectionRole::Client(client),
                ref asks @ (TenantRequest::Reserve { .. } | TenantRequest::ReserveFixed { .. }),
            ) => self.reserve_or_postpone(connection, client, asks),
            (ConnectionRole::Client(client), request) => self.client_says(client, &request),
            (ConnectionRole::Tool, request) => {
                // What an administrator says may read as something else here.
                if codec::encode(&request).is_ok_and(|frame| Tenant::is_administration(&frame[HEADER..])) {
                    self.trespassed((peer.pid, peer.uid), End::Administration.to_string());
                }
                Err("only a process that shares a GPU may say that".to_owned())
            }
        };
        if let Err(message) = sense {
            self.refuse_nonsense(connection, message);
        }
    }

    pub(super) fn refuse_nonsense(&mut self, connection: ConnectionId, message: String) {
        let failure = failure(FailureCode::BadRequest, message);
        self.refuse(connection, failure, TenantReply::Error);
    }

    /// The card's number goes out first, then whatever the core makes of the newcomer.
    fn announced(
        &mut self,
        connection: ConnectionId,
        client: ClientId,
        info: &GpuInfo,
    ) -> Result<(), Failure> {
        let gpu = self.add_card(info)?;
        let session = self.clients.get(&client).map(|client| client.session);
        if let Some(failure) = session.and_then(|session| self.limits_nothing(session)) {
            return Err(failure);
        }
        let uuid = info.uuid;
        self.reply(connection, &TenantReply::Attached { uuid, gpu });
        if self.must_be_on(client, gpu).is_err() {
            self.attach(client, gpu, Bytes::ZERO);
            self.note_sharing();
        }
        Ok(())
    }

    pub(super) fn attach(&mut self, client: ClientId, gpu: GpuId, used: Bytes) {
        if let Some(process) = self.clients.get_mut(&client) {
            process.page.attach(gpu, used);
            self.cards.aim(&process.page);
            let (session, pid, uid) = (process.session, process.peer.pid, process.peer.uid);
            let name = self.sessions.name(session);
            Operation::done("process.attach")
                .of(session, &name)
                .process(pid)
                .user(uid)
                .on(gpu)
                .bytes(used)
                .debug(format_args!("{client} (pid {pid}) of {name} uses {gpu}"));
        }
        self.feed(Event::Attached { client, gpu, used });
        self.keeping.changed();
        self.measure_soon();
    }

    /// What only a client says. The core decides on what lies in the page now, so that is read first.
    pub(super) fn client_says(&mut self, client: ClientId, request: &TenantRequest) -> Result<(), String> {
        let event = match *request {
            TenantRequest::Contexts { gpu, live } => {
                self.must_be_on(client, gpu)?;
                self.measure_soon();
                Event::Contexts { client, gpu, live }
            }
            TenantRequest::Reserve { request, gpu, bytes } => {
                self.must_be_on(client, gpu)?;
                self.look_at(client, gpu);
                Event::Reserve { client, gpu, request, bytes }
            }
            TenantRequest::ReserveFixed { request, gpu, bytes } => {
                self.must_be_on(client, gpu)?;
                self.look_at(client, gpu);
                Event::ReserveFixed { client, gpu, request, bytes }
            }
            TenantRequest::Fixed { gpu, bytes } => {
                self.must_be_on(client, gpu)?;
                Event::Fixed { client, gpu, bytes }
            }
            TenantRequest::ReturnFixed { gpu, bytes } => {
                self.must_be_on(client, gpu)?;
                self.give_up(client, gpu, bytes);
                return Ok(());
            }
            TenantRequest::Reconciled => {
                self.settle_return(client);
                return Ok(());
            }
            TenantRequest::Headroom { request, gpu, bytes } => {
                self.must_be_on(client, gpu)?;
                Event::Room { client, gpu, request, bytes }
            }
            TenantRequest::RefusedLocally { gpu, bytes } => {
                self.must_be_on(client, gpu)?;
                // For the figures in its line.
                self.look_at(client, gpu);
                Event::RefusedHere { client, gpu, bytes }
            }
            TenantRequest::Trim { gpu } => {
                self.must_be_on(client, gpu)?;
                self.look_at(client, gpu);
                Event::Trim { client, gpu }
            }
            TenantRequest::Wait { word } => {
                self.look_at_page(client);
                Event::Wait { client, word }
            }
            TenantRequest::Entered { word, moved, took } => Event::Entered { client, word, moved, took },
            TenantRequest::Released { word, drain } => {
                self.look_at_page(client);
                Event::Released { client, word, drain }
            }
            TenantRequest::Hello(_) => return Err("the connection has had its hello".to_owned()),
            TenantRequest::Attach(_)
            | TenantRequest::Register(_)
            | TenantRequest::OwnSession
            | TenantRequest::Gpus
            | TenantRequest::SessionMemory(_)
            | TenantRequest::DryRun(_)
            | TenantRequest::Join(_)
            | TenantRequest::Limits { .. }
            | TenantRequest::UnknownFunction { .. } => return Ok(()),
        };
        self.feed(event);
        Ok(())
    }

    fn must_be_on(&self, client: ClientId, gpu: GpuId) -> Result<(), String> {
        match self.clients.get(&client) {
            Some(client) if client.page.is_on(gpu) => Ok(()),
            _ => Err(format!("the process has not said that it uses {gpu}")),
        }
    }

    /// The session that a process is a client of, or was one of under the last daemon.
    pub(super) fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        let mut clients = self.clients.values();
        let client = clients.find(|client| client.peer.id == Some(process));
        let expected = || self.expected.values().find(|entry| entry.process == process);
        client
            .map(|client| client.session)
            .or_else(|| expected().map(|entry| entry.session))
    }

    fn own(&self, role: ConnectionRole, peer: &PeerProcess) -> Option<SessionId> {
        let of_client = |client| self.clients.get(&client).map(|client| client.session);
        match role {
            ConnectionRole::Client(client) => of_client(client),
            ConnectionRole::Tool | ConnectionRole::Ending => peer
                .id
                .and_then(|process| self.session_of(process))
                .or_else(|| self.by_descent(peer)),
        }
    }
}

/// A peer's text as it may stand in a log: short, and without anything that moves a terminal's cursor.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(|c| is_printable(*c)).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_cannot_forge_a_log_line() {
        assert_eq!(plain("a\nb\x1b[2J"), "ab[2J");
        assert_eq!(plain("train\u{202e}1\u{200b}"), "train1");
        assert_eq!(plain(&"x".repeat(99)).len(), MAX_NAME);
    }
}
