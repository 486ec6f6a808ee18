//! Schedules in which a drawn test (`schedules.rs`) found a mistake, each a test of its own. The world checks the
//! invariants after every event.

use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use super::schedules::{RETURNING, Step, play};
use super::world::{GPU, OTHER_GPU, World, gib, ms};
use crate::config::StuckPolicy;
use crate::{Config, Event};

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

#[test]
fn a_turn_that_is_not_backfilled_any_more_makes_room_at_once() {
    let config = Config { context_reserve: Bytes::ZERO, lease_chunk: Bytes::ZERO, ..Config::default() };
    let mut world = World::after_restart(Config { stuck_policy: StuckPolicy::Wait, ..config }, []);
    world.second_card();
    for (gibs, busy) in [(1, true), (3, false), (7, false)] {
        let (_, client) = world.program(gib(gibs));
        world.habits(client).busy = busy;
        world.arrives(client);
    }
    for step in [
        Step::Run(99),
        Step::Return(0, false, 3),
        Step::Join(0),
        Step::Run(122),
        Step::Join(3),
        Step::Arrive(5),
        Step::Attach(3, GpuId(1)),
        Step::AllocateFixed(5, GpuId(0), 1),
        Step::Run(20),
        Step::Attach(4, GpuId(1)),
        Step::GoIdle(2),
    ] {
        // The world checks after each event that nothing was overlooked.
        play(&mut world, step);
    }
}

#[test]
fn a_drop_that_is_undone_after_it_gave_way_is_in_the_way_again() {
    let config = Config { context_reserve: Bytes::ZERO, lease_chunk: Bytes::ZERO, ..Config::default() };
    let config = Config { stuck_policy: StuckPolicy::RunOthers, ..config };
    let mut world = World::after_restart(config, [RETURNING, RETURNING + 1]);
    world.second_card();
    for step in [
        Step::OpenSession { limit: None, oversubscribe: false },
        Step::OpenSession { limit: None, oversubscribe: false },
        Step::Return(2, false, 0),
        Step::ExpectedUses(1, GpuId(0), 6),
        Step::OpenSession { limit: None, oversubscribe: false },
        Step::Allocate(0, GpuId(0), 5),
        Step::Join(0),
        Step::Change(6, 41, false),
        Step::Busy(1),
        Step::Attach(1, GpuId(1)),
        Step::Join(2),
        Step::Attach(3, GpuId(0)),
        Step::Busy(3),
        Step::Change(4, 41, true),
        Step::Busy(7),
        Step::Run(5012),
        Step::Join(0),
        Step::Attach(2, GpuId(0)),
        Step::Attach(5, GpuId(1)),
        Step::ExpectedGone(0),
        Step::Return(1, false, 6),
        Step::Own(2, 0, 1),
        Step::Run(247),
    ] {
        // The world checks after each event that nothing was overlooked.
        play(&mut world, step);
    }
}

#[test]
fn a_gang_begins_beside_the_drain_of_another_on_the_card_where_no_memory_moves() {
    let config = Config {
        lease_chunk: Bytes::ZERO,
        stuck_policy: StuckPolicy::RunOthers,
        ..Config::default()
    };
    let mut world = World::after_restart(config, []);
    world.second_card();
    for (gibs, busy) in [(5, false), (6, true), (3, false)] {
        let (_, client) = world.program(gib(gibs));
        world.habits(client).busy = busy;
        world.arrives(client);
    }
    for step in [
        Step::Return(0, false, 0),
        Step::Die(4),
        Step::Attach(7, GpuId(1)),
        Step::Join(3),
        Step::Busy(3),
        Step::Own(2, 0, 1),
        Step::Jump(5000),
        Step::Jump(217),
        Step::Attach(2, GpuId(1)),
        Step::Run(2),
    ] {
        // The world checks after each event that nothing was overlooked.
        play(&mut world, step);
    }
}

#[test]
fn a_limited_session_that_wakes_with_remapped_memory_waits_until_it_fits() {
    let config = Config { lease_chunk: Bytes::ZERO, context_reserve: gib(1), ..Config::default() };
    let mut world = World::after_restart(Config { stuck_policy: StuckPolicy::Wait, ..config }, []);
    world.second_card();
    for (_, client) in [world.remapping_program(gib(0)), world.program(gib(2))] {
        world.arrives(client);
    }
    for step in [
        Step::Lead(None, GpuId(0), 0),
        Step::Compute(3, GpuId(0), Some(0)),
        Step::Run(2),
        Step::Jump(1_099_511_627_775),
        Step::Allocate(0, GpuId(0), 6),
        Step::Remap(0),
        Step::Busy(3),
    ] {
        // The world checks after each grant that the memory of all who may have work in flight fits.
        play(&mut world, step);
    }
}

#[test]
fn a_move_in_that_is_late_as_the_session_must_let_go_is_called_off() {
    let config = Config { lease_chunk: Bytes::ZERO, context_reserve: Bytes::ZERO, ..Config::default() };
    let mut world = World::after_restart(config, []);
    world.second_card();
    for (gibs, busy) in [(2, false), (1, true)] {
        let (_, client) = world.remapping_program(gib(gibs));
        world.habits(client).busy = busy;
        world.arrives(client);
    }
    for step in [
        Step::Return(0, false, 0),
        Step::Join(0),
        Step::Die(2),
        Step::End(2),
        Step::Return(0, false, 0),
        Step::Remap(0),
        Step::Allocate(4, GpuId(0), 1),
        Step::Join(0),
        Step::Die(2),
        Step::Busy(4),
        Step::Share(0, 100, Priority::High),
        Step::Die(2),
        Step::Change(4, 0, false),
        Step::Budget(1),
        Step::Allocate(1, GpuId(0), 6),
        Step::Run(34),
        Step::AllocateFixed(0, GpuId(0), 1),
        Step::Jump(997),
    ] {
        // The world checks after each event that nothing was overlooked.
        play(&mut world, step);
    }
}

#[test]
fn a_move_that_is_late_while_a_process_returns_is_tried_again_afterwards() {
    let config = Config {
        stuck_policy: StuckPolicy::RunOthers,
        lease_chunk: Bytes::ZERO,
        ..Config::default()
    };
    let mut world = World::after_restart(config, [RETURNING]);
    world.send(Event::ExpectedUses { client: ClientId(RETURNING), gpu: GPU, bytes: gib(1) });
    let (_, client) = world.remapping_program(gib(3));
    world.habits(client).answers = false;
    world.arrives(client);
    let has_goal = (0..10_000).any(|_| {
        world.run_for(ms(1));
        world.goal(client, GPU).is_some()
    });
    assert!(has_goal, "others run once the missing process is overdue");
    world.run_for(ms(980));
    play(&mut world, Step::Return(0, false, 1));
    // The world checks after each event that nothing was overlooked.
    world.run_for(ms(100));
    world.habits(client).answers = true;
    world.step(client, GPU);
    world.run_for(ms(3000));
    assert_eq!(world.resident(client, GPU), gib(3));
}

#[test]
fn whoever_fits_in_since_a_move_was_fast_is_admitted_in_the_event_that_tells_of_it() {
    let config = Config {
        stuck_policy: StuckPolicy::Wait,
        lease_chunk: Bytes::ZERO,
        context_reserve: gib(1),
        quantum: Some(ms(100)),
        ..Config::default()
    };
    let mut world = World::after_restart(config, []);
    world.second_card();
    world.send(Event::HostBudget { bytes: gib(1) });
    for (gibs, busy, remaps) in [(3, false, false), (3, true, false), (4, false, true), (2, false, true)] {
        let (_, client) = if remaps {
            world.remapping_program(gib(gibs))
        } else {
            world.program(gib(gibs))
        };
        world.habits(client).busy = busy;
        world.arrives(client);
    }
    for step in [
        Step::Run(100),
        Step::Attach(0, GpuId(1)),
        Step::Remap(0),
        Step::Busy(0),
        Step::Own(0, 0, 4),
        Step::Busy(3),
        Step::UserLead(0, Priority::Low, GpuId(0), 0),
        Step::Attach(1, GpuId(1)),
        Step::Run(143),
    ] {
        // The world checks after each event that nothing was overlooked.
        play(&mut world, step);
    }
}

/// A lease on one card takes host memory that an eviction on the other one counts on.
#[test]
fn host_memory_that_is_promised_on_one_card_is_missed_on_the_other() {
    let config = Config {
        lease_chunk: Bytes::ZERO,
        context_reserve: Bytes::ZERO,
        stuck_policy: StuckPolicy::Wait,
        ..Config::default()
    };
    let mut world = World::after_restart(config, []);
    world.second_card();
    let (_, client) = world.remapping_program_with(gib(3), false);
    world.habits(client).busy = false;
    world.arrives(client);
    let steps = [
        Step::Allocate(0, GPU, 5),
        Step::Remap(0),
        Step::Run(5),
        Step::Return(2, false, 2),
        Step::Join(0),
        Step::GoIdle(0),
        Step::Return(0, false, 3),
        Step::OpenSession { limit: None, oversubscribe: false },
        Step::Return(1, true, 4),
        Step::Remap(1),
        Step::Attach(3, OTHER_GPU),
        Step::Budget(8),
        Step::Allocate(3, OTHER_GPU, 1),
    ];
    // The world checks after each event that nothing was overlooked.
    play_all(&mut world, steps);
}

/// The last frozen session that comes back, here one with a compute limit, changes the card's mode first.
#[test]
fn the_last_session_that_ceases_to_be_frozen_gets_no_turn_beside_one_that_it_does_not_fit_beside() {
    let config = Config { lease_chunk: Bytes::ZERO, context_reserve: Bytes::ZERO, ..Config::default() };
    let mut world = World::after_restart(config, []);
    world.second_card();
    let (_, client) = world.remapping_program_with(gib(5), false);
    world.arrives(client);
    let steps = [
        Step::Compute(0, GPU, Some(609)),
        Step::GoIdle(0),
        Step::Examine(0, true),
        Step::FreezeAfter(0, Some(1)),
        Step::Arrive(0),
        Step::Return(0, true, 5),
        Step::Run(2049),
        Step::Busy(1),
        Step::Busy(0),
    ];
    // The world checks after each grant that the memory of all who may have work in flight fits.
    play_all(&mut world, steps);
}
