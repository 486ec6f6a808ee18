//! Processes that lost their connection and live: nothing of theirs is anybody else's meanwhile, nor by their
//! return.

use gpushare_proto::{Bytes, GateState, Nanos};

use super::world::{GPU, World, chunky, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::{Config, Event, Notice};

fn serialized(stuck_policy: StuckPolicy) -> World {
    World::new(Config { stuck_policy, quantum: Some(ms(100)), ..plain() })
}

#[test]
fn a_holder_that_returns_runs_on_under_its_grant() {
    let mut world = World::new(plain());
    let (session, a) = world.busy_program(gib(4));
    let before = world.view(session).lock;
    world.comes_back(a);
    assert!(world.passes(a));
    assert_eq!(world.gate(a).change(), 1, "the first word on its page");
    assert_eq!(world.view(session).lock, before);
    assert_eq!(world.card().allocated_bytes, gib(4));
}

#[test]
fn what_lay_free_on_the_old_page_is_the_sessions_again_and_what_was_used_is_not() {
    let mut world = World::new(chunky());
    let session = world.session_with(Some(gib(1)), false);
    let [a, b] = [(); 2].map(|()| world.join_on(session, GPU));
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    assert!(!world.free_lease(a, GPU).is_zero());
    world.comes_back(a);
    assert!(world.allocate(b, GPU, Bytes::mib(512)));
    assert!(!world.allocate(b, GPU, Bytes(1)));
}

#[test]
fn who_returns_with_less_than_was_known_is_not_believed_and_with_more_is() {
    let mut world = World::new(plain());
    let (session, a) = world.program(gib(4));
    world.honest = false;
    for (says, booked) in [(1, 4), (6, 6), (0, 6)] {
        world.send(Event::ClientReturned { client: a, waiting: false });
        world.send(Event::StillUses { client: a, gpu: GPU, bytes: gib(says) });
        assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(booked), "{says}");
    }
}

#[test]
fn a_waiter_that_returns_keeps_its_place() {
    let turns = |returns: bool| {
        let mut world = serialized(StuckPolicy::Wait);
        let programs = [8, 8, 8].map(|bytes| world.busy_program(gib(bytes)));
        let waiters = programs.map(|(_, client)| client).into_iter();
        let waiters: Vec<_> = waiters.filter(|&client| !world.passes(client)).collect();
        assert_eq!(waiters.len(), 2);
        if returns {
            waiters.into_iter().rev().for_each(|client| world.comes_back(client));
        }
        world.take();
        world.run_for(ms(400));
        world.turns()
    };
    let undisturbed = turns(false);
    assert!(undisturbed.len() >= 2, "{undisturbed:?}");
    assert_eq!(turns(true), undisturbed);
}

#[test]
fn a_drain_of_which_nothing_was_heard_is_asked_for_again() {
    let mut world = serialized(StuckPolicy::Wait);
    let (_, a) = world.busy_program(gib(8));
    let (_, b) = world.busy_program(gib(8));
    world.habits(a).answers = false;
    world.run_for(ms(150));
    assert_eq!(world.gate(a).state(), GateState::Closed);
    assert!(!world.passes(b), "a may have work in flight");
    world.habits(a).answers = true;
    world.comes_back(a);
    let asked = world.gate(a);
    assert_eq!((asked.state(), asked.change()), (GateState::Closed, 1));
    world.run_for(ms(30));
    assert!(world.passes(b));
}

#[test]
fn who_is_away_and_holds_the_lock_is_stuck_like_any_other_and_free_with_its_death() {
    let mut world = serialized(StuckPolicy::Wait);
    let (session, a) = world.busy_program(gib(8));
    let (_, b) = world.busy_program(gib(8));
    world.habits(a).answers = false;
    world.take();
    world.run_for(Nanos::from_secs(60));
    assert!(!world.passes(b));
    let notices = world.notices();
    let stuck = |notice: &Notice| matches!(notice, Notice::Stuck { session: s, .. } if *s == session);
    assert!(notices.iter().any(stuck), "{notices:?}");
    world.dies(a);
    world.run_for(ms(20));
    assert!(world.passes(b));
}
