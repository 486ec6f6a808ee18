//! Changes that the store has not heard of, and answers that wait until the store has written them.

use std::collections::BTreeMap;

use gpushare_proto::admin::AdminReply;
use gpushare_proto::audit::Action;
use gpushare_proto::codec::Message;
use gpushare_proto::tenant::{Failure, TenantReply};
use gpushare_proto::{Nanos, SessionId};

use crate::connections::ConnectionId;
use crate::peers::Peers;
use crate::registry::{Book, Figures, Hour, News, Spent, Usage};

/// Shortest interval between two writes without an act. Each write is a copy of the book and an fsync, but
/// the next daemon does not wait for a client that is not written.
const PACE: Nanos = Nanos::from_millis(20);
/// Interval between two counts of the sessions' usage, while there are clients.
const COUNT: Nanos = Nanos::from_secs(1);

/// State of the persistence: what to write, when, and which answers wait for it.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    /// Whether nothing has changed since the last book was handed over.
    unchanged: bool,
    /// Time of the last write.
    written: Option<Nanos>,
    /// Usage since the last write.
    usage: Usage,
    acts: u64,
    /// Answers to acts that are not written yet, by the number of the act.
    waiting: BTreeMap<u64, WaitingAnswer>,
    /// Whether an act is in no book yet.
    urgent: bool,
    next_count: Option<Nanos>,
    /// Questions about usage, to be sent behind the next book.
    questions: Vec<(ConnectionId, Nanos)>,
}

/// An answer to an act, held until the act is written.
#[derive(Debug)]
pub(super) struct WaitingAnswer {
    pub(super) connection: ConnectionId,
    /// Session that the act made.
    pub(super) made: Option<SessionId>,
    /// Line of the act in the audit log; none if it gets no line.
    pub(super) line: Option<Action>,
    /// Sends the failure instead of the held answer.
    pub(super) fail: fn(&mut Peers, ConnectionId, u64, Failure),
}

/// A reply that can answer an act.
pub(crate) trait ActReply: Message {
    fn made(&self) -> Option<SessionId>;
    fn failed(failure: Failure) -> Self;
}

/// Lets a type of replies answer acts, of which one variant reports a new session.
macro_rules! act_reply {
    ($reply:ident: $made:ident) => {
        impl ActReply for $reply {
            fn made(&self) -> Option<SessionId> {
                match self {
                    Self::$made { session, .. } => Some(*session),
                    _ => None,
                }
            }

            fn failed(failure: Failure) -> Self {
                Self::Error(failure)
            }
        }
    };
}

act_reply!(AdminReply: Created);
act_reply!(TenantReply: Session);

impl Persistence {
    pub(crate) fn changed(&mut self) {
        self.unchanged = false;
    }

    /// Holds the answer to an act until the act is written.
    pub(crate) fn answer_when_written<M: ActReply>(
        &mut self,
        peers: &mut Peers,
        connection: ConnectionId,
        reply: &M,
        line: Option<Action>,
    ) {
        self.acts += 1;
        self.unchanged = false;
        self.urgent = true;
        let fail = |peers: &mut Peers, connection, act, failure| {
            peers.send(connection, |outbox| outbox.release(act, Some(&M::failed(failure))));
        };
        let waiting = WaitingAnswer { connection, made: reply.made(), line, fail };
        self.waiting.insert(self.acts, waiting);
        peers.send(connection, |outbox| outbox.send_after(self.acts, reply));
    }

    /// Removes and returns the answers that wait for acts up to number `up_to` to be on the disk.
    pub(super) fn take_answers(&mut self, up_to: u64) -> BTreeMap<u64, WaitingAnswer> {
        let later = self.waiting.split_off(&(up_to + 1));
        std::mem::replace(&mut self.waiting, later)
    }

    pub(super) fn ask_usage(&mut self, connection: ConnectionId, since: Nanos) {
        self.questions.push((connection, since));
    }

    pub(super) fn take_questions(&mut self) -> Vec<(ConnectionId, Nanos)> {
        std::mem::take(&mut self.questions)
    }

    pub(super) fn add_usage(&mut self, hour: Hour, session: SessionId, name: &str, figures: Figures) {
        if figures == Figures::default() {
            return;
        }
        self.unchanged = false;
        let sum = self.usage.entry((hour, session)).or_default();
        *sum = Spent { name: name.to_owned(), figures: sum.figures.plus(figures) };
    }

    /// Starts to count usage periodically, unless that goes on already.
    pub(crate) fn count_from(&mut self, now: Nanos) {
        self.next_count.get_or_insert(now + COUNT);
    }

    /// Returns whether usage is to be counted now. `go_on` says whether to count again later.
    pub(crate) fn counts_now(&mut self, now: Nanos, go_on: bool) -> bool {
        let is_due = self.next_count.is_some_and(|count| count <= now);
        if is_due {
            // The book also has the memory of each process, which may have changed.
            self.unchanged = false;
            self.next_count = go_on.then(|| now + COUNT);
        }
        is_due
    }

    /// Returns the time at which the registry is written, or usage counted, next.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let book = (!self.unchanged).then(|| self.written.map_or(Nanos::ZERO, |written| written + PACE));
        [book, self.next_count].into_iter().flatten().min()
    }

    /// Returns whether the store must hear something now.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        let paced = self.written.is_none_or(|written| written + PACE <= now);
        self.urgent || !self.questions.is_empty() || (!self.unchanged && paced)
    }

    /// Starts a write. Returns whether the book has changed since the last one.
    pub(super) fn begin_write(&mut self, now: Nanos) -> bool {
        self.written = Some(now);
        self.urgent = false;
        !std::mem::replace(&mut self.unchanged, true)
    }

    pub(super) fn news(&mut self, book: Book) -> News {
        News { book, spent: std::mem::take(&mut self.usage), act: self.acts }
    }
}
