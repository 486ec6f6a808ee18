//! Session: the processes of one tenant, their common lock, and their usage.
//!
//! The session is the unit of scheduling: all gates of its processes open and close together, because the
//! processes may wait for each other. Only gates of processes that wait for room to come back from a freeze stay closed.

pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod compute_limit;
pub(crate) mod drop;
pub(crate) mod frost;
pub(crate) mod gate;
pub(crate) mod idle;
pub(crate) mod lock;
pub(crate) mod on_card;
pub(crate) mod registry;
pub(crate) mod share;
pub(crate) mod usage;
pub(crate) mod users;

use std::collections::VecDeque;

use gpushare_proto::admin::FrostStage;
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, Nanos};

use crate::config::Config;
use crate::events::{Effect, Standing};
use crate::memory::book::Book;
use crate::memory::quota::Quota;
use crate::memory::sums::Sums;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::{ByGpu, SmallMap};
use client::{Client, Past};
use compute_limit::ComputeLimits;
use frost::{Frost, Stage};
use gate::Passage;
use idle::Idle;
use lock::{Grant, Lock, Ticket};
use on_card::{OnCard, Presence, Stance};
use share::{Branch, Share, UserId, Virtual};
use usage::Usage;

/// State of one session, the unit of scheduling.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) quota: Quota,
    pub(crate) standing: Standing,
    pub(crate) share: Share,
    /// User to whom the session belongs, with the user's share; `None` if it counts by itself.
    pub(crate) user: Option<(UserId, Share)>,
    pub(crate) compute: ComputeLimits,
    /// Whether the session woke, waits, and the switch to it was paid for. Such a session goes before all
    /// others.
    pub(crate) urgent: bool,
    /// Point in time at which the session last gave the lock back, and whether it had been asked to.
    pub(crate) left: Option<(Nanos, bool)>,
    /// Number of turns in a row that the session used up: it still had work at their ends.
    pub(crate) used_up: u32,
    /// Whether the session is to be frozen.
    pub(crate) wants_frost: bool,
    /// Idle time of the session, after which it may be frozen.
    pub(crate) idle: Idle,
    /// Whether any process may be cold. The frost of each process is looked at only then.
    pub(crate) may_be_cold: bool,
    /// Whether the session accepts no more processes.
    pub(crate) closed: bool,
    pub(crate) clients: SmallMap<ClientId, Client>,
    pub(crate) lock: Lock,
    pub(crate) usage: Usage,
    /// State of the session on each card that any of its processes ever announced.
    pub(crate) cards: ByGpu<OnCard>,
    /// Virtual times at which the session begins on cards that it used under the last daemon.
    pub(crate) resumes_at: ByGpu<Virtual>,
    /// Cards that a process of the session uses now.
    pub(crate) uses: GpuSet,
    /// Whether memory figures that the session's processes were told may have changed.
    pub(crate) figures_moved: bool,
    /// Whether the session's processes are to be told their place, although the queue is long.
    pub(crate) hears_place: bool,
    /// Whether the session is on the agenda of settling.
    pub(crate) touched: bool,
    /// Point in time for which the session's timer on the agenda is set.
    pub(crate) alarm: Option<Nanos>,
}

impl Session {
    pub(crate) fn new(limit: Option<Bytes>, oversubscribe: bool) -> Self {
        Self {
            quota: Quota::new(limit, oversubscribe),
            standing: Standing::Good,
            share: Share::default(),
            user: None,
            compute: ComputeLimits::default(),
            urgent: false,
            left: None,
            used_up: 0,
            wants_frost: false,
            idle: Idle::default(),
            may_be_cold: false,
            closed: false,
            clients: SmallMap::default(),
            lock: Lock::Idle,
            usage: Usage::default(),
            cards: ByGpu::default(),
            resumes_at: ByGpu::default(),
            uses: GpuSet::default(),
            figures_moved: false,
            hears_place: false,
            touched: false,
            alarm: None,
        }
    }

    /// Group whose time the session shares.
    pub(crate) fn branch(&self) -> Branch {
        Branch { class: self.share.class, user: self.user.map(|(user, _)| user) }
    }

    /// Facts about the session for the indexes of all its cards.
    pub(crate) fn stance(&self) -> Stance {
        Stance {
            presence: Presence::of(&self.lock),
            wants: self.may_run() && (!matches!(self.lock, Lock::Idle) || self.has_sleeper()),
            ticket: self.queued_ticket(),
            regular: !self.urgent,
            branch: self.branch(),
            share: self.share,
            user_share: self.user.map(|(_, share)| share),
            limit: self.compute.in_force(),
            cards: self.uses,
            moves: self.is_moving(),
        }
    }

    /// Ticket of the session if it waits and may be granted the lock.
    pub(crate) fn queued_ticket(&self) -> Option<Ticket> {
        let ticket = self.lock.ticket();
        ticket.filter(|_| self.may_run() && !self.compute.is_exhausted())
    }

    /// Whether a compute limit applies to the session.
    pub(crate) fn is_limited(&self) -> bool {
        self.compute.in_force().is_some()
    }

    /// Whether the session has used up its compute limit for the present.
    pub(crate) fn is_throttled(&self) -> bool {
        self.compute.is_exhausted()
    }

    /// Whether the session may be granted turns. One with processes that wait for room may, if another one of its
    /// processes can use them.
    pub(crate) fn may_run(&self) -> bool {
        let keeps_from_turns = |frost: &Frost| frost.bars() && !frost.is_queued();
        let waits = || self.frosts().any(Frost::is_queued);
        self.standing == Standing::Good
            && !self.wants_frost
            && !self.frosts().any(keeps_from_turns)
            && (!waits() || self.has_process_for_turns())
    }

    /// Whether any process can use turns.
    fn has_process_for_turns(&self) -> bool {
        self.attached().any(|(_, client)| !client.frost.bars())
    }

    /// Whether the session is to be frozen, or calls of the driver wait in any of its processes.
    pub(crate) fn is_cold(&self) -> bool {
        self.wants_frost || self.frosts().any(Frost::is_cold)
    }

    /// Stage of the session on its way into a checkpoint and back.
    pub(crate) fn frost_stage(&self) -> FrostStage {
        if !self.is_cold() {
            return FrostStage::Warm;
        }
        if !self.wants_frost {
            return FrostStage::Thawing;
        }
        let mut processes = self.attached();
        match processes.all(|(_, process)| process.frost.stage() == Stage::Frozen) {
            true => FrostStage::Frozen,
            false => FrostStage::Freezing,
        }
    }

    /// Frosts of the processes, if any may be cold.
    pub(crate) fn frosts(&self) -> impl Iterator<Item = &Frost> {
        self.clients.values().filter(|_| self.may_be_cold).map(|client| &client.frost)
    }

    /// Whether all processes that may have work in flight are about to come back from a freeze.
    fn comes_back(&self) -> bool {
        // Every session on the agenda asks, and few have ever been frozen.
        self.may_be_cold && {
            let mut working = self.working().peekable();
            working.peek().is_some() && working.all(|(_, client)| client.frost.returns())
        }
    }

    /// Notes whether the session comes back, which keeps it from counting as stuck.
    pub(crate) fn excuse_drop(&mut self, now: Nanos) {
        let comes_back = self.comes_back();
        if let Lock::Dropping(_, drop) = &mut self.lock {
            drop.excuse(now, comes_back);
        }
    }

    /// Whether a thread of the session waits at a gate or with a call of the driver, and the session may run.
    pub(crate) fn is_called(&self) -> bool {
        self.standing == Standing::Good && self.has_waiting_thread()
    }

    /// Point in time at which the frost of a process changes if no event comes before.
    pub(crate) fn frost_deadline(&self, now: Nanos) -> Option<Nanos> {
        self.frosts().filter_map(|frost| frost.deadline(now)).min()
    }

    /// Whether the session may allocate more memory.
    pub(crate) fn may_grow(&self) -> bool {
        self.standing != Standing::Over
    }

    /// Processes of the session that use a card.
    pub(crate) fn attached(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.clients.iter().filter(|(_, client)| client.is_attached())
    }

    fn attached_mut(&mut self) -> impl Iterator<Item = (ClientId, &mut Client)> {
        self.clients.iter_mut().filter(|(_, client)| client.is_attached())
    }

    /// Memory books of the session's processes on one card.
    pub(crate) fn books(&self, gpu: GpuId) -> impl Iterator<Item = (ClientId, &Book)> {
        let clients = self.clients.iter();
        clients.filter_map(move |(id, client)| Some((id, client.books.get(gpu)?)))
    }

    /// Processes of the session with their managed memory on one card. Those whose memory is remapped have none.
    pub(crate) fn managed(&self, gpu: GpuId) -> impl Iterator<Item = (ClientId, Bytes)> {
        let books = self.books(gpu).filter(|(_, book)| !book.is_remapped);
        books.map(|(client, book)| (client, book.movable()))
    }

    /// Sums over the session's memory books on one card.
    pub(crate) fn sums(&self, gpu: GpuId) -> Sums {
        self.cards.get(gpu).map(|on| on.sums).unwrap_or_default()
    }

    /// Cards that the session's processes use, in order, with the working set on each.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (GpuId, Bytes)> {
        let uses = self.uses.into_iter();
        uses.map(|gpu| (gpu, self.sums(gpu).movable.get()))
    }

    /// Cards on which the session takes turns, if all sessions do so on `in_turns`. A session with a compute
    /// limit takes turns on all its cards.
    pub(crate) fn turn_cards(&self, in_turns: GpuSet) -> GpuSet {
        match self.is_limited() {
            true => self.uses,
            false => self.uses.and(in_turns),
        }
    }

    /// Whether the session takes turns on any card.
    pub(crate) fn takes_turns(&self, in_turns: GpuSet) -> bool {
        !self.turn_cards(in_turns).is_empty()
    }

    /// Whether the session gets the lock only while it has work, and gives it back when it is idle. Those that are
    /// frozen after a while do so on all cards.
    pub(crate) fn runs_on_demand(&self, on_demand: GpuSet) -> bool {
        self.idle.is_watched() || self.takes_turns(on_demand)
    }

    /// Whether the session has processes that could work, and none of them does or wants to.
    fn is_idle(&self) -> bool {
        let is_idle = matches!(self.lock, Lock::Idle) && !self.uses.is_empty();
        is_idle && !self.has_sleeper() && !self.is_cold()
    }

    /// Whether the session has the lock and is to prove that it is idle, since it is frozen after a while.
    pub(crate) fn must_prove_idleness(&self, now: Nanos) -> bool {
        self.lock.grant().is_some_and(|grant| self.idle.asks(grant.at, now))
    }

    /// Point in time at which the session's idleness is looked at if no event comes before.
    pub(crate) fn idle_deadline(&self, now: Nanos) -> Option<Nanos> {
        self.idle.deadline(self.lock.grant().map(|grant| grant.at), now)
    }

    /// Notes whether the session is idle at the time `now`.
    pub(crate) fn note_idleness(&mut self, now: Nanos) {
        if self.idle.is_watched() {
            self.idle.note(self.is_idle(), now);
        }
    }

    /// Whether the session has a use for a turn: a thread waits, or a process is to come back for which others have to
    /// make room.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.frosts().any(Frost::lacks_room) || self.has_waiting_thread()
    }

    /// Whether any thread of the session's processes sleeps at a gate, or with a call of the driver.
    fn has_waiting_thread(&self) -> bool {
        let calls = |client: &Client| self.may_be_cold && client.frost.is_called();
        let sleeps = |client: &Client| client.gate.waiting() || calls(client);
        // A process that waits for room has no use for a turn.
        let is_meant = |client: &Client| !client.frost.is_queued() || !self.has_process_for_turns();
        self.attached().any(|(_, client)| sleeps(client) && is_meant(client))
    }

    /// Whether the session has given the lock back: every process drained or, where the session runs on
    /// demand, went idle.
    pub(crate) fn has_let_go(&self, on_demand: GpuSet) -> bool {
        match self.lock {
            Lock::Idle | Lock::Waiting(_) => false,
            Lock::Dropping(..) => self.attached().all(|(_, client)| client.gate.let_go()),
            Lock::Holding(_) => {
                let idle = |client: &Client| {
                    let is_idle = client.gate.passage() == Passage::Idle && !client.gate.waiting();
                    is_idle || client.frost.is_queued()
                };
                self.runs_on_demand(on_demand) && self.attached().all(|(_, client)| idle(client))
            }
        }
    }

    /// Whether the work in flight of all processes of the session has ended, or ends soon.
    pub(crate) fn lets_go_soon(&self) -> bool {
        self.attached().all(|(_, client)| client.gate.lets_go_soon())
    }

    /// Whether any process of the session still brings its memory in.
    pub(crate) fn is_moving(&self) -> bool {
        self.clients.values().any(|client| client.gate.is_moving())
    }

    /// Whether a turn's memory is in and the length of the way to the turn was not reported yet.
    pub(crate) fn has_entered(&self) -> bool {
        let on_its_way = matches!(self.lock, Lock::Holding(Grant { entry: Some(_), .. }));
        on_its_way && !self.is_moving()
    }

    /// Whether a process that claims the lock of the last daemon announced a card, and the claim is
    /// undecided.
    pub(crate) fn has_returned(&self) -> bool {
        self.attached().any(|(_, client)| client.past != Past::Nothing)
    }

    /// Whether the session has the lock and at least one process is not known to be idle.
    pub(crate) fn may_be_working(&self) -> bool {
        self.lock.grant().is_some() && self.in_flight().next().is_some()
    }

    /// Whether any gate of the session is open, or closed with work still in flight.
    pub(crate) fn has_open_gate(&self) -> bool {
        let mut passages = self.attached().map(|(_, client)| client.gate.passage());
        passages.any(|passage| matches!(passage, Passage::Open | Passage::Closing))
    }

    /// Processes of the session that may have work in flight.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = ClientId> {
        self.working().map(|(id, _)| id)
    }

    fn working(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.attached().filter(|(_, client)| !client.gate.let_go())
    }

    /// Opens every closed gate under `epoch`, the grant's number. No memory moves.
    pub(crate) fn open(&mut self, epoch: Epoch, effects: &mut VecDeque<Effect>) {
        self.open_moving(epoch, |_, _| false, effects);
    }

    /// Opens every closed gate under `epoch`, the grant's number, but those of frozen processes. Processes that
    /// `moves` names bring memory in first.
    pub(crate) fn open_moving(
        &mut self,
        epoch: Epoch,
        moves: impl Fn(ClientId, &Client) -> bool,
        effects: &mut VecDeque<Effect>,
    ) {
        // Gates that open between two tries of a drop are no grant.
        let granted = matches!(self.lock, Lock::Holding(_));
        let bars = frost_bars(self.may_be_cold);
        for (id, client) in self.attached_mut() {
            if !client.gate.passes() && !bars(client) {
                let moving = moves(id, client);
                client.unproven &= !granted;
                let word = client.gate.open(moving);
                effects.push_back(Effect::Gate { client: id, word, epoch });
            }
        }
    }

    /// Opens the gates of a holder's processes that joined after the grant, or went idle and have work again.
    /// Unless the session runs on demand, all its idle gates open.
    pub(crate) fn open_joiners(&mut self, on_demand: GpuSet, effects: &mut VecDeque<Effect>) {
        let Lock::Holding(grant) = self.lock else { return };
        let bars = frost_bars(self.may_be_cold);
        let joins =
            |client: &Client| matches!(client.gate.passage(), Passage::Shut | Passage::Idle) && !bars(client);
        if !self.attached().any(|(_, client)| joins(client)) {
            return;
        }
        let on_demand = self.runs_on_demand(on_demand);
        for (id, client) in self.attached_mut() {
            let opens = match client.gate.passage() {
                _ if bars(client) => false,
                Passage::Shut => true,
                Passage::Idle => !on_demand || client.gate.waiting(),
                Passage::Closing | Passage::Moving | Passage::Open => false,
            };
            if opens {
                client.unproven = false;
                let word = client.gate.open(false);
                effects.push_back(Effect::Gate { client: id, word, epoch: grant.epoch });
            }
        }
    }

    /// Starts and stops the session's stopwatches according to its lock.
    pub(crate) fn run_stopwatches(&mut self, now: Nanos, sharers: u32, config: &Config) {
        let waits = self.lock.ticket().is_some();
        let holds = self.lock.grant().is_some();
        let works = holds && self.may_be_working();
        self.usage.run(now, waits, sharers, if works { self.uses.len() } else { 0 });
        if self.is_limited() {
            let (open, waits) = (self.has_open_gate(), waits && self.may_run());
            self.compute.run(now, open, waits, config);
        }
    }

    /// Closes every open gate of the session, and asks for the drains.
    pub(crate) fn close(&mut self, epoch: Epoch, effects: &mut VecDeque<Effect>) {
        for (id, client) in self.attached_mut() {
            if client.gate.passes() {
                let word = client.gate.close();
                effects.push_back(Effect::Gate { client: id, word, epoch });
            }
        }
    }

    /// Closes the gates of `claimants` as if they had been open, and asks for the drains.
    pub(crate) fn close_those(
        &mut self,
        claimants: &[ClientId],
        epoch: Epoch,
        effects: &mut VecDeque<Effect>,
    ) {
        for &client in claimants {
            if let Some(process) = self.clients.get_mut(client) {
                let word = process.gate.close();
                effects.push_back(Effect::Gate { client, word, epoch });
            }
        }
    }

    /// Sets the lock to idle, and treats the gates of idle processes as closed by the scheduler.
    pub(crate) fn shut(&mut self) {
        self.lock = Lock::Idle;
        for client in self.clients.values_mut() {
            client.gate.shut();
        }
    }
}

/// Says of a process of a session whether its frost bars it from its turns. Without cold processes none is looked at.
fn frost_bars(may_be_cold: bool) -> impl Fn(&Client) -> bool + Copy {
    move |client| may_be_cold && client.frost.bars()
}
