//! Waits for memory that nobody gives, after which what is missing is mapped from the host.

use gpushare_proto::{Bytes, ClientId, GateState, Nanos};

use super::{two_programs, world};
use crate::tests::world::{GPU, World, gib, ms};
use crate::{Event, Lack};

/// A stopped process that keeps its memory, and a busy one that needs the room.
fn beside_a_stopped_one() -> (World, ClientId, ClientId) {
    let mut world = world();
    let (_, stopped) = world.remapping_program(gib(5));
    world.run_for(ms(100));
    world.habits(stopped).answers = false;
    let (_, entrant) = world.busy_remapping_program(gib(5));
    world.lets_go(stopped, Nanos::ZERO);
    (world, stopped, entrant)
}

#[test]
fn memory_that_nobody_gives_is_mapped_from_the_host_after_a_while_and_comes_with_the_next_turn() {
    let (mut world, stopped, entrant) = beside_a_stopped_one();
    world.run_for(ms(500));
    let lack = |world: &World| world.core.view.cards[GPU].residents.wait_reason;
    assert_eq!(lack(&world), Some(Lack::Moves));
    world.run_for(Nanos::from_secs(2));
    assert_eq!(lack(&world), Some(Lack::Kept));
    assert_eq!(world.gate(entrant).state(), GateState::Moving);
    world.run_for(Nanos::from_secs(3));
    assert_eq!(lack(&world), None);
    assert!(world.passes(entrant), "it does not wait for the stopped process for ever");
    assert!(!world.mapped(entrant, GPU).is_zero());
    world.habits(stopped).answers = true;
    world.step(stopped, GPU);
    world.run_for(ms(100));
    world.goes_idle(entrant);
    world.gets_busy(entrant);
    world.run_for(ms(500));
    assert_eq!((world.resident(entrant, GPU), world.mapped(entrant, GPU)), (gib(5), Bytes::ZERO));
}

#[test]
fn a_process_that_answers_before_others_give_up_costs_them_nothing() {
    let (mut world, stopped, entrant) = beside_a_stopped_one();
    world.run_for(Nanos::from_secs(3));
    world.habits(stopped).answers = true;
    world.step(stopped, GPU);
    world.run_for(ms(100));
    assert!(world.passes(entrant), "the stopped process goes on with its goal");
    assert_eq!((world.resident(entrant, GPU), world.mapped(entrant, GPU)), (gib(5), Bytes::ZERO));
}

#[test]
fn a_process_that_cannot_map_memory_waits_with_the_reason_and_tries_again() {
    let (mut world, _, entrant) = beside_a_stopped_one();
    world.run_for(ms(1000));
    world.habits(entrant).answers = false;
    world.run_for(Nanos::from_secs(5));
    assert!(world.overflows(entrant, GPU));
    let (number, _) = world.goal(entrant, GPU).unwrap();
    world.send(Event::MoveFailed { client: entrant, gpu: GPU, number, refused: Bytes::ZERO });
    assert!(!world.overflows(entrant, GPU));
    assert_eq!(world.core.view.cards[GPU].residents.wait_reason, Some(Lack::Kept));
    world.run_for(Nanos::from_secs(4));
    assert!(world.overflows(entrant, GPU), "the host may have memory by now");
}

#[test]
fn memory_of_the_dead_that_another_process_keeps_for_long_is_made_up_for_by_the_host() {
    let (mut world, a, b) = two_programs();
    world.ends(a);
    world.run_for(Nanos::from_secs(5));
    assert!(world.resident(b, GPU) < gib(3), "a child may have it still");
    assert!(world.passes(b) && world.overflows(b, GPU));
    world.send(Event::ClientGone { client: a });
    world.run_for(ms(500));
    assert!(world.goal(b, GPU).unwrap().1 >= gib(6), "the card has room for all of it");
    assert!(!world.overflows(b, GPU));
}

#[test]
fn nothing_is_mapped_when_a_program_ends_whose_room_the_next_one_needs() {
    for gone_after in [ms(1), ms(60), ms(200), ms(1000)] {
        let (mut world, a, b) = two_programs();
        world.ends(a);
        world.run_for(gone_after);
        world.send(Event::ClientGone { client: a });
        world.run_for(ms(500));
        assert!(world.passes(b));
        assert_eq!((world.resident(b, GPU), world.mapped(b, GPU)), (gib(6), Bytes::ZERO), "{gone_after:?}");
    }
}
