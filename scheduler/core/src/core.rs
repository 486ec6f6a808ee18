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
use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, Percent, RequestId, SessionId};

use crate::agenda::Agenda;
use crate::config::{Config, Tuning};
use crate::event::{Effect, Event, Notice, Standing};
use crate::few::ByGpu;
use crate::gpu::{Card, Knobs};
use crate::gpu_set::GpuSet;
use crate::lease::{Kind, Recalls};
use crate::orphans::Orphan;
use crate::recovery::Recovery;
use crate::registry::Registry;
use crate::session::Session;
use crate::session::client::{Book, Client, Past, Told};
use crate::session::gate::LetGo;
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
            last_epoch: Epoch {
                generation,
                counter: 0,
            },
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
        self.recovery
            .deadline()
            .into_iter()
            .chain(self.agenda.next())
            .min()
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
            Event::SessionOpened {
                session,
                limit,
                oversubscribe,
            } => self.session_opened(session, limit, oversubscribe),
            Event::Quota { session, gpu, limit } => self.quota(session, gpu, limit),
            Event::Standing { session, standing } => self.standing(session, standing),
            Event::Share {
                session,
                weight,
                priority,
            } => self.share(session, Share::new(weight, priority)),
            Event::Compute { session, gpu, limit } => self.compute(session, gpu, limit),
            Event::SessionClosed { session } => self.session_closed(session),
            Event::ClientJoined {
                client,
                session,
                holding,
            } => self.client_joined(client, session, holding),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ClientEnded { client } => self.client_ended(client),
            Event::Attached { client, gpu, used } => self.attached(client, gpu, used),
            Event::Contexts { client, gpu, live } => self.contexts(client, gpu, live),
            Event::LeaseSeen { client, gpu, free } => self.lease_seen(client, gpu, free),
            Event::Reserve {
                client,
                gpu,
                request,
                bytes,
            } => self.reserve(client, gpu, request, bytes, Kind::Movable),
            Event::ReserveFixed {
                client,
                gpu,
                request,
                bytes,
            } => self.reserve(client, gpu, request, bytes, Kind::Fixed),
            Event::Fixed { client, gpu, bytes } => self.fixed(client, gpu, bytes),
            Event::Returned { client, gpu, bytes } => self.returned(client, gpu, bytes),
            Event::Room {
                client,
                gpu,
                request,
                bytes,
            } => self.room(client, gpu, request, bytes),
            Event::Overhead { client, gpu, bytes } => self.overhead(client, gpu, bytes),
            Event::Recalled { client, gpu, bytes } => self.recalled(client, gpu, bytes),
            Event::Trim { client, gpu } => self.trim(client, gpu),
            Event::Wait { client, word } => self.wait(client, word),
            Event::Entered {
                client,
                word,
                moved,
                took,
            } => self.entered(client, word, moved, took),
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
        self.book(client, gpu)
            .is_some_and(|book| book.free == free.min(book.leased))
            && self.effects.is_empty()
            && self.next_deadline().is_none_or(|deadline| deadline > self.now)
    }

    fn gpu_found(&mut self, gpu: GpuId, total: Bytes) {
        if gpu.0 >= GpuSet::MOST {
            return;
        }
        let (knobs, config) = (self.knobs, &self.config);
        self.cards
            .get_or_insert_with(gpu, || Card::new(total, knobs, config));
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

    fn client_joined(&mut self, client: ClientId, session: SessionId, holding: Option<Epoch>) {
        let Some(home) = self.sessions.get_mut(session).filter(|home| !home.closed) else {
            return;
        };
        if self.homes.contains(client) || self.orphans.contains_key(&client) {
            return;
        }
        let past = match (self.recovery.returned(client, self.now), holding) {
            (_, None) => Past::Nothing,
            (true, Some(_)) => Past::Held,
            (false, Some(_)) => Past::Claims,
        };
        home.clients.insert(client, Client::new(past));
        self.homes.insert(client, session);
    }

    fn expected_uses(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if self.cards.contains(gpu) {
            self.recovery.uses(client, gpu, bytes);
        }
    }

    /// What it leased and does not use is nobody's any more; the lock and its place in the queue stay its session's. Of its drain
    /// or its entering nothing was heard, so both are asked for again.
    fn client_returned(&mut self, client: ClientId, waiting: bool) {
        let Some(id) = self.session_of(client) else { return };
        let Some(process) = self.client_mut(client) else {
            return;
        };
        let gpus: GpuSet = process.books.keys().collect();
        process.told = Told::default();
        for gpu in gpus {
            self.change_book(client, gpu, |book| {
                book.leased = book.used();
                (book.free, book.fixed) = (Bytes::ZERO, Bytes::ZERO);
            });
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.figures_moved = true;
        let epoch = session.lock.grant().map(|grant| grant.epoch);
        if let Some(process) = session.clients.get_mut(client)
            && let Some((word, epoch)) = process.gate.begin_anew(waiting).zip(epoch)
        {
            self.effects.push_back(Effect::Gate { client, word, epoch });
        }
        self.recount(id);
    }

    fn still_uses(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let grew = self.change_book(client, gpu, |book| {
            let before = book.leased;
            book.leased = before.max(bytes + book.free);
            book.leased > before
        });
        if grew == Some(true) {
            self.grown = self.session_of(client);
        }
    }

    fn client_gone(&mut self, client: ClientId) {
        if let Some((home, _)) = self.part_with(client) {
            self.forget_empty(home);
        }
        self.bury(client);
    }

    /// A process has no part in anything any more; whose it was, and its books.
    pub(crate) fn part_with(&mut self, client: ClientId) -> Option<(SessionId, ByGpu<Book>)> {
        self.recovery.gone(client);
        self.recalls.forget(client);
        let home = self.homes.remove(client)?;
        let books = self.close_books(home, client)?;
        if let Some(session) = self.sessions.get_mut(home)
            && session.attached().next().is_none()
        {
            session.shut();
            self.recount(home);
        }
        Some((home, books))
    }

    /// A holder that reaches for one more card, where others wait for their turn, queues up for all its cards.
    fn attached(&mut self, client: ClientId, gpu: GpuId, used: Bytes) {
        let Some(id) = self.session_of(client) else {
            return self.left_on(client, gpu, used);
        };
        let Some(card) = self.cards.get(gpu) else { return };
        let queues = card.takes_turns() && self.is_wanted(gpu);
        let known = card.census.members.contains(&id);
        if self.book(client, gpu).is_some() {
            return;
        }
        let book = Book {
            leased: used,
            ..Book::default()
        };
        self.open_book(client, gpu, book);
        if queues && !known {
            self.begin_drop(id);
        }
    }

    fn contexts(&mut self, client: ClientId, gpu: GpuId, live: u32) {
        self.change_book(client, gpu, |book| book.contexts = live);
    }

    /// What contexts take was measured; none where nobody can measure it any more.
    fn overhead(&mut self, client: ClientId, gpu: GpuId, bytes: Option<Bytes>) {
        self.change_book(client, gpu, |book| book.overhead = bytes);
    }

    /// A process asks what the driver may take. Nothing is moved out for it yet, so the answer is at once.
    fn room(&mut self, client: ClientId, gpu: GpuId, request: RequestId, _bytes: Bytes) {
        let known = self.book(client, gpu).is_some();
        let Some(card) = self.cards.get(gpu).filter(|_| known) else {
            return;
        };
        let bytes = card.room_left();
        self.effects.push_back(Effect::Room {
            client,
            gpu,
            request,
            bytes,
        });
    }

    fn unevictable(&mut self, client: ClientId) {
        if let Some(client) = self.client_mut(client) {
            client.evictable = false;
        }
    }

    fn wait(&mut self, client: ClientId, word: GateWord) {
        if let Some(client) = self.client_mut(client) {
            client.gate.wait(word);
        }
    }

    fn entered(&mut self, client: ClientId, word: GateWord, moved: Bytes, took: Nanos) {
        let now = self.now;
        let Some(id) = self.session_of(client) else { return };
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(process) = session.clients.get_mut(client) else {
            return;
        };
        if !process.gate.entered(word) {
            return;
        }
        let moved = moved.min(process.movable());
        let cards: GpuSet = process.books.keys().collect();
        session.moved += moved;
        let moving = session.is_moving();
        if let Lock::Holding(grant) = &mut session.lock
            && !moving
        {
            grant.clock.entered(now);
        }
        self.note_move(id, cards, moved, took);
    }

    fn released(&mut self, client: ClientId, word: GateWord, drain: Nanos) {
        let now = self.now;
        let Some(id) = self.session_of(client) else { return };
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(process) = session.clients.get_mut(client) else {
            return;
        };
        let let_go = process.gate.released(word);
        if let (Some(LetGo::Drained), Lock::Dropping(_, drop)) = (let_go, &mut session.lock) {
            drop.drained(now, drain);
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
        let holders = self
            .cards
            .among(self.in_turns)
            .flat_map(|(_, card)| &card.census.holders);
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

    /// Bytes moved by one process, shared out over its cards. It asks for all that it has and cannot know what was there: how
    /// fast the card is follows from what did not fit beside the others.
    fn note_move(&mut self, id: SessionId, cards: GpuSet, moved: Bytes, took: Nanos) {
        let share = Bytes(moved.0 / u64::from(cards.len().max(1)));
        for gpu in cards {
            let own = self.need(id, gpu);
            if let Some(card) = self.cards.get_mut(gpu) {
                card.moved += share;
                card.measure(share.min(card.excess(own)), took, &self.config);
                self.agenda.look_at(gpu);
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
