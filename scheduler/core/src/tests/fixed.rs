//! Memory that never moves: quota like all other, no working set, nobody else's room, and not managed.

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::page::LimitKind;
use gpushare_proto::{Bytes, RequestId};

use super::world::{GPU, World, chunky, gib, plain};
use crate::{Config, Effect, Event};

#[test]
fn what_never_moves_leaves_the_capacity_and_the_working_sets() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(4));
    assert!(world.allocate_fixed(a, GPU, gib(3)));
    let card = world.card();
    assert_eq!((card.capacity_bytes, card.fixed_bytes, card.allocated_bytes), (gib(7), gib(3), gib(7)));
    let (_, b) = world.program(gib(3));
    assert_eq!(world.card().mode, Mode::Parallel, "seven of ten move, three do not");
    assert!(world.allocate(b, GPU, gib(1)));
    assert_eq!(world.card().mode, Mode::Serialized);
}

#[test]
fn a_sessions_own_fixed_memory_counts_once_against_its_ceiling() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(4));
    assert!(world.allocate_fixed(a, GPU, gib(3)));
    assert!(world.allocate(a, GPU, gib(3)), "ten of ten");
    assert!(!world.allocate(a, GPU, Bytes(1)));
    assert!(!world.allocate_fixed(a, GPU, Bytes(1)));
}

#[test]
fn the_managed_limit_does_not_count_what_is_not_managed() {
    let mut world = World::new(plain());
    world.set(Knob::ManagedLimit(gib(4)));
    let (_, a) = world.program(gib(2));
    assert!(world.allocate_fixed(a, GPU, gib(5)));
    assert!(world.allocate(a, GPU, gib(2)));
    world.take();
    assert!(!world.allocate(a, GPU, Bytes(1)));
    assert_eq!(world.refusals()[0].by, LimitKind::ManagedLimit);
    assert!(world.allocate_fixed(a, GPU, gib(1)));
}

#[test]
fn fixed_memory_that_is_freed_comes_back_as_movable_only_within_the_managed_limit() {
    let mut world = World::new(chunky());
    world.set(Knob::ManagedLimit(gib(4)));
    let (session, a) = world.program(gib(4));
    assert!(world.allocate_fixed(a, GPU, gib(1)));
    world.free_fixed(a, GPU, gib(1));
    assert_eq!(world.free_lease(a, GPU), Bytes::ZERO);
    assert_eq!(world.view(session).gpus[0].leased_bytes, gib(4));

    world.set(Knob::ManagedLimit(gib(6)));
    assert!(world.allocate_fixed(a, GPU, gib(1)));
    world.free_fixed(a, GPU, gib(1));
    assert_eq!(world.free_lease(a, GPU), Bytes::mib(128), "a little, for the next allocation");
}

#[test]
fn allocating_and_freeing_fixed_memory_over_and_over_asks_nobody() {
    let mut world = World::new(chunky());
    let (_, a) = world.program(Bytes::mib(1));
    for _ in 0..3 {
        assert!(world.allocate_fixed(a, GPU, Bytes::mib(32)));
        world.free_fixed(a, GPU, Bytes::mib(32));
    }
    let before = world.history.len();
    for _ in 0..10 {
        assert!(world.allocate_fixed(a, GPU, Bytes::mib(32)));
        world.free_fixed(a, GPU, Bytes::mib(32));
    }
    let asked = |(_, event): &(_, Event)| !matches!(event, Event::LeaseSeen { .. });
    assert_eq!(world.history[before..].iter().filter(|said| asked(said)).count(), 0);
}

#[test]
fn the_fixed_memory_of_the_dead_is_room_again() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(1));
    assert!(world.allocate_fixed(a, GPU, gib(3)));
    world.dies(a);
    world.run_for(gpushare_proto::Nanos(1));
    let card = world.card();
    assert_eq!((card.capacity_bytes, card.fixed_bytes), (gib(10), Bytes::ZERO));
}

#[test]
fn a_lie_about_fixed_memory_is_believed_up_to_the_lease() {
    let mut world = World::new(plain());
    world.honest = false;
    let (_, a) = world.program(gib(2));
    world.send(Event::Fixed { client: a, gpu: GPU, bytes: Bytes::MAX });
    assert_eq!(world.card().fixed_bytes, gib(2));
    world.send(Event::Returned { client: a, gpu: GPU, bytes: Bytes::MAX });
    let card = world.card();
    assert_eq!((card.fixed_bytes, card.allocated_bytes), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn measured_contexts_replace_the_assumed_ones() {
    let mut world = World::new(Config { context_reserve: gib(1), ..plain() });
    let (_, a) = world.program(Bytes::ZERO);
    assert_eq!(world.card().capacity_bytes, gib(9));
    world.send(Event::Overhead { client: a, gpu: GPU, bytes: Some(gib(2)) });
    assert_eq!((world.card().capacity_bytes, world.card().overhead_bytes), (gib(8), gib(2)));
    world.send(Event::Overhead { client: a, gpu: GPU, bytes: None });
    assert_eq!(world.card().capacity_bytes, gib(9));
}

#[test]
fn a_context_that_is_not_measured_takes_an_eighth_of_a_card_at_most() {
    let mut world = World::new(Config { context_reserve: gib(700), ..plain() });
    let (session, a) = world.program(gib(1));
    assert_eq!(world.card().capacity_bytes, gib(10) - Bytes(gib(10).0 / 8));
    let of = |world: &World| world.core.capacities().remove(0);
    assert_eq!(
        (of(&world).contexts_bytes, of(&world).usable_bytes),
        (Bytes(gib(10).0 / 8), gib(10) - Bytes(gib(10).0 / 4))
    );

    // A change holds for the contexts that are there, too, and for the orphans.
    world.send(Event::ClientEnded { client: a });
    world.set(Knob::ContextReserve(gib(1)));
    assert_eq!(world.card().capacity_bytes, gib(9));
    let b = world.join_on(session, GPU);
    world.send(Event::Contexts { client: b, gpu: GPU, live: 1 });
    assert_eq!(world.card().capacity_bytes, gib(9), "all of a session count as one");
    world.program(gib(1));
    assert_eq!(world.card().capacity_bytes, gib(8));
    world.set(Knob::ContextReserve(Bytes::ZERO));
    assert_eq!(world.card().capacity_bytes, gib(10));
    assert_eq!(of(&world).usable_bytes, gib(10));
}

#[test]
fn what_the_driver_keeps_beyond_a_gibibyte_leaves_less_of_the_quota_and_takes_nothing_back() {
    let mut world = World::new(plain());
    let session = world.session_with(Some(gib(6)), false);
    let [a, b] = [(); 2].map(|()| world.join_on(session, GPU));
    let measured = |client, bytes| Event::Overhead { client, gpu: GPU, bytes };
    assert!(world.allocate(a, GPU, gib(3)));
    world.send(measured(a, Some(gib(1))));
    world.send(measured(b, Some(gib(3))));
    let free = |world: &World| world.core.memory_figures(session).unwrap()[0].free;
    assert_eq!(free(&world), gib(1), "two of six are the driver's, three are allocated");
    world.take();
    assert!(!world.allocate(a, GPU, gib(1) + Bytes(1)));
    let refusal = world.refusals()[0];
    assert_eq!((refusal.by, refusal.limit, refusal.used), (LimitKind::Session, gib(6), gib(5)));
    assert!(world.allocate(a, GPU, gib(1)));

    world.send(measured(b, Some(gib(5))));
    assert_eq!((free(&world), world.used(a, GPU)), (Bytes::ZERO, gib(4)));
    assert!(!world.allocate(a, GPU, Bytes(1)));
    world.free(a, GPU, gib(3));
    assert!(world.allocate(b, GPU, gib(1)), "one is allocated, four are the driver's");
    assert!(!world.allocate(b, GPU, Bytes(1)));
    world.send(measured(b, None));
    assert!(world.allocate(b, GPU, gib(4)));
}

#[test]
fn room_is_at_most_what_all_that_cannot_move_leaves() {
    let mut world = World::new(Config { context_reserve: gib(1), ..plain() });
    let (_, a) = world.program(gib(5));
    assert!(world.allocate_fixed(a, GPU, gib(2)));
    world.take();
    let request = RequestId(77);
    for (asked, found) in [(gib(1), gib(1)), (gib(7), gib(7)), (gib(8), gib(7))] {
        world.send(Event::Room { client: a, gpu: GPU, request, bytes: asked });
        assert_eq!(world.take(), [Effect::Room { client: a, gpu: GPU, request, bytes: found }]);
    }
}

#[test]
fn what_is_leased_after_a_recall_is_not_fixed_however_much_a_process_said_before() {
    let mut world = World::new(chunky());
    let (session, client) = world.program(gib(1));
    let limit = |limit| Event::Quota { session, gpu: GPU, limit };
    world.honest = false;
    world.send(Event::Fixed { client, gpu: GPU, bytes: gib(2) });
    world.send(limit(Some(gib(1))));
    assert_eq!((world.card().fixed_bytes, world.free_lease(client, GPU)), (gib(1), Bytes::ZERO));
    world.send(limit(None));
    assert!(world.allocate(client, GPU, gib(1)));
    assert_eq!(world.card().fixed_bytes, gib(1));
}
