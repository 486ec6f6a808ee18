//! Allocations and frees as the hooks make them, with evictions in between and calls that fail.

use gpushare_proto::page::{Goal, GoalNumber};
use proptest::prelude::*;

use super::*;
use crate::remap::chunk::Place;
use crate::remap::fake::FakeCard;
use crate::remap::host::{self, Pool};
use crate::remap::names::Names;
use crate::remap::swap::{Lane, Order, Phase, SMALL_CHUNK};
use crate::remap::vmm::{Tier, Vmm as _, perform};

const BASE: CUdeviceptr = 1 << 40;

#[derive(Default)]
struct Rig {
    blocks: Blocks,
    card: FakeCard,
    pool: Pool,
    reserved: CUdeviceptr,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self::default();
        rig.pool.set_budget(Bytes::gib(64));
        rig
    }

    fn begin(&mut self, size: Bytes) -> Result<Allocation, AllocationError> {
        let reserved = &mut self.reserved;
        self.blocks.begin(size, |whole| {
            *reserved += whole.0;
            Ok(BASE + *reserved - whole.0)
        })
    }

    fn allocate(&mut self, size: Bytes) -> Result<CUdeviceptr, AllocationError> {
        loop {
            match self.begin(size)? {
                Allocation::Ready(address) => return Ok(address),
                Allocation::Backing(backing) => {
                    while let Some((chunk, call)) = self.blocks.take(&backing) {
                        self.blocks.done(chunk, perform(call, chunk, &self.card));
                    }
                    if let Some(address) = self.blocks.finish(backing)? {
                        return Ok(address);
                    }
                }
            }
        }
    }

    /// Runs the engine until nothing is left to do.
    fn run(&mut self) {
        loop {
            let engine = self.blocks.engine();
            let order = engine
                .next(Lane::Calls, &mut self.pool)
                .or_else(|| engine.next(Lane::Copies, &mut self.pool))
                .or_else(|| engine.next(Lane::Digests, &mut self.pool));
            if let Some(order) = order {
                match order {
                    Order::Guard(_) => engine.note_guard(Ok(())),
                    Order::Call(span, call) => engine.done(span.address, perform(call, span, &self.card)),
                }
            } else if let Some((region, task)) = self.pool.take_task() {
                self.pool.done(region, host::perform(task, &self.card));
            } else if let Some(&address) = self.card.copies().first() {
                self.blocks.engine().copied(address, self.card.land(address));
            } else {
                break;
            }
        }
        self.blocks.collect();
    }

    fn set(&mut self, phase: Phase, number: u64, bytes: Bytes) {
        self.blocks.engine().set_phase(phase);
        self.blocks.engine().set_goal(Goal { number: GoalNumber(number), bytes });
        self.run();
    }

    fn end(mut self) {
        self.card.fail_at(&[]);
        self.blocks.engine().retry();
        for address in self.blocks.blocks.keys().copied().collect::<Vec<_>>() {
            assert!(self.blocks.end(address));
        }
        self.blocks.end_unused();
        self.run();
        self.card.assert_empty();
        assert!(self.blocks.space.is_unused());
        assert_eq!(self.pool.sizes().taken, Bytes::ZERO);
    }
}

#[test]
fn an_allocation_whose_first_chunk_fails_makes_no_further_ones() {
    let mut rig = Rig::new();
    let Ok(Allocation::Backing(backing)) = rig.begin(Bytes::mib(512)) else {
        panic!("a block of its own")
    };
    let (chunk, call) = rig.blocks.take(&backing).unwrap();
    rig.blocks.done(chunk, Answer::Failed(VmmError::OutOfMemory));
    assert_eq!(rig.blocks.take(&backing), None, "after {call:?} of {chunk:?}");
    assert_eq!(rig.blocks.engine().trouble(), None, "the allocation itself reports it");
    assert_eq!(rig.blocks.finish(backing), Err(VmmError::OutOfMemory.into()));
    rig.run();
    rig.end();
}

#[test]
fn small_requests_share_a_block_and_large_ones_have_chunks_of_their_own() {
    let mut rig = Rig::new();
    let small = [100, 5_000, 1 << 20].map(|size| rig.allocate(Bytes(size)).unwrap());
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(2));
    assert!(small.windows(2).all(|pair| pair[0] < pair[1]));
    let large = rig.allocate(Bytes::mib(300)).unwrap();
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(302));
    assert_eq!(rig.blocks.around(large + (300 << 20) - 1).map(|block| block.address), Some(large));
    assert_eq!(rig.blocks.around(small[1] + 5_000).map(|block| block.address), Some(small[1]));
    assert_eq!(rig.blocks.around(large + (300 << 20)), None);
    assert!(rig.blocks.end(large) && !rig.blocks.end(large), "a block is freed once");
    rig.run();
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(2));
    rig.end();
}

#[test]
fn an_address_is_used_again_only_once_nothing_is_left_of_its_memory() {
    let mut rig = Rig::new();
    let first = rig.allocate(Bytes::mib(64)).unwrap();
    rig.blocks.end(first);
    let second = rig.allocate(Bytes::mib(64)).unwrap();
    assert_ne!(first, second, "the first one is still mapped");
    rig.run();
    assert_eq!(rig.allocate(Bytes::mib(64)), Ok(first));
    rig.end();
}

#[test]
fn a_block_that_is_away_is_freed_without_coming_back() {
    let mut rig = Rig::new();
    rig.pool.set_target(Bytes::mib(512));
    let address = rig.allocate(Bytes::mib(256)).unwrap();
    rig.set(Phase::Drained, 1, Bytes::ZERO);
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::ZERO);
    rig.card.fail_at(&[]);
    assert!(rig.blocks.end(address));
    rig.run();
    assert_eq!((rig.card.calls(), rig.pool.sizes().taken), (0, Bytes::ZERO));
    rig.end();
}

#[test]
fn a_request_beyond_the_goal_takes_nothing_and_says_how_much_it_needs() {
    let mut rig = Rig::new();
    rig.set(Phase::Open, 1, Bytes::mib(100));
    assert_eq!(rig.allocate(Bytes::mib(130)), Err(AllocationError::NoRoom(Bytes::mib(130))));
    rig.run();
    assert!(rig.blocks.space.is_unused());
    assert!(rig.allocate(Bytes::mib(90)).is_ok());
    rig.end();
}

impl Rig {
    /// Begins an allocation, gives another goal after so many calls, and makes the calls that are left.
    fn begin_until(&mut self, size: Bytes, calls: usize, goal: Goal) -> Backing {
        let Ok(Allocation::Backing(backing)) = self.begin(size) else { panic!("a new block") };
        self.make(&backing, calls);
        self.blocks.engine().set_goal(goal);
        self.make(&backing, usize::MAX);
        backing
    }

    fn make(&mut self, backing: &Backing, calls: usize) {
        for _ in 0..calls {
            let Some((chunk, call)) = self.blocks.take(backing) else { break };
            self.blocks.done(chunk, perform(call, chunk, &self.card));
        }
    }
}

const fn goal(number: u64, bytes: Bytes) -> Goal {
    Goal { number: GoalNumber(number), bytes }
}

/// Number of calls that make a chunk: create, map, set access.
const CALLS: usize = 3;

#[test]
fn a_block_waits_for_the_next_goal_if_its_goal_ends_between_two_chunks() {
    let (mut rig, size) = (Rig::new(), Bytes::mib(512));
    rig.set(Phase::Open, 7, Bytes::gib(1));
    let backing = rig.begin_until(size, CALLS, Goal::default());
    assert_eq!(rig.card.bytes(Tier::Device), SMALL_CHUNK, "no second chunk without a goal");
    let engine = rig.blocks.engine();
    assert_eq!((engine.trouble(), engine.refused()), (None, None), "no driver call has failed");
    assert_eq!(rig.blocks.finish(backing), Ok(None), "the allocation begins again");
    assert_eq!(rig.allocate(size), Err(AllocationError::NoRoom(size)));
    rig.run();
    assert_eq!((rig.card.bytes(Tier::Device), rig.blocks.space.is_unused()), (Bytes::ZERO, true));
    assert_eq!(rig.allocate(size), Err(AllocationError::NoRoom(size)), "there is no goal yet");
    rig.set(Phase::Open, 1, size);
    assert!(rig.allocate(size).is_ok());
    assert_eq!(rig.card.bytes(Tier::Device), size);
    rig.end();
}

#[test]
fn a_block_waits_for_a_higher_goal_if_its_goal_falls_between_two_chunks() {
    let (mut rig, size) = (Rig::new(), Bytes::mib(256));
    rig.set(Phase::Open, 1, Bytes::gib(1));
    let other = rig.allocate(Bytes::mib(128)).unwrap();
    let [one, two] = [1, 2].map(|chunks| Bytes::mib(128) + Bytes(chunks * SMALL_CHUNK.0));
    let backing = rig.begin_until(size, CALLS, goal(2, two - Bytes::mib(2)));
    assert_eq!(rig.card.bytes(Tier::Device), one, "the goal has no room for the second chunk");
    let engine = rig.blocks.engine();
    assert_eq!((engine.trouble(), engine.refused()), (None, None), "the card is not full");
    assert_eq!(rig.blocks.finish(backing), Ok(None));
    assert_eq!(rig.allocate(size), Err(AllocationError::NoRoom(size)));
    rig.run();
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(128), "the other block stays");
    assert!(rig.card.at(other).is_some() && rig.allocate(SMALL_CHUNK).is_ok());
    rig.set(Phase::Open, 3, Bytes::gib(1));
    assert!(rig.allocate(size).is_ok());
    assert_eq!(rig.card.bytes(Tier::Device), one + size);
    rig.end();
}

#[test]
fn a_block_is_a_hole_if_its_goal_falls_while_the_gate_closes() {
    let (mut rig, size) = (Rig::new(), Bytes::mib(256));
    rig.set(Phase::Open, 1, Bytes::gib(1));
    let backing = rig.begin_until(size, CALLS, goal(2, Bytes::ZERO));
    rig.blocks.engine().set_phase(Phase::Drained);
    assert_eq!(rig.blocks.finish(backing), Ok(None));
    let address = rig.allocate(size).unwrap();
    rig.run();
    assert!(rig.card.bytes(Tier::Device).is_zero() && rig.blocks.engine().is_guarded());
    rig.set(Phase::Entering, 3, Bytes::gib(1));
    assert_eq!(rig.blocks.engine().can_open(), Ok(()));
    assert!(rig.card.at(address).is_some());
    assert_eq!(rig.card.bytes(Tier::Device), size);
    rig.end();
}

#[test]
fn an_overflowing_process_maps_a_block_from_the_host_if_its_goal_falls() {
    let (mut rig, size) = (Rig::new(), Bytes::mib(256));
    rig.set(Phase::Open, 1, Bytes::gib(1));
    let backing = rig.begin_until(size, CALLS, goal(2, SMALL_CHUNK));
    rig.blocks.engine().set_overflows(true);
    assert_eq!(rig.blocks.finish(backing), Ok(None));
    rig.run();
    assert!(rig.allocate(size).is_ok());
    assert_eq!(rig.card.bytes(Tier::Device), SMALL_CHUNK);
    assert_eq!(rig.card.bytes(Tier::Host), size - SMALL_CHUNK);
    rig.end();
}

#[test]
fn a_small_request_makes_a_smaller_block_if_the_goal_falls() {
    let (mut rig, size) = (Rig::new(), Bytes::mib(2));
    rig.set(Phase::Open, 1, Bytes::gib(1));
    let present = |rig: &Rig| rig.card.bytes(Tier::Device);
    let _pieces = [0; 2].map(|_| rig.allocate(size).unwrap());
    assert_eq!(present(&rig), Bytes::mib(4));
    let backing = rig.begin_until(size, 0, goal(2, Bytes::mib(6)));
    assert_eq!(backing.range.size, Bytes::mib(4), "a block for two");
    assert_eq!((rig.blocks.finish(backing), present(&rig)), (Ok(None), Bytes::mib(4)));
    assert!(rig.allocate(size).is_ok());
    assert_eq!(present(&rig), Bytes::mib(6));
    rig.end();
}

#[test]
fn a_goal_that_falls_at_any_call_of_an_allocation_leaks_nothing() {
    for size in [Bytes(1000), Bytes::mib(70)] {
        for calls in 0..=CALLS * 3 {
            for lower in [Goal::default(), goal(2, SMALL_CHUNK)] {
                let mut rig = Rig::new();
                rig.set(Phase::Open, 1, Bytes::gib(1));
                let backing = rig.begin_until(size, calls, lower);
                let before = rig.card.bytes(Tier::Device);
                let made = rig.blocks.finish(backing).unwrap();
                rig.run();
                let kept = if made.is_some() { before } else { Bytes::ZERO };
                assert!(rig.card.bytes(Tier::Device) == kept && (made.is_none() || kept >= size));
                rig.set(Phase::Open, 3, Bytes::gib(1));
                assert!(rig.allocate(size).is_ok());
                rig.end();
            }
        }
    }
}

#[test]
fn a_pin_holds_all_that_shares_the_block() {
    let mut rig = Rig::new();
    let [first, second] = [1000, 2000].map(|size| rig.allocate(Bytes(size)).unwrap());
    let other = rig.allocate(Bytes::mib(64)).unwrap();
    assert!(rig.blocks.pin(first + 10, Reason::Exported) && !rig.blocks.pin(1, Reason::Exported));
    rig.set(Phase::Drained, 1, Bytes::ZERO);
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(2));
    let chunk = rig.blocks.engine.chunks_in(rig.blocks.around(second).unwrap())[0];
    assert_eq!(rig.blocks.engine.place(chunk.address), Some(Place::Immovable));
    assert_eq!(rig.blocks.reason(chunk), Some(Reason::Exported));
    assert_eq!(rig.blocks.reason(rig.blocks.around(other).unwrap()), None);
    rig.end();
}

const SECRET: Secret = Secret([1; 16]);
const OTHER_SECRET: Secret = Secret([2; 16]);

#[test]
fn an_exported_block_stays_on_the_card_until_it_is_freed() {
    let mut rig = Rig::new();
    let (block, other) = (rig.allocate(Bytes::mib(64)).unwrap(), rig.allocate(Bytes::mib(64)).unwrap());
    let export = rig.blocks.export(block + 5, SECRET).unwrap();
    assert_eq!(export.range, Span { address: block, size: Bytes::mib(64) });
    assert_eq!(rig.blocks.export(block, OTHER_SECRET), Some(export), "it is the same export");
    rig.set(Phase::Drained, 1, Bytes::ZERO);
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(64));
    assert!(rig.card.at(block).is_some() && rig.card.at(other).is_none());
    assert!(rig.blocks.is_exported(export.number));
    assert!(rig.blocks.end(block));
    assert_eq!(
        (rig.blocks.take_ended(), rig.blocks.is_exported(export.number)),
        (vec![export.number], false)
    );
    rig.run();
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::ZERO);
    rig.end();
}

#[test]
fn a_small_block_is_exported_with_its_shared_block_and_for_as_long() {
    let mut rig = Rig::new();
    let (first, second) = (rig.allocate(Bytes(1000)).unwrap(), rig.allocate(Bytes(1000)).unwrap());
    let export = rig.blocks.export(second, SECRET).unwrap();
    assert_eq!(rig.blocks.export(first, OTHER_SECRET), Some(export));
    assert!(export.range.address <= first && second < export.range.end());
    assert!(rig.blocks.end(first) && rig.blocks.end(second));
    assert_eq!(rig.blocks.take_ended(), Vec::<u64>::new(), "an unused shared block is kept");
    rig.blocks.end_unused();
    assert_eq!(rig.blocks.take_ended(), [export.number]);
    let next = rig.allocate(Bytes(1000)).unwrap();
    let again = rig.blocks.export(next, SECRET).unwrap();
    assert_ne!(again.number, export.number, "other memory");
    rig.end();
}

#[test]
fn only_whoever_knows_the_secret_gets_handles_and_they_are_kept_meanwhile() {
    let mut rig = Rig::new();
    let block = rig.allocate(Bytes::mib(64)).unwrap();
    let export = rig.blocks.export(block, SECRET).unwrap();
    assert_eq!(rig.blocks.lend(export.number, OTHER_SECRET), None);
    assert_eq!(rig.blocks.lend(export.number + 1, SECRET), None);
    let first = rig.blocks.lend(export.number, SECRET).unwrap();
    let second = rig.blocks.lend(export.number, SECRET).unwrap();
    assert_eq!(first, second);
    assert_eq!(first.iter().map(|loan| loan.chunk.size).sum::<Bytes>(), Bytes::mib(64));
    assert!(rig.blocks.end(block));
    for loans in [first, second] {
        rig.run();
        assert_eq!(rig.card.bytes(Tier::Device), Bytes::mib(64), "a handle is lent");
        assert!(rig.blocks.engine().is_freeing(export.range));
        rig.blocks.engine().take_back(&loans);
    }
    rig.run();
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::ZERO);
    rig.end();
}

#[test]
fn memory_that_is_away_has_no_handle_to_lend() {
    let mut rig = Rig::new();
    let block = rig.allocate(Bytes::mib(64)).unwrap();
    rig.set(Phase::Drained, 1, Bytes::ZERO);
    let export = rig.blocks.export(block, SECRET).unwrap();
    assert_eq!(rig.blocks.lend(export.number, SECRET), None);
    rig.set(Phase::Entering, 2, Bytes::MAX);
    let loans = rig.blocks.lend(export.number, SECRET).unwrap();
    rig.blocks.engine().take_back(&loans);
    rig.end();
}

#[test]
fn a_failure_at_any_call_of_an_allocation_leaks_nothing() {
    for size in [Bytes(1000), Bytes::mib(70)] {
        for step in 0..9 {
            let mut rig = Rig::new();
            rig.card.fail_at(&[step]);
            let first = rig.allocate(size);
            rig.run();
            assert!(first.is_err() || rig.card.bytes(Tier::Device) >= size);
            let failed = AllocationError::Driver(VmmError::Refused(1));
            assert!(first.is_ok() || first == Err(failed), "{first:?}");
            rig.card.fail_at(&[]);
            assert!(rig.allocate(size).is_ok());
            rig.end();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn blocks_never_overlap_and_all_memory_comes_back(
        steps in prop::collection::vec((0_u8..12, 1_u64..200 << 20, any::<usize>()), 1..60)
    ) {
        let mut rig = Rig::new();
        let mut live: BTreeMap<CUdeviceptr, Bytes> = BTreeMap::new();
        for (number, (kind, size, index)) in (1..).zip(steps) {
            match kind {
                0..=4 => {
                    let size = Bytes(if kind < 3 { size % 300_000 + 1 } else { size });
                    let Ok(address) = rig.allocate(size) else { continue };
                    let before = live.range(..address + size.0).next_back();
                    prop_assert!(before.is_none_or(|(start, size)| start + size.0 <= address));
                    live.insert(address, size);
                }
                5..=7 if !live.is_empty() => {
                    let address = *live.keys().nth(index % live.len()).unwrap();
                    live.remove(&address);
                    prop_assert!(rig.blocks.end(address));
                }
                8 => rig.set(Phase::Drained, number, Bytes(size)),
                9 => rig.set(Phase::Entering, number, Bytes::MAX),
                10 => rig.card.fail_at(&[index % 8]),
                _ => rig.run(),
            }
        }
        rig.card.fail_at(&[]);
        rig.blocks.engine().retry();
        rig.set(Phase::Entering, u64::MAX, Bytes::MAX);
        prop_assert_eq!(rig.blocks.engine().can_open(), Ok(()));
        for (&address, &size) in &live {
            for chunk in rig.blocks.engine.chunks_in(Span { address, size }) {
                prop_assert!(rig.card.at(chunk.address).is_some());
            }
        }
        rig.end();
    }
}

#[test]
fn a_block_that_a_kernel_was_given_is_used_as_a_whole() {
    let mut rig = Rig::new();
    let [block, other] = [Bytes::mib(700), Bytes::mib(700)].map(|size| rig.allocate(size).unwrap());
    let piece = rig.allocate(Bytes(4096)).unwrap();
    let names = Names::default();
    for address in [block + (300 << 20), piece] {
        names.note(address);
    }
    let named = names.take().unwrap();
    rig.blocks.note_named(&named);
    let uses = |rig: &mut Rig, address| {
        let block = rig.blocks.around(address).unwrap();
        let chunks = rig.blocks.engine().chunks_in(block);
        let used = chunks.iter().filter(|chunk| rig.blocks.engine().is_used(chunk.address));
        (used.count(), chunks.len())
    };
    let (used, all) = uses(&mut rig, block);
    assert!(used == all && all > 1, "{used} of {all}");
    assert_eq!((uses(&mut rig, other).0, uses(&mut rig, piece)), (0, (1, 1)));
}

#[test]
fn addresses_of_adopted_memory_stay_with_the_program() {
    let mut rig = Rig::new();
    let span = Span { address: BASE - (4 << 30), size: Bytes::mib(20) };
    let own = rig.allocate(Bytes::mib(64)).unwrap();
    assert!(rig.blocks.engine.begin_loose(span.size));
    let handle = rig.card.create(Tier::Device, span).unwrap();
    rig.card.map(span, handle).unwrap();
    rig.card.set_access(span).unwrap();
    rig.blocks.adopt(span, chunk::Backing { tier: Tier::Device, handle });
    let names = Names::default();
    names.note(span.address + (5 << 20));
    rig.blocks.note_named(&names.take().unwrap());
    assert!(rig.blocks.engine.is_used(span.address) && !rig.blocks.engine.is_used(own));
    rig.set(Phase::Drained, 1, Bytes::ZERO);
    assert_eq!(rig.card.bytes(Tier::Device), Bytes::ZERO);
    assert!(rig.blocks.end(span.address) && rig.blocks.end(own));
    rig.run();
    assert!(rig.blocks.space.is_unused() && rig.blocks.around(span.address).is_none());
    rig.end();
}
