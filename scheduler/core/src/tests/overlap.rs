//! Switches that overlap: where no memory moves, the next session begins before the last one has drained.

use std::collections::BTreeMap;

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::page::FLAG_WANTED;
use gpushare_proto::session::Priority;
use gpushare_proto::{ClientId, GateState, Nanos, Percent, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::session::drop::LEAD;
use crate::{Config, Effect, Event};

const QUANTUM: Nanos = ms(100);

/// World with a card in time slices of [`QUANTUM`].
fn time_sliced() -> World {
    let mut world = World::new(Config { quantum: Some(QUANTUM), ..plain() });
    world.set(Knob::Mode(Some(Mode::TimeSliced)));
    world
}

/// World with a card in time slices of a computed length, where early turns are paid for.
fn with_early_turns() -> World {
    let mut world = World::new(Config { budget_max: Nanos::from_secs(2), ..plain() });
    world.set(Knob::Mode(Some(Mode::TimeSliced)));
    world
}

/// Two programs that fit together and always have work, whose work in flight takes `drain` to end.
fn two_programs(world: &mut World, drain: Nanos) -> [(SessionId, ClientId); 2] {
    [(); 2].map(|()| {
        let (session, client) = world.busy_program(gib(1));
        world.habits(client).drain = drain;
        (session, client)
    })
}

/// Lets time pass until a gate is closed, or open.
fn wait_for(world: &mut World, client: ClientId, open: bool) {
    let end = world.now + Nanos::from_secs(10);
    while world.passes(client) != open {
        assert!(world.now < end, "{client} never changed");
        world.run_for(Nanos(50_000));
    }
}

#[test]
fn the_next_begins_a_millisecond_before_the_drain_ends() {
    let mut world = time_sliced();
    let [(_, a), (_, b)] = two_programs(&mut world, ms(5));
    // The expected drain is known after some turns.
    world.run_for(Nanos::from_secs(10));
    wait_for(&mut world, b, true);
    wait_for(&mut world, a, true);
    wait_for(&mut world, a, false);
    let closed = world.now;
    assert!(!world.passes(b), "both would have work for 5 ms");
    wait_for(&mut world, b, true);
    let waited = world.now - closed;
    assert!(waited >= ms(4) - ms(1) && waited <= ms(4) + ms(1), "{waited}");
    assert_eq!(world.gate(a).state(), GateState::Closed);
    assert_eq!(world.card().holders.len(), 2, "one of them drains");
}

#[test]
fn where_drains_are_short_the_gate_closes_after_the_next_one_has_opened() {
    let mut world = time_sliced();
    let [(_, a), (_, b)] = two_programs(&mut world, Nanos(200_000));
    world.run_for(Nanos::from_secs(10));
    wait_for(&mut world, b, true);
    wait_for(&mut world, b, false);
    wait_for(&mut world, b, true);
    assert!(world.passes(a), "a thread of b needs a moment to launch");
    world.run_for(LEAD);
    assert_eq!(world.open(&[a, b]), [false, true]);
}

#[test]
fn a_session_that_slept_begins_at_once_and_no_gate_but_its_own_stays_open() {
    let mut world = with_early_turns();
    let (_, loops) = world.busy_program(gib(1));
    let (_, sleeps) = world.program(gib(1));
    world.habits(loops).drain = ms(8);
    world.run_for(Nanos::from_secs(1));
    assert_eq!(world.open(&[loops, sleeps]), [true, false]);
    world.arrives(sleeps);
    assert_eq!(world.open(&[loops, sleeps]), [false, true], "8 ms of work end beside it");
    world.run_for(ms(3));
    world.goes_idle(sleeps);
    assert_eq!(
        world.open(&[loops, sleeps]),
        [true, false],
        "its turn goes on, though 5 ms of its work are left"
    );
}

#[test]
fn an_interrupted_turn_goes_on_before_the_turns_of_those_who_had_more() {
    let mut world = with_early_turns();
    let [(_, a), (heavy, b)] = two_programs(&mut world, ms(8));
    let (session, sleeps) = world.program(gib(1));
    world.send(Event::Share { session, weight: 100, priority: Priority::High });
    world.send(Event::Share { session: heavy, weight: 300, priority: Priority::Normal });
    world.run_for(Nanos::from_secs(5));
    wait_for(&mut world, a, true);
    wait_for(&mut world, a, false);
    wait_for(&mut world, b, true);
    world.run_for(ms(10));
    world.arrives(sleeps);
    assert_eq!(world.open(&[a, b, sleeps]), [false, false, true]);
    world.run_for(ms(1));
    world.goes_idle(sleeps);
    assert_eq!(world.open(&[a, b, sleeps]), [false, true, false]);
}

#[test]
fn a_burst_of_a_higher_class_that_is_longer_than_a_quantum_is_not_cut_in_two() {
    let mut world = with_early_turns();
    let (_, loops) = world.busy_program(gib(1));
    let (session, bursts) = world.program(gib(1));
    world.send(Event::Share { session, weight: 100, priority: Priority::High });
    for _ in 0..20 {
        world.run_for(Nanos::from_secs(2));
        world.arrives(bursts);
        for _ in 0..150 {
            assert_eq!(world.open(&[loops, bursts]), [false, true]);
            world.run_for(ms(1));
        }
        world.goes_idle(bursts);
        wait_for(&mut world, loops, true);
    }
    // One that does not end is cut as soon as its budget is spent.
    world.habits(bursts).busy = true;
    world.arrives(bursts);
    world.run_for(Nanos::from_secs(30));
    wait_for(&mut world, loops, true);
}

#[test]
fn a_holder_proves_that_it_is_idle_while_the_work_of_another_ends_beside_its_turn() {
    let mut world = with_early_turns();
    let (_, loops) = world.busy_program(gib(1));
    let (_, sleeps) = world.program(gib(1));
    world.habits(loops).drain = ms(8);
    world.run_for(Nanos::from_secs(1));
    world.arrives(sleeps);
    assert!(world.flags(sleeps) & FLAG_WANTED > 0, "the one that was interrupted wants the card back");
}

#[test]
fn turns_double_while_they_are_used_up_and_begin_again_with_one_quantum_after_a_pause() {
    let mut world = World::new(plain());
    world.set(Knob::Mode(Some(Mode::TimeSliced)));
    let [(session, a), (_, b)] = two_programs(&mut world, ms(2));
    let turn = |world: &mut World| {
        wait_for(world, a, false);
        wait_for(world, a, true);
        let grant = world.core.view.sessions.get(session).unwrap().lock.holding().unwrap();
        (grant.at, grant.clock.lasts(grant.at))
    };
    // The quantum is the shortest one as soon as it is known what a switch loses.
    world.run_for(Nanos::from_secs(1));
    assert_eq!(turn(&mut world).1, ms(80));
    world.habits(a).busy = false;
    world.goes_idle(a);
    wait_for(&mut world, b, true);
    world.habits(a).busy = true;
    world.arrives(a);
    let (began, length) = turn(&mut world);
    assert_eq!(length, ms(20));
    wait_for(&mut world, a, false);
    let renewed = world.now - began;
    assert!(renewed >= ms(139) && renewed <= ms(141), "20, 40 and 80 ms, until it had as much: {renewed}");
    assert_eq!(turn(&mut world).1, ms(80));
}

#[test]
fn one_that_reports_its_end_too_early_lengthens_nobodys_turns() {
    let mut world = with_early_turns();
    let [(_, liar), _] = two_programs(&mut world, ms(2));
    (world.habits(liar).drain, world.habits(liar).lead) = (ms(35), ms(34));
    world.run_for(Nanos::from_secs(10));
    let card = world.core.view.cards.get(GPU).unwrap();
    assert_eq!(card.quantum(Nanos::ZERO, &world.core.view.config), ms(20));
}

#[test]
fn each_counts_half_of_what_both_had_also_if_the_entrant_is_idle_first() {
    let mut world = with_early_turns();
    let (looping, loops) = world.busy_program(gib(1));
    let (sleeping, sleeps) = world.program(gib(1));
    world.habits(loops).drain = ms(8);
    world.run_for(Nanos::from_secs(1));
    let held = |world: &mut World| [looping, sleeping].map(|session| world.view(session).held_ns);
    let before = held(&mut world);
    world.arrives(sleeps);
    world.run_for(ms(4));
    world.goes_idle(sleeps);
    let after = held(&mut world);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [ms(2), ms(2)]);
}

#[test]
fn a_session_of_a_higher_class_that_wakes_during_a_drain_begins_at_once() {
    let mut world = with_early_turns();
    let [(_, a), (_, b)] = two_programs(&mut world, ms(20));
    let (session, sleeps) = world.program(gib(1));
    world.send(Event::Share { session, weight: 100, priority: Priority::High });
    world.run_for(Nanos::from_secs(5));
    wait_for(&mut world, a, true);
    wait_for(&mut world, a, false);
    assert!(!world.passes(b));
    world.arrives(sleeps);
    assert_eq!(world.open(&[a, b, sleeps]), [false, false, true]);
}

#[test]
fn what_does_not_fit_together_takes_turns_without_overlap_in_a_fixed_mode_too() {
    let mut world = time_sliced();
    let clients = [(); 2].map(|()| {
        let (_, client) = world.busy_program(gib(6));
        world.habits(client).drain = ms(5);
        client
    });
    for _ in 0..1000 {
        world.run_for(ms(1));
        assert!(world.card().holders.len() <= 1, "at {}", world.now);
    }
    assert!(clients.into_iter().any(|client| world.passes(client)));
}

#[test]
fn a_leaver_that_does_not_drain_holds_nobody_up_and_is_reported_as_ever() {
    let mut world = time_sliced();
    let [(leaver, a), (_, b)] = two_programs(&mut world, ms(5));
    world.run_for(Nanos::from_secs(1));
    wait_for(&mut world, a, true);
    world.habits(a).drain = Nanos::from_secs(3600);
    wait_for(&mut world, a, false);
    world.run_for(ms(10));
    assert!(world.passes(b), "it begins before the leaver is late");
    world.run_for(Nanos::from_secs(20));
    assert!(world.core.view.is_stuck(leaver));
}

#[test]
fn limits_beside_each_other_are_kept_though_turns_overlap() {
    for drain in [Nanos(200_000), ms(4), ms(9)] {
        let mut world = World::new(plain());
        let sessions = two_programs(&mut world, drain).map(|(session, _)| session);
        for (session, percent) in sessions.into_iter().zip([2500, 7500]) {
            world.send(Event::Compute { session, gpu: GPU, limit: Some(Percent(percent)) });
        }
        world.run_for(Nanos::from_secs(5));
        let before = sessions.map(|session| world.view(session).held_ns);
        world.run_for(Nanos::from_secs(20));
        for ((session, before), limit) in sessions.into_iter().zip(before).zip([25.0, 75.0]) {
            let held = (world.view(session).held_ns - before).0 as f64 / 2e8;
            assert!((held - limit).abs() < 1.0, "{held}% of {limit}% with drains of {drain}");
        }
    }
}

/// Targets for the work in flight that processes were told since the last call.
fn targets(world: &mut World) -> BTreeMap<ClientId, Nanos> {
    let told = world.pick(|effect| match effect {
        Effect::DrainTarget { client, target } => Some((client, target)),
        _ => None,
    });
    told.into_iter().collect()
}

#[test]
fn work_in_flight_is_a_sixteenth_of_a_higher_classs_burst_while_one_is_on_the_card() {
    let usual = plain().drain_target;
    let mut world = World::new(Config { budget_max: Nanos::from_secs(2), ..plain() });
    let (_, loops) = world.busy_program(gib(1));
    assert_eq!(targets(&mut world), [(loops, usual)].into());
    let (session, bursts) = world.program(gib(1));
    world.send(Event::Share { session, weight: 100, priority: Priority::High });
    for _ in 0..5 {
        world.arrives(bursts);
        wait_for(&mut world, bursts, true);
        world.run_for(ms(16));
        world.goes_idle(bursts);
        world.run_for(ms(200));
    }
    let told = targets(&mut world);
    assert_eq!(told, [(loops, Nanos(1 << 19)), (bursts, usual)].into(), "1 ms, in the steps that are told");
    world.dies(bursts);
    assert_eq!(targets(&mut world), [(loops, usual)].into());
}

#[test]
fn a_session_that_waits_for_processes_to_return_gets_no_early_turn_for_it() {
    let mut world = World::after_restart(Config { budget_max: Nanos::from_secs(2), ..plain() }, [501]);
    world.set(Knob::Mode(Some(Mode::TimeSliced)));
    let (session, _) = world.busy_program(gib(1));
    assert!(world.core.view.is_held_up(session));
    assert!(!world.core.view.claim(session, GPU).early);
}
