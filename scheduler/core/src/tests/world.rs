//! Test harness: pages and processes around the machine, in virtual time.
//!
//! ```text
//!   World::send ─▶ Core::handle ─▶ effects ─▶ pages (gate, flags, free lease) ─▶ planned answers ─┐
//!        ▲                                                                                        │
//!        └────────────── World::run_for: planned answers and ticks, in order of time ◀────────────┘
//! ```
//!
//! Effects are carried out as the shell would, and processes answer as the library would, according to their
//! [`Habits`]. After every event the invariants are checked.

mod memory;
mod moves;
mod process;
mod restart;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use gpushare_proto::admin::{Knob, Setting};
use gpushare_proto::page::{FLAG_FROZEN, FLAG_HOST_FULL, GoalNumber, MemoryRefusal, flag_overflows};
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, ClientId, Epoch, GateState, GateWord, GpuId, Nanos, RequestId, SessionId};

use crate::config::StuckPolicy;
use crate::harness::Harness;
use crate::values::gpu_set::GpuSet;
use crate::view::snapshot::{GpuSnapshot, SessionSnapshot};
use crate::{Config, Core, Effect, Event, Notice};

pub(super) use moves::resides;
pub(super) use process::Habits;
use process::{Memory, Process, Swap};
use restart::Away;
pub(super) use restart::Generation;

pub(super) const GPU: GpuId = GpuId(0);
pub(super) const OTHER_GPU: GpuId = GpuId(1);

pub(super) const fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

pub(super) const fn gib(n: u64) -> Bytes {
    Bytes::gib(n)
}

/// Settings without context reserve, extra lease and early switches, so that tests can name exact figures.
pub(super) fn plain() -> Config {
    Config {
        context_reserve: Bytes::ZERO,
        lease_chunk: Bytes::ZERO,
        budget_max: Nanos::ZERO,
        ..Config::default()
    }
}

/// Plain settings with extra leases of 64 MiB.
pub(super) fn chunky() -> Config {
    Config { lease_chunk: Bytes::mib(64), ..plain() }
}

#[derive(Clone)]
pub(super) struct World {
    harness: Harness,
    config: Config,
    /// Decision machine as it was when the present daemon began.
    start: Core,
    /// Daemons before the present one.
    past: Vec<Generation>,
    /// Effects since the last [`Self::take`].
    seen: Vec<Effect>,
    processes: BTreeMap<ClientId, Process>,
    /// Processes of the last daemon that have not returned.
    away: BTreeMap<ClientId, Away>,
    agenda: BTreeMap<(Nanos, u64), Event>,
    scheduled: u64,
    next_id: u64,
    /// Events that the present machine was told, with their times.
    pub(super) history: Vec<(Nanos, Event)>,
    /// Whether all events so far were true.
    pub(super) honest: bool,
    /// Remapped bytes that left their cards.
    pub(super) evicted: Bytes,
}

impl Deref for World {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Harness {
        &mut self.harness
    }
}

impl World {
    pub(super) const GENERATION: u64 = 7;
    pub(super) const START: Nanos = Nanos::from_secs(100);

    /// Creates a world with one card of 10 GiB and no sessions.
    pub(super) fn new(config: Config) -> Self {
        Self::after_restart(config, [])
    }

    pub(super) fn after_restart(config: Config, expected: impl IntoIterator<Item = u64>) -> Self {
        let expected: BTreeSet<ClientId> = expected.into_iter().map(ClientId).collect();
        let start = Core::new(config.clone(), Self::GENERATION, expected, Self::START);
        let mut world = Self {
            harness: Harness::new(start.clone(), Self::START),
            config,
            start,
            past: Vec::new(),
            seen: Vec::new(),
            processes: BTreeMap::new(),
            away: BTreeMap::new(),
            agenda: BTreeMap::new(),
            scheduled: 0,
            next_id: 0,
            history: Vec::new(),
            honest: true,
            evicted: Bytes::ZERO,
        };
        world.send(Event::GpuFound { gpu: GPU, total: gib(10) });
        world
    }

    pub(super) fn send(&mut self, event: Event) {
        self.history.push((self.now, event));
        let (effects, rules) = self.harness.step(event);
        rules.unwrap_or_else(|broken| panic!("{broken}, after {event:?}"));
        let mut recalled = Vec::new();
        for effect in &effects {
            recalled.extend(self.carry_out(effect));
        }
        self.seen.extend(effects);
        for event in recalled {
            self.send(event);
        }
        if self.honest {
            self.managed_is_bounded(event);
            self.claims_are_bounds(event);
        }
    }

    /// Asserts that no process can have more managed memory than the machine counts.
    fn managed_is_bounded(&self, event: Event) {
        for session in self.core.view.sessions.values() {
            for (id, client) in session.clients.iter() {
                let Some(process) = self.processes.get(&id) else {
                    continue;
                };
                for (gpu, book) in client.books.iter() {
                    let memory = process.on(gpu);
                    let most = memory.free + memory.used - memory.fixed;
                    assert!(
                        most <= book.managed() + book.remapped(),
                        "{id} may have {most} managed, after {event:?}: {book:?}"
                    );
                }
            }
        }
    }

    /// Changes the pages as the shell does, and plans the processes' answers. Returns the shell's own answer.
    fn carry_out(&mut self, effect: &Effect) -> Option<Event> {
        match *effect {
            Effect::Gate { client, word, .. } => self.gate_changed(client, word),
            Effect::Flags { client, flags } => {
                let before = std::mem::replace(&mut self.processes.get_mut(&client)?.flags, flags);
                if before & FLAG_FROZEN < flags & FLAG_FROZEN && self.processes[&client].habits.answers {
                    self.plan(ms(1), Event::Parked { client });
                }
                // Flags may ask the process to give slots back, or let it map from the host.
                self.all_move_soon(client);
            }
            Effect::Lease { client, gpu, bytes, extra, .. } => {
                let process = self.processes.get_mut(&client)?;
                let memory = process.memory.entry(gpu).or_default();
                memory.used += bytes;
                memory.free += extra;
                if process.asks_fixed {
                    memory.fixed += bytes;
                    memory.told += bytes;
                }
                self.moves_soon(client, gpu);
            }
            Effect::Goal { client, gpu, number, bytes } => self.goal_changed(client, gpu, number, bytes),
            Effect::HostTarget { client, gpu, bytes } => self.host_target_changed(client, gpu, bytes),
            Effect::Extend { client, gpu, bytes } => self.memory(client, gpu)?.free += bytes,
            Effect::Recall { client, gpu, bytes } => {
                let memory = self.memory(client, gpu)?;
                let bytes = bytes.min(memory.free);
                memory.free -= bytes;
                return Some(Event::Recalled { client, gpu, bytes });
            }
            Effect::Freeze { client } => {
                let habits = self.processes.get(&client)?.habits;
                let end = Event::FreezeEnded { client, end: habits.ends.0 };
                habits.answers.then(|| self.plan(ms(300), end));
            }
            Effect::Thaw { client } => {
                let habits = self.processes.get(&client)?.habits;
                let end = Event::ThawEnded { client, end: habits.ends.1 };
                habits.answers.then(|| self.plan(ms(200), end));
            }
            Effect::Notice(Notice::Granted { session, .. }) if self.honest => self.turn_is_safe(session),
            _ => {}
        }
        None
    }

    /// Asserts that the sessions with work in flight fit beside the one that was granted a turn.
    fn turn_is_safe(&self, entrant: SessionId) {
        let in_flight =
            |client: &ClientId| self.processes.get(client).is_some_and(|process| process.in_flight);
        for (gpu, card) in self.core.view.cards.iter().filter(|(_, card)| card.takes_turns()) {
            let here = self
                .core
                .view
                .sessions
                .iter()
                .filter(|(_, session)| session.books(gpu).next().is_some());
            let here: Vec<_> = here
                .filter(|(id, session)| {
                    *id == entrant || session.clients.keys().any(|client| in_flight(&client))
                })
                .collect();
            let used: Bytes = here
                .iter()
                .flat_map(|(_, session)| session.books(gpu).map(|(_, book)| book.movable()))
                .sum();
            // Overdue memory keeps no session out where none moves, also where the administrator fixed that mode.
            let passes = self.config.stuck_policy == StuckPolicy::RunOthers && !card.moves_memory();
            let away = if passes { Bytes::ZERO } else { self.working_away(gpu) };
            let used = used + away;
            let enters = here.iter().any(|(id, _)| *id == entrant);
            let locks: Vec<_> = here.iter().map(|(id, session)| (id, &session.lock)).collect();
            assert!(
                !enters || (here.len() == 1 && away.is_zero()) || used <= card.capacity(),
                "{used} run on {gpu} of {} when {entrant} has its turn: {locks:?}",
                card.capacity()
            );
        }
    }

    fn gate_changed(&mut self, client: ClientId, word: GateWord) {
        let Some(process) = self.processes.get_mut(&client) else {
            return;
        };
        process.in_flight |= word.state() != GateState::Closed;
        let habits = process.habits;
        if !habits.answers {
            return;
        }
        match word.state() {
            GateState::Closed => {
                let drain = habits.drain;
                if drain > habits.lead {
                    self.plan(drain - habits.lead, Event::NearlyDrained { client, word });
                }
                self.plan(drain, Event::Released { client, word, drain });
                if habits.busy {
                    self.plan(Nanos(1000), Event::Wait { client, word });
                }
            }
            GateState::Moving if process.swaps.is_some() => self.all_move_soon(client),
            GateState::Moving => {
                let moved = process.used();
                let took = habits.moves;
                self.plan(took, Event::Entered { client, word, moved, took });
            }
            GateState::Open | GateState::Idle => self.all_move_soon(client),
        }
    }

    fn plan(&mut self, after: Nanos, event: Event) {
        self.scheduled += 1;
        self.agenda.insert((self.now + after, self.scheduled), event);
    }

    /// Sends a planned answer of a process, if its gate word is still the one that it answers.
    fn says(&mut self, event: Event) {
        let (Event::Released { client, word, .. }
        | Event::NearlyDrained { client, word }
        | Event::Wait { client, word }
        | Event::Entered { client, word, .. }) = event
        else {
            return match event {
                Event::Resides { .. } => self.moves(event),
                _ if event.client().is_some_and(|client| self.processes.contains_key(&client)) => {
                    self.send(event);
                }
                _ => {}
            };
        };
        if self.processes.contains_key(&client) && self.gate(client) == word {
            match event {
                Event::Entered { .. } => _ = self.set_gate(client, GateState::Open),
                Event::Released { .. } => self.ends_work(client),
                _ => {}
            }
            self.send(event);
            self.all_move_soon(client);
        }
    }

    /// Lets time pass, with all planned answers and ticks.
    pub(super) fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            let planned = self.agenda.keys().next().map(|&(at, _)| at);
            let deadline = self.core.next_deadline();
            let next = [planned, deadline].into_iter().flatten().min().filter(|&at| at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            if planned != Some(next) {
                self.send(Event::Tick);
            } else if let Some((_, event)) = self.agenda.pop_first() {
                self.says(event);
            }
        }
        self.now = end;
    }

    fn ends_work(&mut self, client: ClientId) {
        if let Some(process) = self.processes.get_mut(&client) {
            process.in_flight = false;
        }
    }

    // Cards, sessions and processes.

    pub(super) fn second_card(&mut self) {
        self.card_found(OTHER_GPU);
    }

    pub(super) fn third_card(&mut self) -> GpuId {
        self.card_found(GpuId(2))
    }

    fn card_found(&mut self, gpu: GpuId) -> GpuId {
        let total = gib(10);
        self.send(Event::GpuFound { gpu, total });
        gpu
    }

    pub(super) fn session(&mut self) -> SessionId {
        self.session_with(None, false)
    }

    pub(super) fn session_with(&mut self, limit: Option<Bytes>, oversubscribe: bool) -> SessionId {
        self.next_id += 1;
        let session = SessionId(self.next_id);
        self.send(Event::SessionOpened { session, limit, oversubscribe });
        session
    }

    /// Adds a process that drains in 2 ms, moves memory in 20 ms and has no work.
    pub(super) fn join(&mut self, session: SessionId) -> ClientId {
        self.next_id += 1;
        let client = ClientId(self.next_id);
        self.join_as(client);
        self.send(Event::ClientJoined { client, session, holding: None });
        client
    }

    /// Adds a process like [`Self::join`], without telling the machine.
    pub(super) fn join_as(&mut self, client: ClientId) {
        self.new_page(client);
        self.processes.insert(
            client,
            Process {
                flags: 0,
                memory: BTreeMap::new(),
                swaps: None,
                asks_fixed: false,
                in_flight: false,
                habits: Habits::default(),
            },
        );
    }

    pub(super) fn attach(&mut self, client: ClientId, gpu: GpuId) {
        self.send(Event::Attached { client, gpu, used: Bytes::ZERO });
        self.send(Event::Contexts { client, gpu, live: 1 });
        self.swaps_on(client, gpu);
    }

    /// Adds a process of `session` that uses a card.
    pub(super) fn join_on(&mut self, session: SessionId, gpu: GpuId) -> ClientId {
        let client = self.join(session);
        self.attach(client, gpu);
        client
    }

    /// Adds a session with one process that has `bytes` on the first card.
    pub(super) fn program(&mut self, bytes: Bytes) -> (SessionId, ClientId) {
        self.program_on(&[(GPU, bytes)])
    }

    /// Adds a session with one process that has memory on some cards.
    pub(super) fn program_on(&mut self, needs: &[(GpuId, Bytes)]) -> (SessionId, ClientId) {
        let session = self.session();
        let client = self.join(session);
        for &(gpu, bytes) in needs {
            self.attach(client, gpu);
            self.allocate(client, gpu, bytes);
        }
        (session, client)
    }

    /// Adds a [`Self::program_on`] that always has work.
    pub(super) fn busy_program_on(&mut self, needs: &[(GpuId, Bytes)]) -> (SessionId, ClientId) {
        let (session, client) = self.program_on(needs);
        self.gets_busy(client);
        (session, client)
    }

    /// Adds a [`Self::program`] that always has work.
    pub(super) fn busy_program(&mut self, bytes: Bytes) -> (SessionId, ClientId) {
        self.busy_program_on(&[(GPU, bytes)])
    }

    // Actions of processes.

    fn process(&mut self, client: ClientId) -> &mut Process {
        self.processes.get_mut(&client).unwrap()
    }

    fn memory(&mut self, client: ClientId, gpu: GpuId) -> Option<&mut Memory> {
        Some(self.processes.get_mut(&client)?.memory.entry(gpu).or_default())
    }

    pub(super) fn habits(&mut self, client: ClientId) -> &mut Habits {
        &mut self.process(client).habits
    }

    /// Refusals of memory since the last call.
    pub(super) fn refusals(&mut self) -> Vec<MemoryRefusal> {
        self.pick(|effect| match effect {
            Effect::Refuse { refusal, .. } => Some(refusal),
            _ => None,
        })
    }

    /// Lets a thread arrive at the gate, now and whenever it closes.
    pub(super) fn gets_busy(&mut self, client: ClientId) {
        self.habits(client).busy = true;
        self.arrives(client);
    }

    /// Lets a thread arrive at the gate now.
    pub(super) fn arrives(&mut self, client: ClientId) {
        let word = self.gate(client);
        if matches!(word.state(), GateState::Closed | GateState::Moving) {
            self.send(Event::Wait { client, word });
        }
    }

    /// Lets a process prove that it is idle and give the lock back.
    pub(super) fn goes_idle(&mut self, client: ClientId) {
        self.habits(client).busy = false;
        self.lets_go(client, Nanos::ZERO);
    }

    /// Lets the memory of a process be in after `took`.
    pub(super) fn enters(&mut self, client: ClientId, took: Nanos) {
        let word = self.set_gate(client, GateState::Open);
        let moved = self.processes[&client].used();
        self.send(Event::Entered { client, word, moved, took });
    }

    /// Lets a process release its gate now, with a claimed drain.
    pub(super) fn lets_go(&mut self, client: ClientId, drain: Nanos) {
        let word = self.set_gate(client, GateState::Closed);
        self.ends_work(client);
        self.send(Event::Released { client, word, drain });
        self.all_move_soon(client);
    }

    /// Lets a process lose its connection and return with a new page. Its planned answers are void.
    pub(super) fn comes_back(&mut self, client: ClientId) {
        let Some(process) = self.processes.get(&client) else {
            return;
        };
        let (waiting, memory) = (process.habits.busy, process.memory.clone());
        memory.keys().for_each(|&gpu| self.look(client, gpu));
        self.new_page(client);
        let process = self.process(client);
        process.flags = 0;
        process.memory.values_mut().for_each(|memory| memory.free = Bytes::ZERO);
        self.send(Event::ClientReturned { client, waiting });
        for (gpu, Memory { used, fixed, .. }) in memory {
            self.send(Event::StillUses { client, gpu, bytes: used });
            self.memory(client, gpu).unwrap().told = fixed;
            self.send(Event::Fixed { client, gpu, bytes: fixed });
            self.returns_to(client, gpu);
        }
    }

    /// Lets a process die whose child keeps its memory on the cards.
    pub(super) fn ends(&mut self, client: ClientId) {
        self.processes.remove(&client);
        self.send(Event::ClientEnded { client });
    }

    pub(super) fn dies(&mut self, client: ClientId) {
        self.processes.remove(&client);
        self.send(Event::ClientGone { client });
    }

    pub(super) fn set(&mut self, knob: Knob) {
        self.send(Event::Set(Setting { gpu: None, knob }));
    }

    /// Drops the next planned answer.
    pub(super) fn lose_an_answer(&mut self) {
        self.agenda.pop_first();
    }

    // Observations.
}
