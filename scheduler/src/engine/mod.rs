//! State of the daemon's task: the decision machine and the facts around it, each with one owner.
//!
//! ```text
//!   Input ──▶ task ──▶ requests, clients, memory, persist ──▶ feed(event) ──▶ core
//!                                                                 ▲             │ effects, in order
//!                                                                 │             ▼
//!                                                Recalled ◀───────┴──── pages, outboxes, log, audit
//! ```
//!
//! Every function here runs to its end without an await, so no event comes between another one and its
//! effects. Slow work (writing to a peer or to the registry file) is handed to other tasks. A peer whose
//! outbox is full is noted, and its connection is closed after the effects.
//!
//! [`Engine`] only holds the parts. Each part keeps its facts private and lies in the folder of its
//! capability, beside the functions that handle events with several parts.

#[cfg(test)]
pub(crate) mod bench;
mod effects;
mod machine;
mod task;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpushare_core::{Event, Standing};
use gpushare_proto::audit::Action;
use gpushare_proto::session::SessionPhase;
use gpushare_proto::tenant::{Failure, GpuInfo};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};
use gpushare_sys::{clock, process};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::budget::Budget;
use crate::cards::{CardError, Cards};
use crate::clients::awaited::Awaited;
use crate::clients::introductions::Introductions;
use crate::clients::joined::JoinedProcesses;
use crate::clients::orphans::Orphans;
use crate::clients::table::Clients;
use crate::clients::unknown_pods::UnknownPods;
use crate::config::{Owner, Reader, Settings};
use crate::connections::{ConnectionId, ConnectionLimit};
use crate::copies::{Bounds, Copies, MemoryFiles};
use crate::dashboard::Dashboard;
use crate::freeze::restores::Restores;
use crate::freeze::trial::Trials;
use crate::identity::{PeerProcess, Principal, Watch};
use crate::input::{Asker, Input, Watched};
use crate::lock::LockError;
use crate::log::LostLines;
use crate::log::limiter::LogLimiter;
use crate::memory::metering::Metering;
use crate::memory::postponed::Postponed;
use crate::memory::refusals::Refusals;
use crate::memory::rooms::RoomQuestions;
use crate::metrics::Metrics;
use crate::nvml;
use crate::operation::{Operation, plain};
use crate::peers::Peers;
use crate::persist::queue::{ActReply, Persistence};
use crate::report::audit::AuditTrail;
use crate::report::follow::Followers;
use crate::report::handoffs::LastHandoffs;
use crate::report::sketch::Sketch;
use crate::report::watch::{Scene, Watchers};
use crate::sessions::terms::{memory_limit, quota_events, terms_events};
use crate::sessions::users::Users;
use crate::sessions::{Session, Sessions};
use crate::utilization::schedule::Utilization;

pub(crate) use machine::Machine;

/// Interval between two reads of all shared pages, while sessions share a card or a tool watches.
const POLL: Nanos = Nanos::from_millis(500);

/// Number of dry runs allowed to one user in a second. Each takes a copy of the decision machine.
pub(crate) const DRY_RUNS: u64 = 10;
/// Part of the daemon's time for dry runs of all users: a hundredth.
const DRY_RUN_BUDGET: Budget = Budget::new(100, Nanos::from_secs(1));

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) reader: Option<Reader>,
    /// Limit on connections and on other watched processes, for each user and container.
    pub(crate) limit: ConnectionLimit,
    /// Point in monotonic time at which the daemon started.
    pub(crate) started: Nanos,
    /// Point in time at which the daemon started, in the kernel's clock ticks since boot.
    pub(crate) start_ticks: u64,
    pub(crate) machine: Machine,
    /// Whether the daemon ends, so that nothing is frozen any more.
    pub(crate) is_stopping: bool,
    pub(crate) cards: Cards,
    pub(crate) sessions: Sessions,
    pub(crate) users: Users,
    pub(crate) joined: JoinedProcesses,
    pub(crate) clients: Clients,
    pub(crate) awaited: Awaited,
    pub(crate) unknown_pods: UnknownPods,
    pub(crate) orphans: Orphans,
    pub(crate) peers: Peers,
    pub(crate) postponed: Postponed,
    pub(crate) introductions: Introductions,
    pub(crate) persistence: Persistence,
    pub(crate) metering: Metering,
    pub(crate) rooms: RoomQuestions,
    pub(crate) restores: Restores,
    pub(crate) trials: Trials,
    pub(crate) copies: Copies,
    /// Budget for host memory that the decision machine was told; none before the first remapped memory.
    pub(crate) host_budget: Option<Bytes>,
    pub(crate) utilization: Utilization,
    pub(crate) watchers: Watchers,
    pub(crate) followers: Followers,
    pub(crate) refusals: Refusals,
    pub(crate) last_handoffs: LastHandoffs,
    pub(crate) dry_runs: LogLimiter<u32, DRY_RUNS>,
    pub(crate) dry_run_budget: Budget,
    pub(crate) audit: AuditTrail,
    pub(crate) metrics: Metrics,
    pub(crate) dashboard: Dashboard,
    pub(crate) lost_log_lines: LostLines,
    /// Unfinished picture for the metrics.
    pub(crate) sketch: Option<Sketch>,
    /// First session whose usage is still to be counted; none while nothing is being counted.
    pub(crate) counting: Option<SessionId>,
    /// Point in monotonic time of the next read of all shared pages; none while no such read is needed.
    pub(crate) next_poll: Option<Nanos>,
    /// Point in monotonic time since which no process, session or connection needs the daemon.
    pub(crate) idle_since: Option<Nanos>,
    /// Sender of inputs to the daemon's task, for threads and watches.
    pub(crate) inputs: mpsc::Sender<Input>,
}

impl Engine {
    /// Creates an engine without cards, sessions and clients. `ids` are the next session's and client's
    /// numbers.
    pub(crate) fn new(
        settings: Settings,
        limit: ConnectionLimit,
        inputs: mpsc::Sender<Input>,
        machine: Machine,
        started: Nanos,
        ids: (u64, u64),
    ) -> Self {
        Self {
            reader: None,
            limit,
            started,
            start_ticks: process::start_time(std::process::id()).unwrap_or(0),
            machine,
            is_stopping: false,
            cards: Cards::new(&settings),
            sessions: Sessions::new(ids.0),
            users: Users::default(),
            joined: JoinedProcesses::default(),
            clients: Clients::new(ids.1),
            awaited: Awaited::default(),
            unknown_pods: UnknownPods::default(),
            orphans: Orphans::default(),
            peers: Peers::default(),
            postponed: Postponed::default(),
            introductions: Introductions::default(),
            persistence: Persistence::default(),
            metering: Metering::default(),
            rooms: RoomQuestions::default(),
            restores: Restores::default(),
            trials: Trials::default(),
            copies: Copies::new(MemoryFiles::default(), Bounds::of_this_process()),
            host_budget: None,
            utilization: Utilization::default(),
            watchers: Watchers::default(),
            followers: Followers::default(),
            refusals: Refusals::default(),
            last_handoffs: LastHandoffs::default(),
            dry_runs: LogLimiter::default(),
            dry_run_budget: DRY_RUN_BUDGET,
            audit: AuditTrail::default(),
            metrics: Metrics::default(),
            dashboard: Dashboard::default(),
            lost_log_lines: LostLines::default(),
            sketch: None,
            counting: None,
            next_poll: None,
            idle_since: Some(started),
            inputs,
            settings,
        }
    }

    pub(crate) fn feed(&mut self, event: Event) {
        self.machine.decide(event);
        self.watchers.note_changes(self.machine.changed());
        while let Some(effect) = self.machine.next_effect() {
            self.perform(effect);
        }
    }

    pub(crate) fn feed_all(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.feed(event));
    }

    /// Reports the free bytes of a client on one card to the decision machine, if they changed.
    pub(crate) fn read_row(&mut self, client: ClientId, gpu: GpuId) {
        let page = self.clients.get_mut(client).map(|client| &mut client.page);
        if let Some(free) = page.and_then(|page| page.news(gpu)) {
            self.feed(Event::LeaseSeen { client, gpu, free });
        }
    }

    /// Reports the free bytes of a client to the decision machine, for all cards where they changed.
    pub(crate) fn read_page(&mut self, client: ClientId) {
        let gpus = self.clients.get(client).map(|client| client.page.gpus());
        gpus.into_iter().flatten().for_each(|gpu| self.read_row(client, gpu));
    }

    /// Reports the free bytes of one session's clients, or of all clients, to the decision machine.
    pub(crate) fn read_pages(&mut self, session: Option<SessionId>) {
        let ids: Vec<ClientId> = match session {
            Some(session) => self.clients.ids_of(session).collect(),
            None => self.clients.iter().map(|(id, _)| id).collect(),
        };
        ids.into_iter().for_each(|id| self.read_page(id));
    }

    /// Starts or ends the periodic reads of all shared pages, and starts the updates of the utilization.
    pub(crate) fn update_poll(&mut self) {
        self.utilization.start(&self.clients);
        let is_needed = self.clients.share_a_card() || !self.watchers.is_empty();
        self.next_poll = is_needed.then(|| self.next_poll.unwrap_or_else(|| clock::monotonic() + POLL));
    }

    /// Watches a process without a connection, and reports its death as an input, until the watch is dropped.
    pub(crate) fn watch(&self, pidfd: Arc<OwnedFd>, watched: Watched) -> Watch {
        let inputs = self.inputs.clone();
        Watch::over(pidfd, async move {
            // The receiver is gone only when the daemon ends.
            let _ = inputs.send(Input::Died(watched)).await;
        })
    }

    /// Returns the number of a card. Announces a new card, with all quotas on it, to the decision machine.
    pub(crate) fn add_card(&mut self, info: &GpuInfo) -> Result<GpuId, CardError> {
        let info = GpuInfo { name: plain(&info.name), ..*info };
        let (gpu, events) = self.cards.find_or_add(&info)?;
        if events.is_empty() {
            return Ok(gpu);
        }
        info!("{gpu} is {} ({}), {}", info.name, info.uuid, info.total);
        self.feed_all(events);
        let quotas = |(id, session)| quota_events(id, session, &self.cards, gpu);
        let quotas: Vec<Event> = self.sessions.iter().flat_map(quotas).collect();
        self.feed_all(quotas);
        let uses = |(client, bytes)| Event::ExpectedUses { client, gpu, bytes };
        let expected: Vec<Event> = self.awaited.on(info.uuid).map(uses).collect();
        self.feed_all(expected);
        Ok(gpu)
    }

    /// Takes the cards that NVML lists. Fails if another daemon has one of them.
    pub(crate) fn take_cards(&mut self) -> Result<(), LockError> {
        let found = nvml::cards();
        for info in &found {
            match self.add_card(info) {
                Ok(_) => {}
                Err(CardError::Lock(error)) => return Err(error),
                Err(error) => warn!("{error}"),
            }
        }
        // A user's own daemon may also serve cards that NVML does not list: simulated ones.
        if !found.is_empty() && self.settings.owner == Owner::System {
            self.cards.complete = true;
        }
        Ok(())
    }

    /// Returns the number of a card that a client of `principal` announces.
    pub(crate) fn add_announced_card(
        &mut self,
        principal: &Principal,
        info: &GpuInfo,
    ) -> Result<GpuId, CardError> {
        let is_open = |cards: &Cards| !cards.complete && cards.by_uuid(info.uuid).is_none();
        if self.settings.owner == Owner::System && is_open(&self.cards) {
            if self.cards.may_ask(clock::monotonic()) {
                self.take_cards()?;
            }
            // No number of connections is too many for the daemon's own user.
            let is_own = self.limit.allows(principal, usize::MAX);
            if is_open(&self.cards) && !is_own && !self.cards.is_configured(info.uuid) {
                return Err(CardError::Unconfirmed(info.uuid));
            }
        }
        self.add_card(info)
    }

    /// Registers that a client uses a card, and books the bytes that it already uses there.
    pub(crate) fn attach(&mut self, id: ClientId, gpu: GpuId, used: Bytes) {
        self.clients.attach(id, gpu, used);
        self.utilization.write(&self.clients, id, gpu);
        if let Some(client) = self.clients.get(id) {
            let (peer, name) = (&client.peer, self.sessions.name(client.session));
            Operation::of("process.attach", client.session, &name)
                .peer(peer)
                .on(gpu)
                .bytes(used)
                .debug(format_args!("{id} (pid {}) of {name} uses {gpu}", peer.pid));
        }
        self.feed(Event::Attached { client: id, gpu, used });
        self.persistence.client_changed(id);
        self.metering.measure_soon();
    }

    /// Creates a session, and reports its terms to the decision machine.
    pub(crate) fn open_session(
        &mut self,
        name: impl FnOnce(SessionId) -> String,
        make: impl FnOnce(String) -> Session,
    ) -> SessionId {
        let id = self.sessions.add(name, make);
        self.persistence.session_changed(id);
        self.send_terms(id);
        id
    }

    /// Reports the terms of a session, and its limits on each card, to the decision machine.
    pub(crate) fn send_terms(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(id) {
            // Nothing may come between: until its quota of each card is known, a share is no limit to the
            // core.
            let user = session.user().map(|user| self.users.of(&user));
            let events = terms_events(id, session, user, &self.cards, self.settings.freeze_after);
            self.feed_all(events);
        }
    }

    /// Reports to the decision machine whether a session may run, if that changed.
    pub(crate) fn send_standing(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let standing = match session.phase(clock::boot()) {
            SessionPhase::Good => Standing::Good,
            SessionPhase::Paused => Standing::Paused,
            SessionPhase::Expired | SessionPhase::Revoked => Standing::Over,
        };
        if self.sessions.told_standing(id, standing) != Some(standing) {
            self.feed(Event::Standing { session: id, standing });
        }
    }

    /// Returns the session to which the control group, the pod or the user of a process is bound, if any.
    pub(crate) fn bound(&self, peer: &PeerProcess) -> Option<SessionId> {
        self.sessions.bound(peer, self.limit.is_beside_daemon(&peer.principal))
    }

    /// Returns a session's memory quota on a card in bytes; none for no limit.
    pub(crate) fn limit_on(&self, session: SessionId, gpu: GpuId) -> Option<Bytes> {
        memory_limit(self.sessions.get(session)?, &self.cards, gpu)
    }

    /// Answers an administrator's act: a success once the act is on the disk, a failure at once. Its audit
    /// line is written at the same time.
    pub(crate) fn reply_to_act<M: ActReply>(
        &mut self,
        connection: ConnectionId,
        answer: Result<M, Failure>,
        line: Option<Action>,
    ) {
        match answer {
            Ok(reply) => {
                self.persistence.answer_when_written(&mut self.peers, connection, &reply, line);
            }
            Err(failure) => {
                if let Some(line) = line {
                    self.audit.write_act(line);
                }
                self.peers.reply(connection, &M::failed(failure));
            }
        }
    }

    /// Starts to read the configuration again, for an administrator or because of a signal.
    pub(crate) fn read_settings(&self, asker: Option<Asker>) {
        if let Some(reader) = &self.reader {
            let inputs = self.inputs.clone();
            reader.start(move |settings| {
                // The receiver is gone only when the daemon ends.
                let _ = inputs.blocking_send(Input::Configured { settings: settings.map(Box::new), asker });
            });
        }
    }

    /// Sends the whole state to a watching tool, and from then on each event, with or without the `reasons`
    /// of waits.
    pub(crate) fn start_watch(&mut self, connection: ConnectionId, reasons: bool) {
        self.read_pages(None);
        let Self { machine, cards, sessions, clients, watchers, peers, started, .. } = self;
        let scene = Scene { core: machine, cards, sessions, clients, started: *started };
        watchers.start(connection, reasons, &scene, peers);
        self.update_poll();
    }
}
