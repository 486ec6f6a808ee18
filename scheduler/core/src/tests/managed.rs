//! Goals for managed memory: who should give how much beside the way in of another process, and until when.

use gpushare_proto::admin::Knob;
use gpushare_proto::{Bytes, ClientId, GateState, Nanos};

use super::world::{GPU, World, gib, ms, plain};
use crate::{Config, Effect, Event, Standing};

/// Goal that is lifted.
const NONE: Bytes = Bytes::MAX;

/// A card of 10 GiB, of which sessions may have 8 together, with turns of half a second.
fn world() -> World {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..plain() });
    world.set(Knob::Capacity(Some(gib(8))));
    world
}

/// Goals since the last call.
fn goals(world: &mut World) -> Vec<(ClientId, Bytes)> {
    world.pick(|effect| match effect {
        Effect::Goal { client, gpu: GPU, bytes, .. } => Some((client, bytes)),
        _ => None,
    })
}

/// Adds a program that always has work, and whose way in lasts until the test ends it.
fn program(world: &mut World, bytes: Bytes) -> ClientId {
    let (_, client) = world.busy_program(bytes);
    world.habits(client).moves = Nanos::from_secs(1000);
    client
}

/// Lets the session of a process have no turn.
fn pause(world: &mut World, client: ClientId) {
    let session = world.core.view.session_of(client).unwrap();
    world.send(Event::Standing { session, standing: Standing::Paused });
}

/// Lets time pass until a process comes in.
fn comes_in(world: &mut World, client: ClientId) {
    for _ in 0..2000 {
        if world.gate(client).state() == GateState::Moving {
            return;
        }
        world.run_for(ms(1));
    }
    panic!("{client} has had no turn");
}

/// Two programs of 6 GiB each: the first one has had its turn, and the second one comes in.
fn two_programs() -> (World, ClientId, ClientId) {
    let mut world = world();
    let a = program(&mut world, gib(6));
    world.run_for(ms(100));
    let b = program(&mut world, gib(6));
    comes_in(&mut world, b);
    (world, a, b)
}

#[test]
fn the_leaver_gives_what_the_entrant_lacks_while_that_comes_in() {
    let (mut world, a, b) = two_programs();
    assert_eq!(goals(&mut world), [(a, gib(2))], "6 and 6 of 8");
    world.run_for(ms(50));
    assert_eq!(goals(&mut world), []);
    world.enters(b, ms(50));
    assert_eq!(goals(&mut world), [(a, NONE)], "what did not leave by then was evicted");
    comes_in(&mut world, a);
    assert_eq!(goals(&mut world), [(b, gib(2))]);
    world.enters(a, ms(50));
    assert_eq!(goals(&mut world), [(b, NONE)]);
}

#[test]
fn the_last_leaver_keeps_what_fits_and_the_one_before_gives_the_rest() {
    let (mut world, a, b) = two_programs();
    let c = program(&mut world, gib(6));
    world.run_for(ms(10));
    assert_eq!(goals(&mut world), [(a, gib(2))], "c waits, and has nothing on the card");
    world.enters(b, ms(20));
    assert_eq!(goals(&mut world), [(a, NONE)]);
    pause(&mut world, a);
    comes_in(&mut world, c);
    assert_eq!(goals(&mut world), [(b, gib(2)), (a, gib(0))]);
    world.enters(c, ms(20));
    assert_eq!(goals(&mut world), [(b, NONE), (a, NONE)]);
    comes_in(&mut world, b);
    assert_eq!(goals(&mut world), [(c, gib(2))], "nothing of a is left");
}

#[test]
fn an_entrant_that_dies_calls_the_way_out_off() {
    let (mut world, a, b) = two_programs();
    // It has no turn meanwhile.
    pause(&mut world, a);
    goals(&mut world);
    world.dies(b);
    assert_eq!(goals(&mut world), [(a, NONE)]);
}

#[test]
fn a_session_that_runs_beside_the_entrant_gives_nothing() {
    let mut world = world();
    let (_, beside) = world.busy_program(gib(1));
    let a = program(&mut world, gib(5));
    world.run_for(ms(100));
    let b = program(&mut world, gib(6));
    comes_in(&mut world, b);
    world.run_for(ms(100));
    assert_eq!(world.open(&[beside, a, b]), [true, false, false]);
    assert_eq!(goals(&mut world), [(a, gib(1))]);
}

#[test]
fn an_entrant_that_must_let_go_calls_the_way_out_off() {
    let (mut world, a, b) = two_programs();
    goals(&mut world);
    pause(&mut world, b);
    assert_eq!(goals(&mut world), [(a, NONE)]);
}

#[test]
fn an_entrant_that_is_larger_than_the_card_gets_no_goal() {
    let mut world = world();
    let a = program(&mut world, gib(6));
    world.run_for(ms(100));
    let session = world.session_with(None, true);
    let large = world.join_on(session, GPU);
    world.allocate(large, GPU, gib(12));
    world.take();
    world.gets_busy(large);
    world.habits(large).moves = Nanos::from_secs(1000);
    comes_in(&mut world, large);
    assert_eq!(goals(&mut world), [(a, gib(0))]);
}

#[test]
fn each_process_of_the_leaver_has_its_part_of_what_fits() {
    let mut world = world();
    let (session, a) = world.busy_program(gib(4));
    let sibling = world.join_on(session, GPU);
    world.allocate(sibling, GPU, gib(2));
    world.run_for(ms(100));
    let b = program(&mut world, gib(5));
    comes_in(&mut world, b);
    assert_eq!(goals(&mut world), [(a, gib(3)), (sibling, gib(0))]);
    world.enters(b, ms(20));
    assert_eq!(goals(&mut world), [(a, NONE), (sibling, NONE)]);
}

#[test]
fn programs_that_fit_the_card_get_no_goal() {
    let mut world = world();
    for _ in 0..2 {
        world.busy_program(gib(4));
    }
    world.run_for(Nanos::from_secs(2));
    world.set(Knob::Mode(Some(gpushare_proto::admin::Mode::TimeSliced)));
    world.run_for(Nanos::from_secs(2));
    assert!(world.card().handoffs > 2);
    assert_eq!(goals(&mut world), []);
}

#[test]
fn the_goals_of_a_new_page_have_higher_numbers() {
    let (mut world, a, b) = two_programs();
    let numbers = |world: &mut World| {
        world.pick(|effect| match effect {
            Effect::Goal { client, number, .. } if client == a => Some(number),
            _ => None,
        })
    };
    let first = numbers(&mut world);
    world.comes_back(a);
    assert_eq!(numbers(&mut world), []);
    world.enters(b, ms(20));
    comes_in(&mut world, a);
    world.enters(a, ms(20));
    comes_in(&mut world, b);
    let later = numbers(&mut world);
    assert_eq!((first.len(), later.len()), (1, 2), "one was lifted, and one given");
    assert!(first[0] < later[0] && later[0] < later[1], "{first:?} {later:?}");
}
