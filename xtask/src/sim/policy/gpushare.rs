//! gpushare's own core, told what the daemon would tell it, with processes that answer as the library does.
//!
//! Each session has one process. Its words are numbered as in its page, so a message that is late would
//! count as late. Where memory is remapped, the processes move it as the core's goals say (`swaps`), and the
//! engine is told that a session may run once all of it is there.

mod swaps;

use std::collections::{BTreeSet, VecDeque};

use gpushare_core::harness::Harness;
use gpushare_core::{Config, Core, Effect, Event, Notice};
use gpushare_proto::page::FLAG_WANTED;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, RequestId, SessionId};

use self::swaps::{Phase, Swaps};
use super::{Policy, Who, Word};
use crate::sim::tenant::Tenant;
use crate::sim::trace::Machine;

/// The core, and the words that it has for the sessions.
#[derive(Debug)]
pub(crate) struct Gpushare {
    harness: Harness,
    capacity: Bytes,
    wanted: Vec<bool>,
    words: VecDeque<Word>,
    quanta: Vec<Nanos>,
    /// Where memory is remapped.
    swaps: Option<Swaps>,
    sessions: Vec<Session>,
    /// Events that follow from effects.
    follow_ups: VecDeque<Event>,
    /// Whether each event is followed by a look at the invariants of the core.
    is_checked: bool,
}

/// State of a session with remapped memory.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    /// Whether it waits at its gate.
    waits: bool,
    /// Whether the engine was told that the session may run, and has not let go since.
    has_passed: bool,
    /// Since when memory comes in for a turn, and how much had come in before.
    enters: Option<(Nanos, Bytes)>,
}

impl Session {
    /// State of a session that was told that it may run.
    const fn passed() -> Self {
        Self { waits: false, has_passed: true, enters: None }
    }
}

/// The number of a session, and of its process.
fn number(who: Who) -> u64 {
    who as u64 + 1
}

fn client(who: Who) -> ClientId {
    ClientId(number(who))
}

impl Gpushare {
    /// On the cards of `machine`, for so many sessions.
    pub(crate) fn new(config: Config, machine: &Machine, sessions: usize) -> Self {
        let mut scheduler = Self {
            harness: Harness::new(Core::new(config, 1, BTreeSet::new(), Nanos::ZERO), Nanos::ZERO),
            capacity: machine.capacity,
            wanted: vec![false; sessions],
            words: VecDeque::new(),
            quanta: Vec::new(),
            swaps: None,
            sessions: vec![Session::default(); sessions],
            follow_ups: VecDeque::new(),
            is_checked: false,
        };
        for gpu in (0..machine.gpus).map(GpuId) {
            let total = machine.capacity;
            scheduler.tell(Nanos::ZERO, Event::GpuFound { gpu, total });
        }
        scheduler
    }

    /// Lets the memory of all sessions be remapped, on cards that have so much of it and links that move so
    /// many bytes a second each way. The host has memory for all of it. No session may be larger than a card.
    pub(crate) fn remapped(mut self, machine: &Machine) -> Self {
        self.swaps = Some(Swaps::new(machine.bandwidth));
        self.tell(Nanos::ZERO, Event::HostBudget { bytes: Bytes::MAX });
        self
    }

    /// Looks at the invariants of the core after each event from now on, and panics if one is broken.
    #[cfg(test)]
    pub(crate) fn checked(mut self) -> Self {
        self.is_checked = true;
        self
    }

    fn tell(&mut self, now: Nanos, event: Event) {
        self.follow_ups.push_back(event);
        self.follow_up(now);
    }

    /// Handles events until none is left.
    fn follow_up(&mut self, now: Nanos) {
        while let Some(event) = self.follow_ups.pop_front() {
            self.harness.now = now;
            for effect in self.handle(event) {
                self.obey(now, &effect);
            }
        }
    }

    /// Lets the core handle an event.
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        if !self.is_checked {
            self.harness.tell(event);
            // No process gives unused lease back.
            return std::iter::from_fn(|| self.harness.poll_effect(Bytes::ZERO)).collect();
        }
        let (effects, rules) = self.harness.step(event);
        assert!(rules.is_ok(), "after {event:?}: {rules:?}");
        let recalled = effects.iter().filter_map(|effect| match *effect {
            Effect::Recall { client, gpu, .. } => Some(Event::Recalled { client, gpu, bytes: Bytes::ZERO }),
            _ => None,
        });
        self.follow_ups.extend(recalled);
        effects
    }

    fn obey(&mut self, now: Nanos, effect: &Effect) {
        match *effect {
            Effect::Gate { client, word, .. } if self.swaps.is_some() => {
                self.gate_changed(now, who(client), word.state());
            }
            Effect::Gate { client, word, .. } => {
                let who = who(client);
                self.words.push_back(match word.state() {
                    GateState::Closed => Word::Shut { who },
                    state => Word::Pass { who, moves: state == GateState::Moving },
                });
            }
            Effect::Goal { client, gpu, number, bytes } => {
                if let Some(swaps) = &mut self.swaps {
                    swaps.order(who(client), gpu, number, bytes);
                }
                self.go_on(now, who(client));
            }
            Effect::Flags { client, flags } => {
                let (who, wanted) = (who(client), flags & FLAG_WANTED != 0);
                if self.wanted[who] != wanted {
                    self.wanted[who] = wanted;
                    self.words.push_back(Word::Wanted { who, wanted });
                }
            }
            Effect::Notice(Notice::Granted { quantum, .. }) => self.quanta.push(quantum),
            _ => {}
        }
    }

    /// Lets a process with remapped memory follow its gate.
    fn gate_changed(&mut self, now: Nanos, who: Who, state: GateState) {
        let came_in = self.swaps.as_ref().map_or(Bytes::ZERO, |swaps| swaps.came_in(who));
        let session = &mut self.sessions[who];
        match state {
            GateState::Moving => session.enters = Some((now, came_in)),
            GateState::Open | GateState::Idle => {
                *session = Session::passed();
                self.words.push_back(Word::Pass { who, moves: false });
            }
            GateState::Closed if session.has_passed => self.words.push_back(Word::Shut { who }),
            GateState::Closed => {
                // Nothing of it is in flight. Its program still waits, and asks again under the new word.
                session.enters = None;
                let (client, drain) = (client(who), Nanos::ZERO);
                let word = self.harness.set_gate(client, GateState::Closed);
                self.follow_ups.push_back(Event::Released { client, word, drain });
                self.follow_ups.extend(session.waits.then_some(Event::Wait { client, word }));
            }
        }
        self.go_on(now, who);
    }

    /// Lets the memory of a process move on, and the process run once all of it is there.
    fn go_on(&mut self, now: Nanos, who: Who) {
        let Some(swaps) = &mut self.swaps else { return };
        let (client, session) = (client(who), &mut self.sessions[who]);
        let phase = match self.harness.gate(client).state() {
            GateState::Open | GateState::Idle | GateState::Moving => Phase::Runs,
            GateState::Closed if session.has_passed => Phase::Draining,
            GateState::Closed => Phase::Idle,
        };
        swaps.plan(now, who, phase);
        if let Some((since, before)) = session.enters.filter(|_| swaps.is_whole(who)) {
            *session = Session::passed();
            let (moved, took) = (swaps.came_in(who) - before, now - since);
            let word = self.harness.set_gate(client, GateState::Open);
            self.follow_ups.push_back(Event::Entered { client, word, moved, took });
            self.words.push_back(Word::Pass { who, moves: false });
        }
    }
}

fn who(client: ClientId) -> Who {
    usize::try_from(client.0 - 1).unwrap_or(usize::MAX)
}

impl Policy for Gpushare {
    fn name(&self) -> &'static str {
        "gpushare"
    }

    /// Begin of the idle grace: the moment when another session waits.
    fn lets_go_at(&self, now: Nanos, _: Nanos, grace: Nanos) -> Nanos {
        now + grace
    }

    fn arrives(&mut self, now: Nanos, who: Who, tenant: &Tenant) {
        for event in tenant.introduction(number(who), self.capacity) {
            match (event, self.swaps.is_some()) {
                (Event::Attached { client, gpu, used }, true) => {
                    let report = self.swaps.as_mut().map(|swaps| swaps.begin(who, gpu, used));
                    self.tell(now, Event::Attached { client, gpu, used: Bytes::ZERO });
                    self.tell(
                        now,
                        Event::Reserve { client, gpu, request: RequestId(number(who)), bytes: used },
                    );
                    report.into_iter().for_each(|report| self.tell(now, report));
                }
                (event @ Event::ClientJoined { client, .. }, true) => {
                    self.tell(now, event);
                    self.tell(now, Event::Remaps { client });
                }
                (event, _) => self.tell(now, event),
            }
        }
    }

    fn wants(&mut self, now: Nanos, who: Who) {
        let client = client(who);
        self.sessions[who].waits = true;
        let word = self.harness.gate(client);
        self.tell(now, Event::Wait { client, word });
    }

    fn entered(&mut self, now: Nanos, who: Who, moved: Bytes, took: Nanos) {
        let client = client(who);
        if self.harness.gate(client).state() == GateState::Moving {
            let word = self.harness.set_gate(client, GateState::Open);
            self.tell(now, Event::Entered { client, word, moved, took });
        }
    }

    fn ends_soon(&mut self, now: Nanos, who: Who) {
        let client = client(who);
        let word = self.harness.gate(client);
        self.tell(now, Event::NearlyDrained { client, word });
    }

    fn let_go(&mut self, now: Nanos, who: Who, drain: Nanos) {
        let client = client(who);
        let word = self.harness.set_gate(client, GateState::Closed);
        self.sessions[who].has_passed = false;
        self.tell(now, Event::Released { client, word, drain });
        self.go_on(now, who);
        self.follow_up(now);
    }

    fn leaves(&mut self, now: Nanos, who: Who) {
        let (client, session) = (client(who), SessionId(number(who)));
        if let Some(swaps) = &mut self.swaps {
            swaps.end(who);
        }
        self.tell(now, Event::ClientGone { client });
        self.tell(now, Event::SessionClosed { session });
    }

    fn deadline(&self) -> Option<Nanos> {
        let moves = self.swaps.as_ref().and_then(Swaps::next);
        self.harness.core.next_deadline().into_iter().chain(moves).min()
    }

    fn wake(&mut self, now: Nanos) {
        let Some((who, report)) = self.swaps.as_mut().and_then(|swaps| swaps.take(now)) else {
            return self.tell(now, Event::Tick);
        };
        self.tell(now, report);
        self.go_on(now, who);
        self.follow_up(now);
    }

    fn moves_memory(&self) -> bool {
        self.swaps.is_some()
    }

    fn moved(&self) -> Bytes {
        self.swaps.as_ref().map_or(Bytes::ZERO, Swaps::moved)
    }

    fn poll(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    fn handoffs(&self) -> u64 {
        self.quanta.len() as u64
    }

    fn quanta(self) -> Vec<Nanos> {
        self.quanta
    }
}
