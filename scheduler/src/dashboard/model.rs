//! State that the page shows, from the increments for followers and the events of a watch, and its JSON.
//!
//! ```text
//!   Increments, each second ─▶ rows ───────┐             ┌─ full: all rows and runs, for a new viewer
//!   WatchEvent ─▶ turns, waits, handoffs ──┴─▶ changes ──┴─ more: changed rows, new runs and ended sessions
//! ```
//!
//! Each message has two forms, with and without what only viewers with a key may see.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpushare_proto::admin::{Mode, WatchEvent, WatchEventKind};
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardResidence, Increment, Increments, LockState, SessionFacts, SessionFigures,
};
use gpushare_proto::handoff::Handoff;
use gpushare_proto::session::{Priority, SessionPhase};
use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos, SessionId};
use serde::Serialize;

use super::lanes::{Lane, Run, State, TICK, WINDOW};
use super::remapped::{Moved, Places};
use crate::report::watch::PAGE_PAUSE;

/// Number of waits and of handoffs of a card of which percentiles are computed.
const OF_CARD: usize = 512;
/// Number of waits of a session of which percentiles are computed.
const OF_SESSION: usize = 64;
/// Time after the end of a tick in which its last events still arrive.
const LAG: Nanos = Nanos(2 * PAGE_PAUSE.0);

/// Percentiles of the latest times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    count: usize,
}

/// Latest times of one kind, at most `MOST`.
#[derive(Debug, Default)]
struct Samples<const MOST: usize>(VecDeque<Nanos>);

impl<const MOST: usize> Samples<MOST> {
    fn add(&mut self, time: Nanos) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(time);
    }

    fn percentiles(&self) -> Option<Percentiles> {
        let mut sorted: Vec<Nanos> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        let at = |percent: usize| milliseconds(sorted[(last * percent).div_ceil(100)]);
        Some(Percentiles { p50: at(50), p99: at(99), count: sorted.len() })
    }
}

/// Figures of a card that change, as they are sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct CardRow {
    gpu: GpuId,
    uuid: GpuUuid,
    name: String,
    total: Bytes,
    capacity: Bytes,
    allocated: Bytes,
    mode: Mode,
    reason: String,
    holders: u32,
    waiters: u32,
    /// First sessions of the queue.
    queue: Vec<SessionId>,
    handoffs: u64,
    quantum_ms: f64,
    wait: Option<Percentiles>,
    handoff: Option<Percentiles>,
    /// Places of remapped memory; none on a card without such memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    remapped: Option<Places>,
    /// Last handoff of remapped memory since the page was opened, or one that lasts longer than a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    moved: Option<Moved>,
}

#[derive(Debug, Default)]
struct Card {
    facts: Option<CardFacts>,
    figures: Option<CardFigures>,
    residence: Option<CardResidence>,
    moved: Option<Moved>,
    waits: Samples<OF_CARD>,
    handoffs: Samples<OF_CARD>,
}

/// Memory of a session on a card: card, allocated bytes, and the quota if there is one.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct OnCard(GpuId, Bytes, Option<Bytes>);

/// Figures of a session that change, as they are sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SessionRow {
    id: SessionId,
    /// Name of the session; none for a viewer without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    state: State,
    /// Milliseconds from the daemon's start to the present state.
    since_ms: u64,
    stuck: bool,
    frozen: bool,
    memory: Vec<OnCard>,
    /// Places of remapped memory on each card; empty for a session without such memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remapped: Vec<(GpuId, Places)>,
    weight: u32,
    priority: Priority,
    phase: &'static str,
    processes: usize,
    refusals: u64,
    turns: u64,
    wait: Option<Percentiles>,
}

#[derive(Debug)]
struct Session {
    row: SessionRow,
    waits: Samples<OF_SESSION>,
    lane: Lane,
}

/// State that the page shows.
#[derive(Debug)]
pub(super) struct Model {
    cards: BTreeMap<GpuId, Card>,
    sessions: BTreeMap<SessionId, Session>,
    /// Tick that is not over yet.
    tick: u64,
    /// Sessions with an event in this tick, or with mixed shares in the last one.
    stirred: BTreeSet<SessionId>,
    has_whole: bool,
    changes: Changes,
}

/// Rows and runs that changed since the last message.
#[derive(Debug, Default)]
struct Changes {
    cards: BTreeSet<GpuId>,
    sessions: BTreeSet<SessionId>,
    gone: Vec<SessionId>,
    runs: Vec<(SessionId, Run)>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Message<'a> {
    Full {
        version: &'static str,
        tick: u64,
        tick_ms: u64,
        window: u64,
        cards: Vec<CardRow>,
        sessions: Vec<SessionRow>,
        runs: Vec<(SessionId, Vec<Run>)>,
    },
    More {
        tick: u64,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        cards: Vec<CardRow>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        sessions: Vec<SessionRow>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        gone: &'a [SessionId],
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        runs: &'a [(SessionId, Run)],
    },
}

impl Model {
    /// Creates an empty state. `now` is the time since the daemon's start.
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            cards: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tick: now.0 / TICK.0,
            stirred: BTreeSet::new(),
            has_whole: false,
            changes: Changes::default(),
        }
    }

    /// Whether all rows are known, so that a new viewer sees a whole page.
    pub(super) fn is_complete(&self) -> bool {
        self.has_whole
    }

    pub(super) fn apply(&mut self, event: &WatchEvent) {
        self.close_until(event.at_ns);
        match &event.what {
            WatchEventKind::SessionBegan { session, name } => {
                // Increments, which may have come first, know a later name too.
                self.update(*session, |row| _ = row.name.get_or_insert_with(|| name.clone()));
            }
            WatchEventKind::Allocated { session, gpu, bytes } => {
                self.update(*session, |row| row.allocated(*gpu, *bytes));
            }
            WatchEventKind::SessionEnded { session } => self.end(*session),
            WatchEventKind::Turned { session, to } => {
                let begin = Nanos(self.tick * TICK.0);
                let (at, to) = (event.at_ns, State::from(to));
                self.stirred.insert(*session);
                self.change(*session, |known| {
                    known.lane.turn(at, begin, to);
                    known.row.state = to;
                    known.row.since_ms = at.0 / 1_000_000;
                    (known.row.stuck, known.row.frozen) = (false, false);
                });
            }
            WatchEventKind::Granted { session, waited_ns, .. } => {
                self.change(*session, |known| {
                    known.row.turns += 1;
                    known.waits.add(*waited_ns);
                });
                self.sample(*session, |card| card.waits.add(*waited_ns));
            }
            WatchEventKind::Entered { session, handoff_ns } => {
                self.sample(*session, |card| card.handoffs.add(*handoff_ns));
            }
            WatchEventKind::HandedOver(handoff) => self.moved(handoff, false),
            WatchEventKind::HandingOver(handoff) => self.moved(handoff, true),
            _ => {}
        }
    }

    fn moved(&mut self, handoff: &Handoff, is_running: bool) {
        self.changes.cards.insert(handoff.gpu);
        self.cards.entry(handoff.gpu).or_default().moved = Some(Moved::of(handoff, is_running));
    }

    /// Takes what changed in the rows.
    pub(super) fn follow(&mut self, increments: &Increments) {
        for change in &increments.changes {
            match change {
                Increment::Card(facts) => {
                    self.changes.cards.insert(facts.gpu);
                    self.cards.entry(facts.gpu).or_default().facts = Some(facts.clone());
                }
                Increment::CardFigures(figures) => {
                    self.changes.cards.insert(figures.gpu);
                    self.cards.entry(figures.gpu).or_default().figures = Some(figures.clone());
                }
                Increment::Session(facts) => self.update(facts.session, |row| row.take_facts(facts)),
                Increment::SessionFigures(figures) => {
                    self.update(figures.session, |row| row.take_figures(figures));
                }
                Increment::CardResidence(residence) => {
                    self.changes.cards.insert(residence.gpu);
                    self.cards.entry(residence.gpu).or_default().reside(*residence);
                }
                Increment::Residence { session, places } => {
                    let places = places.iter().map(|place| (place.gpu, Places::of_session(place)));
                    self.update(*session, |row| row.remapped = places.collect());
                }
                Increment::SessionEnded { session } => self.end(*session),
                // Handoffs arrive as events of their own, with their sessions.
                Increment::Daemon(_)
                | Increment::Sensors(_)
                | Increment::Granted { .. }
                | Increment::CardHandoff(_) => {}
            }
        }
        self.has_whole |= increments.whole;
    }

    /// Ends the ticks whose last events must have arrived by `now`.
    pub(super) fn pass(&mut self, now: Nanos) {
        self.close_until(now - LAG);
    }

    /// Returns the message about everything, with or without names.
    pub(super) fn full(&self, names: bool) -> Vec<u8> {
        text(&Message::Full {
            version: env!("CARGO_PKG_VERSION"),
            tick: self.tick,
            tick_ms: TICK.0 / 1_000_000,
            window: WINDOW,
            cards: self.cards.values().filter_map(Card::shown).collect(),
            sessions: self.sessions.values().map(|session| session.shown(names)).collect(),
            runs: self.sessions.iter().map(|(id, session)| (*id, session.lane.runs())).collect(),
        })
    }

    /// Returns the message about what changed, with or without names.
    pub(super) fn more(&self, names: bool) -> Vec<u8> {
        let Changes { cards, sessions, gone, runs } = &self.changes;
        let shown = |id| self.sessions.get(id).map(|session| session.shown(names));
        text(&Message::More {
            tick: self.tick,
            cards: cards.iter().filter_map(|gpu| self.cards.get(gpu)?.shown()).collect(),
            sessions: sessions.iter().filter_map(shown).collect(),
            gone,
            runs,
        })
    }

    /// Forgets the changes, which were sent.
    pub(super) fn sent(&mut self) {
        self.changes = Changes::default();
    }

    /// Updates the row of a session, and adds a row for a new one. Only a different row counts as a change, since
    /// figures that the page does not show change each second.
    fn update(&mut self, id: SessionId, act: impl FnOnce(&mut SessionRow)) {
        let is_new = !self.sessions.contains_key(&id);
        let row = &mut self.sessions.entry(id).or_insert_with(|| Session::new(id)).row;
        let before = row.clone();
        act(row);
        if is_new || *row != before {
            self.changes.sessions.insert(id);
        }
    }

    fn end(&mut self, id: SessionId) {
        if self.sessions.remove(&id).is_some() {
            self.changes.sessions.remove(&id);
            self.stirred.remove(&id);
            self.changes.gone.push(id);
        }
    }

    fn change(&mut self, id: SessionId, act: impl FnOnce(&mut Session)) {
        if let Some(session) = self.sessions.get_mut(&id) {
            act(session);
            self.changes.sessions.insert(id);
        }
    }

    /// Adds a sample to each card that a session uses.
    fn sample(&mut self, id: SessionId, mut add: impl FnMut(&mut Card)) {
        let Some(session) = self.sessions.get(&id) else { return };
        for OnCard(gpu, ..) in &session.row.memory {
            self.cards.get_mut(gpu).into_iter().for_each(&mut add);
        }
    }

    /// Ends all ticks that are over at `now`.
    fn close_until(&mut self, now: Nanos) {
        while Nanos((self.tick + 1) * TICK.0) <= now {
            let stirred = std::mem::take(&mut self.stirred);
            // After a pause without an event the ticks in between are equal.
            let last = now.0 / TICK.0 - 1;
            for id in &stirred {
                let Some(session) = self.sessions.get_mut(id) else { continue };
                let run = session.lane.close(self.tick);
                self.changes.runs.extend(run.map(|run| (*id, run)));
                if session.lane.is_mixed() {
                    self.stirred.insert(*id);
                }
            }
            self.tick = if self.stirred.is_empty() { last + 1 } else { self.tick + 1 };
        }
    }
}

impl Session {
    fn new(id: SessionId) -> Self {
        Self {
            row: SessionRow {
                id,
                name: None,
                state: State::Idle,
                since_ms: 0,
                stuck: false,
                frozen: false,
                memory: Vec::new(),
                remapped: Vec::new(),
                weight: 0,
                priority: Priority::Normal,
                phase: phase_name(SessionPhase::Good),
                processes: 0,
                refusals: 0,
                turns: 0,
                wait: None,
            },
            waits: Samples::default(),
            lane: Lane::default(),
        }
    }

    fn shown(&self, names: bool) -> SessionRow {
        debug_assert_eq!(self.lane.state(), self.row.state);
        let name = if names { self.row.name.clone() } else { None };
        SessionRow { name, wait: self.waits.percentiles(), ..self.row.clone() }
    }
}

impl SessionRow {
    fn allocated(&mut self, gpu: GpuId, bytes: Bytes) {
        match self.memory.iter_mut().find(|on| on.0 == gpu) {
            Some(on) => on.1 = bytes,
            None => self.memory.push(OnCard(gpu, bytes, None)),
        }
    }

    fn take_facts(&mut self, facts: &SessionFacts) {
        self.name = Some(facts.name.clone());
        self.weight = facts.weight;
        self.priority = facts.priority;
        self.phase = phase_name(facts.phase);
        self.processes = facts.pids.len();
    }

    fn take_figures(&mut self, figures: &SessionFigures) {
        let memory = figures
            .memory
            .iter()
            .map(|on| OnCard(on.gpu, on.allocated_bytes, on.limit_bytes));
        self.memory = memory.collect();
        self.refusals = figures.refusals;
        self.stuck = figures.lock == LockState::Stuck;
        self.frozen = figures.lock == LockState::Frozen;
    }
}

impl Card {
    fn reside(&mut self, residence: CardResidence) {
        self.residence = Some(residence);
        if residence.moving_bytes.is_zero() {
            // A handoff that was called off before anything moved has no end that is told.
            self.moved = self.moved.filter(|moved| !moved.is_running());
        }
    }

    fn shown(&self) -> Option<CardRow> {
        let (facts, figures) = (self.facts.as_ref()?, self.figures.as_ref()?);
        Some(CardRow {
            gpu: facts.gpu,
            uuid: facts.uuid,
            name: facts.name.clone(),
            total: facts.total_bytes,
            capacity: figures.capacity_bytes,
            allocated: figures.allocated_bytes,
            mode: figures.mode,
            reason: figures.reason.clone(),
            holders: figures.holding,
            waiters: figures.waiting,
            queue: figures.queue.clone(),
            handoffs: figures.handoffs,
            quantum_ms: milliseconds(figures.quantum_ns),
            wait: self.waits.percentiles(),
            handoff: self.handoffs.percentiles(),
            remapped: self.residence.as_ref().and_then(Places::of_card),
            moved: self.moved,
        })
    }
}

const fn phase_name(phase: SessionPhase) -> &'static str {
    match phase {
        SessionPhase::Good => "good",
        SessionPhase::Paused => "paused",
        SessionPhase::Expired => "expired",
        SessionPhase::Revoked => "revoked",
    }
}

/// Returns a time in milliseconds, to the microsecond.
fn milliseconds(time: Nanos) -> f64 {
    (time.0 / 1000) as f64 / 1000.0
}

/// Returns a message as a server-sent event.
fn text(message: &Message<'_>) -> Vec<u8> {
    let mut text = b"data: ".to_vec();
    // Numbers, texts and lists of them always have a JSON form.
    let written = serde_json::to_writer(&mut text, message);
    debug_assert!(written.is_ok());
    text.extend(b"\n\n");
    text
}

#[cfg(test)]
mod tests;
