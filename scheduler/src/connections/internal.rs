//! Connection of the daemon's own page, which asks as an administrator does: through the inbox and an outbox.
//!
//! ```text
//!   browser ─▶ page's thread ─▶ InternalConnection ─▶ inbox ─▶ engine
//!                                               ▲─── outbox ◀────┘
//! ```
//!
//! So the page has the same turns, checks, audit lines and bounds as `gpushare-ctl`, and the engine has no
//! second way in.

use std::convert::Infallible;
use std::sync::Arc;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{self, HEADER};
use gpushare_proto::tenant::Role;
use tokio::sync::{mpsc, oneshot};

use super::inbox::Sender;
use super::listener::Acceptor;
use super::outbox::{Outbox, Outgoing};
use super::{ConnectionEvent, ConnectionId, Socket};
use crate::identity::PeerProcess;

/// Connection without a socket to the engine's administration. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct InternalConnection {
    connection: ConnectionId,
    events: Sender,
    outgoing: mpsc::Receiver<Outgoing>,
    closed: oneshot::Receiver<Infallible>,
}

impl InternalConnection {
    /// Opens a connection that acts for `peer`, who was allowed to administrate.
    pub(crate) async fn open(acceptor: &Arc<Acceptor>, peer: PeerProcess) -> Self {
        let connection = acceptor.new_id();
        let events = acceptor.inbox().sender(peer.principal.clone(), connection);
        let (outbox, outgoing, closed) = Outbox::new();
        let (socket, role) = (Socket::Admin, Role::Tool);
        // From here on it is closed also if the caller stops waiting.
        let mut opened = Self { connection, events, outgoing, closed };
        opened
            .events
            .send(ConnectionEvent::Opened { connection, socket, peer, role, outbox })
            .await;
        // The engine's answer to the hello.
        opened.hear().await;
        opened
    }

    pub(crate) async fn ask(&self, request: AdminRequest) {
        let connection = self.connection;
        self.events.send(ConnectionEvent::Admin { connection, request }).await;
    }

    /// Returns the engine's next reply; none once the engine has closed the connection.
    pub(crate) async fn hear(&mut self) -> Option<AdminReply> {
        let outgoing = tokio::select! {
            biased;
            outgoing = self.outgoing.recv() => outgoing?,
            _ = &mut self.closed => return None,
        };
        codec::decode(outgoing.frame.get(HEADER..)?).ok()
    }
}

impl Drop for InternalConnection {
    fn drop(&mut self) {
        // An opening that still waits in the inbox finds the outbox closed.
        self.outgoing.close();
        self.events.add(ConnectionEvent::Closed { connection: self.connection });
    }
}
