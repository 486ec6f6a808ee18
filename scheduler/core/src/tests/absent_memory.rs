//! Who waits beside those who do not let go, or do not return, where others run meanwhile (policy
//! `run_others`).

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::config::{StuckPolicy, Tuning};
use crate::{Config, Event};

/// Somebody has so much of the first card and does not let go of it any more.
fn with_a_stuck_holder(world: &mut World, bytes: Bytes) {
    let (_, stuck) = world.program(bytes);
    world.habits(stuck).drain = Nanos::from_secs(1_000_000);
    let (_, waiter) = world.busy_program(gib(10));
    world.run_for(Nanos::from_secs(8));
    world.dies(waiter);
    world.take();
}

/// Turns of 100 ms on a card of 10 GiB [`with_a_stuck_holder`].
fn beside_a_stuck_holder(bytes: Bytes) -> World {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    with_a_stuck_holder(&mut world, bytes);
    world
}

fn turns_of(turns: &[SessionId], session: SessionId) -> usize {
    turns.iter().filter(|turn| **turn == session).count()
}

#[test]
fn who_would_fit_beside_a_stuck_holder_is_not_passed_for_ever() {
    let mut world = beside_a_stuck_holder(gib(6));
    let small = [2, 30].map(|drain| {
        let (_, client) = world.busy_program(gib(2));
        world.habits(client).drain = ms(drain);
        client
    });
    world.run_for(ms(30));
    assert_eq!(world.open(&small), [true, true]);
    let (large, _) = world.busy_program(gib(4));
    world.run_for(Nanos::from_secs(10));
    let turns = turns_of(&world.turns(), large);
    assert!(turns > 20, "{turns}");
}

#[test]
fn a_class_below_has_its_turns_though_its_first_waits_for_a_stuck_holder() {
    let mut world = beside_a_stuck_holder(gib(6));
    let of_class = |world: &mut World, gibs, priority| {
        let (session, client) = world.program(gib(gibs));
        let weight = 100;
        world.send(Event::Share { session, weight, priority });
        world.gets_busy(client);
        session
    };
    for _ in 0..2 {
        of_class(&mut world, 3, Priority::High);
    }
    of_class(&mut world, 6, Priority::Normal);
    let low = of_class(&mut world, 3, Priority::Normal);
    world.run_for(Nanos::from_secs(20));
    let turns = turns_of(&world.turns(), low);
    assert!(turns >= 5, "{turns}");
}

/// Somebody who fits beside those who do not let go keeps its turn, and `large` waits.
fn nobody_lets_go_for(world: &mut World, large: ClientId) {
    world.run_for(Nanos::from_secs(6));
    let (small, client) = world.busy_program(gib(2));
    world.take();
    world.run_for(Nanos::from_secs(10));
    assert_eq!(world.open(&[large, client]), [false, true]);
    assert_eq!(turns_of(&world.turns(), small), 0);
}

#[test]
fn nobody_lets_go_for_one_that_is_larger_than_the_card_while_somebody_is_stuck_there_with_nothing() {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    let (_, stuck) = world.program(Bytes::ZERO);
    world.habits(stuck).drain = Nanos::from_secs(1_000_000);
    let session = world.session_with(None, true);
    let large = world.join(session);
    world.attach(large, GPU);
    world.allocate(large, GPU, gib(12));
    world.gets_busy(large);
    nobody_lets_go_for(&mut world, large);
}

#[test]
fn nobody_lets_go_for_one_that_waits_for_a_stuck_holder_where_no_memory_moves() {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    world.set(Knob::Mode(Some(Mode::TimeSliced)));
    let (_, stuck) = world.program(gib(6));
    world.arrives(stuck);
    world.habits(stuck).drain = Nanos::from_secs(1_000_000);
    world.run_for(ms(30));
    let (_, large) = world.busy_program(gib(6));
    nobody_lets_go_for(&mut world, large);
}

#[test]
fn a_policy_that_is_set_later_holds_for_those_who_do_not_return() {
    for (before, after, open) in [
        (StuckPolicy::RunOthers, StuckPolicy::Wait, false),
        (StuckPolicy::Wait, StuckPolicy::RunOthers, true),
    ] {
        let mut world =
            World::after_restart(Config { stuck_policy: before, quantum: Some(ms(100)), ..plain() }, [501]);
        world.send(Event::ExpectedUses { client: ClientId(501), gpu: GPU, bytes: gib(6) });
        let (_, a) = world.busy_program(gib(5));
        world.run_for(Nanos::from_secs(10));
        world.send(Event::Tune(Tuning::StuckPolicy(after)));
        let (_, b) = world.busy_program(gib(3));
        world.run_for(Nanos::from_secs(1));
        assert_eq!(world.open(&[a, b]), [false, open], "{before:?} {after:?}");
    }
}

#[test]
fn whoever_is_behind_one_that_waits_for_a_stuck_holder_is_told_of_nobodys_turn_before_its_own() {
    let mut world = beside_a_stuck_holder(gib(6));
    world.busy_program(gib(6));
    world.busy_program(gib(4));
    let (next, _) = world.busy_program(gib(4));
    world.run_for(ms(10));
    assert_eq!(world.core.waiting(world.now, next).unwrap().ahead, []);
}

#[test]
fn a_card_is_not_emptied_for_a_gang_that_waits_for_another_holder_beside_a_stuck_one() {
    let mut world =
        World::new(Config { quantum: Some(Nanos::from_secs(1)), bandwidth_per_second: gib(100), ..plain() });
    world.second_card();
    with_a_stuck_holder(&mut world, gib(4));
    let on = |world: &mut World, cards: &[(GpuId, u64)]| {
        let session = world.session();
        let client = world.join(session);
        for &(gpu, gibs) in cards {
            world.attach(client, gpu);
            world.allocate(client, gpu, gib(gibs));
        }
        world.gets_busy(client);
        client
    };
    let there = on(&mut world, &[(OTHER_GPU, 6)]);
    // Turns are taken there from now on.
    let other = on(&mut world, &[(OTHER_GPU, 6)]);
    world.dies(other);
    world.run_for(ms(500));
    let here = on(&mut world, &[(GPU, 6)]);
    let gang = on(&mut world, &[(GPU, 4), (OTHER_GPU, 6)]);
    world.run_for(ms(900));
    assert_eq!(world.open(&[here, there, gang]), [true, true, false]);
    world.run_for(ms(200));
    assert_eq!(world.open(&[here, there, gang]), [false, false, true]);
}

#[test]
fn who_wakes_beside_a_stuck_holder_pays_for_an_early_switch_as_anywhere() {
    let mut world = World::new(Config { budget_max: Config::default().budget_max, ..plain() });
    with_a_stuck_holder(&mut world, gib(4));
    let (_, wakes) = world.program(gib(5));
    let (_, here) = world.busy_program(gib(4));
    world.run_for(Nanos::from_secs(1));
    assert!(world.passes(here));
    world.arrives(wakes);
    world.run_for(ms(50));
    assert_eq!(world.open(&[here, wakes]), [false, true]);
}
