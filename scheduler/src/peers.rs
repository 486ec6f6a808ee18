//! Table of open connections: the process, the purpose and the outbox of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpushare_proto::ClientId;
use gpushare_proto::codec::{self, Message};

use crate::connections::{ConnectionId, Outbox, Unsent};
use crate::identity::PeerProcess;

/// Open connections whose peers have said hello.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    open: BTreeMap<ConnectionId, Peer>,
    /// Connections that lost a message, with the reason. They are closed after the current input.
    unsent: BTreeMap<ConnectionId, Unsent>,
}

#[derive(Debug)]
struct Peer {
    /// Shared, so that a request can change the engine while it looks at the process.
    process: Arc<PeerProcess>,
    role: PeerRole,
    outbox: Outbox,
}

/// Purpose of a connection, as declared by the peer's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerRole {
    Tool,
    Client(ClientId),
    /// Purpose of a connection that ends once its last message is sent.
    Ending,
}

impl Peers {
    /// Adds a connection, which is treated as a tool's at first.
    pub(crate) fn admit(&mut self, connection: ConnectionId, process: PeerProcess, outbox: Outbox) {
        self.open
            .insert(connection, Peer { process: Arc::new(process), role: PeerRole::Tool, outbox });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn get(&self, connection: ConnectionId) -> Option<(PeerRole, &Arc<PeerProcess>)> {
        self.open.get(&connection).map(|peer| (peer.role, &peer.process))
    }

    pub(crate) fn client(&self, connection: ConnectionId) -> Option<ClientId> {
        match self.open.get(&connection)?.role {
            PeerRole::Client(client) => Some(client),
            PeerRole::Tool | PeerRole::Ending => None,
        }
    }

    pub(crate) fn become_client(&mut self, connection: ConnectionId, client: ClientId) {
        if let Some(peer) = self.open.get_mut(&connection) {
            peer.role = PeerRole::Client(client);
        }
    }

    /// Marks a connection as ending, so that its requests are ignored. Returns the client of the connection.
    pub(crate) fn end(&mut self, connection: ConnectionId) -> Option<ClientId> {
        let client = self.client(connection);
        if let Some(peer) = self.open.get_mut(&connection) {
            peer.role = PeerRole::Ending;
        }
        client
    }

    pub(crate) fn remove(&mut self, connection: ConnectionId) {
        self.open.remove(&connection);
    }

    /// Queues a message for a peer if the connection is still open.
    pub(crate) fn reply<M: Message>(&mut self, connection: ConnectionId, message: &M) {
        self.send(connection, |outbox| outbox.send(message));
    }

    /// Sends a message for which a thread of the peer waits, if the connection is still open.
    pub(crate) fn reply_urgently<M: Message>(&mut self, connection: ConnectionId, message: &M) {
        self.send(connection, |outbox| outbox.send_urgent(message));
    }

    /// Queues a message for each of some peers. The message is encoded once.
    pub(crate) fn reply_to_all<'a, M: Message>(
        &mut self,
        connections: impl IntoIterator<Item = &'a ConnectionId>,
        message: &M,
    ) {
        let frame = codec::encode(message).map_err(|_| Unsent::TooLong);
        for &connection in connections {
            self.send(connection, |outbox| outbox.send_frame(frame.clone()?));
        }
    }

    /// Queues a message that a peer can do without. Does nothing if earlier messages still wait.
    pub(crate) fn reply_if_idle<M: Message>(&mut self, connection: ConnectionId, message: &M) {
        if self.keeps_up(connection) {
            self.reply(connection, message);
        }
    }

    /// Returns whether a peer reads its messages, so that it may get one that it did not ask for.
    pub(crate) fn keeps_up(&self, connection: ConnectionId) -> bool {
        self.open.get(&connection).is_some_and(|peer| !peer.outbox.is_behind())
    }

    /// Returns whether a peer may get a descriptor: it has read most of what it was sent.
    pub(crate) fn may_get_descriptor(&self, connection: ConnectionId) -> bool {
        self.open.get(&connection).is_some_and(|peer| peer.outbox.has_been_read())
    }

    /// Applies a function to the outbox of a connection, and notes a failure.
    pub(crate) fn send(
        &mut self,
        connection: ConnectionId,
        send: impl FnOnce(&mut Outbox) -> Result<(), Unsent>,
    ) {
        if let Some(peer) = self.open.get_mut(&connection)
            && let Err(why) = send(&mut peer.outbox)
        {
            self.unsent.entry(connection).or_insert(why);
        }
    }

    /// Removes and returns one connection that lost a message, with the reason.
    pub(crate) fn next_unsent(&mut self) -> Option<(ConnectionId, Unsent)> {
        self.unsent.pop_first()
    }
}
