//! Queues of events from all connections to the engine. They are fair by user and connection (`fair.rs`).
//!
//! ```text
//!                   ends ─▶ queue in order ── before all others ──────────▶ engine handles it
//!   connection ──<  messages of clients, hellos ─▶ fair queue ──────────────▶            │
//!        ▲          questions, which everybody may ask ─▶ fair queue ── a quarter of ──▶ │
//!        │                                                              the time         │
//!        └────────────────────── reads its next message ◀────────────────────────────────┘
//! ```
//!
//! A connection has one message in the queues at a time, and reads the next one when the engine has
//! handled it. So whoever sends faster than the engine handles fills its own socket, and neither the
//! daemon's memory nor the queues. Questions have a budget of time (`budget.rs`).
//!
//! Nothing overtakes the end of a connection. So whoever learns that a process is dead, and then asks for
//! its memory, is not refused.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpushare_proto::Nanos;
use gpushare_sys::clock;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{ConnectionEvent, ConnectionId};
use crate::budget::Budget;
use crate::fair::{FairQueue, Ticket};
use crate::identity::Principal;

/// Time charged for an event in addition to the engine's: reading the message and writing the answer.
const TRANSFER: Nanos = Nanos(10_000);
/// Weight of a message that only a process on a card sends, beside other messages of the same user.
const CLIENT: u64 = 64;
/// Questions may take a quarter of the daemon's time.
const QUESTIONS: Budget = Budget::new(4, Nanos::from_millis(20));

type Queue = FairQueue<Principal, ConnectionId, Message>;

#[derive(Debug)]
pub(crate) struct Inbox {
    ends: Mutex<VecDeque<(Ticket<ConnectionId>, Message)>>,
    messages: Mutex<Queue>,
    questions: Mutex<Queue>,
    question_budget: Mutex<Budget>,
    /// Whether a question comes before the next message, if one may be handled.
    question_is_next: AtomicBool,
    /// Signal that a queue is not empty.
    news: Notify,
    /// Number of [`Newcomer`]s.
    newcomers: AtomicUsize,
    worked: Mutex<Worked>,
    /// Whether the engine has waited for news since the last look.
    waited: AtomicBool,
}

/// Time for which the engine's thread has run. Other programs on its core must cost no connection anything.
///
/// The kernel's count takes a system call. So a short event costs the time that passed. A longer one costs at
/// most the time for which the thread ran since the last reading, which is at most a millisecond before.
#[derive(Debug, Default)]
struct Worked {
    /// Time for which the thread had run at the last reading.
    time: Nanos,
    /// Point in monotonic time of the last reading.
    read: Nanos,
}

impl Worked {
    /// Returns the cost of an event that was handled in this time.
    fn between(&mut self, began: Nanos, now: Nanos) -> Nanos {
        let passed = now - began;
        if passed <= TRANSFER && now - self.read < Nanos::from_millis(1) {
            return passed;
        }
        let time = clock::thread();
        let ran = time - std::mem::replace(&mut self.time, time);
        self.read = now;
        passed.min(ran)
    }
}

/// Accepted connection that the engine does not know yet.
#[derive(Debug)]
pub(super) struct Newcomer(Arc<Inbox>);

#[derive(Debug)]
struct Message {
    /// In a box, since it is moved often.
    event: Box<ConnectionEvent>,
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
    kind: Kind,
    /// Point in monotonic time of the begin.
    began: Nanos,
    handled: Arc<Notify>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Message that only a process on a card sends.
    Client,
    /// Question, which everybody may ask.
    Question,
    /// Hello, end, or message of an administrator.
    Other,
}

impl Inbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            ends: Mutex::default(),
            messages: Mutex::new(FairQueue::new()),
            questions: Mutex::new(FairQueue::new()),
            question_budget: Mutex::new(QUESTIONS),
            question_is_next: AtomicBool::new(false),
            news: Notify::new(),
            newcomers: AtomicUsize::new(0),
            worked: Mutex::default(),
            waited: AtomicBool::new(true),
        })
    }

    /// Counts an accepted connection until the returned value is dropped.
    pub(super) fn newcomer(self: &Arc<Self>) -> Newcomer {
        self.newcomers.fetch_add(1, Ordering::Relaxed);
        Newcomer(self.clone())
    }

    /// Whether there are connections that the engine does not know yet.
    pub(crate) fn has_newcomers(&self) -> bool {
        self.newcomers.load(Ordering::Relaxed) > 0
    }

    pub(super) fn sender(self: &Arc<Self>, principal: Principal, connection: ConnectionId) -> Sender {
        Sender { inbox: self.clone(), principal, connection, handled: Arc::default() }
    }

    /// Waits for the event that is next. The second value lasts as long as the event is handled.
    pub(crate) async fn next(&self) -> (Box<ConnectionEvent>, Handling<'_>) {
        loop {
            let pause = lock(&self.question_budget).wait(clock::monotonic());
            let end = lock(&self.ends).pop_front();
            let message = || lock(&self.messages).pop();
            let question = || pause.is_zero().then(|| lock(&self.questions).pop())?;
            // In turns, since a flood of messages must not keep questions waiting for ever.
            let next = match self.question_is_next.load(Ordering::Relaxed) {
                true => end.or_else(question).or_else(message),
                false => end.or_else(message).or_else(question),
            };
            if let Some((ticket, Message { event, handled })) = next {
                let (kind, began) = (event.kind(), clock::monotonic());
                self.question_is_next.store(kind != Kind::Question, Ordering::Relaxed);
                return (event, Handling { inbox: self, ticket, kind, began, handled });
            }
            self.waited.store(true, Ordering::Relaxed);
            if lock(&self.questions).is_empty() {
                self.news.notified().await;
            } else {
                tokio::select! {
                    () = self.news.notified() => {}
                    () = sleep(pause.into()) => {}
                }
            }
        }
    }

    /// Returns whether the engine has waited for events since the last call.
    pub(crate) fn take_waited(&self) -> bool {
        self.waited.swap(false, Ordering::Relaxed)
    }

    fn queue_of(&self, kind: Kind) -> MutexGuard<'_, Queue> {
        lock(if kind == Kind::Question { &self.questions } else { &self.messages })
    }
}

fn lock<T>(owned: &Mutex<T>) -> MutexGuard<'_, T> {
    // No function of the queues or of the budget panics, so a poisoned lock is usable.
    owned.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sender {
    /// Adds an event, and waits until the engine has handled it.
    pub(super) async fn send(&self, event: ConnectionEvent) {
        self.add(event);
        self.handled.notified().await;
    }

    /// Adds an event without waiting. An end may overtake a question of the connection, which is then
    /// ignored.
    pub(super) fn add(&self, event: ConnectionEvent) {
        let mut queue = self.inbox.queue_of(event.kind());
        let is_end = matches!(event, ConnectionEvent::Closed { .. });
        let message = Message { event: Box::new(event), handled: self.handled.clone() };
        if is_end {
            let ticket = queue.ticket(&self.principal, self.connection);
            lock(&self.inbox.ends).push_back((ticket, message));
        } else {
            queue.push(&self.principal, self.connection, message);
        }
        drop(queue);
        self.inbox.news.notify_one();
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.0.newcomers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Handling<'_> {
    fn drop(&mut self) {
        let now = clock::monotonic();
        let cost = lock(&self.inbox.worked).between(self.began, now) + TRANSFER;
        if self.kind == Kind::Question {
            lock(&self.inbox.question_budget).charge(cost, now);
        }
        let weight = if self.kind == Kind::Client { CLIENT } else { 1 };
        self.inbox.queue_of(self.kind).charge(self.ticket, cost, weight);
        self.handled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::admin::AdminRequest;
    use gpushare_proto::tenant::TenantRequest;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    fn closed(connection: u64) -> ConnectionEvent {
        ConnectionEvent::Closed { connection: ConnectionId(connection) }
    }

    fn message(connection: u64) -> ConnectionEvent {
        ConnectionEvent::Admin { connection: ConnectionId(connection), request: AdminRequest::Status }
    }

    #[tokio::test]
    async fn a_connection_waits_until_its_message_is_handled() {
        let inbox = Inbox::new();
        let sender = inbox.sender(Principal::own(), ConnectionId(1));
        let mut sending = JoinSet::new();
        sending.spawn(async move { sender.send(message(1)).await });
        let (event, handling) = inbox.next().await;
        assert!(matches!(*event, ConnectionEvent::Admin { connection: ConnectionId(1), .. }));
        yield_now().await;
        assert!(sending.try_join_next().is_none());
        drop(handling);
        assert!(sending.join_next().await.is_some());
    }

    #[test]
    fn a_wait_for_other_programs_costs_nothing() {
        let mut worked = Worked::default();
        worked.between(Nanos::ZERO, clock::monotonic());
        let began = clock::monotonic();
        std::thread::sleep(Nanos::from_millis(100).into());
        let cost = worked.between(began, clock::monotonic());
        assert!(cost < Nanos::from_millis(50), "{cost}");
        let now = worked.read;
        assert_eq!(worked.between(now, now + Nanos(5_000)), Nanos(5_000));
    }

    #[tokio::test]
    async fn questions_take_a_part_of_the_time_and_no_end_waits_for_them() {
        const ASKED: u64 = 1024;
        let inbox = Inbox::new();
        let asking: Vec<Sender> =
            (0..ASKED).map(|n| inbox.sender(Principal::own(), ConnectionId(n))).collect();
        for (sender, n) in asking.iter().zip(0..) {
            let request = TenantRequest::Gpus;
            sender.add(ConnectionEvent::Tenant { connection: ConnectionId(n), request });
        }
        let began = clock::monotonic();
        inbox.sender(Principal::own(), ConnectionId(9999)).add(closed(9999));
        assert!(matches!(*inbox.next().await.0, ConnectionEvent::Closed { .. }));
        for _ in 0..ASKED {
            drop(inbox.next().await.1);
        }
        // Each costs the daemon 10 µs at least, of which a quarter is theirs.
        let least = Nanos(ASKED * TRANSFER.0 * 4) - Nanos::from_millis(20);
        assert!(!least.is_zero() && lock(&inbox.question_budget).wait(began) >= least);
    }

    #[tokio::test]
    async fn a_flood_of_messages_keeps_no_question_waiting() {
        let inbox = Inbox::new();
        let asker = inbox.sender(Principal::own(), ConnectionId(999));
        asker.add(ConnectionEvent::Tenant { connection: ConnectionId(999), request: TenantRequest::Gpus });
        let mut before = 0;
        loop {
            inbox.sender(Principal::own(), ConnectionId(before)).add(message(before));
            let (event, handling) = inbox.next().await;
            drop(handling);
            if matches!(*event, ConnectionEvent::Tenant { .. }) {
                break;
            }
            before += 1;
        }
        assert!(before < 3, "{before} were handled before");
    }

    #[tokio::test]
    async fn no_message_overtakes_the_end_of_a_connection() {
        let inbox = Inbox::new();
        let dead = inbox.sender(Principal::own(), ConnectionId(1));
        // The connection has had much time, the other one none.
        for _ in 0..8 {
            dead.add(message(1));
            drop(inbox.next().await.1);
        }
        inbox.sender(Principal::own(), ConnectionId(2)).add(message(2));
        dead.add(closed(1));
        assert!(matches!(*inbox.next().await.0, ConnectionEvent::Closed { .. }));
    }

    #[tokio::test]
    async fn a_message_overtakes_those_of_connections_that_sent_much() {
        let inbox = Inbox::new();
        let senders: Vec<Sender> =
            (1..=256).map(|n| inbox.sender(Principal::own(), ConnectionId(n))).collect();
        let flood = || senders.iter().zip(1..).for_each(|(sender, n)| sender.add(message(n)));
        flood();
        for _ in 0..256 {
            drop(inbox.next().await.1);
        }
        flood();
        drop(inbox.next().await.1);
        inbox.sender(Principal::own(), ConnectionId(999)).add(message(999));
        let mut before = 0;
        loop {
            let (event, handling) = inbox.next().await;
            drop(handling);
            if matches!(*event, ConnectionEvent::Admin { connection: ConnectionId(999), .. }) {
                break;
            }
            before += 1;
        }
        assert!(before < 3, "{before} were handled before");
    }
}
