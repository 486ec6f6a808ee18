//! Doing what the core wants: words into pages, messages into outboxes, lines into the log.

use gpushare_core::{Effect, Event, Notice};
use gpushare_proto::audit::Outcome;
use gpushare_proto::tenant::TenantReply;
use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};
use gpushare_sys::{clock, peer};

use super::{Shell, notices, refusing};
use crate::operation::{OUT_OF_MEMORY, Operation};

impl Shell {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Gate { client, word, epoch } => {
                if let Some(client) = self.clients.get(&client) {
                    client.page.set_gate(word);
                }
                self.tell(client, &TenantReply::Gate { word, epoch });
            }
            Effect::Flags { client, flags } => {
                if let Some(client) = self.clients.get(&client) {
                    client.page.set_flags(flags);
                }
            }
            Effect::Figures { client, gpu, limit, siblings, ceiling } => {
                if let Some(client) = self.clients.get(&client) {
                    client.page.set_figures(gpu, limit, siblings, ceiling);
                }
            }
            Effect::Lease { client, gpu, request, bytes, extra } => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.page.lease(gpu, bytes, extra);
                    client.away.answered((request, gpu, bytes));
                }
                self.leased(client, gpu, bytes);
                self.tell(client, &TenantReply::Reserved { request, bytes });
            }
            Effect::Refuse { client, request, refusal, .. } => {
                self.tell(client, &TenantReply::Refused { request, refusal })
            }
            Effect::Extend { client, gpu, bytes } => {
                if let Some(client) = self.clients.get_mut(&client) {
                    client.page.lease(gpu, Bytes::ZERO, bytes);
                }
            }
            Effect::Room { client, request, bytes, .. } => {
                self.tell(client, &TenantReply::Headroom { request, bytes })
            }
            Effect::Recall { client, gpu, bytes } => self.recall(client, gpu, bytes),
            Effect::Queued { client, ahead, reason } => {
                let reason = reason.words(|session| self.name_for(client, session));
                self.tell_if_not_behind(client, &TenantReply::Queued { ahead, reason });
            }
            Effect::Kill { client } => self.kill(client),
            Effect::Notice(notice) => self.note(&notice),
        }
    }

    /// What a client is told a session is called: its name if it is the same user's, else its number.
    fn name_for(&self, client: ClientId, session: SessionId) -> String {
        let asks = self.clients.get(&client).map(|client| client.peer.user);
        match self.sessions.get(session) {
            Some(found) if asks == Some(found.uid()) => found.name.clone(),
            _ => session.to_string(),
        }
    }

    fn recall(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let bytes = match self.clients.get_mut(&client) {
            Some(client) => client.page.recall(gpu, bytes),
            None => Bytes::ZERO,
        };
        // Not `feed`: the effects that wait are drained by the one that called us.
        self.decide(Event::Recalled { client, gpu, bytes });
    }

    fn kill(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get(&id) {
            let cause = peer::kill(&client.peer.pidfd).err();
            let (session, process) = (client.session, (client.peer.pid, Some(client.peer.uid)));
            self.killed(id, session, process, cause.as_ref());
        } else {
            self.kill_awaited(id);
        }
    }

    fn note(&mut self, notice: &Notice) {
        self.measure(notice);
        self.watch_notice(notice);
        if let &Notice::Refused { session, client, gpu, refusal } = notice {
            self.keep_refusal(session, client, gpu, refusal);
            match self.refusals.admit(session, clock::monotonic()) {
                None => return,
                Some(0) => {}
                Some(more) => {
                    let name = self.sessions.name(session);
                    Operation::done(refusing::RESERVE)
                        .of(session, &name)
                        .failed(Outcome::Refused, OUT_OF_MEMORY)
                        .info(format_args!("{more} more refusals of {name} ({session}) were not logged"));
                }
            }
        }
        notices::log(notice, self);
    }

    fn tell(&mut self, client: ClientId, message: &TenantReply) {
        if let Some(connection) = self.clients.get(&client).and_then(|client| client.connection) {
            self.reply(connection, message);
        }
    }

    /// What a peer can do without is not queued where others wait already.
    fn tell_if_not_behind(&mut self, client: ClientId, message: &TenantReply) {
        let connection = self.clients.get(&client).and_then(|client| client.connection);
        let open = connection.and_then(|connection| self.connections.get(&connection));
        if open.is_some_and(|open| !open.outbox.is_behind()) {
            self.tell(client, message);
        }
    }
}
