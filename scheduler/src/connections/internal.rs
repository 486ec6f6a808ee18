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

use super::inbox::{Inbox, Sender};
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
        Self::open_as(acceptor.new_id(), acceptor.inbox(), peer).await
    }

    async fn open_as(connection: ConnectionId, inbox: &Arc<Inbox>, peer: PeerProcess) -> Self {
        let events = inbox.sender(peer.principal.clone(), connection);
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

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    const ID: ConnectionId = ConnectionId(7);

    /// Opens a connection and asks for the state, in a task that can be given up.
    fn start(inbox: &Arc<Inbox>) -> JoinHandle<Option<AdminReply>> {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (peer, inbox) = (PeerProcess::of(&ours).unwrap(), inbox.clone());
        tokio::spawn(async move {
            let mut connection = InternalConnection::open_as(ID, &inbox, peer).await;
            connection.ask(AdminRequest::Status).await;
            connection.hear().await
        })
    }

    async fn next(inbox: &Inbox) -> ConnectionEvent {
        *inbox.next().await.0
    }

    async fn opened(inbox: &Inbox) -> Outbox {
        match next(inbox).await {
            ConnectionEvent::Opened { connection: ID, outbox, .. } => outbox,
            other => panic!("{other:?}"),
        }
    }

    async fn give_up(task: JoinHandle<Option<AdminReply>>) {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    async fn is_closed(inbox: &Inbox) -> bool {
        matches!(next(inbox).await, ConnectionEvent::Closed { connection: ID })
    }

    #[tokio::test]
    async fn a_task_that_is_given_up_closes_its_connection() {
        let inbox = Inbox::new();
        let task = start(&inbox);
        let mut outbox = opened(&inbox).await;
        outbox.send(&AdminReply::Ready { protocol: 1 }).unwrap();
        let asked = next(&inbox).await;
        assert!(matches!(asked, ConnectionEvent::Admin { connection: ID, .. }), "{asked:?}");
        assert!(!outbox.is_closed());
        give_up(task).await;
        assert!(outbox.is_closed() && is_closed(&inbox).await);
    }

    #[tokio::test]
    async fn a_task_that_is_given_up_before_the_answer_to_its_hello_closes_its_connection() {
        let inbox = Inbox::new();
        let task = start(&inbox);
        let outbox = opened(&inbox).await;
        give_up(task).await;
        assert!(outbox.is_closed() && is_closed(&inbox).await);
    }

    #[tokio::test]
    async fn an_opening_that_nobody_has_taken_is_found_closed() {
        let inbox = Inbox::new();
        let task = start(&inbox);
        tokio::task::yield_now().await;
        give_up(task).await;
        assert!(is_closed(&inbox).await, "the end comes first");
        assert!(opened(&inbox).await.is_closed());
    }
}
