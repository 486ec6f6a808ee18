//! Chunks that change places because of what work named, in a process that is larger than the card.

use super::moves::evict;
use super::*;

const LARGE: Bytes = CHUNK;

/// A process of six large chunks, of which the first four are on the card and the others mapped from the host.
fn overflowing() -> World {
    let mut world = World::new(false);
    world.engine.set_overflows(true);
    world.set_goal(1, Bytes::mib(512));
    for _ in 0..6 {
        world.allocate(LARGE).unwrap();
    }
    world.work();
    world
}

fn addresses(world: &World) -> Vec<CUdeviceptr> {
    world.truth.keys().copied().collect()
}

/// Indexes of the chunks that are mapped from the host.
fn mapped(world: &World) -> Vec<usize> {
    let tier = |address: &CUdeviceptr| world.engine.chunks.get(*address).unwrap().chunk.tier();
    let all = addresses(world);
    (0..all.len()).filter(|&index| tier(&all[index]) == Some(Tier::Host)).collect()
}

/// One span of work that names these chunks, and the pause after it.
fn span(world: &mut World, named: &[usize]) {
    let all = addresses(world);
    world.set_phase(Phase::Drained);
    world.engine.note_uses(&named.iter().map(|&index| all[index]).collect());
    world.run();
}

/// The next span begins.
fn begins(world: &mut World) {
    world.set_phase(Phase::Entering);
    world.run();
    assert_eq!(world.open(), Ok(()));
}

#[test]
fn chunks_that_work_names_again_and_again_take_the_places_of_others() {
    let mut world = overflowing();
    assert_eq!(mapped(&world), [4, 5]);
    span(&mut world, &[0, 4, 5]);
    assert_eq!(mapped(&world), [4, 5], "once may be chance");
    begins(&mut world);
    span(&mut world, &[0, 4, 5]);
    let after = mapped(&world);
    assert!(after.len() == 2 && after.iter().all(|index| [1, 2, 3].contains(index)), "{after:?}");
    begins(&mut world);
    span(&mut world, &[0, 4, 5]);
    assert_eq!(mapped(&world), after);
    begins(&mut world);
    world.end();
}

/// All chunks that work names again and again count alike, and the first one has nothing to change places with.
#[test]
fn a_hot_chunk_without_a_partner_of_its_size_keeps_no_other_one_from_the_card() {
    let mut world = World::new(false);
    world.engine.set_overflows(true);
    world.set_goal(1, Bytes::mib(512));
    for _ in 0..4 {
        world.allocate(LARGE).unwrap();
    }
    world.allocate(Bytes::mib(64)).unwrap();
    world.allocate(LARGE).unwrap();
    world.work();
    assert_eq!(mapped(&world), [4, 5]);
    for _ in 0..3 {
        span(&mut world, &[4, 5]);
        begins(&mut world);
    }
    let after = mapped(&world);
    assert!(after.len() == 2 && after.contains(&4) && !after.contains(&5), "{after:?}");
    world.end();
}

#[test]
fn chunks_change_places_where_the_host_has_no_memory_for_both() {
    let mut world = overflowing();
    world.card.set_host_capacity(LARGE + LARGE);
    span(&mut world, &[4, 5]);
    begins(&mut world);
    span(&mut world, &[4, 5]);
    world.set_phase(Phase::Entering);
    world.run();
    let trouble = Trouble::Driver(Call::Create(Tier::Host), VmmError::OutOfMemory);
    assert_eq!(world.open(), Err(Obstacle::Failed(trouble)));
    world.engine.retry();
    begins(&mut world);
    assert_eq!(mapped(&world).iter().filter(|index| **index >= 4).count(), 1);
    world.end();
}

/// The daemon has taken the flag back, so no further chunk may be mapped from the host but this one.
#[test]
fn a_chunk_that_finds_the_card_full_in_place_of_another_is_mapped_from_the_host_again() {
    let mut world = overflowing();
    span(&mut world, &[4]);
    begins(&mut world);
    world.engine.set_overflows(false);
    world.card.set_capacity(LARGE + LARGE + LARGE);
    span(&mut world, &[4]);
    begins(&mut world);
    assert_eq!(mapped(&world).len(), 3, "{:?}", mapped(&world));
    world.card.set_capacity(Bytes::gib(1));
    span(&mut world, &[4]);
    world.end();
}

#[test]
fn only_one_chunk_that_the_card_refuses_is_mapped_beyond_what_the_daemon_allows() {
    let mut world = overflowing();
    world.set_phase(Phase::Drained);
    world.engine.set_overflows(false);
    world.set_goal(2, LARGE + LARGE);
    world.run();
    world.card.set_capacity(LARGE + LARGE);
    world.set_goal(3, Bytes::mib(512));
    world.set_phase(Phase::Entering);
    world.run();
    assert_eq!(mapped(&world).len(), 3, "{:?}", mapped(&world));
    assert!(world.open().is_err());
    world.card.set_capacity(Bytes::gib(1));
    world.engine.retry();
    begins(&mut world);
    world.end();
}

#[test]
fn a_process_that_does_not_overflow_the_card_any_more_maps_no_further_chunk() {
    let mut world = overflowing();
    span(&mut world, &[4, 5]);
    world.engine.set_overflows(false);
    begins(&mut world);
    world.made.clear();
    span(&mut world, &[4, 5]);
    assert_eq!((mapped(&world), world.made.len()), (vec![4, 5], 0));
    world.end();
}

#[test]
fn chunks_change_places_during_the_whole_rest_whenever_the_daemon_takes_the_flag_back() {
    #[derive(Debug)]
    enum Heard {
        BeforeTheRest,
        AtItsBegin,
        AfterTheFirstPairHasBegun,
    }
    for heard in [Heard::BeforeTheRest, Heard::AtItsBegin, Heard::AfterTheFirstPairHasBegun] {
        let mut world = overflowing();
        span(&mut world, &[4, 5]);
        begins(&mut world);
        let all = addresses(&world);
        if matches!(heard, Heard::BeforeTheRest) {
            world.engine.set_overflows(false);
        }
        world.set_phase(Phase::Drained);
        world.engine.note_uses(&[all[4], all[5]].into());
        if matches!(heard, Heard::AfterTheFirstPairHasBegun) {
            world.go_until(|world| world.is_marked);
        }
        world.engine.set_overflows(false);
        world.run();
        let after = mapped(&world);
        assert!(after.len() == 2 && after.iter().all(|index| *index < 4), "{heard:?}: {after:?}");
        world.engine.set_overflows(true);
        begins(&mut world);
        world.end();
    }
}

#[test]
fn work_that_names_all_chunks_in_turn_moves_none() {
    let mut world = overflowing();
    world.made.clear();
    for number in 0..24 {
        span(&mut world, &[number % 6]);
        begins(&mut world);
    }
    assert_eq!((mapped(&world), world.made.len()), (vec![4, 5], 0));
    world.end();
}

#[test]
fn a_gate_that_is_to_open_waits_for_one_pair_of_chunks() {
    let mut world = overflowing();
    span(&mut world, &[4, 5]);
    begins(&mut world);
    world.set_phase(Phase::Drained);
    let all = addresses(&world);
    world.engine.note_uses(&[all[4], all[5]].into());
    world.go_until(|world| world.is_marked);
    world.set_phase(Phase::Entering);
    world.run();
    assert_eq!(world.open(), Ok(()));
    assert_eq!(mapped(&world).iter().filter(|index| **index >= 4).count(), 1, "the second one stays");
    world.end();
}

#[test]
fn chunks_that_work_named_most_often_come_to_the_card_first() {
    let mut world = overflowing();
    for _ in 0..2 {
        span(&mut world, &[1, 2]);
        begins(&mut world);
    }
    evict(&mut world, 2, Bytes::ZERO);
    world.set_phase(Phase::Entering);
    world.set_goal(3, Bytes::mib(256));
    world.run();
    assert_eq!(world.open(), Ok(()));
    assert_eq!(mapped(&world), [0, 3, 4, 5]);
    world.end();
}
