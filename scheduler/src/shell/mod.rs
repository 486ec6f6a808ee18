//! The one owner of the decision machine.
//!
//! ```text
//!   Input ──▶ handle ──▶ feed(event) ──▶ core ──▶ effects, all of them, in order ──▶ pages, outboxes, log
//!                            ▲                        │ Recall: out of the page, at once
//!                            └──── Recalled ──────────┘
//! ```
//!
//! Everything in here runs to its end without an await, so no event comes between another and its
//! effects. What may take long (writing to a peer, the store) is handed over and never waited
//! for. A peer whose outbox is full is noted and closed once the effects are done.

mod account;
mod admin;
mod awaiting;
mod away;
mod checks;
mod effects;
mod entering;
mod explaining;
mod foreseeing;
mod joining;
mod keeping;
mod kinship;
mod leaving;
mod measuring;
mod notices;
mod observing;
mod orphans;
mod postponed;
mod refusing;
mod registering;
mod reloading;
mod sessions;
mod start;
mod status;
mod telling;
mod tenant;
mod terms;
mod unknown;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpushare_core::{Core, Effect, Event};
use gpushare_proto::audit::Outcome;
use gpushare_proto::codec::Message;
use gpushare_proto::tenant::{Failure, FailureCode, GpuInfo};
use gpushare_proto::{ClientId, GpuId, Nanos, SessionId};
use gpushare_sys::clock;
use tokio::sync::mpsc;
use tracing::info;

use crate::cards::{CardError, Cards};
use crate::config::{Reader, Settings};
use crate::connections::{ConnectionEvent, ConnectionId, ConnectionLimit, Outbox, Unsent};
use crate::entrants::Entrants;
use crate::identity::{PeerProcess, Watch};
use crate::input::{Input, Watched};
use crate::log_limiter::LogLimiter;
use crate::metrics::Observer;
use crate::operation::{Operation, code_name, outcome_of};
use crate::pages::ClientPage;
use crate::record::Recorder;
use crate::registry::ClientEntry;
use crate::sessions::Sessions;

use tenant::plain;
use unknown::UnknownFunctions;

/// How often the pages are looked at while sessions share a card, or somebody watches.
const POLL: Nanos = Nanos::from_millis(500);

/// The core and everything it decides about.
#[derive(Debug)]
pub(crate) struct Shell {
    settings: Settings,
    limit: ConnectionLimit,
    /// Where they can be read again.
    reader: Option<Reader>,
    started: Nanos,
    /// The same as the kernel counts the starts of processes.
    born: u64,
    core: Core,
    recorder: Recorder,
    /// What the core wants done.
    effects: VecDeque<Effect>,
    cards: Cards,
    sessions: Sessions,
    entrants: Entrants,
    clients: BTreeMap<ClientId, Client>,
    next_client: u64,
    /// Clients of the last daemon that may come back.
    expected: BTreeMap<ClientId, ClientEntry>,
    orphans: orphans::Orphans,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Requests for memory that wait.
    postponed: Vec<postponed::Postponed>,
    /// Peers that cannot be told what they must know.
    unsent: BTreeMap<ConnectionId, Unsent>,
    /// What the store has not heard, and what it has not said.
    keeping: keeping::Keeping,
    /// When to look at the pages, while sessions share a card.
    next_poll: Option<Nanos>,
    measuring: measuring::Measuring,
    idle_since: Option<Nanos>,
    watchers: watch::Watchers,
    refusals: LogLimiter<SessionId>,
    /// What is asked that takes long to answer, by user.
    questions: LogLimiter<u32>,
    telling: telling::Telling,
    refused: refusing::Refusals,
    /// Whom metrics are reported to, if to anybody.
    observer: Option<Observer>,
    /// For watchers, which report here.
    inputs: mpsc::Sender<Input>,
}

/// A process of a session.
#[derive(Debug)]
struct Client {
    session: SessionId,
    /// None while it is away: it hung up and lives (away.rs).
    connection: Option<ConnectionId>,
    peer: PeerProcess,
    away: away::Away,
    /// Whether the last daemon wrote it down, with its session's terms.
    restored: bool,
    page: ClientPage,
    /// What was measured of it, by card.
    overheads: BTreeMap<GpuId, measuring::Overhead>,
    /// Functions that it was handed and its library does not know.
    unknown: UnknownFunctions,
}

/// A peer that said hello.
#[derive(Debug)]
struct Connection {
    peer: PeerProcess,
    role: ConnectionRole,
    outbox: Outbox,
}

/// What a connection is for by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionRole {
    /// A command-line tool.
    Tool,
    /// A process that uses a GPU.
    Client(ClientId),
    /// It has had its last message.
    Ending,
}

impl Shell {
    /// Takes one thing in and does all that follows from it.
    pub(crate) fn handle(&mut self, input: Input) {
        match input {
            Input::Connection(event) => self.connection_event(event),
            Input::Observe(answer) => {
                // A reader that is gone has no use for it.
                let _ = answer.send(self.picture());
            }
            Input::Measured(Some(usages)) => self.measured(&usages),
            Input::Measured(None) => self.measuring_is_off(),
            Input::Died(Watched::Registrar(session)) => {
                self.sessions.unbind(session);
                self.close_if_over(session);
            }
            Input::Died(Watched::Expected(client)) => self.expected_gone(client),
            Input::Died(Watched::Away(client)) => self.client_gone(client),
            Input::Died(Watched::Orphan(client)) => self.orphan_died(client),
            Input::Died(Watched::Entrant(process)) => self.entrant_gone(process),
            Input::Configured { settings, asker } => self.configured(settings, asker.as_ref()),
            Input::Used { connection, since, answer } => self.tell_usage(connection, since, answer),
        }
        self.finish();
    }

    fn connection_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Opened { connection, socket, peer, role, outbox } => {
                self.opened(connection, socket, &peer, role, outbox)
            }
            ConnectionEvent::Tenant { connection, request } => self.tenant(connection, request),
            ConnectionEvent::Admin { connection, request } => self.admin(connection, &request),
            ConnectionEvent::Closed { connection } => self.drop_connection(connection),
            ConnectionEvent::Trespassed { process, why } => self.trespassed(process, why),
        }
    }

    /// Does what is due by now.
    pub(crate) fn wake(&mut self) {
        let now = clock::monotonic();
        if self.core.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.feed(Event::Tick);
        }
        self.end_sessions(now);
        if self.next_poll.is_some_and(|poll| poll <= now) {
            self.next_poll = Some(now + POLL);
            self.look_at_all_pages();
        }
        self.measure_if_due(now);
        self.count_if_due(now);
        self.finish();
    }

    /// When to call [`Self::wake`] at the latest.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        [
            self.core.next_deadline(),
            self.next_poll,
            self.idle_end(),
            self.watchers.due(),
            self.postponed_until(),
            self.measuring_due(),
            self.keeping.due(),
            self.sessions.next_end(clock::monotonic()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether nobody has needed the daemon for as long as it was told to wait.
    pub(crate) fn is_idle_for_long(&self) -> bool {
        self.idle_end().is_some_and(|end| end <= clock::monotonic())
    }

    /// Whether processes live that will look for the next daemon.
    pub(crate) fn is_needed(&self) -> bool {
        !(self.clients.is_empty() && self.expected.is_empty() && self.sessions.is_empty())
    }

    /// Gives the core an event and does what it wants.
    fn feed(&mut self, event: Event) {
        self.decide(event);
        while let Some(effect) = self.effects.pop_front() {
            self.perform(effect);
        }
    }

    /// Gives the core an event. What it wants done comes after what it wanted before.
    fn decide(&mut self, event: Event) {
        let now = clock::monotonic();
        self.recorder.begin(now, event);
        self.core.handle(now, event);
        let wanted: Vec<Effect> = std::iter::from_fn(|| self.core.poll_effect()).collect();
        self.recorder.finish(&wanted);
        self.effects.extend(wanted);
    }

    /// Reads what lies free in a client's page for one card.
    fn look_at(&mut self, client: ClientId, gpu: GpuId) {
        let page = self.clients.get_mut(&client).map(|client| &mut client.page);
        if let Some(free) = page.and_then(|page| page.news(gpu)) {
            self.feed(Event::LeaseSeen { client, gpu, free });
        }
    }

    /// Reads what lies free in a client's page.
    fn look_at_page(&mut self, client: ClientId) {
        let gpus = self.clients.get(&client).map(|client| client.page.gpus());
        gpus.into_iter().flatten().for_each(|gpu| self.look_at(client, gpu));
    }

    fn look_at_all_pages(&mut self) {
        let all: Vec<ClientId> = self.clients.keys().copied().collect();
        all.into_iter().for_each(|client| self.look_at_page(client));
    }

    /// Starts or ends looking at the pages now and then.
    fn note_sharing(&mut self) {
        let mut users: BTreeMap<GpuId, SessionId> = BTreeMap::new();
        let shared = self.clients.values().any(|client| {
            client
                .page
                .gpus()
                .any(|gpu| *users.entry(gpu).or_insert(client.session) != client.session)
        });
        let looked_at = shared || !self.watchers.is_empty();
        self.next_poll = match (looked_at, self.next_poll) {
            (false, _) => None,
            (true, None) => Some(clock::monotonic() + POLL),
            (true, next) => next,
        };
    }

    /// Reports the death of a process that has no connection.
    fn watch(&self, pidfd: Arc<OwnedFd>, watched: Watched) -> Watch {
        let inputs = self.inputs.clone();
        Watch::over(pidfd, async move {
            // Nobody listens only when the daemon ends.
            let _ = inputs.send(Input::Died(watched)).await;
        })
    }

    fn admit(&mut self, connection: ConnectionId, peer: PeerProcess, outbox: Outbox) {
        let role = ConnectionRole::Tool;
        self.connections.insert(connection, Connection { peer, role, outbox });
    }

    /// Sends to whoever is at the other end, if anybody still is.
    fn reply<M: Message>(&mut self, connection: ConnectionId, message: &M) {
        self.push(connection, |outbox| outbox.send(message));
    }

    fn push(&mut self, connection: ConnectionId, send: impl FnOnce(&mut Outbox) -> Result<(), Unsent>) {
        if let Some(open) = self.connections.get_mut(&connection)
            && let Err(why) = send(&mut open.outbox)
        {
            self.unsent.entry(connection).or_insert(why);
        }
    }

    /// Says why, and no more: the connection ends with that.
    fn refuse<M: Message>(
        &mut self,
        connection: ConnectionId,
        failure: Failure,
        message: impl FnOnce(Failure) -> M,
    ) {
        if let Some(open) = self.connections.get(&connection) {
            let PeerProcess { pid, uid, .. } = open.peer;
            Operation::done("peer.request")
                .process(pid)
                .user(uid)
                .failed(outcome_of(failure.code), code_name(failure.code))
                .info(format_args!("refused pid {pid}, user {uid}: {}", failure.message));
        }
        self.push(connection, |outbox| outbox.send_last(&message(failure)));
        self.end_role(connection);
    }

    /// Closes what must be closed by now, and notes whether anybody is left.
    fn finish(&mut self) {
        self.take_up_postponed();
        self.serve_watchers();
        while let Some((connection, why)) = self.unsent.pop_first() {
            if let Some(open) = self.connections.get(&connection) {
                let PeerProcess { pid, uid, .. } = open.peer;
                Operation::done("peer.close")
                    .process(pid)
                    .user(uid)
                    .failed(Outcome::Failed, "unsent")
                    .warn(format_args!("closed {connection} of pid {pid}: {why}"));
            }
            self.drop_connection(connection);
        }
        let busy = self.is_needed() || !self.connections.is_empty();
        self.idle_since = match (busy, self.idle_since) {
            (true, _) => None,
            (false, None) => Some(clock::monotonic()),
            (false, since) => since,
        };
    }

    fn idle_end(&self) -> Option<Nanos> {
        Some(self.idle_since? + self.settings.idle_exit?)
    }

    /// The number of a card, which the core hears of if it is new.
    fn add_card(&mut self, info: &GpuInfo) -> Result<GpuId, CardError> {
        let info = GpuInfo { name: plain(&info.name), ..*info };
        let (gpu, events) = self.cards.find_or_add(&info)?;
        if !events.is_empty() {
            info!("{gpu} is {} ({}), {}", info.name, info.uuid, info.total);
        }
        let new = !events.is_empty();
        events.into_iter().for_each(|event| self.feed(event));
        if new {
            let all: Vec<_> = self.sessions.iter().map(|(id, _)| id).collect();
            all.into_iter().for_each(|session| self.tell_quota(session, gpu));
        }
        Ok(gpu)
    }
}

/// A failure with its sentence.
fn failure(code: FailureCode, message: impl Into<String>) -> Failure {
    Failure { code, message: message.into() }
}
