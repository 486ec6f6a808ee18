use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Nanos};

use super::world::{GPU, World, gib, ms, plain};
use crate::config::Tuning;
use crate::{Config, Event, Notice};

#[test]
fn in_parallel_mode_everybody_runs() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(5));
    let (_, b) = world.program(gib(5));
    assert_eq!(world.open(&[a, b]), [true, true]);
    assert_eq!(world.card().mode, Mode::Parallel);
    assert_eq!(world.card().holders.len(), 2);
}

#[test]
fn a_process_joins_closed_and_is_opened_when_it_attaches_a_card() {
    let mut world = World::new(plain());
    let session = world.session();
    let client = world.join(session);
    assert!(!world.passes(client));
    world.attach(client, GPU);
    assert!(world.passes(client));
}

#[test]
fn when_memory_no_longer_fits_who_came_first_stays_and_the_rest_drops() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(5));
    let (_, b) = world.program(gib(4));
    let (_, c) = world.program(Bytes::ZERO);
    world.take();
    world.allocate(c, GPU, gib(2));
    assert_eq!(world.open(&[a, b, c]), [true, true, false]);
    assert!(world.notices().contains(&Notice::ModeChanged {
        gpu: GPU,
        mode: Mode::Serialized,
        reason: "the working sets need 11GiB, the capacity is 10GiB".to_owned(),
    }));
}

/// A busy session and one of another share, both with a context.
fn unequal(priority: Priority) -> (World, [ClientId; 2]) {
    let mut world = World::new(Config { budget_max: Nanos::from_secs(2), ..plain() });
    let (_, busy) = world.busy_program(gib(1));
    let (session, other) = world.program(gib(1));
    world.send(Event::Contexts { client: busy, gpu: GPU, live: 1 });
    world.send(Event::Contexts { client: other, gpu: GPU, live: 1 });
    world.send(Event::Share { session, weight: 200, priority });
    (world, [busy, other])
}

#[test]
fn an_idle_session_of_another_weight_takes_no_turns_from_a_busy_one() {
    let (mut world, [busy, other]) = unequal(Priority::Normal);
    assert_eq!(world.card().mode, Mode::TimeSliced);
    world.run_for(Nanos::from_secs(5));
    assert_eq!(world.card().mode, Mode::Parallel, "the other one has nothing to do");
    assert_eq!(world.open(&[busy, other]), [true, false], "its gate shows when it has");
    let handoffs = world.card().handoffs;
    world.run_for(Nanos::from_secs(5));
    assert_eq!(world.card().handoffs, handoffs);
    world.gets_busy(other);
    assert_eq!(world.card().mode, Mode::TimeSliced);
    world.run_for(Nanos::from_secs(3));
    assert!(world.card().handoffs > handoffs + 10);
    while !world.passes(other) {
        world.run_for(ms(1));
    }
    world.goes_idle(other);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(world.card().mode, Mode::Parallel);
}

#[test]
fn an_idle_session_gets_its_gate_back_once_all_are_equal() {
    let (mut world, [busy, other]) = unequal(Priority::Normal);
    world.run_for(Nanos::from_secs(5));
    assert_eq!(world.open(&[busy, other]), [true, false]);
    let session = world.core.view.session_of(other).unwrap();
    world.send(Event::Share { session, weight: 100, priority: Priority::Normal });
    assert_eq!(world.open(&[busy, other]), [true, true]);
}

#[test]
fn of_idle_sessions_with_unequal_weights_the_first_to_wake_runs_at_once() {
    let (mut world, [busy, other]) = unequal(Priority::Normal);
    world.goes_idle(busy);
    world.run_for(Nanos::from_secs(5));
    assert_eq!(world.open(&[busy, other]), [false, false]);
    world.arrives(other);
    assert_eq!(world.open(&[busy, other]), [false, true]);
    assert_eq!(world.card().mode, Mode::Parallel);
}

#[test]
fn a_session_of_a_higher_class_that_wakes_in_parallel_mode_goes_first() {
    let (mut world, [busy, other]) = unequal(Priority::High);
    world.run_for(Nanos::from_secs(5));
    assert_eq!(world.card().mode, Mode::Parallel);
    world.gets_busy(other);
    world.run_for(ms(5));
    assert_eq!(world.open(&[busy, other]), [false, true], "2 ms of drain");
}

#[test]
fn a_context_takes_its_reserve_from_the_capacity() {
    let mut world = World::new(Config { context_reserve: gib(1), ..plain() });
    let (_, a) = world.program(gib(4));
    assert_eq!(world.card().capacity_bytes, gib(9));
    let (_, b) = world.program(gib(5));
    assert_eq!(world.card().capacity_bytes, gib(8));
    assert_eq!(world.open(&[a, b]), [true, false]);
    world.dies(b);
    assert_eq!(world.card().capacity_bytes, gib(9));
}

#[test]
fn when_memory_fits_again_for_a_while_everybody_runs() {
    let mut world = World::new(plain());
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    assert_eq!(world.open(&[a, b]), [true, false]);
    world.free(a, GPU, gib(4));
    world.look(a, GPU);
    assert_eq!(world.card().mode, Mode::Serialized);
    let present =
        "the working sets need 8GiB, at most 90% of the capacity 10GiB; the mode ends once that is so for 2s";
    assert_eq!(world.card().reason, present);
    world.run_for(ms(1999));
    assert_eq!(world.card().mode, Mode::Serialized);
    world.run_for(ms(1));
    assert_eq!(world.card().mode, Mode::Parallel);
    assert_eq!(world.open(&[a, b]), [true, true]);
    assert_eq!(world.card().mode_changes, 2);
}

#[test]
fn a_drop_ends_when_the_mode_returns_to_parallel() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(6));
    let (_, b) = world.program(Bytes::ZERO);
    world.habits(b).answers = false;
    world.allocate(b, GPU, gib(6));
    assert_eq!(world.open(&[a, b]), [true, false]);
    world.dies(a);
    world.set(Knob::Mode(Some(Mode::Parallel)));
    assert!(world.passes(b));
}

#[test]
fn the_administrator_fixes_the_mode_and_frees_it_again() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(6));
    let (_, b) = world.program(gib(6));
    world.run_for(ms(100));
    world.set(Knob::Mode(Some(Mode::Parallel)));
    assert_eq!(world.open(&[a, b]), [true, true]);
    assert_eq!(world.card().reason, "fixed by the administrator");
    world.set(Knob::Mode(None));
    assert_eq!(world.card().mode, Mode::Serialized);
    assert_eq!(world.open(&[a, b]), [true, false]);
}

#[test]
fn a_smaller_capacity_is_in_force_at_once() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(4));
    let (_, b) = world.program(gib(4));
    world.set(Knob::Capacity(Some(gib(7))));
    assert_eq!(world.card().capacity_bytes, gib(7));
    assert_eq!(world.open(&[a, b]), [true, false]);
}

#[test]
fn a_setting_of_all_cards_is_in_force_at_once_and_so_are_its_timers() {
    let mut world = World::new(plain());
    world.program(gib(6));
    let (_, b) = world.program(gib(6));
    world.send(Event::Tune(Tuning::ParallelAfter(Nanos::from_secs(60))));
    world.free(b, GPU, gib(6));
    world.look(b, GPU);
    world.run_for(Nanos::from_secs(30));
    assert_eq!(world.card().mode, Mode::Serialized, "two seconds were usual");
    world.send(Event::Tune(Tuning::ParallelAfter(Nanos::from_secs(40))));
    world.run_for(Nanos::from_secs(9));
    assert_eq!(world.card().mode, Mode::Serialized);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(world.card().mode, Mode::Parallel);
}

#[test]
fn a_clock_that_runs_backwards_stands_still() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.core.handle(Nanos(0), Event::Tick);
    assert!(world.core.next_deadline() > Some(world.now));
    world.run_for(Nanos::from_secs(60));
    assert_eq!(world.open(&[a, b]), [false, true]);
}

#[test]
fn who_makes_a_card_too_small_has_its_first_turn_soon_and_the_turns_after_that_pay_for_their_switches() {
    // 2 GiB too many move in 0.2 s.
    let config = Config { bandwidth_per_second: gib(10), ..plain() };
    let mut world = World::new(config.clone());
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    let switch = config.drain_target + config.switch_cost;
    world.run_for(Nanos(switch.0 * 19));
    assert!(!world.passes(a), "a switch without a move would be paid for");
    world.run_for(ms(100));
    assert!(world.passes(b));
    world.run_for(Nanos::from_secs(3));
    assert_eq!(world.open(&[a, b]), [false, true]);
}
