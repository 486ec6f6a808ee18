//! Ends: of connections, of clients, of sessions, each with what ends with it.
//!
//! ```text
//!   hang-up, bad bytes, a peer that does not read ──▶ connection ──▶ client, away while its process lives (away.rs)
//!                                                                       │ death, and the driver has its memory (orphans.rs)
//!                                                                       ▼
//!   a process that the daemon watches is dead ──▶ client, expected client, registrar ──▶ session, if nothing keeps it
//! ```

use gpushare_core::Event;
use gpushare_proto::{ClientId, SessionId};

use super::{ConnectionRole, Shell};
use crate::connections::ConnectionId;
use crate::operation::Operation;
use crate::registry::ClientEntry;
use crate::sessions::Session;

impl Shell {
    pub(super) fn drop_connection(&mut self, connection: ConnectionId) {
        self.end_role(connection);
        self.connections.remove(&connection);
        self.forget_postponed(connection);
        self.watchers.forget(connection);
    }

    pub(super) fn end_role(&mut self, connection: ConnectionId) {
        let Some(open) = self.connections.get_mut(&connection) else {
            return;
        };
        if let ConnectionRole::Client(client) = std::mem::replace(&mut open.role, ConnectionRole::Ending) {
            self.hung_up(client);
        }
    }

    /// A client is dead, or never had anything.
    pub(super) fn client_gone(&mut self, id: ClientId) {
        self.look_at_page(id);
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        client.page.close();
        let left = self.entry_of(id, &client).filter(|entry| !entry.cards.is_empty());
        let (pid, name) = (client.peer.pid, self.sessions.name(client.session));
        Operation::done("process.leave")
            .of(client.session, &name)
            .process(pid)
            .user(client.peer.uid)
            .debug(format_args!("{id} (pid {pid}) is gone"));
        match left.filter(|_| client.peer.is_ending()) {
            Some(entry) => {
                self.feed(Event::ClientEnded { client: id });
                self.leave_behind(entry, Some(client.peer.pidfd), true);
                self.keeping.changed();
            }
            None => {
                self.feed(Event::ClientGone { client: id });
                self.leave(client.session);
            }
        }
        self.note_sharing();
        if self.clients.is_empty() {
            self.measuring.rest();
        }
    }

    /// A client of the last daemon will not come back.
    pub(super) fn expected_gone(&mut self, client: ClientId) {
        if let Some(entry) = self.expected.remove(&client) {
            self.feed(Event::ExpectedGone { client });
            self.left_by_the_dead(entry);
        }
    }

    /// A client of the last daemon is dead, and its place in its session's count is its memory's.
    pub(super) fn left_by_the_dead(&mut self, entry: ClientEntry) {
        if entry.cards.is_empty() {
            return self.leave(entry.session);
        }
        let client = entry.client;
        self.feed(Event::ClientJoined { client, session: entry.session, holding: None });
        // Nobody is to make room for one that is dead.
        self.feed(Event::ClientEnded { client });
        for of in &entry.cards {
            if let Ok(gpu) = self.add_card(&of.card) {
                let used = of.used;
                self.feed(Event::Attached { client, gpu, used });
            }
        }
        self.leave_behind(entry, None, false);
    }

    /// A client of the session is no more.
    pub(super) fn leave(&mut self, session: SessionId) {
        self.sessions.leave(session);
        self.close_if_over(session);
        self.keeping.changed();
    }

    pub(super) fn close_if_over(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.take_if_over(id) {
            Operation::done("session.end")
                .of(id, &session.name)
                .info(format_args!("session {} ({id}) is over", session.name));
            self.ended(id, &session);
        }
    }

    /// The session is no more.
    pub(super) fn ended(&mut self, id: SessionId, session: &Session) {
        self.refusals.remove(&id);
        self.entrants.over(id);
        self.forget_refusals(id);
        self.sum_up(id, &session.name);
        self.count_last(id, session);
        self.keep_figures(id, &session.name);
        self.feed(Event::SessionClosed { session: id });
        self.keeping.changed();
    }
}
