//! Lanes: the loops of the threads that carry out what the engine and the pool of a card order.
//!
//! ```text
//!   lane of calls   ── an order ──▶ driver call ── answer ──▶ ┐
//!   lane of copies  ── an order ──▶ copy begins ── end ─────▶ ├─ moving (one lock) ── changed ──▶ all lanes
//!   lanes of tasks  ── a task ────▶ touch, register ────────▶ ┘
//! ```
//!
//! The lock is held between two driver calls, never in one. A lane without an order sleeps until something
//! changes. Only the lane of copies looks again after a pause, while copies are under way. The lanes of tasks are
//! many and seldom needed, so they sleep until there is a task.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::blocks::Blocks;
use super::host::{self, HostMemory, Pool};
use super::swap::{Engine, Lane, Order, Phase};
use super::vmm::{Vmm, VmmError, perform};
use crate::driver::types::CUdeviceptr;
use crate::process::lock;

/// Pause between two looks at copies that are under way. A chunk takes half a millisecond or more.
const POLL: Duration = Duration::from_micros(50);

/// Card and gate, as the lanes use them.
pub trait Hardware: Vmm {
    /// Returns the address of a copy that has ended and was not returned before, with its result.
    fn ended(&self) -> Option<(CUdeviceptr, Result<(), VmmError>)>;
    /// Marks the process's gate as evicting, or removes this card's mark.
    ///
    /// # Errors
    /// Work may be in flight.
    #[expect(clippy::result_unit_err, reason = "there is one way to fail")]
    fn set_guard(&self, is_set: bool) -> Result<(), ()>;
    /// Asks for another proof that nothing is in flight, after the engine has heard that its mark was refused.
    fn ask_for_proof(&self);
}

/// Blocks of a card and the pool of their slots, under one lock.
#[derive(Debug, Default)]
pub struct Moving {
    /// Blocks and their engine.
    pub blocks: Blocks,
    /// Slots of registered host memory.
    pub pool: Pool,
    is_ending: bool,
}

impl Moving {
    /// Bounds the pool by what slots for all chunks may need.
    pub fn bound_pool(&mut self) {
        let most = self.blocks.engine().most_regions();
        self.pool.set_budget(most);
    }
}

/// State that the lanes share with the hooks and the drainer.
#[derive(Debug, Default)]
pub struct Lanes {
    moving: Mutex<Moving>,
    changed: Condvar,
    /// Notified when the pool may have tasks.
    has_tasks: Condvar,
}

impl Lanes {
    /// Creates the lanes of a card that `engine` moves.
    pub fn new(engine: Engine) -> Self {
        let moving = Moving { blocks: Blocks::new(engine), ..Moving::default() };
        Self { moving: Mutex::new(moving), ..Self::default() }
    }

    /// Changes the state and wakes all lanes.
    pub fn change<T>(&self, change: impl FnOnce(&mut Moving) -> T) -> T {
        let mut moving = lock(&self.moving);
        let result = change(&mut moving);
        self.announce(moving);
        result
    }

    /// Wakes the lanes after a change.
    fn announce(&self, moving: MutexGuard<'_, Moving>) {
        let has_tasks = moving.is_ending || moving.pool.has_tasks();
        drop(moving);
        self.changed.notify_all();
        if has_tasks {
            self.has_tasks.notify_all();
        }
    }

    /// Looks at the state without waking the lanes.
    pub fn look<T>(&self, look: impl FnOnce(&mut Moving) -> T) -> T {
        look(&mut lock(&self.moving))
    }

    /// Waits until `holds` is true for the state, and returns its value.
    pub fn wait_for<T>(&self, mut holds: impl FnMut(&mut Moving) -> Option<T>) -> T {
        let mut moving = lock(&self.moving);
        loop {
            if let Some(value) = holds(&mut moving) {
                return value;
            }
            moving = self.sleep(moving);
        }
    }

    /// Waits until `holds` is true for the state, and returns its value; `None` once the `pause` is over.
    pub fn wait_within<T>(
        &self,
        pause: Duration,
        mut holds: impl FnMut(&mut Moving) -> Option<T>,
    ) -> Option<T> {
        let began = Instant::now();
        let mut moving = lock(&self.moving);
        loop {
            if let Some(value) = holds(&mut moving) {
                return Some(value);
            }
            let left = pause.checked_sub(began.elapsed())?;
            let woken = self.changed.wait_timeout(moving, left);
            (moving, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the lanes end: what is under way ends first, and nothing begins.
    pub fn end(&self) {
        self.change(|moving| {
            moving.is_ending = true;
            moving.blocks.engine().set_phase(Phase::Parked);
        });
    }

    /// Carries out driver calls until [`Self::end`].
    pub fn run_calls(&self, hardware: &impl Hardware) {
        self.run(Lane::Calls, hardware);
    }

    /// Begins copies and reports their ends until [`Self::end`].
    pub fn run_copies(&self, hardware: &impl Hardware) {
        self.run(Lane::Copies, hardware);
    }

    fn run(&self, lane: Lane, hardware: &impl Hardware) {
        loop {
            if lane == Lane::Copies {
                while let Some((address, result)) = hardware.ended() {
                    self.change(|moving| moving.blocks.engine().copied(address, result));
                }
            }
            let mut moving = lock(&self.moving);
            let Moving { blocks, pool, is_ending } = &mut *moving;
            let (engine, sizes) = (blocks.engine(), pool.sizes());
            match engine.next(lane, pool) {
                Some(order) => {
                    drop(moving);
                    self.carry_out(order, hardware);
                }
                None if *is_ending && engine.is_quiet() => return,
                // The look itself has changed something for another lane.
                None if engine.take_changed() | (pool.sizes() != sizes) => self.announce(moving),
                None if lane == Lane::Copies && engine.is_copying() => {
                    drop(self.changed.wait_timeout(moving, POLL));
                }
                None => drop(self.sleep(moving)),
            }
        }
    }

    fn carry_out(&self, order: Order, hardware: &impl Hardware) {
        match order {
            Order::Guard(is_set) => {
                let result = hardware.set_guard(is_set);
                self.change(|moving| moving.blocks.engine().note_guard(result));
                // Not before: the phase that follows from the next proof is later than the refusal.
                if result.is_err() {
                    hardware.ask_for_proof();
                }
            }
            Order::Call(span, call) => {
                let answer = perform(call, span, hardware);
                self.change(|moving| moving.blocks.engine().done(span.address, answer));
            }
        }
    }

    /// Performs tasks of the pool until [`Self::end`]. Several threads may do so.
    pub fn run_tasks(&self, host: &impl HostMemory) {
        let mut moving = lock(&self.moving);
        loop {
            if let Some((region, task)) = moving.pool.take_task() {
                drop(moving);
                let result = host::perform(task, host);
                self.change(|moving| moving.pool.done(region, result));
                moving = lock(&self.moving);
            } else if moving.is_ending {
                return;
            } else {
                moving = self.has_tasks.wait(moving).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn sleep<'a>(&self, moving: MutexGuard<'a, Moving>) -> MutexGuard<'a, Moving> {
        self.changed.wait(moving).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use gpushare_proto::Bytes;
    use gpushare_proto::page::{Goal, GoalNumber};

    use super::*;
    use crate::remap::blocks::Allocation;
    use crate::remap::fake::FakeCard;
    use crate::remap::vmm::{Span, Tier};

    /// Allocates a block, and returns its chunks.
    fn allocate(lanes: &Lanes, card: &FakeCard, base: CUdeviceptr, size: Bytes) -> (CUdeviceptr, Vec<Span>) {
        let begun = lanes.change(|moving| moving.blocks.begin(size, |_| Ok(base)).unwrap());
        let Allocation::Backing(backing) = begun else { panic!("a block of its own") };
        while let Some((chunk, call)) = lanes.change(|moving| moving.blocks.take(&backing)) {
            let answer = perform(call, chunk, card);
            lanes.change(|moving| moving.blocks.done(chunk, answer));
        }
        let address = lanes.change(|moving| moving.blocks.finish(backing).unwrap().unwrap());
        let chunks = lanes.change(|moving| moving.blocks.engine().chunks_in(Span { address, size }));
        (address, chunks)
    }

    /// Ends the lanes, also after a failed assertion.
    struct Ending<'a>(&'a Lanes);

    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }

    fn set(lanes: &Lanes, phase: Phase, number: u64, bytes: Bytes) {
        lanes.change(|moving| {
            moving.blocks.engine().set_goal(Goal { number: GoalNumber(number), bytes });
            moving.blocks.engine().set_phase(phase);
        });
    }

    #[test]
    fn threads_move_memory_out_and_in_and_end() {
        let (lanes, card) = (Lanes::default(), FakeCard::default());
        lanes.change(|moving| moving.pool.set_budget(Bytes::gib(2)));
        thread::scope(|scope| {
            let _ending = Ending(&lanes);
            scope.spawn(|| lanes.run_calls(&card));
            scope.spawn(|| lanes.run_copies(&card));
            (0..2).for_each(|_| drop(scope.spawn(|| lanes.run_tasks(&card))));
            let (address, chunks) = allocate(&lanes, &card, 1 << 40, Bytes::gib(1));
            assert_eq!(chunks.len(), 32);
            for round in 0..50 {
                for chunk in &chunks {
                    let before = card.work(chunk.address, round + 1);
                    assert_eq!(before, round, "lost bytes at {:#x}", chunk.address);
                }
                let goal = Bytes::mib(100 * (round % 11));
                set(&lanes, Phase::Drained, 2 * round + 1, goal);
                lanes.wait_for(|moving| (moving.blocks.engine().figures().resident <= goal).then_some(()));
                set(&lanes, Phase::Entering, 2 * round + 2, Bytes::gib(1));
                lanes.wait_for(|moving| moving.blocks.engine().can_open().ok());
                assert!(!card.is_marked());
                set(&lanes, Phase::Open, 2 * round + 2, Bytes::gib(1));
            }
            assert!(lanes.change(|moving| moving.blocks.end(address)));
            lanes.wait_for(|moving| (moving.blocks.engine().chunks_in(chunks[0]).is_empty()).then_some(()));
            lanes.wait_for(|_| card.bytes(Tier::Device).is_zero().then_some(()));
        });
        card.assert_empty();
        assert!(lanes.change(|moving| moving.pool.sizes().taken.is_zero()));
    }

    #[test]
    fn memory_leaves_after_the_proof_that_follows_a_refused_mark() {
        let (lanes, card) = (Lanes::default(), FakeCard::default());
        lanes.change(|moving| moving.pool.set_budget(Bytes::gib(2)));
        card.refuse_marks(2);
        thread::scope(|scope| {
            let _ending = Ending(&lanes);
            scope.spawn(|| lanes.run_calls(&card));
            scope.spawn(|| lanes.run_copies(&card));
            scope.spawn(|| lanes.run_tasks(&card));
            allocate(&lanes, &card, 1 << 40, Bytes::mib(256));
            for refused in 1..=2 {
                set(&lanes, Phase::Drained, 1, Bytes::ZERO);
                while card.asked_for_proofs() < refused {
                    thread::yield_now();
                }
                assert_eq!(lanes.look(|moving| moving.blocks.engine().phase()), Phase::Open);
            }
            set(&lanes, Phase::Drained, 1, Bytes::ZERO);
            lanes.wait_for(|moving| moving.blocks.engine().figures().resident.is_zero().then_some(()));
            assert_eq!((card.asked_for_proofs(), card.is_marked()), (2, true));
        });
    }

    #[test]
    fn the_gate_is_marked_for_an_allocation_that_waits_for_it() {
        let (lanes, card) = (Lanes::default(), FakeCard::default());
        thread::scope(|scope| {
            let _ending = Ending(&lanes);
            scope.spawn(|| lanes.run_calls(&card));
            set(&lanes, Phase::Drained, 1, Bytes::ZERO);
            let size = Bytes::mib(256);
            assert!(lanes.look(|moving| moving.blocks.engine().may_be_hole(size)));
            lanes.change(|moving| moving.blocks.engine().wait_for_mark(true));
            lanes.wait_for(|moving| (!moving.blocks.engine().may_be_hole(size)).then_some(()));
            assert!(card.is_marked());
            lanes
                .change(|moving| moving.blocks.begin(size, |_| Ok(1 << 40)).map(drop))
                .unwrap();
            lanes.change(|moving| moving.blocks.engine().wait_for_mark(false));
            set(&lanes, Phase::Entering, 2, Bytes::ZERO);
            assert!(card.is_marked(), "the block is a hole");
            assert!(lanes.look(|moving| moving.blocks.engine().can_open().is_err()));
        });
    }

    #[test]
    fn lanes_end_in_the_middle_of_a_move() {
        for round in 0..20 {
            let (lanes, card) = (Lanes::default(), FakeCard::default());
            lanes.change(|moving| moving.pool.set_budget(Bytes::gib(2)));
            thread::scope(|scope| {
                let _ending = Ending(&lanes);
                scope.spawn(|| lanes.run_calls(&card));
                scope.spawn(|| lanes.run_copies(&card));
                scope.spawn(|| lanes.run_tasks(&card));
                allocate(&lanes, &card, 1 << 40, Bytes::gib(1));
                set(&lanes, Phase::Drained, 1, Bytes::ZERO);
                let left = Bytes::mib(64 * round % 1024);
                lanes.wait_for(|moving| {
                    let resident = moving.blocks.engine().figures().resident;
                    (resident <= Bytes::gib(1) - left).then_some(())
                });
            });
            assert!(card.copies().is_empty());
            assert!(lanes.change(|moving| moving.blocks.engine().is_quiet()));
        }
    }
}
