//! The card as a state machine: events in, effects out, no clock, no socket.
//!
//! ```text
//!  Input ──> handle(now) ──> queues ──> compute (slices) ─┐
//!                              ^   └──> link in / out   ──┤ finished
//!                              └──────────────────────────┘
//!                        poll_effect() ──> messages to clients
//! ```
//!
//! `handle` first lets everything happen that was due before `now`, each at its own time, so that an input
//! that comes late finds the card as it would have been. `next_deadline` says when to come again.

mod calls;
mod checkpoint;
mod client;
mod ending;
mod orders;
mod refusals;
mod report;
mod start;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::compute::{Compute, TurnTaken};
use crate::constants::Constants;
use crate::gauge::Gauge;
use crate::ids::{ClientId, StreamKey, Time};
use crate::link::Link;
use crate::machine::checkpoint::{Locking, Stepping};
use crate::machine::client::{Client, Then, Waiter};
use crate::memory::physical::Physical;
use crate::memory::{IllegalAddress, Memory};
use crate::race::Races;
use crate::stats::{Counters, Interval, ProcessStats, Timeline};
use crate::walk::{Bus, Finished};
use crate::wire::{Answer, Failure, GpuDescription, Message, Question, Sticky};

/// Input of the card.
#[derive(Debug)]
pub enum Input {
    /// Somebody connected.
    Connected {
        /// Their number, never used before.
        client: ClientId,
        /// Their process id.
        pid: u32,
        /// Their user id.
        user: u32,
    },
    /// Somebody said something.
    Said {
        /// Who.
        client: ClientId,
        /// What.
        question: Question,
        /// The bytes that came along.
        payload: Vec<u8>,
    },
    /// Somebody hung up, or died.
    Gone(ClientId),
    /// Only time has passed.
    Tick,
}

/// Effect that the card asks its server for.
#[derive(Debug)]
pub enum Effect {
    /// Say this to a client.
    Say {
        /// To whom.
        client: ClientId,
        /// What.
        message: Message,
        /// Bytes that go along.
        payload: Vec<u8>,
        /// A descriptor that goes along.
        fd: Option<OwnedFd>,
    },
    /// Switch off.
    Stop,
}

/// The card.
#[derive(Debug)]
pub struct Card {
    now: Time,
    gpus: Vec<Gpu>,
    memory: Memory,
    races: Races,
    clients: BTreeMap<ClientId, Client>,
    ended: VecDeque<ProcessStats>,
    total_forgotten: Counters,
    timers: BTreeMap<(Time, u64), Timer>,
    timers_set: u64,
    polling: bool,
    calls_made: u64,
    timeline: Timeline,
    effects: VecDeque<Effect>,
}

#[derive(Debug)]
struct Gpu {
    description: GpuDescription,
    compute: Compute,
    link_in: Link,
    link_out: Link,
    /// Time of all finished turns.
    busy: Time,
    gauge: Gauge,
    /// Whether the GPU has fallen off the bus.
    lost: bool,
    /// Xids that the GPU has reported, the oldest first.
    xids: Vec<u64>,
}

#[derive(Debug)]
enum Timer {
    /// A call is over. Its answer carries the descriptor.
    Done {
        client: ClientId,
        token: Option<u64>,
        fd: Option<OwnedFd>,
    },
    /// A call that took references to physical memory away is over.
    Release {
        client: ClientId,
        token: Option<u64>,
        taken: Vec<Rc<Physical>>,
    },
    Reclaim(ClientId),
    /// A process that is to be locked is looked at again.
    Lock(Locking),
    /// A step of a checkpoint is over.
    Step(Stepping),
    PauseOver(StreamKey),
    Poll,
}

impl Card {
    /// A card with these GPUs.
    pub fn new(constants: Constants, gpus: Vec<GpuDescription>) -> Self {
        let memory = Memory::new(constants, gpus.iter().map(|gpu| gpu.memory));
        let gpu = |description| Gpu {
            description,
            compute: Compute::default(),
            link_in: Link::default(),
            link_out: Link::default(),
            busy: Time::ZERO,
            gauge: Gauge::default(),
            lost: false,
            xids: Vec::new(),
        };
        Self {
            now: Time::ZERO,
            gpus: gpus.into_iter().map(gpu).collect(),
            memory,
            races: Races::default(),
            clients: BTreeMap::new(),
            ended: VecDeque::new(),
            total_forgotten: Counters::default(),
            timers: BTreeMap::new(),
            timers_set: 0,
            polling: false,
            calls_made: 0,
            timeline: Timeline::default(),
            effects: VecDeque::new(),
        }
    }

    /// Lets everything happen until `now`, then the input.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.advance(now);
        self.apply(input);
        self.note_load();
    }

    fn apply(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::Connected { client, pid, user } => {
                self.clients.insert(client, Client::new(pid, user));
            }
            Input::Gone(client) => self.gone(client),
            Input::Said { client, question, payload } => {
                let token = question.token;
                let answer = self.obey(client, question, payload);
                if let Some(result) = answer.transpose() {
                    self.answer(client, token, result);
                }
                self.pump(client);
            }
        }
    }

    /// When `handle` must be called again at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let engines = self.gpus.iter().flat_map(|gpu| {
            [gpu.compute.next_deadline(), gpu.link_in.next_deadline(), gpu.link_out.next_deadline()]
        });
        let timer = self.timers.first_key_value().map(|((time, _), _)| *time);
        engines.flatten().chain(timer).min().map(|time| time.max(self.now))
    }

    /// The next thing to do for the card.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn advance(&mut self, until: Time) {
        while let Some(time) = self.next_deadline().filter(|time| *time <= until) {
            self.now = time;
            self.step();
            self.note_load();
        }
        self.now = self.now.max(until);
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Timer::Done { client, token, fd } => {
                    if let Some(token) = token {
                        self.say(client, Message::Answer(token, Ok(Answer::Done)), Vec::new(), fd);
                    }
                }
                Timer::Release { client, token, taken } => {
                    taken.into_iter().for_each(|physical| self.memory.let_go(physical));
                    self.answer(client, token, Ok(Answer::Done));
                }
                Timer::Reclaim(client) => self.reclaim(client),
                Timer::Lock(locking) => self.lock(locking),
                Timer::Step(stepping) => self.end_step(&stepping),
                Timer::PauseOver(key) => self.complete(key),
                Timer::Poll => self.poll_values(),
            }
        }
        let mut finished = Vec::new();
        for index in 0..self.gpus.len() {
            let gpu = &mut self.gpus[index];
            let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
            let taken = if due(gpu.compute.next_deadline()) {
                gpu.compute.step(now, &mut self.memory, &mut finished)
            } else {
                None
            };
            let both = gpu.link_in.copies_pinned(&self.memory) && gpu.link_out.copies_pinned(&self.memory);
            let bus = if both { Bus::BothWays } else { Bus::Alone };
            for link in [&mut gpu.link_in, &mut gpu.link_out] {
                if due(link.next_deadline()) {
                    link.step(now, &mut self.memory, bus, &mut finished);
                }
            }
            self.note_turn(index, taken);
        }
        for Finished { key, outcome } in finished {
            match outcome {
                Err(IllegalAddress) => self.poison(key.client, Sticky::IllegalAddress),
                Ok(delivery) => {
                    if let Some(delivery) = delivery {
                        let message = Message::Answer(delivery.token, Ok(Answer::Done));
                        self.say(key.client, message, delivery.data, None);
                    }
                    self.complete(key);
                }
            }
        }
    }

    fn complete(&mut self, key: StreamKey) {
        self.races.end(key);
        if let Some(client) = self.clients.get_mut(&key.client) {
            client.complete(key.stream, self.now);
        }
        self.pump(key.client);
    }

    /// Starts what can start, then answers who waited for what is done.
    fn pump(&mut self, id: ClientId) {
        loop {
            let Some(client) = self.clients.get_mut(&id) else {
                return;
            };
            let Some((stream, task)) = client.queues.start_next() else {
                break;
            };
            self.start(StreamKey { client: id, stream }, task);
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let queues = &client.queues;
        let is_done = |waiter: &mut Waiter| waiter.fences.iter().all(|fence| queues.done(*fence));
        let done: Vec<Waiter> = client.waiters.extract_if(.., is_done).collect();
        let poisoned = client.poisoned;
        for Waiter { token, then, .. } in done {
            let result = match then {
                Then::Answer => {
                    self.memory.trim_pools(id);
                    poisoned.map_or(Ok(()), |error| Err(Failure::Sticky(error)))
                }
                Then::Free(address) => self.memory.free(id, address),
                Then::DestroyContext(context) => self.destroy_context(id, context),
            };
            self.answer(id, token, result.map(|()| Answer::Done));
        }
    }

    /// Tells the sensors whether somebody computes.
    fn note_load(&mut self) {
        for gpu in &mut self.gpus {
            gpu.gauge.set(self.now, gpu.compute.running().is_some());
        }
    }

    fn note_turn(&mut self, gpu: usize, taken: Option<TurnTaken>) {
        let Some(TurnTaken { client, from, to }) = taken else {
            return;
        };
        let time = to.saturating_sub(from);
        self.gpus[gpu].busy += time;
        self.memory.counters.entry(client).or_default().compute_nanos += nanos(time);
        let Some(pid) = self.clients.get(&client).map(|client| client.pid) else {
            return;
        };
        let gpu = u32::try_from(gpu).unwrap_or(u32::MAX);
        self.timeline.push(Interval { gpu, pid, from: nanos(from), to: nanos(to) });
    }

    fn set_timer(&mut self, at: Time, timer: Timer) {
        self.timers.insert((at, self.timers_set), timer);
        self.timers_set += 1;
    }

    fn answer(&mut self, client: ClientId, token: Option<u64>, result: Result<Answer, Failure>) {
        if let Some(token) = token {
            self.say(client, Message::Answer(token, result), Vec::new(), None);
        }
    }

    fn say(&mut self, client: ClientId, message: Message, payload: Vec<u8>, fd: Option<OwnedFd>) {
        self.effects.push_back(Effect::Say { client, message, payload, fd });
    }
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
