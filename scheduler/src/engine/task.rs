//! The daemon's task: receives inputs and due times, and passes each to the module that handles it.

use gpushare_core::Event;
use gpushare_proto::admin::AdminReply;
use gpushare_proto::tenant::{PROTOCOL, Role, TenantReply};
use gpushare_proto::{Nanos, SessionId};
use gpushare_sys::clock;
use tracing::warn;

use super::{Engine, POLL};
use crate::clients::hello::ClientHello;
use crate::clients::{leave, pods};
use crate::connections::{ConnectionEvent, ConnectionId, Socket};
use crate::identity::PeerProcess;
use crate::input::{Input, Watched};
use crate::memory::{creations, host, measure, reserve, room};
use crate::operation::bad_request;
use crate::persist::usage;
use crate::report::watch::Scene;
use crate::report::{increments, picture};
use crate::requests::imports::retry_introductions;
use crate::requests::{admin, reload, sessions, tenant};
use crate::utilization::update;

impl Engine {
    pub(crate) fn handle(&mut self, input: Input) {
        match input {
            Input::Connection(event) => self.handle_connection(*event),
            Input::Measured(Some(usages)) => measure::measured(self, &usages),
            Input::Measured(None) => measure::turn_off(self),
            Input::Worked(Some(work)) => update::worked(self, &work),
            Input::Worked(None) => update::turn_off(self),
            Input::Rooms(rooms) => room::answered(self, rooms.as_ref()),
            Input::Sensed(readings) => self.followers.sensed(readings),
            Input::Died(Watched::Registrar(session)) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.bound = false;
                }
                leave::end_session_if_over(self, session);
            }
            Input::Died(Watched::Awaited(client)) => leave::remove_awaited(self, client),
            Input::Died(Watched::Away(client)) => leave::remove_client(self, client),
            Input::Died(Watched::Orphan(client)) => {
                self.orphans.died(client, clock::monotonic(), self.metering.questions);
            }
            Input::Died(Watched::Joined(process)) => {
                if let Some(session) = self.joined.session_of(process) {
                    self.joined.remove(process);
                    self.persistence.session_changed(session);
                }
            }
            Input::Configured { settings, asker } => reload::configured(self, settings, asker.as_ref()),
            Input::Tried { gpu, outcome } => self.trials.note(gpu, &outcome),
            Input::Moved { client, end } => creations::moved(self, client, end),
            Input::Used { question, answer } => usage::answer_usage(self, &question, answer),
        }
        self.finish();
    }

    fn handle_connection(&mut self, event: ConnectionEvent) {
        match event {
            // The end of a connection is served before its opening if that still waited.
            ConnectionEvent::Opened { outbox, .. } if outbox.is_closed() => {}
            ConnectionEvent::Opened { connection, socket, peer, role, outbox } => {
                self.peers.admit(connection, peer.clone(), outbox);
                self.opened(connection, socket, &peer, role);
            }
            ConnectionEvent::Tenant { connection, request } => tenant::handle(self, connection, &request),
            ConnectionEvent::Admin { connection, request } => admin::handle(self, connection, &request),
            ConnectionEvent::Closed { connection } => leave::close_connection(self, connection),
            ConnectionEvent::Trespassed { process, why } => self.audit.trespassed(process, why),
        }
    }

    fn opened(&mut self, connection: ConnectionId, socket: Socket, peer: &PeerProcess, role: Role) {
        match (socket, role) {
            (Socket::Admin, _) => {
                self.peers.reply(connection, &AdminReply::Ready { protocol: PROTOCOL });
            }
            (Socket::Tenant, Role::Tool) => {
                self.peers.reply(connection, &TenantReply::Ready { protocol: PROTOCOL });
            }
            (Socket::Tenant, Role::Client { token, returning }) => {
                let remaps = false;
                self.client_said_hello(connection, peer, ClientHello { token, returning, remaps });
            }
            (Socket::Tenant, Role::Remapping { token, returning }) => {
                let remaps = true;
                self.client_said_hello(connection, peer, ClientHello { token, returning, remaps });
            }
        }
    }

    fn client_said_hello(&mut self, connection: ConnectionId, peer: &PeerProcess, hello: ClientHello) {
        if let Err(failure) = pods::join_or_wait(self, connection, peer, hello) {
            leave::refuse(self, connection, failure, TenantReply::Error);
        }
    }

    pub(crate) fn wake(&mut self) {
        let now = clock::monotonic();
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.feed(Event::Tick);
            if self.machine.begins_to_freeze() {
                host::tell_budget(self);
            }
        }
        sessions::end_expired(self);
        pods::refuse_late(self, now);
        if self.next_poll.is_some_and(|poll| poll <= now) {
            self.next_poll = Some(now + POLL);
            self.read_pages(None);
            host::budget_if_needed(self);
        }
        measure::measure_if_due(self, now);
        update::update_if_due(self, now);
        creations::look_if_due(self, now);
        room::give_up_if_late(self, now);
        if let Err(cause) = self.followers.begin_if_due(now, &self.inputs) {
            warn!("the sensors of the cards are not read now: {cause}");
        }
        if self.persistence.counts_now(now, !self.clients.is_empty()) {
            self.counting = Some(SessionId(0));
        }
        self.finish();
    }

    /// Returns whether work is left that is done in slices, between the inputs.
    pub(crate) fn has_slices(&self) -> bool {
        self.sketch.is_some() || self.counting.is_some() || self.followers.has_pass()
    }

    /// Does a slice of the work that visits all sessions.
    pub(crate) fn do_slice(&mut self) {
        picture::draw(self);
        usage::count_slice(self);
        increments::compare_slice(self);
        leave::close_unsent(self);
    }

    /// Returns the latest point in monotonic time of the next [`Self::wake`].
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        let times = [
            self.machine.next_deadline(),
            self.next_poll,
            self.idle_end(),
            self.watchers.due(),
            self.followers.due(),
            self.postponed.due(),
            self.unknown_pods.due(),
            self.metering.due(self.orphans.due()),
            self.utilization.due(),
            self.restores.due(),
            self.rooms.due(),
            self.persistence.due(),
            // The daemon looks at it again at least every two seconds, so also after a suspend.
            self.sessions.next_end().map(|end| clock::monotonic() + (end - clock::boot())),
        ];
        times.into_iter().flatten().min()
    }

    /// Decides waiting requests, sends events to watching tools, closes failed connections, and notes whether
    /// the daemon is idle.
    pub(crate) fn finish(&mut self) {
        retry_introductions(self);
        for (connection, message) in reserve::retry_postponed(self) {
            leave::refuse(self, connection, bad_request(message), TenantReply::Error);
        }
        let Self { machine, cards, sessions, clients, watchers, peers, started, .. } = self;
        let scene = Scene { core: machine, cards, sessions, clients, started: *started };
        watchers.update(&scene, peers);
        leave::close_unsent(self);
        let is_idle = !self.is_needed() && self.peers.is_empty();
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or_else(clock::monotonic));
    }

    /// Returns whether processes or sessions need this daemon or its successor.
    pub(crate) fn is_needed(&self) -> bool {
        !(self.clients.is_empty() && self.awaited.is_empty() && self.sessions.is_empty())
    }

    pub(crate) fn is_idle_for_long(&self) -> bool {
        self.idle_end().is_some_and(|end| end <= clock::monotonic())
    }

    /// Stays for as long as if the daemon became idle now.
    pub(crate) fn stay(&mut self) {
        self.idle_since = Some(clock::monotonic());
    }

    fn idle_end(&self) -> Option<Nanos> {
        Some(self.idle_since? + self.settings.idle_exit?)
    }
}
