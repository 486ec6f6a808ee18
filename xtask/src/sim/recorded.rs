//! The sessions of a recording (docs/replay.md), and what they did: the same people on another day, under
//! another scheduler.
//!
//! The recording is told to the core of this checkout, and what the core then says is what each session
//! could do.
//!
//! ```text
//!   joined ── Wait ▒▒▒ gate opens ███████ Released (idle) ── pause ── Wait ▒▒▒ opens ████ closes, drained ▒▒▒ opens ██ gone
//!                                  work 1                                            work 2 ─────────────────────
//! ```
//!
//! A session works while its gate is open and it is not known to be idle, at the speed that those leave it
//! who may work on its cards at the same time. That is an upper bound: a gate that is open says nothing of
//! the host's pauses below the idle grace, nor, where nobody waits, of any. Its memory is the most that it
//! ever had on one card, and a card's capacity the least that it ever was. All processes of a session are
//! one here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::ensure;
use gpushare_core::{Config, Core, Effect, Event};
use gpushare_proto::admin::Knob;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, Percent, SessionId};

use super::tenant::{Piece, Program, Tenant, WEIGHT};
use super::trace::{Machine, Trace};
use crate::replay::recording::{Next, Recording};

/// A session as it is seen so far.
#[derive(Debug)]
struct Seen {
    arrived: Nanos,
    gpus: BTreeSet<GpuId>,
    memory: Bytes,
    /// Processes whose gate is open.
    open: BTreeSet<ClientId>,
    /// The session wants to work, with an open or a closed gate.
    busy: bool,
    /// When it last had nothing to do, or arrived.
    rested: Nanos,
    pause: Nanos,
    /// Of the piece that it is at.
    work: f64,
    pieces: Vec<Piece>,
}

struct Watcher {
    core: Core,
    now: Nanos,
    config: Config,
    /// By number, and the least that ever might be resident on each.
    cards: BTreeMap<GpuId, Bytes>,
    homes: BTreeMap<ClientId, SessionId>,
    sessions: BTreeMap<SessionId, Seen>,
}

/// The recording in this file as a trace.
pub(super) fn trace(path: &Path) -> anyhow::Result<Trace> {
    let mut recording = Recording::open(path)?;
    let header = recording.header().clone();
    let mut watcher = Watcher {
        core: header.machine(),
        now: header.started,
        config: header.config,
        cards: BTreeMap::new(),
        homes: BTreeMap::new(),
        sessions: BTreeMap::new(),
    };
    while let Next::Event(_, handled) = recording.next()? {
        watcher.handle(handled.now, handled.event);
    }
    ensure!(
        recording.altered_at_line().is_none(),
        "{} was changed after it was recorded; `cargo xtask replay` says where",
        path.display()
    );
    let name = path
        .file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    watcher.into_trace(name, header.started)
}

impl Watcher {
    fn handle(&mut self, now: Nanos, event: Event) {
        self.work_until(now);
        match event {
            Event::GpuFound { gpu, total } => {
                self.cards.entry(gpu).or_insert(total);
            }
            Event::SessionOpened { session, .. } => {
                self.sessions.entry(session).or_insert_with(|| Seen::new(now));
            }
            Event::ClientJoined { client, session, .. } => {
                self.homes.insert(client, session);
            }
            Event::Attached { client, gpu, .. } => {
                if let Some(seen) = self.seen(client) {
                    seen.gpus.insert(gpu);
                }
            }
            Event::Wait { client, .. } => {
                if let Some(seen) = self.seen(client) {
                    seen.wants(now);
                }
            }
            // Under the word of an open gate: it had nothing to do.
            Event::Released { client, word, .. } if word.state() != GateState::Closed => {
                self.closes(client, true);
            }
            Event::Set(setting) => self.set(setting.knob),
            Event::ClientGone { client } | Event::ClientEnded { client } => {
                self.closes(client, true);
                self.homes.remove(&client);
            }
            _ => {}
        }
        self.core.handle(now, event);
        while let Some(effect) = self.core.poll_effect() {
            if let Effect::Gate { client, word, .. } = effect {
                self.gate(client, word.state());
            }
        }
        self.note_memory(event);
        if matches!(event, Event::Set(_) | Event::Contexts { .. }) {
            self.note_capacity();
        }
    }

    fn seen(&mut self, client: ClientId) -> Option<&mut Seen> {
        self.sessions.get_mut(self.homes.get(&client)?)
    }

    fn gate(&mut self, client: ClientId, state: GateState) {
        let now = self.now;
        if state == GateState::Closed {
            return self.closes(client, false);
        }
        if let Some(seen) = self.seen(client) {
            seen.open.insert(client);
            seen.wants(now);
        }
    }

    fn closes(&mut self, client: ClientId, idle: bool) {
        let now = self.now;
        if let Some(seen) = self.seen(client) {
            seen.open.remove(&client);
            if idle && seen.open.is_empty() {
                seen.rests(now);
            }
        }
    }

    /// Adds the work since the last event to the sessions with open gates.
    fn work_until(&mut self, now: Nanos) {
        let span = (now - self.now).0 as f64;
        self.now = self.now.max(now);
        let mut workers: BTreeMap<GpuId, u32> = BTreeMap::new();
        for seen in self.sessions.values().filter(|seen| seen.works()) {
            for gpu in &seen.gpus {
                *workers.entry(*gpu).or_default() += 1;
            }
        }
        for seen in self.sessions.values_mut().filter(|seen| seen.works()) {
            let most = seen.gpus.iter().filter_map(|gpu| workers.get(gpu)).max();
            seen.work += span / f64::from(most.copied().unwrap_or(1));
        }
    }

    /// Memory changes with these.
    fn note_memory(&mut self, event: Event) {
        let (Event::Attached { client, .. }
        | Event::LeaseSeen { client, .. }
        | Event::Reserve { client, .. }
        | Event::ReservePiece { client, .. }
        | Event::ReserveFixed { client, .. }) = event
        else {
            return;
        };
        let Some(&session) = self.homes.get(&client) else {
            return;
        };
        let Some(view) = self.core.session_snapshot(self.now, session) else {
            return;
        };
        let peak = view.gpus.iter().map(|card| card.peak_bytes).max().unwrap_or_default();
        if let Some(seen) = self.sessions.get_mut(&session) {
            seen.memory = seen.memory.max(peak);
        }
    }

    /// Applies the administrator's last setting, of any card, from the beginning.
    fn set(&mut self, knob: Knob) {
        match knob {
            Knob::Quantum(quantum) => self.config.quantum = quantum,
            Knob::Mode(mode) => self.config.mode = mode,
            Knob::Epsilon(epsilon) => self.config.epsilon = epsilon,
            Knob::WindowTarget(target) => self.config.drain_target = target,
            // Cards have it as their capacity; limits of managed memory refuse, and who was refused is not here.
            _ => {}
        }
    }

    fn note_capacity(&mut self) {
        for card in self.core.snapshot(self.now).gpus {
            if let Some(least) = self.cards.get_mut(&card.gpu) {
                *least = card.capacity_bytes.min(*least);
            }
        }
    }

    fn into_trace(mut self, name: String, started: Nanos) -> anyhow::Result<Trace> {
        let ended = self.now;
        let numbers: BTreeMap<GpuId, GpuId> =
            self.cards.keys().zip(0..).map(|(&gpu, number)| (gpu, GpuId(number))).collect();
        self.sessions.values_mut().for_each(|seen| seen.rests(ended));
        let mut tenants: Vec<Tenant> = self
            .sessions
            .iter()
            .filter(|(_, seen)| !seen.pieces.is_empty())
            .map(|(id, seen)| seen.tenant(id.to_string(), started, &numbers))
            .collect();
        ensure!(!tenants.is_empty(), "no session used a card in the recording {name}");
        tenants.sort_by_key(|tenant| tenant.arrives);
        let capacity = self.cards.values().copied().min().unwrap_or_default();
        let config = Config { capacity: Some(capacity), ..self.config };
        let machine = Machine {
            gpus: u8::try_from(numbers.len())?,
            bandwidth: config.bandwidth_per_second,
            window: config.drain_target,
            ..Machine::of(capacity)
        };
        Ok(Trace {
            name,
            // Another scheduler may take longer.
            until: Nanos((ended - started).0.saturating_mul(100)),
            machine,
            config,
            tenants,
        })
    }
}

impl Seen {
    fn new(now: Nanos) -> Self {
        Self {
            arrived: now,
            gpus: BTreeSet::new(),
            memory: Bytes::ZERO,
            open: BTreeSet::new(),
            busy: false,
            rested: now,
            pause: Nanos::ZERO,
            work: 0.0,
            pieces: Vec::new(),
        }
    }

    fn works(&self) -> bool {
        self.busy && !self.open.is_empty()
    }

    fn wants(&mut self, now: Nanos) {
        if !self.busy && !self.gpus.is_empty() {
            self.busy = true;
            self.pause = now - self.rested;
        }
    }

    fn rests(&mut self, now: Nanos) {
        let work = Nanos(self.work.round() as u64);
        if self.busy && !work.is_zero() {
            self.pieces.push(Piece { pause: self.pause, work });
        }
        (self.busy, self.work, self.rested) = (false, 0.0, now);
    }

    fn tenant(&self, name: String, started: Nanos, numbers: &BTreeMap<GpuId, GpuId>) -> Tenant {
        Tenant {
            name,
            arrives: self.arrived - started,
            gpus: self.gpus.iter().filter_map(|gpu| numbers.get(gpu).copied()).collect(),
            memory: self.memory,
            weight: WEIGHT,
            priority: Priority::Normal,
            compute: Percent(10_000),
            program: Program::Recorded(self.pieces.clone()),
            work: None,
            seed: 0,
        }
    }
}
