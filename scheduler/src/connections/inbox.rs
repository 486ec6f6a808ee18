//! Queue of events from all connections to the engine. It is fair by user and connection (`fair.rs`).
//!
//! ```text
//!   connection ── event ──▶ fair queue ──▶ engine handles it ──▶ the connection reads its next message
//! ```
//!
//! A connection has one message in the queue at a time, and reads the next one when the engine has handled
//! it. So whoever sends faster than the engine handles fills its own socket, and neither the daemon's
//! memory nor the queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpushare_proto::Nanos;
use gpushare_sys::clock;
use tokio::sync::Notify;

use super::{ConnectionEvent, ConnectionId};
use crate::fair::{FairQueue, Ticket};
use crate::identity::Principal;

/// Time charged for an event in addition to the engine's: reading the message and writing the answer.
const TRANSFER: Nanos = Nanos(10_000);

#[derive(Debug)]
pub(crate) struct Inbox {
    queue: Mutex<FairQueue<Principal, ConnectionId, Message>>,
    /// Signal that the queue is not empty.
    news: Notify,
}

#[derive(Debug)]
struct Message {
    event: ConnectionEvent,
    handled: Arc<Notify>,
}

/// Sender of the events of one connection.
#[derive(Debug)]
pub(super) struct Sender {
    inbox: Arc<Inbox>,
    principal: Principal,
    connection: ConnectionId,
    handled: Arc<Notify>,
}

/// Event that the engine is handling. Its cost is charged when it is dropped.
#[derive(Debug)]
pub(crate) struct Handling<'a> {
    inbox: &'a Inbox,
    ticket: Ticket<ConnectionId>,
    began: Nanos,
    handled: Arc<Notify>,
}

impl Inbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { queue: Mutex::new(FairQueue::new()), news: Notify::new() })
    }

    pub(super) fn sender(self: &Arc<Self>, principal: Principal, connection: ConnectionId) -> Sender {
        Sender { inbox: self.clone(), principal, connection, handled: Arc::default() }
    }

    /// Waits for the event that is next. The second value lasts as long as the event is handled.
    pub(crate) async fn next(&self) -> (ConnectionEvent, Handling<'_>) {
        loop {
            let next = self.queue().pop();
            if let Some((ticket, Message { event, handled })) = next {
                return (event, Handling { inbox: self, ticket, began: clock::monotonic(), handled });
            }
            self.news.notified().await;
        }
    }

    fn queue(&self) -> MutexGuard<'_, FairQueue<Principal, ConnectionId, Message>> {
        // No function of the queue panics, so a poisoned lock is usable.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// Adds an event, and waits until the engine has handled it.
    pub(super) async fn send(&self, event: ConnectionEvent) {
        self.add(event);
        self.handled.notified().await;
    }

    /// Adds an event without waiting.
    pub(super) fn add(&self, event: ConnectionEvent) {
        let message = Message { event, handled: self.handled.clone() };
        self.inbox.queue().push(&self.principal, self.connection, message);
        self.inbox.news.notify_one();
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        let took = clock::monotonic() - self.began;
        self.inbox.queue().charge(self.ticket, took + TRANSFER);
        self.handled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    fn closed(connection: u64) -> ConnectionEvent {
        ConnectionEvent::Closed { connection: ConnectionId(connection) }
    }

    #[tokio::test]
    async fn a_connection_waits_until_its_message_is_handled() {
        let inbox = Inbox::new();
        let sender = inbox.sender(Principal::own(), ConnectionId(1));
        let mut sending = JoinSet::new();
        sending.spawn(async move { sender.send(closed(1)).await });
        let (event, handling) = inbox.next().await;
        assert!(matches!(event, ConnectionEvent::Closed { connection: ConnectionId(1) }));
        yield_now().await;
        assert!(sending.try_join_next().is_none());
        drop(handling);
        assert!(sending.join_next().await.is_some());
    }

    #[tokio::test]
    async fn a_message_overtakes_those_of_connections_that_sent_much() {
        let inbox = Inbox::new();
        let senders: Vec<Sender> =
            (1..=256).map(|n| inbox.sender(Principal::own(), ConnectionId(n))).collect();
        let flood = || senders.iter().zip(1..).for_each(|(sender, n)| sender.add(closed(n)));
        flood();
        for _ in 0..256 {
            drop(inbox.next().await.1);
        }
        flood();
        drop(inbox.next().await.1);
        inbox.sender(Principal::own(), ConnectionId(999)).add(closed(999));
        let mut before = 0;
        loop {
            let (event, handling) = inbox.next().await;
            drop(handling);
            if matches!(event, ConnectionEvent::Closed { connection: ConnectionId(999) }) {
                break;
            }
            before += 1;
        }
        assert!(before < 3, "{before} were handled before");
    }
}
