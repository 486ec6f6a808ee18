//! The swap engine against a card that holds real values.

mod cost;
mod loose;
mod moves;
mod packing;
mod random;
mod uses;

use std::collections::BTreeMap;

use gpushare_proto::Bytes;

use super::*;
use crate::remap::fake::FakeCard;
use crate::remap::host::{self, Pool};
use crate::remap::vmm::{Tier, perform};

const SMALL: Bytes = SMALL_CHUNK;

/// Order that was carried out and is not reported.
struct Made {
    span: Span,
    answer: Answer,
    /// Bytes of the card that the engine still counts and that are not there.
    lag: Bytes,
}

/// One process: its engine, pool and gate, and the values that its memory should have.
struct World {
    engine: Engine,
    pool: Pool,
    card: FakeCard,
    truth: BTreeMap<CUdeviceptr, (Bytes, u64)>,
    phase: Phase,
    /// Whether the gate is marked as evicting.
    is_marked: bool,
    /// Orders that are not carried out.
    orders: Vec<(Span, Call)>,
    made_orders: Vec<Made>,
    next_address: CUdeviceptr,
    next_value: u64,
    /// Calls that were made, in their order.
    made: Vec<(CUdeviceptr, Call)>,
    /// Most bytes that may be resident.
    allowed: Bytes,
}

impl World {
    fn new(is_paranoid: bool) -> Self {
        let mut pool = Pool::default();
        pool.set_budget(Bytes::gib(64));
        Self {
            engine: Engine::new(is_paranoid),
            pool,
            card: FakeCard::default(),
            truth: BTreeMap::new(),
            phase: Phase::Open,
            is_marked: false,
            orders: Vec::new(),
            made_orders: Vec::new(),
            next_address: 1 << 40,
            next_value: 0,
            made: Vec::new(),
            allowed: Bytes::MAX,
        }
    }

    /// A process whose chunks are on the card and were written.
    fn with(sizes: &[Bytes]) -> Self {
        let mut world = Self::new(false);
        for &size in sizes {
            world.allocate(size).unwrap();
        }
        world.work();
        world
    }

    fn allocate(&mut self, size: Bytes) -> Option<CUdeviceptr> {
        let span = Span { address: self.next_address, size };
        match self.engine.add(span) {
            Birth::NoRoom => return None,
            Birth::Hole => {}
            Birth::Backed => {
                while let Some(call) = self.engine.take_own(span.address) {
                    self.engine.done(span.address, perform(call, span, &self.card));
                }
                if self.engine.born(span.address).is_err() {
                    self.engine.free(span.address);
                    self.next_address += size.0;
                    return None;
                }
            }
        }
        self.next_address += size.0;
        self.truth.insert(span.address, (size, 0));
        Some(span.address)
    }

    fn free(&mut self, address: CUdeviceptr) {
        self.truth.remove(&address);
        self.engine.free(address);
    }

    /// Work reads all memory and writes it anew. The gate is open.
    fn work(&mut self) {
        assert_eq!(self.phase, Phase::Open);
        for (&address, (_, value)) in &mut self.truth {
            self.next_value += 1;
            let before = self.card.work(address, self.next_value);
            assert_eq!(before, *value, "lost bytes at {address:#x}");
            *value = self.next_value;
        }
    }

    fn set_goal(&mut self, number: u64, bytes: Bytes) {
        self.engine.set_goal(Goal { number: GoalNumber(number), bytes });
        self.allowed = bytes.max(self.engine.figures().resident);
    }

    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.engine.set_phase(phase);
    }

    /// Opens the gate if the engine lets it, and works.
    fn open(&mut self) -> Result<(), Obstacle> {
        assert_eq!(self.phase, Phase::Entering);
        self.engine.can_open()?;
        assert!(!self.is_marked, "a gate that is marked as evicting");
        self.set_phase(Phase::Open);
        self.work();
        Ok(())
    }

    /// Takes an order of a lane, which is carried out later.
    fn take(&mut self, lane: Lane) -> bool {
        match self.engine.next(lane, &mut self.pool) {
            None => false,
            Some(Order::Guard(to)) => {
                assert!(matches!(self.phase, Phase::Drained | Phase::Entering));
                self.is_marked = to;
                self.engine.note_guard(Ok(()));
                true
            }
            Some(Order::Call(span, call)) => {
                let is_live = self.truth.contains_key(&span.address);
                if is_live && call == Call::Unmap {
                    assert!(self.is_marked, "a hole behind a gate that may open");
                }
                if is_live && !matches!(call, Call::Release(_)) {
                    assert!(
                        matches!(self.phase, Phase::Drained | Phase::Entering),
                        "{call:?} with an open gate"
                    );
                }
                self.orders.push((span, call));
                true
            }
        }
    }

    /// Carries an order out and reports it.
    fn answer(&mut self, index: usize) {
        self.make(index);
        self.report(self.made_orders.len() - 1);
    }

    /// Carries an order out, which is reported later.
    fn make(&mut self, index: usize) {
        let (span, call) = self.orders.swap_remove(index);
        self.made.push((span.address, call));
        let before = self.card.bytes(Tier::Device);
        let answer = perform(call, span, &self.card);
        let lag = match (call, answer) {
            (Call::Create(Tier::Device), Answer::Failed(_)) => span.size,
            _ => before - self.card.bytes(Tier::Device),
        };
        self.made_orders.push(Made { span, answer, lag });
    }

    fn report(&mut self, index: usize) {
        let Made { span, answer, .. } = self.made_orders.swap_remove(index);
        self.engine.done(span.address, answer);
        self.check();
    }

    /// Copies that are under way and reported as begun.
    fn known_copies(&self) -> Vec<CUdeviceptr> {
        let is_known =
            |address: &CUdeviceptr| self.made_orders.iter().all(|made| made.span.address != *address);
        self.card.copies().into_iter().filter(is_known).collect()
    }

    fn land(&mut self, address: CUdeviceptr) {
        let result = self.card.land(address);
        self.engine.copied(address, result);
        self.check();
    }

    fn prepare(&mut self) -> bool {
        let task = self.pool.take_task();
        if let Some((region, task)) = task {
            self.pool.done(region, host::perform(task, &self.card));
        }
        task.is_some()
    }

    /// Takes an order of each lane that has one.
    fn take_any(&mut self) -> bool {
        Lane::ALL.map(|lane| self.take(lane)).contains(&true)
    }

    /// Takes one step of each lane, or performs a task of the pool if there is none.
    fn go(&mut self) {
        if !self.take_any() {
            self.prepare();
        }
        while !self.orders.is_empty() {
            self.answer(0);
        }
    }

    fn go_until(&mut self, is_reached: impl Fn(&Self) -> bool) {
        for _ in 0..10_000 {
            if is_reached(self) {
                return;
            }
            self.go();
        }
        panic!("never reached: {:?}", self.engine.figures());
    }

    /// Runs all lanes until nothing is left to do.
    fn run(&mut self) {
        loop {
            let mut goes_on = self.take_any();
            while !self.orders.is_empty() {
                self.answer(0);
            }
            assert!(self.card.copies().len() <= DEPTH);
            // Copies end in their order, once no other step is left.
            if !goes_on {
                goes_on = self.prepare();
            }
            if let Some(&address) = self.known_copies().first().filter(|_| !goes_on) {
                self.land(address);
                goes_on = true;
            }
            if !goes_on {
                break;
            }
        }
        self.check();
    }

    /// All bytes are accounted, and the goal is kept.
    fn check(&mut self) {
        self.engine.chunks.check();
        let figures = self.engine.figures();
        let creating: Bytes = self
            .orders
            .iter()
            .filter(|(_, call)| *call == Call::Create(Tier::Device))
            .map(|(span, _)| span.size)
            .sum();
        let lag: Bytes = self.made_orders.iter().map(|made| made.lag).sum();
        assert_eq!(figures.resident, self.card.bytes(Tier::Device) + creating + lag);
        assert_eq!(figures.slots, self.pool.sizes().taken);
        assert!(figures.resident <= self.allowed, "{figures:?} beyond {}", self.allowed);
        self.allowed = figures.resident.max(self.engine.goal.bytes).min(self.allowed);
        let live: Bytes = self.truth.values().map(|(size, _)| *size).sum();
        let leaving: Bytes = self
            .engine
            .chunks
            .values()
            .filter(|entry| entry.chunk.aim() == Aim::Gone)
            .map(|entry| entry.chunk.footprint().device)
            .sum();
        let owned = live + self.engine.loose.device + self.engine.loose.host;
        assert_eq!(owned, figures.resident - leaving + figures.hosted + figures.unbacked, "{figures:?}");
    }

    /// Brings everything in, checks it, frees it, and finds nothing left.
    fn end(mut self) {
        self.card.fail_at(&[]);
        while !self.made_orders.is_empty() {
            self.report(0);
        }
        while !self.orders.is_empty() {
            self.answer(0);
        }
        self.engine.retry();
        self.pool.retry();
        self.pool.set_budget(Bytes::gib(64));
        self.set_goal(u64::MAX, Bytes::MAX);
        if self.phase != Phase::Open {
            self.set_phase(Phase::Entering);
            self.run();
            assert_eq!(self.open(), Ok(()));
        }
        self.work();
        for address in self.truth.keys().copied().collect::<Vec<_>>() {
            self.free(address);
        }
        self.run();
        self.card.assert_empty();
        assert!(self.engine.chunks.addresses().is_empty() && self.engine.is_quiet());
        assert_eq!(self.pool.sizes().taken, Bytes::ZERO);
        self.pool.set_budget(Bytes::ZERO);
        while self.prepare() {}
        assert_eq!(self.card.regions(), 0);
    }
}
