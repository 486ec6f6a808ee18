//! Single moves: what leaves, in which order, and what failures do.

use super::*;
use crate::remap::chunk::Place;

pub(super) const LARGE: Bytes = CHUNK;

/// Closes the gate of a process and sets its goal.
pub(super) fn evict(world: &mut World, number: u64, goal: Bytes) {
    world.set_phase(Phase::Drained);
    world.set_goal(number, goal);
    world.run();
}

pub(super) fn enter(world: &mut World, number: u64, goal: Bytes) -> Result<(), Obstacle> {
    world.set_phase(Phase::Entering);
    world.set_goal(number, goal);
    world.run();
    world.open()
}

/// Sizes of the chunks whose handles were released, in their order.
fn released(world: &World) -> Vec<Bytes> {
    let released = world.made.iter().filter(|(_, call)| matches!(call, Call::Release(_)));
    released.map(|(address, _)| world.truth[address].0).collect()
}

#[test]
fn a_lower_goal_is_reached_and_a_higher_one_brings_all_back() {
    let mut world = World::with(&[LARGE; 8]);
    evict(&mut world, 1, Bytes::mib(512));
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.hosted), (Bytes::mib(512), Bytes::mib(512)));
    assert_eq!((figures.seen, figures.moving), (GoalNumber(1), Bytes::ZERO));
    assert!(world.is_marked && world.engine.is_guarded());
    assert_eq!(enter(&mut world, 2, Bytes::gib(1)), Ok(()));
    assert_eq!(world.engine.figures().hosted, Bytes::ZERO);
    world.end();
}

#[test]
fn no_order_moves_nothing() {
    let mut world = World::with(&[LARGE; 4]);
    world.set_phase(Phase::Drained);
    world.run();
    world.set_phase(Phase::Entering);
    world.run();
    assert_eq!(world.made, []);
    assert_eq!(world.open(), Ok(()));
    world.end();
}

#[test]
fn only_the_excess_leaves() {
    for (goal, leaves) in [(1000, 24), (990, 34), (900, 124), (768, 256), (0, 1024)] {
        let mut world =
            World::with(&[LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, LARGE, SMALL, SMALL, SMALL, SMALL]);
        evict(&mut world, 1, Bytes::mib(goal));
        let hosted = world.engine.figures().hosted;
        assert!(hosted >= Bytes::mib(leaves) && hosted < Bytes::mib(leaves) + LARGE, "{goal}: {hosted}");
        world.end();
    }
}

#[test]
fn a_long_move_begins_and_ends_with_small_chunks_and_a_short_one_has_no_others() {
    let sizes: Vec<_> = [SMALL; 16].into_iter().chain([LARGE; 28]).collect();
    let mut world = World::with(&sizes);
    world.pool.set_target(Bytes::gib(8));
    while world.prepare() {}
    evict(&mut world, 1, Bytes::mib(512));
    let order = released(&world);
    assert_eq!(order[..3], [SMALL, SMALL, LARGE]);
    assert_eq!(order[order.len() - 3..], [LARGE, SMALL, SMALL]);
    world.end();
    let mut world = World::with(&sizes);
    evict(&mut world, 1, Bytes::mib(4096 - 320));
    assert_eq!(released(&world), [SMALL; 10]);
    world.end();
}

#[test]
fn the_last_chunk_of_a_long_move_is_the_smallest_that_is_enough() {
    let middle = Bytes::mib(64);
    let sizes: Vec<_> = [LARGE; 20].into_iter().chain([SMALL; 4]).chain([middle]).collect();
    let mut world = World::with(&sizes);
    let whole = world.engine.figures().resident;
    evict(&mut world, 1, whole - Bytes::gib(2) - LARGE - Bytes::mib(40));
    assert_eq!(world.engine.figures().hosted, Bytes::gib(2) + LARGE + middle);
    world.end();
}

#[test]
fn small_chunks_end_a_move_that_needs_less_than_a_large_one() {
    let sizes: Vec<_> = [SMALL; 16].into_iter().chain([LARGE; 8]).collect();
    let mut world = World::with(&sizes);
    let whole = world.engine.figures().resident;
    evict(&mut world, 1, whole - Bytes::gib(1) - Bytes::mib(40));
    assert_eq!(world.engine.figures().hosted, Bytes::gib(1) + Bytes(2 * SMALL.0));
    world.end();
}

#[test]
fn the_more_memory_a_process_has_the_larger_are_its_chunks() {
    let mut world = World::new(false);
    let mut sizes = BTreeMap::<Bytes, u32>::new();
    for gib in 0..12 {
        let block = Span { address: (1 << 50) + (gib << 30), size: Bytes::gib(1) };
        let spans = world.engine.cut(block);
        assert_eq!(spans.iter().map(|span| span.size).sum::<Bytes>(), block.size);
        assert!(spans.windows(2).all(|pair| pair[0].end() == pair[1].address));
        for span in spans {
            *sizes.entry(span.size).or_default() += 1;
            world.engine.add(span);
        }
    }
    assert_eq!(sizes, BTreeMap::from([(SMALL, 16), (MEDIUM_CHUNK, 120), (LARGE, 32)]));
}

#[test]
fn what_was_evicted_and_not_used_is_not_copied_again() {
    let mut world = World::with(&[LARGE; 4]);
    evict(&mut world, 1, Bytes::ZERO);
    world.set_phase(Phase::Entering);
    world.set_goal(2, Bytes::mib(512));
    world.run();
    world.made.clear();
    evict(&mut world, 3, Bytes::ZERO);
    assert!(world.made.iter().all(|(_, call)| !matches!(call, Call::Copy(..))));
    assert_eq!(world.engine.figures().hosted, Bytes::mib(512));
    world.end();
}

#[test]
fn nothing_is_created_beyond_the_goal_and_the_gate_says_what_is_missing() {
    let mut world = World::with(&[LARGE; 8]);
    evict(&mut world, 1, Bytes::ZERO);
    for (number, goal) in (2..).zip([100, 300, 600, 1000]) {
        assert_eq!(enter(&mut world, number, Bytes::mib(goal)), Err(Obstacle::Goal(world.missing(goal))));
        assert_eq!(world.engine.figures().resident, Bytes::mib(goal / 128 * 128));
    }
    assert_eq!(enter(&mut world, 9, Bytes::mib(1024)), Ok(()));
    world.end();
}

impl World {
    fn missing(&self, goal: u64) -> Bytes {
        let whole: Bytes = self.truth.values().map(|(size, _)| *size).sum();
        whole - Bytes::mib(goal)
    }
}

#[test]
fn a_goal_that_falls_during_the_way_in_turns_it() {
    let mut world = World::with(&[LARGE; 6]);
    evict(&mut world, 1, Bytes::ZERO);
    world.set_phase(Phase::Entering);
    world.set_goal(2, Bytes::mib(768));
    (0..9).for_each(|_| world.go());
    assert!(!world.engine.figures().resident.is_zero());
    evict(&mut world, 3, Bytes::mib(128));
    assert_eq!(world.engine.figures().resident, Bytes::mib(128));
    world.end();
}

#[test]
fn an_eviction_that_is_called_off_opens_the_gate_beside_its_copies() {
    let mut world = World::with(&[LARGE; 6]);
    world.set_phase(Phase::Drained);
    world.set_goal(1, Bytes::ZERO);
    world.go_until(|world| world.card.copies().len() == DEPTH);
    world.set_phase(Phase::Entering);
    world.set_goal(2, Bytes::mib(768));
    // The mark is removed; no copy has to end for that.
    while world.take(Lane::Calls) {}
    assert_eq!(world.open(), Ok(()));
    world.end();
}

#[test]
fn a_gate_that_cannot_be_marked_is_open_and_nothing_leaves() {
    let mut world = World::with(&[LARGE; 2]);
    world.set_phase(Phase::Drained);
    world.set_goal(1, Bytes::ZERO);
    let next = |world: &mut World| world.engine.next(Lane::Calls, &mut world.pool);
    assert_eq!(next(&mut world), Some(Order::Guard(true)));
    assert_eq!(next(&mut world), None, "the answer is awaited");
    assert!(!world.engine.is_quiet() && !world.engine.is_guarded());
    world.engine.note_guard(Err(()));
    assert_eq!(next(&mut world), None);
    world.phase = Phase::Open;
    world.work();
    world.end();
}

#[test]
fn without_host_memory_chunks_stay_and_the_rest_leaves() {
    let mut world = World::with(&[LARGE; 8]);
    world.pool.set_budget(Bytes::mib(384));
    evict(&mut world, 1, Bytes::ZERO);
    assert_eq!(world.engine.figures().hosted, Bytes::mib(384));
    assert_eq!((world.engine.trouble(), world.engine.refused()), (Some(Trouble::NoSlot), None));
    world.pool.set_budget(Bytes::gib(1));
    world.engine.retry();
    world.run();
    assert_eq!(world.engine.figures().hosted, Bytes::gib(1));
    world.end();
}

#[test]
fn slots_that_are_kept_without_need_serve_chunks_that_leave() {
    let mut world = World::with(&[LARGE; 4]);
    world.pool.set_budget(Bytes::mib(256));
    evict(&mut world, 1, Bytes::mib(256));
    assert_eq!(enter(&mut world, 2, Bytes::MAX), Ok(()));
    assert_eq!(world.engine.figures().slots, Bytes::mib(256), "kept for the next move");
    let kept: Vec<_> = world.engine.chunks.values().filter(|entry| entry.chunk.has_slot()).collect();
    let kept: Vec<_> = kept.iter().map(|entry| entry.chunk.span().address).collect();
    kept.iter().for_each(|&address| world.engine.pin(address));
    evict(&mut world, 3, Bytes::mib(256));
    assert_eq!(world.engine.figures().hosted, Bytes::mib(256));
    world.end();
}

#[test]
fn a_full_card_maps_from_the_host_and_promotes_later() {
    let mut world = World::with(&[LARGE; 4]);
    world.engine.set_host_room(Bytes::mib(256), false);
    evict(&mut world, 1, Bytes::ZERO);
    world.card.set_capacity(Bytes::mib(256));
    assert_eq!(enter(&mut world, 2, Bytes::mib(512)), Ok(()), "the daemon promised more than there is");
    assert_eq!(world.card.bytes(Tier::Host), Bytes::mib(256));
    assert_eq!(world.engine.figures().slots, Bytes::mib(256), "those of the chunks on the card");
    world.card.set_capacity(Bytes::gib(1));
    world.set_phase(Phase::Drained);
    world.run();
    assert_eq!(world.card.bytes(Tier::Host), Bytes::mib(256), "the card is not asked in a loop");
    world.set_goal(3, Bytes::gib(1));
    world.run();
    assert_eq!(world.card.bytes(Tier::Host), Bytes::ZERO);
    world.end();
}

#[test]
fn a_full_card_without_memory_of_the_host_keeps_the_gate_closed_until_it_has_room() {
    let mut world = World::with(&[LARGE; 4]);
    evict(&mut world, 1, Bytes::ZERO);
    world.card.set_capacity(Bytes::mib(256));
    let refused = Trouble::Driver(Call::Create(Tier::Device), VmmError::OutOfMemory);
    assert_eq!(enter(&mut world, 2, Bytes::mib(512)), Err(Obstacle::Failed(refused)));
    assert_eq!(world.engine.refused(), Some(LARGE));
    world.card.set_capacity(Bytes::gib(1));
    world.engine.retry();
    world.run();
    assert_eq!(world.open(), Ok(()));
    world.end();
}

#[test]
fn a_process_larger_than_the_card_runs_with_the_rest_mapped_from_the_host() {
    let mut world = World::with(&[LARGE; 8]);
    evict(&mut world, 1, Bytes::mib(512));
    assert_eq!(enter(&mut world, 2, Bytes::mib(512)), Err(Obstacle::Goal(Bytes::mib(512))));
    world.engine.set_overflows(true);
    world.run();
    assert_eq!(world.open(), Ok(()));
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.hosted), (Bytes::mib(512), Bytes::mib(512)));
    assert_eq!((figures.mapped, figures.slots), (Bytes::mib(512), Bytes::ZERO));
    assert_eq!(world.card.bytes(Tier::Host), Bytes::mib(512));
    // What is mapped stays so while the rest leaves and returns.
    world.engine.set_overflows(false);
    world.made.clear();
    evict(&mut world, 3, Bytes::mib(128));
    assert_eq!(enter(&mut world, 4, Bytes::mib(512)), Ok(()));
    let hosts = world.made.iter().filter(|(_, call)| *call == Call::Create(Tier::Host));
    assert_eq!((hosts.count(), world.engine.figures().mapped), (0, Bytes::mib(512)));
    world.end();
}

#[test]
fn an_allocation_beyond_the_goal_is_mapped_from_the_host_where_the_process_overflows() {
    let mut world = World::with(&[LARGE; 2]);
    world.set_goal(1, Bytes::mib(300));
    assert_eq!(world.allocate(LARGE), None);
    world.engine.set_overflows(true);
    assert!(world.allocate(Bytes::mib(32)).is_some(), "the goal has room");
    assert!(world.allocate(LARGE).is_some());
    world.work();
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.mapped), (Bytes::mib(288), LARGE));
    world.engine.set_overflows(false);
    assert_eq!(world.allocate(LARGE), None);
    world.end();
}

#[test]
fn a_process_larger_than_the_card_whose_memory_must_not_move_runs_on() {
    let mut world = World::with(&[LARGE; 4]);
    evict(&mut world, 1, Bytes::mib(256));
    world.engine.set_overflows(true);
    assert_eq!(enter(&mut world, 2, Bytes::mib(256)), Ok(()));
    world.engine.set_overflows(false);
    evict(&mut world, 3, Bytes::mib(128));
    world.engine.pin_all();
    world.set_goal(4, Bytes::mib(160));
    world.set_phase(Phase::Entering);
    world.run();
    assert!(world.engine.can_open().is_err(), "one chunk is away");
    world.engine.set_overflows(true);
    world.run();
    assert_eq!(world.open(), Ok(()));
    assert!(world.allocate(LARGE).is_some());
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.mapped), (Bytes::mib(128), Bytes::mib(512)));
    world.made.clear();
    world.engine.set_overflows(false);
    evict(&mut world, 5, Bytes::ZERO);
    assert_eq!(enter(&mut world, 6, Bytes::gib(1)), Ok(()));
    assert_eq!(world.made, [], "nothing moves any more");
    world.end();
}

#[test]
fn chunks_mapped_from_the_host_come_to_the_card_once_the_gate_is_closed_and_has_room() {
    let mut world = World::with(&[LARGE; 2]);
    world.set_goal(1, Bytes::mib(256));
    world.engine.set_overflows(true);
    let small = world.allocate(SMALL).unwrap();
    let large = [(); 2].map(|()| world.allocate(LARGE).unwrap());
    world.work();
    world.engine.set_overflows(false);
    let on_card = world.truth.keys().copied().next().unwrap();
    world.free(on_card);
    world.run();
    assert_eq!(world.engine.figures().mapped, Bytes::mib(288), "the gate is open");
    world.set_phase(Phase::Drained);
    world.run();
    let place = |address| world.engine.place(address);
    assert_eq!(
        [small, large[0], large[1]].map(place),
        [Some(Place::HostMapped), Some(Place::Device), Some(Place::HostMapped),]
    );
    // Holes come first.
    world.set_goal(2, Bytes::mib(128));
    world.run();
    assert_eq!(enter(&mut world, 3, Bytes::mib(288)), Ok(()));
    assert_eq!(world.engine.figures().mapped, LARGE);
    world.end();
}

#[test]
fn a_chunk_on_its_way_to_a_card_that_is_full_is_mapped_from_the_host_again() {
    let mut world = World::with(&[LARGE; 2]);
    world.set_goal(1, Bytes::mib(256));
    world.engine.set_overflows(true);
    world.allocate(LARGE).unwrap();
    world.work();
    world.engine.set_overflows(false);
    world.card.set_capacity(Bytes::mib(256));
    world.set_phase(Phase::Drained);
    assert_eq!(enter(&mut world, 2, Bytes::mib(384)), Ok(()));
    assert_eq!(world.engine.figures().mapped, LARGE);
    world.card.set_capacity(Bytes::gib(1));
    world.end();
}

#[test]
fn an_allocation_beyond_the_goal_is_a_hole_until_the_gate_opens() {
    let mut world = World::with(&[LARGE; 2]);
    world.set_goal(1, Bytes::mib(300));
    assert_eq!(world.allocate(LARGE), None, "the gate is open");
    world.set_phase(Phase::Drained);
    assert!(world.allocate(LARGE).is_some());
    assert_eq!(world.engine.figures().unbacked, LARGE);
    world.run();
    assert!(world.engine.is_guarded());
    assert_eq!(enter(&mut world, 2, Bytes::mib(384)), Ok(()));
    world.end();
}

#[test]
fn an_immovable_chunk_stays_and_others_leave_in_its_place() {
    let mut world = World::with(&[LARGE; 4]);
    let pinned: Vec<_> = world.truth.keys().copied().take(2).collect();
    pinned.iter().for_each(|&address| world.engine.pin(address));
    evict(&mut world, 1, Bytes::ZERO);
    let figures = world.engine.figures();
    assert_eq!((figures.resident, figures.immovable), (Bytes::mib(256), Bytes::mib(256)));
    world.end();
}

#[test]
fn work_that_was_missed_makes_all_memory_immovable() {
    let mut world = World::new(true);
    for _ in 0..3 {
        world.allocate(LARGE);
    }
    world.work();
    world.set_phase(Phase::Drained);
    world.set_goal(1, Bytes::ZERO);
    world.go_until(|world| !world.card.copies().is_empty());
    let address = world.card.copies()[0];
    world.card.missed_work(address, 1 << 40);
    world.truth.insert(address, (LARGE, 1 << 40));
    world.run();
    let figures = world.engine.figures();
    assert_eq!(figures.immovable, figures.resident);
    assert!(figures.hosted.is_zero(), "{figures:?}");
    world.end();
}

#[test]
fn a_lost_context_is_never_copied_from_and_its_handles_are_released() {
    let mut world = World::with(&[LARGE; 3]);
    world.set_phase(Phase::Drained);
    world.set_goal(1, Bytes::ZERO);
    for _ in 0..10 {
        if world.orders.is_empty() && !world.take_any() {
            world.prepare();
        }
    }
    let (span, _) = world.orders.remove(0);
    world.engine.done(span.address, Answer::Failed(VmmError::ContextLost(700)));
    world.made.clear();
    world.run();
    assert_eq!(world.made, []);
    assert_eq!(world.engine.lost(), Some(VmmError::ContextLost(700)));
    world.truth.clear();
    world.engine.free_all();
    world.run();
    world.card.assert_empty();
}

/// The program gets its error instead of a gate that stays closed.
#[test]
fn once_the_lost_one_of_several_contexts_has_ended_memory_moves_again() {
    let mut world = World::with(&[LARGE; 4]);
    evict(&mut world, 1, Bytes::mib(256));
    world.engine.lose(VmmError::ContextLost(700));
    let before = world.engine.figures();
    world.set_goal(2, Bytes::ZERO);
    world.run();
    assert_eq!(world.engine.figures().hosted, before.hosted, "nothing is copied with a lost context");
    // Another context of the card reaches all memory.
    world.engine.forget_loss();
    assert_eq!(world.engine.lost(), None);
    evict(&mut world, 3, Bytes::ZERO);
    assert_eq!(world.engine.figures().hosted, Bytes::mib(512));
    assert_eq!(enter(&mut world, 4, Bytes::mib(512)), Ok(()));
    world.end();
}

#[test]
fn a_gate_opens_onto_holes_of_a_lost_context() {
    let mut world = World::with(&[LARGE; 3]);
    evict(&mut world, 1, Bytes::ZERO);
    assert!(world.is_marked);
    world.set_goal(2, Bytes::gib(1));
    world.set_phase(Phase::Entering);
    assert_eq!(world.engine.can_open(), Err(Obstacle::Moving));
    world.engine.lose(VmmError::ContextLost(700));
    assert_eq!(world.engine.can_open(), Err(Obstacle::Moving), "the gate is marked");
    world.made.clear();
    world.run();
    assert_eq!((world.engine.can_open(), world.is_marked), (Ok(()), false));
    assert_eq!(world.made, [], "nothing comes in");
    world.set_phase(Phase::Open);
    world.truth.clear();
    world.engine.free_all();
    world.run();
    world.card.assert_empty();
}

#[test]
fn a_copy_in_that_ends_behind_an_open_gate_does_not_spare_the_next_copy_out() {
    let mut world = World::with(&[LARGE]);
    evict(&mut world, 1, Bytes::ZERO);
    world.set_goal(2, Bytes::gib(1));
    world.set_phase(Phase::Entering);
    while world.known_copies().is_empty() {
        assert!(world.take_any());
        (0..world.orders.len()).for_each(|_| world.answer(0));
    }
    world.engine.lose(VmmError::ContextLost(700));
    world.set_phase(Phase::Open);
    let address = world.known_copies()[0];
    world.land(address);
    let is_clean = world.engine.chunks.get(address).map(|entry| entry.chunk.is_clean());
    assert_eq!(is_clean, Some(false), "work may have written it by now");
    world.truth.clear();
    world.engine.free_all();
    world.run();
    world.card.assert_empty();
}

#[test]
fn a_parked_engine_ends_what_is_under_way_and_begins_nothing() {
    let mut world = World::with(&[LARGE; 6]);
    world.set_phase(Phase::Drained);
    world.set_goal(1, Bytes::ZERO);
    (0..12).for_each(|_| world.go());
    assert!(!world.engine.is_quiet());
    world.set_phase(Phase::Parked);
    world.made.clear();
    world.run();
    assert!(world.engine.is_quiet());
    assert!(world.made.iter().all(|(_, call)| matches!(call, Call::Release(_))));
    world.end();
}

#[test]
fn a_goal_is_seen_once_older_requests_are_answered() {
    let mut world = World::with(&[LARGE; 2]);
    evict(&mut world, 1, Bytes::ZERO);
    world.set_phase(Phase::Entering);
    world.set_goal(2, LARGE);
    while !matches!(world.orders.first(), Some((_, Call::Create(_)))) {
        assert!(world.take(Lane::Calls));
    }
    world.set_goal(3, Bytes::ZERO);
    assert_eq!(world.engine.figures().seen, GoalNumber(2));
    assert_eq!(world.engine.figures().resident, LARGE, "the request counts");
    world.answer(0);
    assert_eq!(world.engine.figures().seen, GoalNumber(3));
    world.run();
    assert_eq!(world.engine.figures().resident, Bytes::ZERO);
    world.end();
}

/// The daemon raises the goal of the one by what the other has given up.
#[test]
fn two_processes_change_places_within_the_card() {
    let mut worlds = [World::with(&[LARGE; 8]), World::with(&[LARGE; 8])];
    evict(&mut worlds[1], 1, Bytes::ZERO);
    let (card, spare) = (Bytes::gib(1), CHUNK);
    for turn in 2..8 {
        let (leaver, entrant) = ((turn as usize) % 2, (turn as usize + 1) % 2);
        worlds[leaver].set_phase(Phase::Drained);
        worlds[leaver].set_goal(turn, Bytes::ZERO);
        worlds[entrant].set_phase(Phase::Entering);
        for round in 0.. {
            if worlds[entrant].open().is_ok() {
                break;
            }
            assert!(round < 10_000, "they wait for each other");
            let gone = card - worlds[leaver].engine.figures().resident;
            worlds[entrant].set_goal(turn, gone + spare);
            for world in &mut worlds {
                world.go();
                if let Some(&address) = world.card.copies().first() {
                    world.land(address);
                }
            }
            let resident: Bytes = worlds.iter().map(|world| world.card.bytes(Tier::Device)).sum();
            assert!(resident <= card + spare);
        }
        worlds[leaver].run();
    }
    worlds.into_iter().for_each(World::end);
}

#[test]
fn a_driver_that_always_refuses_is_not_asked_in_a_loop() {
    for first in 0..30 {
        let mut world = World::with(&[SMALL, LARGE, SMALL]);
        world.set_phase(Phase::Drained);
        world.set_goal(1, Bytes::ZERO);
        world.card.fail_at(&(first..1_000).collect::<Vec<_>>());
        world.run();
        assert!(world.card.calls() < 60, "{} calls after {first}", world.card.calls());
        world.card.fail_at(&[]);
        world.engine.retry();
        world.pool.retry();
        world.run();
        assert_eq!(world.engine.figures().resident, Bytes::ZERO);
        world.end();
    }
}

#[test]
fn a_goal_that_falls_before_a_new_chunk_is_backed_refuses_it() {
    let mut world = World::new(false);
    let span = Span { address: 1 << 50, size: LARGE };
    assert_eq!(world.engine.add(span), Birth::Backed);
    world.set_goal(1, SMALL);
    assert_eq!(world.engine.take_own(span.address), None);
    assert_eq!(world.engine.born(span.address), Err(Trouble::NoRoom));
    world.engine.free(span.address);
    world.end();
}

#[test]
fn a_failure_at_any_step_of_a_swap_loses_nothing_and_a_retry_ends_it() {
    let swap = |world: &mut World| {
        evict(world, 1, Bytes::mib(64));
        let _ = enter(world, 2, Bytes::gib(1));
    };
    let mut whole = World::with(&[SMALL, LARGE, SMALL]);
    whole.card.fail_at(&[]);
    swap(&mut whole);
    let steps = whole.card.calls();
    whole.end();
    assert!(steps > 20);
    for first in 0..steps {
        for distance in [0, 1, 2, 5] {
            let mut world = World::with(&[SMALL, LARGE, SMALL]);
            world.card.fail_at(&[first, first + distance]);
            swap(&mut world);
            if world.phase != Phase::Open {
                world.engine.retry();
                world.pool.retry();
                world.run();
                if world.open().is_err() {
                    world.engine.retry();
                    world.run();
                    assert_eq!(world.open(), Ok(()), "failures at {first} and {distance} later");
                }
            }
            world.end();
        }
    }
}
