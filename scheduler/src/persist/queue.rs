//! Queue of changes that are not in the registry file yet, and of answers that wait for them.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::admin::AdminReply;
use gpushare_proto::audit::Action;
use gpushare_proto::codec::Message;
use gpushare_proto::tenant::{Failure, TenantReply};
use gpushare_proto::{ClientId, Nanos, SessionId};

use super::question::UsageQuestion;
use crate::connections::ConnectionId;
use crate::peers::Peers;
use crate::registry::{Changes, Figures, Hour, News, Spent, Usage};
use crate::sessions::Session;

/// Shortest interval between two writes of the registry file without an act of an administrator. Each write
/// takes an fsync. However, the next daemon does not wait for a client that is not written.
const PACE: Nanos = Nanos::from_millis(20);
/// Largest number of sessions, and of clients, in one write that no act waits for. The rest follows with
/// the next one.
const PART: usize = 256;
/// Interval of counting the sessions' usage, while there are clients.
const COUNT: Nanos = Nanos::from_secs(1);

/// Schedule of writes to the registry file, and the answers that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Persistence {
    /// Sessions and clients that changed since they were last handed to the writer thread.
    sessions: BTreeSet<SessionId>,
    clients: BTreeSet<ClientId>,
    /// Whether something else is to be written: usage, or the end of the daemon.
    other: bool,
    /// Point in monotonic time of the last write to the registry file.
    written: Option<Nanos>,
    /// Usage of all sessions since the last write to the registry file.
    usage: Usage,
    acts: u64,
    /// Answers to acts that are not in the registry file yet, by the number of the act.
    waiting: BTreeMap<u64, WaitingAnswer>,
    /// Whether an administrator's act has not been handed to the writer thread yet.
    urgent: bool,
    next_count: Option<Nanos>,
    /// Questions about usage, sent after the next write.
    questions: Vec<UsageQuestion>,
}

/// Answer to an administrator's act, held until the act is in the registry file.
#[derive(Debug)]
pub(super) struct WaitingAnswer {
    pub(super) connection: ConnectionId,
    /// Session that the act created.
    pub(super) made: Option<SessionId>,
    /// Audit line about the act; none if the act gets no line.
    pub(super) line: Option<Action>,
    /// Function that sends the failure instead of the held answer.
    pub(super) fail: fn(&mut Peers, ConnectionId, u64, Failure),
}

/// Reply that can answer an administrator's act.
pub(crate) trait ActReply: Message {
    fn made(&self) -> Option<SessionId>;
    fn failed(failure: Failure) -> Self;
}

/// Declares that a type of replies can answer acts. One of its variants reports a new session.
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
    pub(crate) fn session_changed(&mut self, session: SessionId) {
        self.sessions.insert(session);
    }

    pub(crate) fn client_changed(&mut self, client: ClientId) {
        self.clients.insert(client);
    }

    /// Makes the next write happen although no session and no client changed.
    pub(crate) fn write_in_any_case(&mut self) {
        self.other = true;
    }

    fn has_changes(&self) -> bool {
        self.other || !self.sessions.is_empty() || !self.clients.is_empty()
    }

    /// Removes and returns the changed sessions and clients: a part of them, or `all`.
    pub(super) fn take_changes(&mut self, all: bool) -> (Vec<SessionId>, Vec<ClientId>) {
        fn take<K: Copy + Ord>(changed: &mut BTreeSet<K>, most: usize) -> Vec<K> {
            let later = changed.iter().nth(most).copied().map(|first| changed.split_off(&first));
            std::mem::replace(changed, later.unwrap_or_default()).into_iter().collect()
        }
        let most = if all { usize::MAX } else { PART };
        (take(&mut self.sessions, most), take(&mut self.clients, most))
    }

    /// Holds the answer to an act until the act is in the registry file.
    pub(crate) fn answer_when_written<M: ActReply>(
        &mut self,
        peers: &mut Peers,
        connection: ConnectionId,
        reply: &M,
        line: Option<Action>,
    ) {
        self.acts += 1;
        self.other = true;
        self.urgent = true;
        let fail = |peers: &mut Peers, connection, act, failure| {
            peers.send(connection, |outbox| outbox.release(act, Some(&M::failed(failure))));
        };
        let waiting = WaitingAnswer { connection, made: reply.made(), line, fail };
        self.waiting.insert(self.acts, waiting);
        peers.send(connection, |outbox| outbox.send_after(self.acts, reply));
    }

    /// Removes and returns the answers to the acts up to number `up_to`.
    pub(super) fn take_answers(&mut self, up_to: u64) -> BTreeMap<u64, WaitingAnswer> {
        let later = self.waiting.split_off(&(up_to + 1));
        std::mem::replace(&mut self.waiting, later)
    }

    pub(super) fn ask_usage(&mut self, question: UsageQuestion) {
        self.questions.push(question);
    }

    pub(super) fn take_questions(&mut self) -> Vec<UsageQuestion> {
        std::mem::take(&mut self.questions)
    }

    pub(super) fn add_usage(&mut self, hour: Hour, id: SessionId, session: &Session, figures: Figures) {
        if figures == Figures::default() {
            return;
        }
        self.other = true;
        let sum = self.usage.entry((hour, id)).or_default();
        let figures = sum.figures.plus(figures);
        *sum = Spent { figures, ..session.spent_nothing() };
    }

    /// Starts to count usage periodically, unless counting has started already.
    pub(crate) fn count_from(&mut self, now: Nanos) {
        self.next_count.get_or_insert(now + COUNT);
    }

    /// Returns whether to count usage now. `go_on` tells whether to count again later.
    pub(crate) fn counts_now(&mut self, now: Nanos, go_on: bool) -> bool {
        let is_due = self.next_count.is_some_and(|count| count <= now);
        if is_due {
            self.next_count = go_on.then(|| now + COUNT);
        }
        is_due
    }

    /// Returns the point in monotonic time of the next write to the registry file, or of the next count.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let book = self
            .has_changes()
            .then(|| self.written.map_or(Nanos::ZERO, |written| written + PACE));
        [book, self.next_count].into_iter().flatten().min()
    }

    /// Returns whether a write to the registry file is due.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        let paced = self.written.is_none_or(|written| written + PACE <= now);
        self.urgent || !self.questions.is_empty() || (self.has_changes() && paced)
    }

    /// Begins a write to the registry file. Returns whether an act waits for it; none if there is nothing
    /// to write.
    pub(super) fn begin_write(&mut self, now: Nanos) -> Option<bool> {
        let has_changes = self.has_changes();
        self.written = Some(now);
        self.other = false;
        let urgent = std::mem::take(&mut self.urgent);
        has_changes.then_some(urgent)
    }

    pub(super) fn news(&mut self, changes: Changes) -> News {
        News { changes, spent: std::mem::take(&mut self.usage), act: self.acts }
    }
}
