//! gpushare's own core, told what the daemon would tell it, with processes that answer as the library does.
//!
//! Each session has one process. Its words are numbered as in its page, so a message that is late would
//! count as late.

use std::collections::{BTreeSet, VecDeque};

use gpushare_core::harness::Harness;
use gpushare_core::{Config, Core, Effect, Event, Notice};
use gpushare_proto::page::FLAG_WANTED;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, SessionId};

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
        };
        for gpu in (0..machine.gpus).map(GpuId) {
            let total = machine.capacity;
            scheduler.tell(Nanos::ZERO, Event::GpuFound { gpu, total });
        }
        scheduler
    }

    fn tell(&mut self, now: Nanos, event: Event) {
        self.harness.now = now;
        self.harness.tell(event);
        // Leases are exact here, so nothing lies unused.
        while let Some(effect) = self.harness.poll_effect(Bytes::ZERO) {
            match effect {
                Effect::Gate { client, word, .. } => {
                    let who = who(client);
                    self.words.push_back(match word.state() {
                        GateState::Closed => Word::Shut { who },
                        state => Word::Pass { who, moves: state == GateState::Moving },
                    });
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
            self.tell(now, event);
        }
    }

    fn wants(&mut self, now: Nanos, who: Who) {
        let client = client(who);
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
        self.tell(now, Event::Released { client, word, drain });
    }

    fn leaves(&mut self, now: Nanos, who: Who) {
        let (client, session) = (client(who), SessionId(number(who)));
        self.tell(now, Event::ClientGone { client });
        self.tell(now, Event::SessionClosed { session });
    }

    fn deadline(&self) -> Option<Nanos> {
        self.harness.core.next_deadline()
    }

    fn wake(&mut self, now: Nanos) {
        self.tell(now, Event::Tick);
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
