//! How many events the core takes in a second: 1000 sessions on 8 cards, on one thread. And how much longer one
//! event takes with ten times as many sessions, alone, of users, and with gangs.
//!
//! Of five events two ask for a turn, two let go of one, and one is about memory or limits. Every word is
//! the one that the core gave, so each request is in order and turns are really granted. Effects are
//! drained after every event; a deadline that is reached is told as it is by the daemon, and not counted.
//!
//! ```text
//!   closed ── Wait ─▶ waiting ── Gate ─▶ holding ── Released ─▶ closed      the longest closed and the longest holding first
//! ```
//!
//! On each card 125 sessions of 1 GiB want 16 GiB, so that 16 hold the lock. About half of them all wait at
//! any time. With users, each has four sessions. With gangs, each eighth session uses two cards.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gpushare_core::{Config, Core, Effect, Event, FIRST_WORD, UserId};
use gpushare_proto::{Bytes, ClientId, GateState, GateWord, GpuId, Nanos, RequestId, SessionId};
use serde_json::{Value, json};

const GPUS: u8 = 8;
const SESSIONS: usize = 1000;
/// Factor by which sessions are more where growth is measured.
const GROWTH: usize = 10;
/// Sessions of one user.
const SIBLINGS: u64 = 4;
/// One session in so many is a gang.
const GANGS: usize = 8;
const CAPACITY: Bytes = Bytes::gib(16);
const MEMORY: Bytes = Bytes::gib(1);
const LIMIT: Bytes = Bytes::gib(2);
/// Bytes that a session takes and gives back.
const PIECE: Bytes = Bytes::mib(1);
/// Between two events, for the core.
const STEP: Nanos = Nanos(1000);
const RUNS: usize = 5;
const RUN: Duration = Duration::from_secs(2);

/// Kind of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Each counts by itself and uses one card.
    Alone,
    /// Four of them belong to a user.
    OfUsers,
    /// Each eighth uses two cards.
    WithGangs,
}

/// The median of several runs.
pub(crate) fn measure(rounds: Option<u64>) -> anyhow::Result<Value> {
    if let Some(rounds) = rounds {
        let mut bench = Bench::new(SESSIONS, Kind::Alone);
        bench.fill()?;
        let mut events = 0;
        for _ in 0..rounds {
            events += bench.round()?;
        }
        return Ok(json!({ "events": events }));
    }
    let rate = median(SESSIONS, Kind::Alone)?;
    let growth = |kind| Ok::<_, anyhow::Error>(median(SESSIONS, kind)? / median(SESSIONS * GROWTH, kind)?);
    Ok(json!({
        "events_per_s": rate as u64,
        "growth": growth(Kind::Alone)?,
        "growth_of_users": growth(Kind::OfUsers)?,
        "growth_of_gangs": growth(Kind::WithGangs)?,
    }))
}

/// The median of the events in a second of several runs.
fn median(sessions: usize, kind: Kind) -> anyhow::Result<f64> {
    let mut rates = (0..RUNS).map(|_| run(sessions, kind)).collect::<anyhow::Result<Vec<f64>>>()?;
    rates.sort_unstable_by(f64::total_cmp);
    Ok(rates[rates.len() / 2])
}

/// Events in a second of one run.
fn run(sessions: usize, kind: Kind) -> anyhow::Result<f64> {
    let mut bench = Bench::new(sessions, kind);
    bench.fill()?;
    bench.round()?;
    let (mut events, begun) = (0, Instant::now());
    bench.grants = 0;
    while begun.elapsed() < RUN {
        for _ in 0..10 {
            events += bench.round()?;
        }
    }
    let took = begun.elapsed();
    let releases = events * 2 / 5;
    // A gang that cannot begin yet keeps its cards for itself.
    ensure!(
        kind == Kind::WithGangs || bench.grants * 10 >= releases * 9,
        "{releases} let go and only {} were granted a turn",
        bench.grants
    );
    Ok(events as f64 / took.as_secs_f64())
}

struct Bench {
    kind: Kind,
    core: Core,
    now: Nanos,
    gates: Vec<GateWord>,
    /// Sessions whose gate is closed, and that want no turn.
    closed: VecDeque<usize>,
    holding: VecDeque<usize>,
    holds: Vec<bool>,
    /// Events about memory and limits so far.
    changes: usize,
    grants: u64,
}

impl Bench {
    fn new(sessions: usize, kind: Kind) -> Self {
        let config = Config { capacity: Some(CAPACITY), lease_chunk: Bytes::ZERO, ..Config::default() };
        let core = Core::new(config, 1, BTreeSet::new(), Nanos::ZERO);
        Self {
            kind,
            core,
            now: Nanos::from_secs(10),
            gates: vec![FIRST_WORD; sessions],
            closed: VecDeque::new(),
            holding: VecDeque::new(),
            holds: vec![false; sessions],
            changes: 0,
            grants: 0,
        }
    }

    /// Opens all sessions, and lets half of them ask for a turn.
    fn fill(&mut self) -> anyhow::Result<()> {
        for gpu in (0..GPUS).map(GpuId) {
            let total = Bytes::gib(80);
            self.tell(Event::GpuFound { gpu, total });
        }
        for number in 0..self.gates.len() {
            let client = client(number);
            let session = SessionId(client.0);
            self.closed.push_back(number);
            self.tell(Event::SessionOpened { session, limit: Some(LIMIT), oversubscribe: false });
            if self.kind == Kind::OfUsers {
                let user = UserId(session.0 / SIBLINGS);
                self.tell(Event::Owner { session, user, weight: 100 });
            }
            self.tell(Event::ClientJoined { client, session, holding: None });
            let used = MEMORY;
            for gpu in self.cards(number) {
                self.tell(Event::Attached { client, gpu, used });
                self.tell(Event::Contexts { client, gpu, live: 1 });
            }
        }
        for _ in 0..self.gates.len() / 2 {
            self.wants()?;
        }
        Ok(())
    }

    /// Cards that a session uses.
    fn cards(&self, number: usize) -> Vec<GpuId> {
        let gang = self.kind == Kind::WithGangs && number.is_multiple_of(GANGS + 1);
        (number..=number + usize::from(gang)).map(gpu).collect()
    }

    /// Five events; how many.
    fn round(&mut self) -> anyhow::Result<u64> {
        self.wants()?;
        self.lets_go()?;
        self.wants()?;
        self.lets_go()?;
        self.changes_memory();
        Ok(5)
    }

    fn wants(&mut self) -> anyhow::Result<()> {
        // A session that came while all fitted holds the lock without having asked.
        while self.closed.front().is_some_and(|number| self.holds[*number]) {
            self.closed.pop_front();
        }
        let number = self.closed.pop_front().context("every session waits or holds the lock")?;
        let (client, word) = (client(number), self.gates[number]);
        self.tell(Event::Wait { client, word });
        Ok(())
    }

    /// Drained, where it was told to; else it has nothing to do.
    fn lets_go(&mut self) -> anyhow::Result<()> {
        let number = match (self.holding.pop_front(), self.kind) {
            (Some(number), _) => number,
            (None, Kind::WithGangs) => return Ok(()),
            (None, _) => bail!("no session holds the lock"),
        };
        let (client, word) = (client(number), self.gates[number]);
        self.gates[number] = word.with(GateState::Closed);
        self.closed.push_back(number);
        self.holds[number] = false;
        let drain = Nanos::from_millis(1);
        self.tell(Event::Released { client, word, drain });
        Ok(())
    }

    /// One after the other: memory is in, a piece is taken, it lies unused, it is taken back, the limit is
    /// another one.
    fn changes_memory(&mut self) {
        self.changes += 1;
        let number = self.changes / 5 % self.gates.len();
        let (client, gpu) = (client(number), gpu(number));
        let event = match self.changes % 5 {
            0 => self.entered(),
            1 => Event::Reserve { client, gpu, request: RequestId(1), bytes: PIECE },
            2 => Event::LeaseSeen { client, gpu, free: PIECE },
            3 => Event::Trim { client, gpu },
            _ => Event::Quota {
                session: SessionId(client.0),
                gpu,
                limit: Some(LIMIT + Bytes(self.changes as u64)),
            },
        };
        self.tell(event);
    }

    /// Reports that the memory of the session with the latest grant is in.
    fn entered(&mut self) -> Event {
        let number = self.holding.back().copied().unwrap_or_default();
        let word = self.gates[number];
        if word.state() == GateState::Moving {
            self.gates[number] = word.with(GateState::Open);
        }
        Event::Entered { client: client(number), word, moved: MEMORY, took: Nanos::from_millis(20) }
    }

    fn tell(&mut self, event: Event) {
        self.now += STEP;
        if self.core.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.handle(Event::Tick);
        }
        self.handle(event);
    }

    fn handle(&mut self, event: Event) {
        counted_event(&mut self.core, self.now, event);
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Gate { client, word, .. } => self.gate(client, word),
                // All of it lies unused in the page.
                Effect::Recall { client, gpu, bytes } => {
                    self.core.handle(self.now, Event::Recalled { client, gpu, bytes });
                }
                _ => {}
            }
        }
    }

    fn gate(&mut self, client: ClientId, word: GateWord) {
        let number = client.0 as usize - 1;
        self.gates[number] = word;
        if word.state() == GateState::Closed {
            // Told to let go: before the others.
            self.holding.retain(|other| *other != number);
            self.holding.push_front(number);
        } else if !self.holds[number] {
            self.grants += 1;
            self.holds[number] = true;
            self.holding.push_back(number);
        }
    }
}

/// A function of its own, in which callgrind is told to count.
#[unsafe(no_mangle)]
#[inline(never)]
fn counted_event(core: &mut Core, now: Nanos, event: Event) {
    core.handle(now, event);
}

fn client(number: usize) -> ClientId {
    ClientId(number as u64 + 1)
}

fn gpu(number: usize) -> GpuId {
    GpuId((number % usize::from(GPUS)) as u8)
}
