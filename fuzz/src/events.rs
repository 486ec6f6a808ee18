//! Any bytes as a list of events with times, which the decision machine must survive with its rules intact.
//!
//! Ids are few, so that events meet; amounts are round, tiny or as large as can be; time stands still,
//! passes, jumps, and now and then runs backwards. The shell's contract is kept in one thing, that a recall
//! is answered before anything else is told; how much was taken back may be a lie, and so may all that a
//! page says.

use std::collections::BTreeSet;

use gpushare_core::config::{StuckPolicy, Tuning};
use gpushare_core::harness::Harness;
use gpushare_core::{Config, Core, Effect, Event, Standing, UserId};
use gpushare_proto::admin::{Knob, Mode, Setting};
use gpushare_proto::page::GoalNumber;
use gpushare_proto::session::Priority;
use gpushare_proto::tenant::Residence;
use gpushare_proto::{
    Bytes, ClientId, Epoch, GateState, GateWord, GpuId, Nanos, Percent, RequestId, SessionId,
};

/// Number of events that the core was given, and of effects that it returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Events.
    pub events: u64,
    /// Effects.
    pub effects: u64,
}

/// Bytes that are used up, and zero when they are.
struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    fn maybe<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| some(self))
    }

    fn bytes(&mut self) -> Bytes {
        match self.byte() {
            amount @ 0..160 => Bytes::mib(u64::from(amount) * 64),
            160..200 => Bytes(u64::from(self.byte())),
            200..220 => Bytes::gib(u64::from(self.byte())),
            220..235 => Bytes::MAX,
            235..245 => Bytes(u64::MAX - u64::from(self.byte())),
            _ => Bytes(self.number()),
        }
    }

    fn time(&mut self) -> Nanos {
        match self.byte() {
            0..60 => Nanos::ZERO,
            60..140 => Nanos(u64::from(self.byte()) * 1000),
            140..200 => Nanos::from_millis(u64::from(self.byte())),
            200..245 => Nanos::from_millis(u64::from(self.byte()) * 100),
            245..253 => Nanos::from_secs(u64::from(self.byte()) * 1000),
            _ => Nanos(self.number()),
        }
    }

    fn gpu(&mut self) -> GpuId {
        GpuId(self.below(3))
    }

    fn client(&mut self) -> ClientId {
        ClientId(u64::from(self.below(6)))
    }

    fn session(&mut self) -> SessionId {
        SessionId(u64::from(self.below(4)))
    }

    fn user(&mut self) -> UserId {
        UserId(u64::from(self.below(3)))
    }

    fn priority(&mut self) -> Priority {
        match self.below(3) {
            0 => Priority::Low,
            1 => Priority::Normal,
            _ => Priority::High,
        }
    }

    fn request(&mut self) -> RequestId {
        RequestId(u64::from(self.byte()))
    }

    fn word(&mut self, gates: &[GateWord]) -> GateWord {
        let state = match self.below(4) {
            0 => GateState::Closed,
            1 => GateState::Open,
            2 => GateState::Moving,
            _ => GateState::Idle,
        };
        match (self.below(4), gates.is_empty()) {
            (0..3, false) => {
                let word = gates[usize::from(self.byte()) % gates.len()];
                if self.flag() { word } else { word.with(state) }
            }
            _ => GateWord::new(u32::from(self.below(8)), state),
        }
    }

    fn mode(&mut self) -> Mode {
        Mode::ALL[usize::from(self.below(3))]
    }

    fn knob(&mut self) -> Knob {
        match self.below(7) {
            0 => Knob::Quantum(self.maybe(Self::time)),
            1 => Knob::Mode(self.maybe(Self::mode)),
            2 => Knob::Capacity(self.maybe(Self::bytes)),
            3 => Knob::ManagedLimit(self.bytes()),
            4 => Knob::WindowTarget(self.time()),
            5 => Knob::ContextReserve(self.bytes()),
            _ => Knob::Epsilon(Percent(u32::from(self.byte()) * 100)),
        }
    }

    fn tuning(&mut self) -> Tuning {
        match self.below(8) {
            0 => Tuning::QuantumMin(self.time()),
            1 => Tuning::QuantumMax(self.time()),
            2 => Tuning::DrainTarget(self.time()),
            3 => Tuning::ParallelAfter(self.time()),
            4 => Tuning::LimitWindow(self.time()),
            5 => Tuning::BudgetMax(self.time()),
            6 => Tuning::LeaseChunk(self.bytes()),
            _ => Tuning::Trickle(Percent(u32::from(self.byte()) * 100)),
        }
    }

    fn config(&mut self) -> Config {
        let mut config = Config {
            stuck_policy: match self.below(3) {
                0 => StuckPolicy::Wait,
                1 => StuckPolicy::RunOthers,
                _ => StuckPolicy::Kill,
            },
            ..Config::default()
        };
        config.mode = self.maybe(Self::mode);
        config.capacity = self.maybe(Self::bytes);
        config.managed_limit = self.maybe(Self::bytes);
        config.quantum = self.maybe(Self::time);
        config
    }
}

/// Plays them all, then lets every client die.
///
/// # Panics
/// The machine panics, or a rule of it is broken.
pub fn play(input: &[u8]) -> Played {
    let mut tape = Tape(input);
    let config = tape.config();
    let expected: BTreeSet<ClientId> = (0..tape.below(3)).map(|id| ClientId(u64::from(id))).collect();
    let start = Nanos::from_secs(1000);
    let mut stage = Stage {
        harness: Harness::new(Core::new(config, 7, expected, start), start),
        gates: Vec::new(),
        played: Played::default(),
    };
    // Without a card and a session nothing would ever happen.
    for gpu in 0..2 {
        let total = Bytes::gib(8);
        stage.tell(Event::GpuFound { gpu: GpuId(gpu), total });
    }
    for session in 0..2 {
        let session = SessionId(session);
        stage.tell(Event::SessionOpened { session, limit: None, oversubscribe: false });
    }
    while !tape.0.is_empty() {
        let now = stage.harness.now;
        let next = match tape.below(32) {
            0 => now - tape.time(),
            1..8 => stage.harness.core.next_deadline().unwrap_or(now).max(now),
            _ => now + tape.time(),
        };
        // Time in nanoseconds does not run out while a machine runs.
        stage.harness.now = next.min(Nanos(u64::MAX / 2));
        let event = event(&mut tape, &stage.gates);
        let mut asked = stage.tell(event);
        while let Some((client, gpu, bytes)) = asked.pop() {
            let bytes = match tape.below(3) {
                0 => bytes,
                1 => Bytes::ZERO,
                _ => tape.bytes(),
            };
            asked.extend(stage.tell(Event::Recalled { client, gpu, bytes }));
        }
    }
    for client in 0..6 {
        stage.tell(Event::ClientGone { client: ClientId(client) });
    }
    let end = stage.harness.core.snapshot(stage.harness.now);
    for gpu in end.gpus {
        assert_eq!(
            (gpu.allocated_bytes, gpu.holders, gpu.queue),
            (Bytes::ZERO, Vec::new(), Vec::new()),
            "the dead hold something"
        );
    }
    stage.played
}

struct Stage {
    harness: Harness,
    /// The latest words that were given out.
    gates: Vec<GateWord>,
    played: Played,
}

impl Stage {
    /// Bytes that the core recalls now.
    fn tell(&mut self, event: Event) -> Vec<(ClientId, GpuId, Bytes)> {
        const REMEMBERED: usize = 8;
        let (effects, rules) = self.harness.step(event);
        rules.unwrap_or_else(|broken| panic!("after {event:?}: {broken}"));
        self.played.events += 1;
        self.played.effects += effects.len() as u64;
        let words = effects.iter().filter_map(|effect| match effect {
            Effect::Gate { word, .. } => Some(*word),
            _ => None,
        });
        self.gates.extend(words);
        let old = self.gates.len().saturating_sub(REMEMBERED);
        self.gates.drain(..old);
        let _ = self.harness.core.snapshot(self.harness.now);
        let recalls = effects.iter().filter_map(|effect| match *effect {
            Effect::Recall { client, gpu, bytes } => Some((client, gpu, bytes)),
            _ => None,
        });
        recalls.collect()
    }
}

fn event(tape: &mut Tape<'_>, gates: &[GateWord]) -> Event {
    let (client, gpu) = (tape.client(), tape.gpu());
    match tape.below(30) {
        0 => Event::GpuFound { gpu, total: tape.bytes() },
        1 => Event::SessionOpened {
            session: tape.session(),
            limit: tape.maybe(Tape::bytes),
            oversubscribe: tape.flag(),
        },
        2 => Event::SessionClosed { session: tape.session() },
        3..6 => Event::ClientJoined {
            client,
            session: tape.session(),
            holding: tape.maybe(|tape| Epoch {
                generation: u64::from(tape.below(9)),
                counter: u64::from(tape.byte()),
            }),
        },
        6 => match tape.below(2) {
            0 => Event::ClientGone { client },
            _ => Event::ClientEnded { client },
        },
        7..9 => Event::Attached { client, gpu, used: tape.bytes() },
        9 => Event::Contexts { client, gpu, live: u32::from(tape.byte()) },
        10 => Event::LeaseSeen { client, gpu, free: tape.bytes() },
        11..13 => Event::Reserve { client, gpu, request: tape.request(), bytes: tape.bytes() },
        13 => Event::Recalled { client, gpu, bytes: tape.bytes() },
        14 => match tape.below(4) {
            0 => Event::Trim { client, gpu },
            _ => remapped(tape, client, gpu),
        },
        15..17 => Event::Wait { client, word: tape.word(gates) },
        17 => Event::Entered { client, word: tape.word(gates), moved: tape.bytes(), took: tape.time() },
        18 => match tape.below(3) {
            0 => Event::NearlyDrained { client, word: tape.word(gates) },
            _ => Event::Released { client, word: tape.word(gates), drain: tape.time() },
        },
        19 => match tape.below(4) {
            0 => Event::ExpectedGone { client },
            1 => match tape.below(2) {
                0 => Event::Lead { session: tape.session(), gpu, lead_ns: tape.bytes().0.cast_signed() },
                _ => Event::UserLead {
                    user: tape.user(),
                    priority: tape.priority(),
                    gpu,
                    lead_ns: tape.bytes().0.cast_signed(),
                },
            },
            _ => Event::ExpectedUses { client, gpu, bytes: tape.bytes() },
        },
        20 => match tape.below(4) {
            0 => Event::Tune(tape.tuning()),
            _ => Event::Set(Setting { gpu: tape.maybe(Tape::gpu), knob: tape.knob() }),
        },
        21 => Event::ReserveFixed { client, gpu, request: tape.request(), bytes: tape.bytes() },
        22 => match tape.below(4) {
            0 => Event::Fixed { client, gpu, bytes: tape.bytes() },
            1 => Event::Returned { client, gpu, bytes: tape.bytes() },
            2 => Event::ClientReturned { client, waiting: tape.flag() },
            _ => Event::StillUses { client, gpu, bytes: tape.bytes() },
        },
        23 => Event::Room { client, gpu, request: tape.request(), bytes: tape.bytes() },
        24 => Event::Overhead { client, gpu, bytes: tape.maybe(Tape::bytes) },
        25 => Event::Quota { session: tape.session(), gpu, limit: tape.maybe(Tape::bytes) },
        26 => Event::Standing {
            session: tape.session(),
            standing: match tape.below(3) {
                0 => Standing::Good,
                1 => Standing::Paused,
                _ => Standing::Over,
            },
        },
        27 => match tape.below(3) {
            0 => {
                let (session, weight) = (tape.session(), u32::from(tape.byte()) * 50);
                Event::Share { session, weight, priority: tape.priority() }
            }
            1 => {
                let idle = tape.flag().then(|| tape.time());
                Event::FreezeAfter { session: tape.session(), idle }
            }
            _ => {
                let (session, user) = (tape.session(), tape.user());
                Event::Owner { session, user, weight: u32::from(tape.byte()) * 50 }
            }
        },
        28 => Event::Compute {
            session: tape.session(),
            gpu,
            limit: tape.flag().then(|| Percent(u32::from(tape.byte()) * 40)),
        },
        _ => Event::Tick,
    }
}

/// Event about remapped memory.
fn remapped(tape: &mut Tape<'_>, client: ClientId, gpu: GpuId) -> Event {
    match tape.below(9) {
        0..2 => Event::Remaps { client },
        2 => Event::Measured { client, gpu, bytes: tape.bytes() },
        3 => {
            let (number, refused) = (GoalNumber(u64::from(tape.below(9))), tape.bytes());
            Event::MoveFailed { client, gpu, number, refused }
        }
        4 => Event::HostBudget { bytes: tape.bytes() },
        5 => Event::CardFree { gpu, bytes: tape.bytes() },
        6 => Event::ReservePiece { client, gpu, request: tape.request(), bytes: tape.bytes() },
        _ => {
            let [resident, hosted, unbacked, pinned, prepared, mapped, copied_out] =
                std::array::from_fn(|_| tape.bytes());
            let residence = Residence { resident, hosted, unbacked, pinned, prepared, mapped, copied_out };
            Event::Resides { client, gpu, seen: GoalNumber(u64::from(tape.below(9))), residence }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpushare_tests::dice::Dice;

    use super::*;

    #[test]
    fn no_bytes_at_all_are_a_run_too() {
        assert_eq!(play(&[]).events, 10);
    }

    #[test]
    fn a_few_hundred_runs_keep_every_rule() {
        let mut dice = Dice::new(1);
        for _ in 0..300 {
            let length = dice.index(800);
            play(&dice.bytes(length));
        }
    }
}
