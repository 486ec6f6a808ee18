//! Performs the effects of the decision machine: writes shared pages, sends messages, and logs.

use gpushare_core::{Effect, Event, FreezeEnd, Notice};
use gpushare_proto::page::Goal;
use gpushare_proto::tenant::TenantReply;
use gpushare_proto::{Bytes, ClientId, GateState, SessionId};
use gpushare_sys::{clock, peer};

use super::Engine;
use crate::freeze::Move;
use crate::memory::creations;
use crate::operation::Operation;
use crate::report::log;
use crate::requests::frost::outer_obstacle;

impl Engine {
    pub(super) fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Gate { client, word, epoch } => {
                if let Some(client) = self.clients.get(client) {
                    if word.state() == GateState::Moving {
                        let gpus = client.page.gpus();
                        gpus.for_each(|gpu| client.page.set_capacity(gpu, self.machine.capacity(gpu)));
                    }
                    client.page.set_gate(word);
                }
                self.tell(client, &TenantReply::Gate { word, epoch });
            }
            Effect::Flags { client, flags } => {
                if let Some(client) = self.clients.get_mut(client) {
                    client.page.set_flags(flags);
                }
            }
            Effect::DrainTarget { client, target } => {
                if let Some(client) = self.clients.get(client) {
                    client.page.set_drain_target(target);
                }
            }
            Effect::Goal { client, gpu, number, bytes } => {
                if let Some(client) = self.clients.get(client) {
                    client.page.set_goal(gpu, Goal { number, bytes });
                }
            }
            Effect::HostTarget { client, gpu, bytes } => {
                if let Some(client) = self.clients.get(client) {
                    client.page.set_host_target(gpu, bytes);
                }
            }
            Effect::Figures { client, gpu, limit, siblings, ceiling } => {
                if let Some(client) = self.clients.get(client) {
                    client.page.set_figures(gpu, limit, siblings, ceiling);
                }
            }
            Effect::Lease { client, gpu, request, bytes, extra } => {
                if let Some(client) = self.clients.get_mut(client) {
                    client.page.lease(gpu, bytes, extra);
                    client.away.answered((request, gpu, bytes));
                    self.audit.leased(client, &self.sessions, gpu, bytes);
                }
                self.tell(client, &TenantReply::Reserved { request, bytes });
            }
            Effect::Refuse { client, request, refusal, .. } => {
                self.tell(client, &TenantReply::Refused { request, refusal });
            }
            Effect::Extend { client, gpu, bytes } => {
                if let Some(client) = self.clients.get_mut(client) {
                    client.page.lease(gpu, Bytes::ZERO, bytes);
                }
            }
            Effect::Room { client, request, bytes, .. } => {
                self.tell(client, &TenantReply::Headroom { request, bytes });
            }
            Effect::Recall { client, gpu, bytes } => {
                let page = self.clients.get_mut(client).map(|client| &mut client.page);
                let bytes = page.map_or(Bytes::ZERO, |page| page.recall(gpu, bytes));
                // Not `feed`, which performs this effect and takes up the next ones.
                self.machine.decide(Event::Recalled { client, gpu, bytes });
                self.watchers.note_changes(self.machine.changed());
            }
            Effect::Queued { client, ahead, reason } => {
                let reason = reason.words(|session| self.name_for(client, session));
                if let Some(connection) = self.clients.connection(client) {
                    self.peers.reply_if_idle(connection, &TenantReply::Queued { ahead, reason });
                }
            }
            // A debugger may have come since the process was asked.
            Effect::Freeze { client } => match outer_obstacle(self, client) {
                Some(obstacle) => {
                    // Not `feed`, as above.
                    self.machine
                        .decide(Event::FreezeEnded { client, end: FreezeEnd::Prevented(obstacle) });
                    self.watchers.note_changes(self.machine.changed());
                }
                None => {
                    // The next daemon must not kill it.
                    self.persistence.client_changed(client);
                    self.move_by_driver(client, Move::Freeze);
                }
            },
            Effect::Thaw { client } => creations::begin(self, client),
            Effect::Kill { client } => self.kill(client),
            Effect::Notice(notice) => self.note(&notice),
        }
    }

    fn tell(&mut self, client: ClientId, message: &TenantReply) {
        if let Some(connection) = self.clients.connection(client) {
            self.peers.reply_urgently(connection, message);
        }
    }

    /// Returns the name of a session for a client. A session of another user is named by its number only.
    fn name_for(&self, client: ClientId, session: SessionId) -> String {
        let user = self.clients.get(client).map(|client| client.peer.owner());
        match self.sessions.get(session) {
            Some(found) if user.is_some_and(|user| found.is_of(&user)) => found.name.clone(),
            _ => session.to_string(),
        }
    }

    /// Kills the process of a connected or awaited client. A pidfd reports the death of the process later.
    fn kill(&self, id: ClientId) {
        let (session, pid, uid, killed) = if let Some(client) = self.clients.get(id) {
            (client.session, client.peer.pid, Some(client.peer.uid), peer::kill(&client.peer.pidfd))
        } else if let Some(entry) = self.awaited.get(id)
            && let Some(pidfd) = entry.process.open()
        {
            (entry.session, entry.process.pid, None, peer::kill(&pidfd))
        } else {
            return;
        };
        let name = self.sessions.name(session);
        self.audit.killed(id, (session, name), (pid, uid), killed.err().as_ref());
    }

    fn note(&mut self, notice: &Notice) {
        let now = clock::monotonic();
        self.metrics.note(notice, &self.cards);
        self.watchers.note(notice, now - self.started);
        if let &Notice::Granted { session, waited, quantum, .. } = notice {
            self.followers.note_grant(session, waited, quantum);
        }
        if let Notice::HandedOver(handoff) = notice {
            self.last_handoffs.keep(now, handoff, &self.sessions);
        }
        if let &Notice::Refused { session, client, gpu, refusal, times } = notice {
            let process = self.clients.get(client);
            let (pid, uid) = process.map_or((0, 0), |client| (client.peer.pid, client.peer.uid));
            let uuid = self.cards.get(gpu).map(|card| card.info.uuid);
            self.refusals.keep(now, session, (client, pid), gpu, refusal);
            self.audit
                .refused(session, &self.sessions, (pid, uid), (gpu, uuid), (refusal, times));
            let left_out = self.refusals.log.admit(session, now);
            self.refusals.log.omit(&session, times.saturating_sub(1));
            let Some(left_out) = left_out else { return };
            if left_out > 0 {
                let name = self.sessions.name(session);
                Operation::of("memory.reserve", session, &name)
                    .out_of_memory()
                    .info(format_args!("{left_out} more refusals of {name} ({session}) were not logged"));
            }
        }
        match notice {
            &Notice::Overdue { client, after } => {
                if let Some(entry) = self.awaited.get(client) {
                    let name = self.sessions.name(entry.session);
                    log::overdue(entry, &name, self.settings.core.stuck_policy, after);
                }
            }
            notice => log::notice(notice, &self.sessions, &self.clients, &self.machine),
        }
    }
}
