//! Slots for chunks of many sizes, in a pool that is never larger than [`Engine::most_regions`].

use proptest::prelude::*;

use super::moves::{LARGE, enter, evict};
use super::*;

/// A process whose small chunks have slots, one in each region, and whose large chunks have none. The pool is at its
/// bound.
fn scattered() -> World {
    let mut world = World::with(&[SMALL; 160]);
    evict(&mut world, 1, Bytes::ZERO);
    assert_eq!(enter(&mut world, 2, Bytes::gib(64)), Ok(()));
    let addresses: Vec<_> = world.truth.keys().copied().collect();
    for (index, address) in addresses.into_iter().enumerate() {
        if index % 4 != 0 {
            world.free(address);
        }
    }
    world.run();
    for _ in 0..16 {
        world.allocate(LARGE).unwrap();
    }
    world.work();
    let bound = world.engine.most_regions();
    world.pool.set_budget(bound);
    assert!(world.pool.sizes().total > bound, "{:?} is not scattered", world.pool.sizes());
    world
}

#[test]
fn large_chunks_find_room_although_small_slots_are_in_all_regions() {
    let mut world = scattered();
    evict(&mut world, 3, Bytes::ZERO);
    assert_eq!((world.engine.figures().resident, world.engine.trouble()), (Bytes::ZERO, None));
    assert!(world.pool.sizes().total <= world.engine.most_regions());
    world.end();
}

#[test]
fn small_chunks_that_leave_first_leave_room_for_large_ones() {
    let mut world = scattered();
    evict(&mut world, 3, Bytes(LARGE.0 * 16));
    assert_eq!(world.engine.figures().hosted, Bytes(SMALL.0 * 40));
    evict(&mut world, 4, Bytes::ZERO);
    assert_eq!((world.engine.figures().resident, world.engine.trouble()), (Bytes::ZERO, None));
    world.end();
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(usize),
    /// Evicts all but a part of the memory, then all, and brings it back.
    Switch(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..=200).prop_map(Step::Allocate),
        5 => any::<usize>().prop_map(Step::Free),
        1 => (0_u64..=8).prop_map(Step::Switch),
    ]
}

/// Program that allocates and frees blocks between its turns.
#[derive(Default)]
struct Program {
    blocks: Vec<Vec<CUdeviceptr>>,
    goals: u64,
}

impl Program {
    fn take(&mut self, world: &mut World, step: &Step) {
        match step {
            Step::Allocate(granules) => {
                let block = Span { address: world.next_address, size: Bytes::mib(2 * granules) };
                let chunks = world.engine.cut(block);
                let addresses = chunks.iter().map(|chunk| world.allocate(chunk.size).unwrap());
                self.blocks.push(addresses.collect());
                world.work();
            }
            Step::Free(index) if !self.blocks.is_empty() => {
                let block = self.blocks.swap_remove(index % self.blocks.len());
                block.into_iter().for_each(|address| world.free(address));
                world.run();
            }
            Step::Free(_) => {}
            Step::Switch(eighths) => {
                let whole = world.engine.figures().resident;
                evict(world, self.goals + 1, Bytes(whole.0 / 8 * eighths));
                evict(world, self.goals + 2, Bytes::ZERO);
                assert_eq!((world.engine.figures().resident, world.engine.trouble()), (Bytes::ZERO, None));
                assert_eq!(enter(world, self.goals + 3, Bytes::gib(1000)), Ok(()));
                self.goals += 3;
            }
        }
        let bound = world.engine.most_regions();
        world.pool.set_budget(bound);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn all_memory_finds_room_in_the_bound_whatever_was_allocated_and_freed(
        steps in prop::collection::vec(step(), 1..100)
    ) {
        let (mut world, mut program) = (World::with(&[]), Program::default());
        for step in steps.iter().chain(&[Step::Switch(4)]) {
            program.take(&mut world, step);
        }
        world.end();
    }
}
