//! Memory that a dead process left on its cards: nobody's to use, and everybody's to reckon with.

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, ClientId, Nanos, SessionId};

use super::world::{GPU, OTHER_GPU, World, chunky, gib, ms, plain};
use crate::Event;

/// A session of 4 GiB, a process that dies with 3 of them in use, and its sibling.
fn bereaved() -> (World, SessionId, [ClientId; 2]) {
    let mut world = World::new(chunky());
    let session = world.session_with(Some(gib(4)), false);
    let both = [(); 2].map(|()| world.join_on(session, GPU));
    assert!(world.allocate(both[0], GPU, gib(3)));
    world.look(both[0], GPU);
    world.ends(both[0]);
    (world, session, both)
}

#[test]
fn what_a_dead_process_left_counts_against_its_sessions_quota_until_the_driver_has_it() {
    let (mut world, session, [dead, sibling]) = bereaved();
    assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(3));
    assert_eq!(world.view(session).gpus[0].leased_bytes, gib(3), "no lease of the dead");
    assert!(world.allocate(sibling, GPU, gib(1)));
    assert!(!world.allocate(sibling, GPU, Bytes(1)));
    world.dies(dead);
    assert!(world.allocate(sibling, GPU, gib(3)));
    assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(4));
}

#[test]
fn who_ended_is_buried_once() {
    let (mut world, session, [dead, _]) = bereaved();
    world.ends(dead);
    assert_eq!(world.card().allocated_bytes, gib(3));
    world.dies(dead);
    world.dies(dead);
    assert_eq!(world.view(session).gpus[0].allocated_bytes, Bytes::ZERO);
}

#[test]
fn nobody_joins_as_one_who_ended() {
    let (mut world, session, [dead, _]) = bereaved();
    let processes = world.view(session).clients.len();
    world.send(Event::ClientJoined { client: dead, session, holding: None });
    assert_eq!(world.view(session).clients.len(), processes);
}

#[test]
fn a_holder_that_ends_leaves_the_lock_to_the_next() {
    let mut world = World::new(plain());
    let (_, holder) = world.busy_program(gib(6));
    let (_, waiter) = world.busy_program(gib(6));
    assert_eq!((world.passes(holder), world.passes(waiter)), (true, false));
    world.ends(holder);
    // Until its drain of parallel mode is done, and much sooner than the dead one's turn would have ended.
    world.run_for(ms(50));
    assert!(world.passes(waiter));
}

/// 10 GiB: 6 that stay and 6 that are worked with do not take turns with each other.
#[test]
fn what_moves_and_nobody_works_with_is_no_reason_to_take_turns() {
    let mut world = World::new(plain());
    let (_, first) = world.busy_program(gib(6));
    world.busy_program(gib(6));
    assert_eq!(world.card().mode, Mode::Serialized);
    world.ends(first);
    world.run_for(Nanos::from_secs(60));
    assert_eq!(world.card().mode, Mode::Parallel);
}

/// A process of the last daemon that died before it was back.
#[test]
fn what_was_left_under_the_last_daemon_counts_and_makes_nobody_take_turns() {
    let mut world = World::new(plain());
    world.busy_program(gib(6));
    let session = world.session_with(Some(gib(8)), false);
    let dead = world.join(session);
    world.ends(dead);
    for _ in 0..2 {
        world.send(Event::Attached { client: dead, gpu: GPU, used: gib(6) });
    }
    assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(6));
    assert_eq!(world.card().mode, Mode::Parallel);
    let sibling = world.join_on(session, GPU);
    assert!(!world.allocate(sibling, GPU, gib(2) + Bytes(1)));
    world.dies(dead);
    assert!(world.allocate(sibling, GPU, gib(2) + Bytes(1)));
}

#[test]
fn what_never_moves_takes_room_from_others() {
    let mut world = World::new(plain());
    let (_, first) = world.program(Bytes::ZERO);
    let (_, other) = world.program(Bytes::ZERO);
    assert!(world.allocate_fixed(first, GPU, gib(6)));
    world.ends(first);
    assert_eq!(world.card().fixed_bytes, gib(6));
    assert!(!world.allocate(other, GPU, gib(6)));
    world.dies(first);
    assert!(world.allocate(other, GPU, gib(6)));
}

#[test]
fn a_session_that_gets_no_more_processes_is_there_until_its_memory_is_not() {
    let (mut world, session, [dead, sibling]) = bereaved();
    world.send(Event::SessionClosed { session });
    world.dies(sibling);
    assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(3));
    world.dies(dead);
    assert!(!world.sessions().contains(&session));
}

#[test]
fn the_card_of_a_dead_process_does_not_make_its_sibling_wait_for_two() {
    let mut world = World::new(plain());
    world.second_card();
    let session = world.session();
    let (dead, sibling) = (world.join(session), world.join(session));
    world.attach(dead, OTHER_GPU);
    world.attach(sibling, GPU);
    world.ends(dead);
    assert_eq!(world.core.view.sessions.get(session).unwrap().uses.len(), 1);
}
