use gpushare_proto::{ClientId, GateState, Nanos};

use super::world::{GPU, World, gib, ms, plain};
use crate::Config;

fn long_turns() -> World {
    World::new(Config { quantum: Some(Nanos::from_secs(30)), ..plain() })
}

/// A session that has 6 GiB, with two processes.
fn two_processes(world: &mut World) -> (ClientId, ClientId) {
    let (session, a) = world.program(gib(6));
    (a, world.join_on(session, GPU))
}

#[test]
fn an_idle_holder_gives_the_lock_to_a_waiter_at_once() {
    let mut world = long_turns();
    let (_, a) = world.program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.goes_idle(a);
    assert_eq!(world.gate(b).state(), GateState::Moving);
}

#[test]
fn a_session_lets_go_when_all_its_processes_are_idle() {
    let mut world = long_turns();
    let (a, second) = two_processes(&mut world);
    let (_, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.goes_idle(a);
    assert_eq!(world.gate(b).state(), GateState::Closed);
    world.goes_idle(second);
    assert_eq!(world.gate(b).state(), GateState::Moving);
}

#[test]
fn an_idle_process_of_a_holder_is_opened_again_when_it_has_work() {
    let mut world = long_turns();
    let (a, _) = two_processes(&mut world);
    let (_, _) = world.busy_program(gib(6));
    let open = world.gate(a);
    world.goes_idle(a);
    world.arrives(a);
    assert_eq!(world.gate(a), open.next(GateState::Open));
}

#[test]
fn the_death_of_the_last_busy_process_lets_the_session_go() {
    let mut world = long_turns();
    let (a, second) = two_processes(&mut world);
    let (_, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.goes_idle(a);
    world.dies(second);
    assert_eq!(world.gate(b).state(), GateState::Moving);
}

#[test]
fn in_parallel_mode_nobody_stays_closed() {
    let mut world = long_turns();
    let (_, a) = world.program(gib(6));
    world.goes_idle(a);
    assert!(world.passes(a));
}

#[test]
fn who_let_go_early_queues_up_like_anybody() {
    let mut world = long_turns();
    let (_, a) = world.program(gib(6));
    let (second, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    let (third, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.take();
    world.goes_idle(a);
    world.run_for(ms(100));
    world.arrives(a);
    world.goes_idle(b);
    assert_eq!(world.turns(), [second, third]);
}
