//! Cards that have less memory than the accounts say, as their holders notice.

use super::*;

/// An idle program of 4 GiB, and a busy one of 3.5 GiB that has just allocated half a GiB more.
fn idle_and_growing() -> (World, ClientId, ClientId) {
    idle_and_growing_in(world())
}

fn idle_and_growing_in(mut world: World) -> (World, ClientId, ClientId) {
    let (_, idle) = world.busy_remapping_program(gib(4));
    world.run_for(ms(100));
    world.goes_idle(idle);
    let (_, growing) = world.busy_remapping_program(Bytes::mib(3584));
    world.run_for(ms(100));
    assert!(world.allocate(growing, GPU, Bytes::mib(512)));
    (world, idle, growing)
}

fn asks_for_room(world: &mut World, client: ClientId, bytes: Bytes) {
    world.send(Event::Room { client, gpu: GPU, request: RequestId(1000), bytes });
}

#[test]
fn another_one_gives_what_the_card_lacks_although_the_accounts_show_it() {
    let (mut world, idle, growing) = idle_and_growing();
    asks_for_room(&mut world, growing, Bytes::mib(512));
    world.run_for(Nanos::from_secs(3));
    assert_eq!((world.resident(idle, GPU), world.resident(growing, GPU)), (Bytes::mib(3584), gib(4)));
    world.run_for(Nanos::from_secs(10));
    assert_eq!(world.card().capacity_bytes, gib(8), "it is forgotten after a while");
}

#[test]
fn a_request_for_more_than_the_goal_has_room_for_takes_nothing_from_others() {
    let (mut world, idle, growing) = idle_and_growing();
    for bytes in [Bytes::mib(1024), gib(30), Bytes::MAX] {
        asks_for_room(&mut world, growing, bytes);
        assert_eq!(world.card().capacity_bytes, gib(8));
    }
    world.run_for(Nanos::from_secs(1));
    assert_eq!((world.resident(idle, GPU), world.resident(growing, GPU)), (gib(4), gib(4)));
}

/// Capacity of the card after a program with the lock could not bring its memory in.
fn capacity_after_failure(refused: Bytes) -> Bytes {
    let (mut world, a, b) = two_programs();
    world.habits(a).answers = false;
    world.habits(b).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    let (number, bytes) = world.goal(b, GPU).unwrap();
    assert!(bytes > world.resident(b, GPU) + Bytes::mib(128));
    world.send(Event::MoveFailed { client: b, gpu: GPU, number, refused });
    world.card().capacity_bytes
}

#[test]
fn a_move_that_fails_for_another_reason_takes_nothing_from_others() {
    assert_eq!(capacity_after_failure(Bytes::ZERO), gib(8));
}

#[test]
fn a_move_for_which_the_card_has_no_memory_makes_the_card_smaller() {
    assert_eq!(capacity_after_failure(Bytes::mib(128)), gib(7));
}

#[test]
fn memory_of_the_dead_that_the_driver_still_has_makes_the_card_no_smaller() {
    for (since_death, is_smaller) in [(ms(500), false), (Nanos::from_secs(2), true)] {
        let mut world = world();
        let (_, dead) = world.remapping_program(gib(1));
        world.run_for(ms(100));
        world.dies(dead);
        world.run_for(since_death);
        let (mut world, _, growing) = idle_and_growing_in(world);
        asks_for_room(&mut world, growing, Bytes::mib(512));
        assert_eq!(world.card().capacity_bytes < gib(8), is_smaller, "after {since_death:?}");
    }
}
