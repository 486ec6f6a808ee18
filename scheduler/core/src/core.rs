//! The machine: events go in, decisions come out.
//!
//! ```text
//!   handle(now, event) ── apply: note the fact ──▶ books, gates, limits
//!                              │
//!                              ▼
//!                         settle: derive what follows from all facts
//!                           modes ─▶ who let go ─▶ who is admitted ─▶ who must let go ─▶ what each is told
//!                              │
//!                              ▼
//!   poll_effect() ◀───────── effects, in order
//! ```
//!
//! Applying an event decides nothing (except about leases, which answer a question); settling looks at everything that can have
//! changed (agenda.rs) and depends on no history but what is written down. So it does not matter in which order facts
//! arrive, and a lost or repeated message leaves no decision behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpushare_proto::admin::Setting;
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, Nanos, Percent, SessionId};

use crate::agenda::Agenda;
use crate::config::{Config, Tuning};
use crate::event::{Effect, Event, Notice, Standing};
use crate::few::ByGpu;
use crate::gpu::Card;
use crate::gpu::knobs::Knobs;
use crate::gpu_set::GpuSet;
use crate::lease::{Kind, Recalls};
use crate::orphans::Orphan;
use crate::recovery::Recovery;
use crate::registry::Registry;
use crate::session::Session;
use crate::session::client::Client;
use crate::session::lock::Lock;
use crate::session::share::Share;

/// The decision machine of one daemon.
///
/// After every [`Self::handle`], drain [`Self::poll_effect`]; then sleep until [`Self::next_deadline`] at the latest.
#[derive(Clone, Debug)]
pub struct Core {
    pub(crate) now: Nanos,
    pub(crate) config: Config,
    /// For cards to come.
    pub(crate) knobs: Knobs,
    pub(crate) last_epoch: Epoch,
    pub(crate) last_ticket: u64,
    pub(crate) cards: ByGpu<Card>,
    /// Those that take turns.
    pub(crate) in_turns: GpuSet,
    /// Those where a waiter needs holders to make room.
    pub(crate) wanted: GpuSet,
    /// Those where somebody may go on beyond its quantum.
    pub(crate) lent: GpuSet,
    pub(crate) sessions: Registry<SessionId, Session>,
    /// Where each client is found.
    pub(crate) homes: Registry<ClientId, SessionId>,
    /// What dead processes have on cards still.
    pub(crate) orphans: BTreeMap<ClientId, Orphan>,
    pub(crate) recovery: Recovery,
    /// The cards on which grants wait for clients of the last daemon.
    pub(crate) barred: GpuSet,
    pub(crate) recalls: Recalls,
    /// The session whose memory grew by the event in hand: other holders make room for it, but a newcomer whose bytes end parallel
    /// mode pushes nobody out.
    pub(crate) grown: Option<SessionId>,
    /// Whether floors rose since the lines were last looked at: gangs may be elsewhere in theirs.
    pub(crate) reordered: bool,
    pub(crate) agenda: Agenda,
    /// Who slept, and woke by the event in hand.
    pub(crate) wakers: Vec<SessionId>,
    pub(crate) effects: VecDeque<Effect>,
}

impl Core {
    /// A machine that starts at `now`. `generation` is the boot clock in nanoseconds; `expected` are the clients that
    /// the last daemon knew, of which each will join or be reported by [`Event::ExpectedGone`].
    #[must_use]
    pub fn new(config: Config, generation: u64, expected: BTreeSet<ClientId>, now: Nanos) -> Self {
        Self {
            now,
            knobs: Knobs::new(&config),
            last_epoch: Epoch { generation, counter: 0 },
            last_ticket: 0,
            cards: ByGpu::default(),
            in_turns: GpuSet::default(),
            wanted: GpuSet::default(),
            lent: GpuSet::default(),
            sessions: Registry::default(),
            homes: Registry::default(),
            orphans: BTreeMap::new(),
            recovery: Recovery::new(expected, now, &config),
            barred: GpuSet::default(),
            recalls: Recalls::default(),
            grown: None,
            reordered: false,
            agenda: Agenda::default(),
            wakers: Vec::new(),
            effects: VecDeque::new(),
            config,
        }
    }

    /// The same, where clients of the last daemon may come back that are not `expected`: it was killed, and may not have had
    /// time to write them down.
    #[must_use]
    pub fn expecting_others(mut self) -> Self {
        self.recovery.expect_others();
        self
    }

    /// Takes one event in. A clock that runs backwards stands still.
    pub fn handle(&mut self, now: Nanos, event: Event) {
        self.now = self.now.max(now);
        self.grown = None;
        if !matches!(event, Event::Recalled { .. }) {
            self.decide_request(false);
        }
        if self.is_known(event) {
            return;
        }
        let subject = self.subject(event);
        let awaited = self.recovery.changes();
        self.apply(event);
        if awaited != self.recovery.changes() {
            self.tell_who_is_awaited();
        }
        if let Some(subject) = subject.or_else(|| self.subject(event)) {
            self.touch(subject);
        }
        // What is being asked back from many pages follows from none of the answers, but from all of them.
        if !self.recalls.is_waiting() {
            self.settle();
        }
    }

    /// The next thing to do, in order.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether grants wait for clients of the last daemon.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.recovery.is_running()
    }

    /// When to send [`Event::Tick`] at the latest. Later than the last event, unless the shell owes an
    /// [`Event::Recalled`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.recalls.is_waiting() {
            return Some(self.now);
        }
        self.recovery.deadline().into_iter().chain(self.agenda.next()).min()
    }

    /// The session that an event is about.
    fn subject(&self, event: Event) -> Option<SessionId> {
        match event.client() {
            Some(client) => self.session_of(client),
            None => event.session(),
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::GpuFound { gpu, total } => self.gpu_found(gpu, total),
            Event::SessionOpened { session, limit, oversubscribe } => {
                self.session_opened(session, limit, oversubscribe)
            }
            Event::Quota { session, gpu, limit } => self.quota(session, gpu, limit),
            Event::Standing { session, standing } => self.standing(session, standing),
            Event::Share { session, weight, priority } => self.share(session, Share::new(weight, priority)),
            Event::Compute { session, gpu, limit } => self.compute(session, gpu, limit),
            Event::SessionClosed { session } => self.session_closed(session),
            Event::ClientJoined { client, session, holding } => self.client_joined(client, session, holding),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ClientEnded { client } => self.client_ended(client),
            Event::Attached { client, gpu, used } => self.attached(client, gpu, used),
            Event::Contexts { client, gpu, live } => self.contexts(client, gpu, live),
            Event::LeaseSeen { client, gpu, free } => self.lease_seen(client, gpu, free),
            Event::Reserve { client, gpu, request, bytes } => {
                self.reserve(client, gpu, request, bytes, Kind::Movable)
            }
            Event::ReserveFixed { client, gpu, request, bytes } => {
                self.reserve(client, gpu, request, bytes, Kind::Fixed)
            }
            Event::Fixed { client, gpu, bytes } => self.fixed(client, gpu, bytes),
            Event::Returned { client, gpu, bytes } => self.returned(client, gpu, bytes),
            Event::Room { client, gpu, request, bytes } => self.room(client, gpu, request, bytes),
            Event::Overhead { client, gpu, bytes } => self.overhead(client, gpu, bytes),
            Event::Recalled { client, gpu, bytes } => self.recalled(client, gpu, bytes),
            Event::Trim { client, gpu } => self.trim(client, gpu),
            Event::Wait { client, word } => self.wait(client, word),
            Event::Entered { client, word, moved, took } => self.entered(client, word, moved, took),
            Event::Released { client, word, drain } => self.released(client, word, drain),
            Event::ExpectedGone { client } => self.recovery.gone(client),
            Event::ExpectedUses { client, gpu, bytes } => self.expected_uses(client, gpu, bytes),
            Event::Set(setting) => self.set(setting),
            Event::Tune(tuning) => self.tune(tuning),
            Event::Tick => {}
            Event::Unevictable { client } => self.unevictable(client),
            Event::RefusedHere { client, gpu, bytes } => self.refused_here(client, gpu, bytes),
            Event::ClientReturned { client, waiting } => self.client_returned(client, waiting),
            Event::StillUses { client, gpu, bytes } => self.still_uses(client, gpu, bytes),
        }
    }

    /// Whether a look at a page showed what was known, and no time is up: then nothing follows. The shell looks at every page
    /// now and then, and most have not changed.
    fn is_known(&self, event: Event) -> bool {
        let Event::LeaseSeen { client, gpu, free } = event else {
            return false;
        };
        self.book(client, gpu).is_some_and(|book| book.free == free.min(book.leased))
            && self.effects.is_empty()
            && self.next_deadline().is_none_or(|deadline| deadline > self.now)
    }

    fn gpu_found(&mut self, gpu: GpuId, total: Bytes) {
        if gpu.0 >= GpuSet::MOST {
            return;
        }
        let (knobs, config) = (self.knobs, &self.config);
        self.cards.get_or_insert_with(gpu, || Card::new(total, knobs, config));
        self.agenda.look_at(gpu);
    }

    /// A session that is already known gets the new limits.
    fn session_opened(&mut self, id: SessionId, limit: Option<Bytes>, oversubscribe: bool) {
        let new = || Session::new(limit, oversubscribe);
        let session = self.sessions.get_or_insert_with(id, new);
        session.limit = limit.unwrap_or(Bytes::MAX);
        session.figures_moved = true;
        session.oversubscribe = oversubscribe;
        self.recall_unused(id);
    }

    fn quota(&mut self, id: SessionId, gpu: GpuId, limit: Option<Bytes>) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.quotas.insert(gpu, limit.unwrap_or(Bytes::MAX));
            session.figures_moved = true;
            self.recall_unused(id);
        }
    }

    /// What follows for its turns is settled with all the rest.
    fn standing(&mut self, id: SessionId, standing: Standing) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.standing = standing;
            session.figures_moved = true;
            self.recount(id);
            self.recall_unused(id);
        }
    }

    /// What it had so far it had at its old weight.
    fn share(&mut self, id: SessionId, share: Share) {
        self.settle_charges(id);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let another = session.share.class != share.class;
        session.share = share;
        if another {
            self.start_anew(id);
        }
        self.recount(id);
    }

    fn compute(&mut self, id: SessionId, gpu: GpuId, limit: Option<Percent>) {
        if let Some(session) = self.sessions.get_mut(id) {
            match limit {
                Some(limit) => session.limits.insert(gpu, limit),
                None => session.limits.remove(gpu),
            };
            self.recount(id);
        }
    }

    fn session_closed(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.closed = true;
            self.forget_empty(id);
        }
    }

    pub(crate) fn forget_empty(&mut self, id: SessionId) {
        let empty = |session: &Session| session.closed && session.clients.is_empty();
        if self.sessions.get(id).is_some_and(empty) && !self.has_orphans(id) {
            self.strike(id);
        }
    }

    fn set(&mut self, setting: Setting) {
        self.cards.keys().for_each(|gpu| self.agenda.look_at(gpu));
        match setting.gpu {
            Some(gpu) => {
                if let Some(card) = self.cards.get_mut(gpu) {
                    card.knobs.set(setting.knob);
                }
            }
            None => {
                self.knobs.set(setting.knob);
                for card in self.cards.values_mut() {
                    card.knobs.set(setting.knob);
                }
            }
        }
        self.shorten_turns();
    }

    /// Every timer may be another one.
    fn tune(&mut self, tuning: Tuning) {
        self.config.tune(tuning);
        self.recovery.follow(self.config.stuck_policy);
        self.shorten_turns();
        self.touch_all();
    }

    /// Whoever would get a shorter turn now has no more left of the one that it is in: the longest turns last half a minute, and what
    /// was set is in effect at once.
    fn shorten_turns(&mut self) {
        let holders = self.cards.among(self.in_turns).flat_map(|(_, card)| &card.census.holders);
        for id in holders.copied().collect::<BTreeSet<SessionId>>() {
            let quantum = self.quantum(id, self.expected_move(id));
            if let Some(session) = self.sessions.get_mut(id)
                && let Lock::Holding(grant) = &mut session.lock
                && grant.clock.shorten(quantum)
            {
                self.touch(id);
            }
        }
    }

    pub(crate) fn session_of(&self, client: ClientId) -> Option<SessionId> {
        self.homes.get(client).copied()
    }

    pub(crate) fn client_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        let home = *self.homes.get(client)?;
        self.sessions.get_mut(home)?.clients.get_mut(client)
    }

    pub(crate) fn notice(&mut self, notice: Notice) {
        self.effects.push_back(Effect::Notice(notice));
    }
}
