//! Sessions that are frozen after they were idle for a while: when, and when not.

use gpushare_proto::page::FLAG_WANTED;
use gpushare_proto::{Bytes, ClientId, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::session::frost::Stage;
use crate::{Config, Effect, Event, FreezeEnd, Obstacle, Standing};

const AFTER: Nanos = Nanos::from_secs(60);
const SECOND: fn(u64) -> Nanos = Nanos::from_secs;

fn world() -> World {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..plain() });
    world.send(Event::HostBudget { bytes: gib(100) });
    world
}

/// A program with 4 GiB of remapped memory that was examined, is idle and is frozen after a minute.
fn program(world: &mut World) -> (SessionId, ClientId) {
    let (session, client) = world.remapping_program(gib(4));
    world.send(Event::Overhead { client, gpu: GPU, bytes: Some(Bytes::mib(512)) });
    world.send(Event::FreezeAfter { session, idle: Some(AFTER) });
    world.send(Event::Freezable { client, obstacle: None });
    world.goes_idle(client);
    (session, client)
}

/// Lets a program go idle once it is asked for the proof.
fn proves_that_it_is_idle(world: &mut World, client: ClientId) {
    world.run_for(SECOND(6));
    assert_ne!(world.flags(client) & FLAG_WANTED, 0, "it is asked for the proof");
    world.goes_idle(client);
}

fn stage(world: &World, client: ClientId) -> Stage {
    world.core.view.sessions.client(client).unwrap().frost.stage()
}

/// Number of freezes that the daemon was asked for since the last call.
fn freezes(world: &mut World) -> usize {
    world.pick(|effect| matches!(effect, Effect::Freeze { .. }).then_some(())).len()
}

#[test]
fn an_idle_session_is_frozen_after_its_time_and_comes_back_when_called() {
    let mut world = world();
    let (session, client) = program(&mut world);
    world.gets_busy(client);
    proves_that_it_is_idle(&mut world, client);
    world.run_for(AFTER - SECOND(1));
    assert_eq!(stage(&world, client), Stage::Warm);
    assert_eq!(world.core.idle_for(session, world.now), Some(AFTER - SECOND(1)));
    world.run_for(SECOND(3));
    assert_eq!((stage(&world, client), world.core.idle_for(session, world.now)), (Stage::Frozen, None));
    world.gets_busy(client);
    world.run_for(SECOND(2));
    assert!(world.passes(client));
    proves_that_it_is_idle(&mut world, client);
    world.run_for(AFTER + SECOND(3));
    assert_eq!(stage(&world, client), Stage::Frozen, "again");
}

#[test]
fn a_session_without_such_a_time_keeps_the_card_and_is_never_frozen() {
    let mut world = world();
    let (session, client) = program(&mut world);
    world.send(Event::FreezeAfter { session, idle: None });
    world.gets_busy(client);
    world.run_for(SECOND(600));
    assert_eq!((world.flags(client) & FLAG_WANTED, stage(&world, client)), (0, Stage::Warm));
    world.goes_idle(client);
    world.run_for(SECOND(600));
    assert_eq!((freezes(&mut world), world.core.idle_for(session, world.now)), (0, None));
}

#[test]
fn a_session_that_works_is_not_frozen() {
    let mut world = world();
    let (_, client) = program(&mut world);
    for _ in 0..10 {
        world.gets_busy(client);
        proves_that_it_is_idle(&mut world, client);
        world.run_for(AFTER - SECOND(10));
    }
    assert_eq!((freezes(&mut world), stage(&world, client)), (0, Stage::Warm));
}

#[test]
fn allocations_and_calls_past_the_gate_are_signs_of_life() {
    let mut world = world();
    let (_, client) = program(&mut world);
    for _ in 0..5 {
        world.run_for(AFTER - SECOND(10));
        assert!(world.allocate(client, GPU, Bytes::mib(128)));
    }
    assert_eq!(freezes(&mut world), 0);
    world.run_for(AFTER + SECOND(3));
    assert_eq!((freezes(&mut world), stage(&world, client)), (1, Stage::Frozen));
}

#[test]
fn a_session_with_an_obstacle_is_frozen_once_that_is_gone() {
    let mut world = world();
    let (session, client) = program(&mut world);
    world.send(Event::Freezable { client, obstacle: Some(Obstacle::HostHandles) });
    world.take();
    world.run_for(AFTER + SECOND(10));
    // Events about the session are no reason to try.
    world.send(Event::Standing { session, standing: Standing::Good });
    assert_eq!((freezes(&mut world), world.notices()), (0, vec![]));
    world.send(Event::Freezable { client, obstacle: None });
    world.run_for(SECOND(3));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn one_process_with_an_obstacle_keeps_the_whole_session_warm() {
    let mut world = world();
    let (session, first) = program(&mut world);
    let second = world.join_on(session, GPU);
    world.send(Event::Freezable { client: second, obstacle: Some(Obstacle::Managed) });
    world.run_for(AFTER + AFTER + AFTER);
    assert_eq!((freezes(&mut world), stage(&world, first)), (0, Stage::Warm));
}

#[test]
fn an_attempt_that_failed_is_repeated_after_as_long_a_time() {
    let mut world = world();
    let (_, client) = program(&mut world);
    world.habits(client).ends.0 = FreezeEnd::Busy;
    world.run_for(AFTER + SECOND(3));
    assert_eq!((freezes(&mut world), stage(&world, client)), (1, Stage::Warm));
    for _ in 0..20 {
        world.send(Event::Freezable { client, obstacle: None });
        world.run_for(SECOND(2));
    }
    assert_eq!(freezes(&mut world), 0);
    world.habits(client).ends.0 = FreezeEnd::Frozen;
    world.run_for(SECOND(25));
    assert_eq!((freezes(&mut world), stage(&world, client)), (1, Stage::Frozen));
}

#[test]
fn what_the_driver_refused_is_not_tried_again() {
    let mut world = world();
    let (session, client) = program(&mut world);
    world.habits(client).ends.0 = FreezeEnd::Refused;
    world.take();
    world.run_for(SECOND(600));
    assert_eq!(freezes(&mut world), 1);
    let obstacle = Obstacle::Refused;
    assert_eq!(world.core.frost_obstacle(session), Some((client, obstacle)));
}

#[test]
fn a_thawed_session_is_frozen_again_after_as_long_a_time() {
    let mut world = world();
    let (session, client) = program(&mut world);
    world.run_for(AFTER + SECOND(3));
    assert_eq!(stage(&world, client), Stage::Frozen);
    world.send(Event::Freeze { session, wanted: false });
    world.run_for(AFTER - SECOND(5));
    assert_eq!(stage(&world, client), Stage::Warm);
    world.run_for(SECOND(10));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn a_paused_session_is_frozen_too_and_stays_until_it_is_resumed() {
    let mut world = world();
    let (session, client) = program(&mut world);
    world.send(Event::Standing { session, standing: Standing::Paused });
    world.run_for(AFTER + SECOND(3));
    world.send(Event::Called { client });
    world.run_for(SECOND(3));
    assert_eq!(stage(&world, client), Stage::Frozen);
    world.send(Event::Standing { session, standing: Standing::Good });
    world.run_for(SECOND(3));
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn nothing_is_frozen_while_processes_of_the_last_daemon_are_missing() {
    let config = Config { stuck_policy: StuckPolicy::Wait, ..plain() };
    let mut world = World::after_restart(config, [77]);
    world.send(Event::HostBudget { bytes: gib(100) });
    world.send(Event::ExpectedUses { client: ClientId(77), gpu: GPU, bytes: gib(1) });
    let (_, client) = program(&mut world);
    world.run_for(AFTER + AFTER);
    assert_eq!(stage(&world, client), Stage::Warm);
    world.send(Event::ExpectedGone { client: ClientId(77) });
    world.run_for(SECOND(3));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn a_session_that_gave_the_card_back_gets_it_at_once_beside_others() {
    let mut world = world();
    let (_, client) = program(&mut world);
    let (_, other) = world.remapping_program(gib(2));
    world.gets_busy(other);
    world.gets_busy(client);
    proves_that_it_is_idle(&mut world, client);
    world.take();
    world.arrives(client);
    assert!(world.passes(client) && world.passes(other));
}
