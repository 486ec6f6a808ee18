//! Decision machine: takes events in, derives decisions, and gives effects out.
//!
//! ```text
//!   handle(now, event) ── apply: note the fact ──▶ books, gates, limits
//!                              │
//!                              ▼
//!                         settle: derive what follows from all facts
//!                           modes ─▶ released locks ─▶ grants ─▶ drops ─▶ messages to processes
//!                              │
//!                              ▼
//!   poll_effect() ◀───────── effects, in order
//! ```
//!
//! Applying an event only records a fact; leases are the exception, since they answer a request. Settling
//! then examines everything that can have changed (agenda.rs), and depends on recorded facts alone. So the
//! order of facts does not matter, and a lost or repeated message leaves no wrong decision behind.

pub(crate) mod agenda;
pub(crate) mod frost;
pub(crate) mod thaws;

mod books;
mod handoffs;
mod leases;
mod managed;
mod orphans;
mod processes;
pub(crate) mod residency;
mod sessions;
mod settings;

mod settle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpushare_proto::{ClientId, Epoch, Nanos, SessionId};

use crate::card::knobs::Knobs;
use crate::config::Config;
use crate::events::{Effect, Event, Notice};
use crate::memory::recalls::{Kind, Recalls};
use crate::recovery::Recovery;
use crate::residency::host::Host;
use crate::session::client::Client;
use crate::session::registry::Sessions;
use crate::session::share::Share;
use crate::session::users::Users;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;
use crate::view::View;
use agenda::Agenda;

/// Decision machine of one daemon: handles events and produces effects.
///
/// After every [`Self::handle`], the caller drains [`Self::poll_effect`] and sleeps until
/// [`Self::next_deadline`] at the latest.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) view: View,
    /// Settings of single cards, kept for cards that are found later.
    pub(crate) knobs: Knobs,
    pub(crate) last_epoch: Epoch,
    pub(crate) last_ticket: u64,
    /// Number of the last process that was to be thawed.
    pub(crate) last_thaw: u64,
    /// Cards on which grants wait for processes that the last daemon knew.
    pub(crate) barred: GpuSet,
    /// Cards to which processes of the last daemon are about to return.
    pub(crate) returning: GpuSet,
    /// Cards on which goals for managed memory are to be given or lifted.
    pub(crate) hints_due: GpuSet,
    pub(crate) recalls: Recalls,
    /// Session whose memory grew by the current event. Other sessions make room for it, unless its growth
    /// ended parallel mode.
    pub(crate) grown: Option<SessionId>,
    /// Whether the order of waiting sessions may have changed since the queues were last examined.
    pub(crate) reordered: bool,
    pub(crate) agenda: Agenda,
    /// Sessions that were idle and were woken by the current event.
    pub(crate) wakers: Vec<SessionId>,
    pub(crate) effects: VecDeque<Effect>,
}

impl View {
    /// Session that an event is about.
    fn subject(&self, event: Event) -> Option<SessionId> {
        match event.client() {
            Some(client) => self.session_of(client),
            None => event.session(),
        }
    }

    pub(crate) fn session_of(&self, client: ClientId) -> Option<SessionId> {
        self.sessions.of(client)
    }
}

impl Core {
    /// Creates a decision machine that starts at the time `now`.
    ///
    /// `generation` is the boot clock in nanoseconds. `expected` are the processes that the last daemon knew.
    /// Each of them will join or be reported by [`Event::ExpectedGone`].
    #[must_use]
    pub fn new(config: Config, generation: u64, expected: BTreeSet<ClientId>, now: Nanos) -> Self {
        Self {
            knobs: Knobs::new(&config),
            view: View {
                now,
                cards: ByGpu::default(),
                in_turns: GpuSet::default(),
                on_demand: GpuSet::default(),
                wanted: GpuSet::default(),
                sessions: Sessions::default(),
                users: Users::default(),
                orphans: BTreeMap::new(),
                recovery: Recovery::new(expected, now, &config),
                remapped: GpuSet::default(),
                host: Host::default(),
                cold: BTreeSet::new(),
                config,
            },
            last_epoch: Epoch { generation, counter: 0 },
            last_ticket: 0,
            last_thaw: 0,
            barred: GpuSet::default(),
            returning: GpuSet::default(),
            hints_due: GpuSet::default(),
            recalls: Recalls::default(),
            grown: None,
            reordered: false,
            agenda: Agenda::default(),
            wakers: Vec::new(),
            effects: VecDeque::new(),
        }
    }

    /// Makes grants wait also for processes of the last daemon that are not `expected`. A daemon that was
    /// killed may not have recorded all of its processes.
    #[must_use]
    pub fn expecting_others(mut self) -> Self {
        self.view.recovery.expect_others();
        self
    }

    /// Handles one event. A time `now` before that of the last event is replaced by the latter.
    pub fn handle(&mut self, now: Nanos, event: Event) {
        self.view.now = self.view.now.max(now);
        self.grown = None;
        if !matches!(event, Event::Recalled { .. }) {
            self.decide_request(false);
        }
        if self.is_known(event) {
            return;
        }
        let subject = self.view.subject(event);
        let awaited = self.view.recovery.changes();
        self.apply(event);
        self.note_life(event);
        if awaited != self.view.recovery.changes() {
            self.tell_who_is_awaited();
        }
        if let Some(subject) = subject.or_else(|| self.view.subject(event)) {
            self.touch(subject);
        }
        // A request that is suspended depends on the answers of several pages, so nothing is settled before
        // the last one.
        if !self.recalls.is_waiting() {
            self.settle();
        }
    }

    /// Returns the next effect that the caller must carry out, in order.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether grants wait for processes of the last daemon.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.view.recovery.is_running()
    }

    /// Returns the latest time at which the caller must send [`Event::Tick`]. It is later than the last
    /// event, unless the caller still has to send an [`Event::Recalled`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.recalls.is_waiting() {
            return Some(self.view.now);
        }
        self.view.recovery.deadline().into_iter().chain(self.agenda.next()).min()
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::GpuFound { gpu, total } => self.gpu_found(gpu, total),
            Event::SessionOpened { session, limit, oversubscribe } => {
                self.session_opened(session, limit, oversubscribe);
            }
            Event::Quota { session, gpu, limit } => self.quota(session, gpu, limit),
            Event::Standing { session, standing } => self.standing(session, standing),
            Event::Share { session, weight, priority } => {
                self.share(session, Share::new(weight, priority, self.view.config.trickle));
            }
            Event::Owner { session, user, weight } => self.owner(session, user, weight),
            Event::UserLead { user, priority, gpu, lead_ns } => self.user_lead(user, priority, gpu, lead_ns),
            Event::Compute { session, gpu, limit } => self.compute(session, gpu, limit),
            Event::Lead { session, gpu, lead_ns } => self.lead(session, gpu, lead_ns),
            Event::SessionClosed { session } => self.session_closed(session),
            Event::ClientJoined { client, session, holding } => self.client_joined(client, session, holding),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ClientEnded { client } => self.client_ended(client),
            Event::Attached { client, gpu, used } => self.attached(client, gpu, used),
            Event::Contexts { client, gpu, live } => self.contexts(client, gpu, live),
            Event::LeaseSeen { client, gpu, free } => self.lease_seen(client, gpu, free),
            Event::Reserve { client, gpu, request, bytes } => {
                self.reserve(client, gpu, request, bytes, Kind::Movable);
            }
            Event::ReservePiece { client, gpu, request, bytes } => {
                self.reserve(client, gpu, request, bytes, Kind::Piece);
            }
            Event::ReserveFixed { client, gpu, request, bytes } => {
                self.reserve(client, gpu, request, bytes, Kind::Fixed);
            }
            Event::Fixed { client, gpu, bytes } => self.fixed(client, gpu, bytes),
            Event::Returned { client, gpu, bytes } => self.returned(client, gpu, bytes),
            Event::Room { client, gpu, request, bytes } => self.room(client, gpu, request, bytes),
            Event::Overhead { client, gpu, bytes } => self.overhead(client, gpu, bytes),
            Event::Recalled { client, gpu, bytes } => self.recalled(client, gpu, bytes),
            Event::Trim { client, gpu } => self.trim(client, gpu),
            Event::Wait { client, word } => self.wait(client, word),
            Event::Entered { client, word, moved, .. } => self.entered(client, word, moved),
            Event::Released { client, word, drain } => self.released(client, word, drain),
            Event::NearlyDrained { client, word } => self.nearly_drained(client, word),
            Event::ExpectedGone { client } => self.view.recovery.gone(client),
            Event::ExpectedUses { client, gpu, bytes } => self.expected_uses(client, gpu, bytes),
            Event::Set(setting) => self.set(setting),
            Event::Tune(tuning) => self.tune(tuning),
            Event::Tick => {}
            Event::RefusedHere { client, gpu, bytes, times } => self.refused_here(client, gpu, bytes, times),
            Event::ClientReturned { client, waiting } => self.client_returned(client, waiting),
            Event::StillUses { client, gpu, bytes } => self.still_uses(client, gpu, bytes),
            Event::Remaps { client } => self.remaps(client),
            Event::Resides { client, gpu, seen, residence } => self.resides(client, gpu, seen, residence),
            Event::MoveFailed { client, gpu, number, refused } => {
                self.move_failed(client, gpu, number, refused);
            }
            Event::Measured { client, gpu, bytes } => self.measured(client, gpu, bytes),
            Event::HostBudget { bytes } => self.host_budget(bytes),
            Event::CardFree { gpu, bytes } => self.card_free(gpu, bytes),
            Event::Persistence { gpu, is_on } => self.persistence(gpu, is_on),
            Event::Freeze { session, wanted } => self.freeze(session, wanted),
            Event::FreezeAfter { session, idle } => self.freeze_after(session, idle),
            Event::Freezable { client, obstacle } => self.freezable(client, obstacle),
            Event::Called { client } => self.called(client),
            Event::Parked { client } => self.parked(client),
            Event::FreezeEnded { client, end } => self.freeze_ended(client, end),
            Event::ThawEnded { client, end } => self.thaw_ended(client, end),
            Event::FoundFrozen { client } => self.found_frozen(client),
            Event::FrozenBefore { client } => self.frozen_before(client),
        }
    }

    /// Whether an event changes nothing: a process's free lease is as known, and no timer is due. The daemon
    /// looks at every process from time to time, and most have not changed.
    fn is_known(&self, event: Event) -> bool {
        let Event::LeaseSeen { client, gpu, free } = event else {
            return false;
        };
        self.view
            .book(client, gpu)
            .is_some_and(|book| book.free == free.min(book.leased))
            && self.effects.is_empty()
            && self.next_deadline().is_none_or(|deadline| deadline > self.view.now)
    }

    pub(crate) fn client_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        self.view.sessions.client_mut(client)
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Notice(notice));
    }
}
