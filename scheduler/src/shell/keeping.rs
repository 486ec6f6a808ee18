//! What the store must hear: who is there, what sessions were given, what they used; and who waits for its word.
//!
//! ```text
//!   an act ──▶ in force at once, answer held ──▶ book ──▶ store ──▶ word ──▶ answer, or why it is not kept
//! ```
//!
//! An act is answered when it is on the disk. One that cannot be kept stays in force, and the answer says so: a pause
//! or a revocation that took itself back would let a tenant go on whom its administrator wants stopped. Only a session
//! that was just made is taken away again, since its token reaches nobody.

use std::collections::BTreeMap;

use gpushare_core::snapshot::SessionSnapshot;
use gpushare_proto::admin::{AdminReply, SessionGpuView, UsageView};
use gpushare_proto::audit::{Action, Outcome};
use gpushare_proto::codec::Message;
use gpushare_proto::tenant::{Failure, FailureCode, TenantReply};
use gpushare_proto::{Bytes, ClientId, Nanos, SessionId};
use gpushare_sys::clock;
use tokio::sync::oneshot;
use tracing::warn;

use super::start::clocks;
use super::{Client, Shell, failure};
use crate::connections::ConnectionId;
use crate::input::Input;
use crate::metrics::SessionPicture;
use crate::registry::{Book, CardUse, ClientEntry, Figures, Hour, News, Spent, Usage, Word, Writer, view};
use crate::sessions::Session;

/// How often the store hears of what is in no hurry, at most: a client of whom it does not know is one that the next
/// daemon does not wait for, and each time is a copy of the book and an fsync.
const PACE: Nanos = Nanos::from_millis(20);
/// What is in force and not on the disk.
const NOT_KEPT: &str = "not_kept";
/// How often what sessions used is counted, while they have processes.
const COUNT: Nanos = Nanos::from_secs(1);

/// What the store has not heard, and what it has not said.
#[derive(Debug)]
pub(super) struct Keeping {
    /// Whether the book is out of date.
    changed: bool,
    /// When it was last handed over.
    told: Option<Nanos>,
    /// What was used since then.
    spent: Usage,
    /// The number of the last act.
    acts: u64,
    /// Who waits for the word about an act.
    waiting: BTreeMap<u64, Waiting>,
    /// Whether an act is not in any book yet.
    urgent: bool,
    next_count: Option<Nanos>,
    /// Whether nobody joins any more.
    ending: bool,
    /// Questions for the store that go with the next book.
    questions: Vec<(ConnectionId, Nanos)>,
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            changed: true,
            told: None,
            spent: Usage::new(),
            acts: 0,
            waiting: BTreeMap::new(),
            urgent: false,
            next_count: None,
            ending: false,
            questions: Vec::new(),
        }
    }
}

/// A peer whose act waits for the store.
#[derive(Debug)]
struct Waiting {
    connection: ConnectionId,
    /// The session that it made.
    made: Option<SessionId>,
    /// Its line in the audit log, if it gets one.
    line: Option<Action>,
    /// What it is told if the act cannot be kept.
    refused: fn(&mut Shell, ConnectionId, u64, Failure),
}

/// An answer to an act.
pub(super) trait Done: Message {
    fn made(&self) -> Option<SessionId>;
    fn refused(failure: Failure) -> Self;
}

impl Done for AdminReply {
    fn made(&self) -> Option<SessionId> {
        match self {
            Self::Created { session, .. } => Some(*session),
            _ => None,
        }
    }

    fn refused(failure: Failure) -> Self {
        Self::Error(failure)
    }
}

impl Done for TenantReply {
    fn made(&self) -> Option<SessionId> {
        match self {
            Self::Session { session, .. } => Some(*session),
            _ => None,
        }
    }

    fn refused(failure: Failure) -> Self {
        Self::Error(failure)
    }
}

impl Keeping {
    pub(super) fn changed(&mut self) {
        self.changed = true;
    }

    /// Somebody uses something from now on.
    pub(super) fn count_from(&mut self, now: Nanos) {
        self.next_count.get_or_insert(now + COUNT);
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Nanos> {
        let book = self.changed.then(|| self.told.map_or(Nanos::ZERO, |told| told + PACE));
        [book, self.next_count].into_iter().flatten().min()
    }

    fn is_due(&self, now: Nanos) -> bool {
        let paced = self.told.is_none_or(|told| told + PACE <= now);
        self.urgent || !self.questions.is_empty() || (self.changed && paced)
    }
}

impl Shell {
    /// Hands the store what it must hear by now.
    pub(crate) fn keep(&mut self, writer: &Writer) {
        let now = clock::monotonic();
        if self.keeping.is_due(now) {
            self.hand_over(writer, now);
        }
    }

    /// Hands the store everything, for the last time.
    pub(crate) fn keep_last(&mut self, writer: &Writer) {
        let now = clock::monotonic();
        self.count_all(now);
        self.keeping.ending = true;
        self.keeping.changed();
        self.hand_over(writer, now);
    }

    fn hand_over(&mut self, writer: &Writer, now: Nanos) {
        self.keeping.told = Some(now);
        self.keeping.urgent = false;
        if std::mem::take(&mut self.keeping.changed) {
            writer.publish(News {
                book: self.book(),
                spent: std::mem::take(&mut self.keeping.spent),
                act: self.keeping.acts,
            });
        }
        for (connection, since) in std::mem::take(&mut self.keeping.questions) {
            let (answer, answered) = oneshot::channel();
            let since = Hour::back(since);
            writer.ask(since, answer);
            let inputs = self.inputs.clone();
            tokio::spawn(async move {
                let answer = answered.await.unwrap_or_else(|_| Err("the daemon ends".to_owned()));
                // Nobody listens only when the daemon ends.
                let _ = inputs.send(Input::Used { connection, since, answer }).await;
            });
        }
    }

    fn book(&self) -> Book {
        let mut book = Book::new(self.sessions.next(), self.next_client);
        book.sessions = self.sessions.entries(clocks());
        for entry in &mut book.sessions {
            entry.entrants = self.entrants.in_session(entry.session);
        }
        book.clients.extend(self.expected.values().cloned());
        book.clients.extend(self.orphans.entries().cloned());
        let living = self.clients.iter();
        book.clients
            .extend(living.filter_map(|(&id, client)| self.entry_of(id, client)));
        match self.keeping.ending {
            true => book.ended(),
            false => book,
        }
    }

    /// What the next daemon must know of a client; none for one without a pid here.
    pub(super) fn entry_of(&self, id: ClientId, client: &Client) -> Option<ClientEntry> {
        Some(ClientEntry {
            client: id,
            session: client.session,
            process: client.peer.id?,
            cards: self.cards_of_client(client),
        })
    }

    /// What a client has of which card.
    fn cards_of_client(&self, client: &Client) -> Vec<CardUse> {
        let page = &client.page;
        let of_card = |gpu| {
            let used = page.leased(gpu)? - page.free(gpu);
            let card = self.cards.get(gpu)?.info.clone();
            Some(CardUse { card, used })
        };
        page.gpus().filter_map(of_card).collect()
    }

    /// Answers an act once it is on the disk.
    pub(super) fn reply_when_kept<M: Done>(
        &mut self,
        connection: ConnectionId,
        done: &M,
        line: Option<Action>,
    ) {
        self.keeping.acts += 1;
        self.keeping.changed = true;
        self.keeping.urgent = true;
        let act = self.keeping.acts;
        self.keeping.waiting.insert(
            act,
            Waiting {
                connection,
                made: done.made(),
                line,
                refused: |shell, connection, act, failure| {
                    let instead = BTreeMap::from([(act, M::refused(failure))]);
                    shell.push(connection, |outbox| outbox.release(act, &instead));
                },
            },
        );
        self.push(connection, |outbox| outbox.send_after(act, done));
    }

    /// The store's word: what became of all acts up to one.
    pub(crate) fn kept(&mut self, word: &Word) {
        let later = self.keeping.waiting.split_off(&(word.act + 1));
        for (act, waiting) in std::mem::replace(&mut self.keeping.waiting, later) {
            let Waiting { connection, made, line, refused } = waiting;
            match &word.failure {
                None => {
                    if let Some(line) = line {
                        self.write_act(line);
                    }
                    self.push(connection, |outbox| outbox.release::<AdminReply>(act, &BTreeMap::new()));
                }
                Some(cause) => {
                    let what = match made {
                        Some(session) => self.unmake(session),
                        None => "it is in force, but the daemon's next start may undo it",
                    };
                    let message = format!(
                        "the daemon cannot write its registry ({cause}): {what}; make room for it, or look at its log"
                    );
                    warn!("an act of {connection} is not kept: {message}");
                    if let Some(mut line) = line {
                        line.result = Outcome::Failed;
                        line.error_code = Some(NOT_KEPT.to_owned());
                        line.why = Some(message.clone());
                        self.write_act(line);
                    }
                    refused(self, connection, act, failure(FailureCode::Unavailable, message));
                }
            }
        }
        self.finish();
    }

    /// Takes away a session of which nobody will hear; what became of it.
    fn unmake(&mut self, id: SessionId) -> &'static str {
        match self.sessions.get(id) {
            Some(session) if session.clients > 0 => {
                "the session was made and has processes, but the daemon's next start may not know it"
            }
            Some(_) | None => {
                if let Some(session) = self.sessions.remove(id) {
                    self.ended(id, &session);
                }
                "no session was made"
            }
        }
    }

    /// Counts what was used, if it is time.
    pub(super) fn count_if_due(&mut self, now: Nanos) {
        if self.keeping.next_count.is_some_and(|count| count <= now) {
            self.count_all(now);
            // What each process has of the cards is in the book too.
            self.keeping.changed();
            // Without processes nothing is used.
            self.keeping.next_count = (!self.clients.is_empty()).then(|| now + COUNT);
        }
    }

    fn count_all(&mut self, now: Nanos) {
        let hour = Hour::now();
        let all: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
        for id in all {
            let Some(state) = self.core.session_snapshot(now, id) else {
                continue;
            };
            let (figures, allocated) = self.figures(state);
            if let Some(session) = self.sessions.get_mut(id) {
                let news = session.count(figures, allocated, hour);
                let name = session.name.clone();
                self.spent(hour, id, name, news);
            }
        }
    }

    /// Counts what a session used that is no more but for the core.
    pub(super) fn count_last(&mut self, id: SessionId, session: &Session) {
        let hour = Hour::now();
        if let Some(state) = self.core.session_snapshot(clock::monotonic(), id) {
            let (figures, allocated) = self.figures(state);
            let (news, _) = session.news(figures, allocated, hour);
            self.spent(hour, id, session.name.clone(), news);
        }
    }

    fn spent(&mut self, hour: Hour, id: SessionId, name: String, figures: Figures) {
        if figures == Figures::default() {
            return;
        }
        self.keeping.changed = true;
        let sum = self.keeping.spent.entry((hour, id)).or_default();
        *sum = Spent { name, figures: sum.figures.plus(figures) };
    }

    /// What a session used so far, and the most that it has allocated on one card now.
    fn figures(&self, state: SessionSnapshot) -> (Figures, Bytes) {
        let mut session = SessionPicture { name: String::new(), state };
        self.look_closer(&mut session);
        let state = session.state;
        let most =
            |bytes: fn(&SessionGpuView) -> Bytes| state.gpus.iter().map(bytes).max().unwrap_or(Bytes::ZERO);
        let figures = Figures {
            gpu_time: state.gpu_time_ns,
            waited: state.waited_ns,
            held: state.held_ns,
            moved: state.moved_bytes,
            peak: most(|gpu| gpu.peak_bytes),
            refusals: state.refusals,
        };
        (figures, most(|gpu| gpu.allocated_bytes))
    }

    /// Asks the store what sessions used, up to now.
    pub(super) fn ask_usage(&mut self, connection: ConnectionId, since: Nanos) {
        self.count_all(clock::monotonic());
        self.keeping.questions.push((connection, since));
    }

    /// Answers with what the store has, and with the sessions that have used nothing.
    pub(super) fn tell_usage(
        &mut self,
        connection: ConnectionId,
        since: Hour,
        answer: Result<Vec<UsageView>, String>,
    ) {
        let reply = match answer {
            Ok(usages) => {
                let mut all: BTreeMap<SessionId, UsageView> =
                    usages.into_iter().map(|usage| (usage.session, usage)).collect();
                for (id, session) in self.sessions.iter() {
                    let usage = all.entry(id).or_insert_with(|| {
                        let name = session.name.clone();
                        let figures = Figures::default();
                        view(id, since, Spent { name, figures })
                    });
                    usage.alive = true;
                }
                AdminReply::Usage(all.into_values().collect())
            }
            Err(cause) => AdminReply::Error(failure(
                FailureCode::Unavailable,
                format!("the daemon cannot read its registry ({cause}); look at its log"),
            )),
        };
        self.reply(connection, &reply);
    }
}
