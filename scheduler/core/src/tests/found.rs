//! Schedules in which a drawn test (`schedules.rs`) found a mistake, each a test of its own. The world checks the
//! invariants after every event.

use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};

use super::schedules::{Step, play};
use super::world::{GPU, OTHER_GPU, World, gib, ms};
use crate::Config;
use crate::config::StuckPolicy;

/// A world of two cards where programs with this much memory have come to the gate. Some always have work.
fn world_with(config: Config, programs: [(u64, bool); 4]) -> World {
    let mut world = World::new(config);
    world.second_card();
    for (gibs, busy) in programs {
        let (_, client) = world.program(gib(gibs));
        world.habits(client).busy = busy;
        world.arrives(client);
    }
    world
}

fn play_all(world: &mut World, steps: impl IntoIterator<Item = Step>) {
    steps.into_iter().for_each(|step| play(world, step));
}

/// A turn that was owed, and granted, is owed no more: the first in line behind it makes itself heard.
#[test]
fn whoever_is_owed_a_turn_goes_first_once() {
    let steps = [
        Step::AllocateFixed(0, GpuId(0), 2),
        Step::Share(3, 0, Priority::Normal),
        Step::Allocate(2, GpuId(0), 5),
        Step::Run(212),
        Step::Allocate(3, GpuId(0), 1),
        Step::Share(0, 100, Priority::High),
        Step::GoIdle(2),
        Step::Return(0, false, 0),
        Step::Attach(4, GpuId(1)),
        Step::Arrive(4),
        Step::Attach(3, GpuId(1)),
        Step::Jump(39_076),
        Step::Run(2),
    ];
    let config = Config {
        lease_chunk: Bytes::ZERO,
        context_reserve: Bytes::ZERO,
        switch_cost: Nanos::ZERO,
        ..Config::default()
    };
    let mut world = world_with(config, [(4, true), (7, false), (0, false), (4, false)]);
    play_all(&mut world, steps);
    let waits: Vec<SessionId> = world.core.view.admissible(GpuId(0).into()).collect();
    assert_eq!(waits.first(), Some(&SessionId(4)), "the class above has had 39 s");
    assert!(world.core.view.is_wanted(GpuId(0)));
}

/// A session that becomes a user's gets another place, and so do those behind it.
#[test]
fn whoever_moves_up_because_another_session_changed_hands_is_told() {
    let config = Config {
        lease_chunk: Bytes::ZERO,
        context_reserve: Bytes::ZERO,
        quantum: Some(ms(100)),
        ..Config::default()
    };
    let mut world = world_with(config, [(3, true), (3, false), (8, false), (1, false)]);
    play_all(&mut world, [Step::GoIdle(5), Step::Run(143), Step::Busy(5), Step::Own(1, 0, 100)]);
}

/// A gang is due once it is owed its turn on each of its cards, whoever is first on another one of them.
#[test]
fn a_gang_that_becomes_due_by_time_alone_is_not_overlooked() {
    let config = Config {
        stuck_policy: StuckPolicy::Kill,
        context_reserve: gib(1),
        lease_chunk: Bytes::ZERO,
        quantum: Some(ms(100)),
        ..Config::default()
    };
    let mut world = world_with(config, [(4, true), (3, true), (2, false), (0, false)]);
    play_all(
        &mut world,
        [
            Step::Attach(4, OTHER_GPU),
            Step::Change(2, 0, false),
            Step::Die(3),
            Step::Run(79),
            Step::Return(0, false, 0),
            Step::Busy(3),
            Step::Run(2983),
            Step::Join(0),
            Step::Attach(0, GPU),
            Step::Attach(4, OTHER_GPU),
            Step::Share(0, 100, Priority::High),
            Step::Run(4692),
            Step::Run(49),
            Step::OpenSession { limit: None, oversubscribe: false },
        ],
    );
}

/// The virtual time of a session with an early turn does not make those behind it equal.
#[test]
fn whoever_waits_behind_an_early_turn_keeps_its_place() {
    let config = Config { context_reserve: gib(1), lease_chunk: Bytes::ZERO, ..Config::default() };
    let mut world = world_with(config, [(5, false), (4, false), (2, true), (0, false)]);
    play_all(
        &mut world,
        [
            Step::End(5),
            Step::Run(245),
            Step::Own(3, 0, 100),
            Step::GoIdle(7),
            Step::Change(0, 0, false),
            Step::Busy(3),
            Step::Busy(4),
            Step::Return(0, false, 6),
            Step::Run(44),
            Step::Busy(3),
            Step::Busy(2),
        ],
    );
    let line = |world: &World| world.core.view.admissible(GPU.into()).collect::<Vec<_>>();
    let [early, next, last] = line(&world)[..] else { panic!("three sessions wait") };
    assert!(world.core.view.sessions.get(early).is_some_and(|session| session.urgent));
    // The first program is that of the holder.
    let holder = world.core.view.sessions.clients().map(|(client, _)| client).min();
    world.dies(holder.expect("nobody is gone yet"));
    let holders = world.core.snapshot(world.now).gpus.swap_remove(0).holders;
    assert_eq!((holders, line(&world)), (vec![early, next], vec![last]));
}
