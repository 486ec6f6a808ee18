use gpushare_proto::admin::Knob;
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::{Bytes, ClientId, RequestId, SessionId};

use super::world::{GPU, OTHER_GPU, World, chunky, gib, plain};
use crate::{Config, Effect, Event, Kind, Notice, invariants};

const MIB: Bytes = Bytes::mib(1);

/// A session of 512 MiB with `n` processes on the card.
fn small_session<const N: usize>(world: &mut World) -> (SessionId, [ClientId; N]) {
    let session = world.session_with(Some(Bytes::mib(512)), false);
    let clients = [(); N].map(|()| world.join_on(session, GPU));
    (session, clients)
}

#[test]
fn the_quota_is_exact_to_the_byte() {
    let mut world = World::new(chunky());
    let (session, [a]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    world.take();
    assert!(!world.allocate(a, GPU, Bytes(1)));
    let expected = MemoryRefusal {
        requested: Bytes(1),
        limit: Bytes::mib(512),
        used: Bytes::mib(512),
        by: LimitKind::Session,
    };
    let effects = world.take();
    assert!(effects.contains(&Effect::Notice(Notice::Refused {
        client: a,
        session,
        gpu: GPU,
        refusal: expected,
        times: 1,
    })));
    assert_eq!(world.view(session).refusals, 1);
}

#[test]
fn a_refusal_of_the_process_itself_counts_like_ours_if_its_quota_is_less() {
    let mut world = World::new(chunky());
    let (session, [a]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(100)));
    world.take();
    let refused = |bytes| Event::RefusedHere { client: a, gpu: GPU, bytes, times: 3 };
    world.send(refused(Bytes::mib(512)));
    assert_eq!(world.take(), [], "it could have had them");
    world.send(refused(Bytes::mib(513)));
    let refusal = MemoryRefusal {
        requested: Bytes::mib(513),
        limit: Bytes::mib(512),
        used: Bytes::mib(100),
        by: LimitKind::Session,
    };
    let notice = Notice::Refused { client: a, session, gpu: GPU, refusal, times: 3 };
    assert_eq!(world.take(), [Effect::Notice(notice)]);
    assert_eq!(world.view(session).refusals, 3);
    world.send(Event::RefusedHere { client: a, gpu: GPU, bytes: Bytes::gib(1), times: u64::MAX });
    assert_eq!(world.view(session).refusals, u64::MAX, "a forged number does not wrap");
}

#[test]
fn a_lease_brings_something_extra_so_that_the_next_allocation_asks_nobody() {
    let mut world = World::new(chunky());
    let (session, [a]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, MIB));
    assert_eq!(world.free_lease(a, GPU), Bytes::mib(64));
    world.take();
    assert!(world.allocate(a, GPU, MIB));
    assert!(!world.take().iter().any(|effect| matches!(effect, Effect::Lease { .. })));
    let view = &world.view(session).gpus[0];
    assert_eq!((view.allocated_bytes, view.leased_bytes), (Bytes::mib(2), Bytes::mib(65)));
}

#[test]
fn nobody_is_refused_while_a_sibling_has_free_lease() {
    let mut world = World::new(chunky());
    let (_, [a, b, c]) = small_session(&mut world);
    for client in [a, b, c] {
        assert!(world.allocate(client, GPU, Bytes::mib(100)));
    }
    assert!(world.free_lease(b, GPU) > Bytes::ZERO);
    assert!(world.allocate(a, GPU, Bytes::mib(212)), "300 of 512 MiB are used");
    assert_eq!([a, b, c].map(|client| world.free_lease(client, GPU)), [Bytes::ZERO; 3]);
    assert!(!world.allocate(b, GPU, Bytes(1)));
}

#[test]
fn bytes_that_were_freed_unseen_are_found_before_a_refusal() {
    let mut world = World::new(plain());
    let (_, [a, b]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    world.free(a, GPU, Bytes::mib(10));
    assert!(world.allocate(b, GPU, Bytes::mib(10)), "the machine last saw nothing free");
    assert!(!world.allocate(b, GPU, Bytes(1)));
}

#[test]
fn only_what_is_missing_is_recalled() {
    let mut world = World::new(plain());
    let (_, [a, b]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    world.free(a, GPU, Bytes::mib(300));
    world.look(a, GPU);
    assert!(world.allocate(b, GPU, Bytes::mib(10)));
    assert_eq!(world.free_lease(a, GPU), Bytes::mib(290));
}

#[test]
fn one_session_may_be_as_large_as_the_capacity_unless_it_may_oversubscribe() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(10));
    world.take();
    assert!(!world.allocate(a, GPU, Bytes(1)));
    assert_eq!(world.refusals()[0].by, LimitKind::Capacity);
    let session = world.session_with(None, true);
    let large = world.join_on(session, GPU);
    assert!(world.allocate(large, GPU, gib(30)));
}

#[test]
fn all_sessions_together_stay_below_the_managed_limit() {
    let mut world = World::new(Config { managed_limit: Some(gib(12)), ..chunky() });
    let (_, a) = world.program(gib(6));
    let (_, b) = world.program(gib(5));
    assert!(world.allocate(b, GPU, gib(1)), "what lay free in a's page was taken back");
    world.take();
    assert!(!world.allocate(a, GPU, Bytes(1)));
    let refusal = world.refusals()[0];
    assert_eq!((refusal.by, refusal.limit, refusal.used), (LimitKind::ManagedLimit, gib(12), gib(12)));
}

#[test]
fn a_lowered_limit_takes_nothing_away_and_gives_nothing_more() {
    let mut world = World::new(plain());
    let (session, a) = world.program(gib(6));
    world.set(Knob::ManagedLimit(gib(4)));
    assert_eq!(world.view(session).gpus[0].leased_bytes, gib(6));
    assert!(!world.allocate(a, GPU, Bytes(1)));
}

#[test]
fn unused_leases_alone_do_not_fill_a_card_where_the_working_sets_fit() {
    let mut world = World::new(chunky());
    let (_, a) = world.program(gib(5));
    assert_eq!(world.free_lease(a, GPU), Bytes::mib(64));
    let (_, b) = world.program(gib(5) - Bytes::mib(80));
    assert_eq!(world.free_lease(b, GPU), Bytes::mib(4), "a quarter of the last 16 MiB");
    world.allocate(b, GPU, Bytes::mib(76));
    assert!(world.card().mode_changes == 0, "both fit, whatever they make of their leases");
}

#[test]
fn a_process_that_trims_keeps_one_chunk() {
    let mut world = World::new(chunky());
    let (_, a) = world.program(gib(2));
    world.free(a, GPU, gib(1));
    world.look(a, GPU);
    world.send(Event::Trim { client: a, gpu: GPU });
    assert_eq!(world.free_lease(a, GPU), Bytes::mib(64));
}

#[test]
fn the_quota_of_the_dead_is_free_at_once() {
    let mut world = World::new(plain());
    let (session, [a, b]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    world.dies(a);
    assert!(world.allocate(b, GPU, Bytes::mib(512)));
    assert_eq!(world.view(session).gpus[0].peak_bytes, Bytes::mib(512));
}

#[test]
fn thirty_two_processes_that_race_for_the_last_block_get_exactly_what_there_is() {
    let mut world = World::new(chunky());
    let (session, clients) = small_session::<32>(&mut world);
    let mut granted = 0;
    for round in 0..40 {
        for &client in &clients {
            granted += u64::from(world.allocate(client, GPU, Bytes::mib(7)));
        }
        assert!(round > 2 || granted > 0);
    }
    assert_eq!(granted, 512 / 7);
    assert_eq!(world.view(session).gpus[0].allocated_bytes, Bytes::mib(511));
}

#[test]
fn memory_on_a_card_that_was_not_attached_is_refused() {
    let mut world = World::new(plain());
    world.second_card();
    let (_, a) = world.program(gib(1));
    world.take();
    world.send(Event::Reserve { client: a, gpu: OTHER_GPU, request: RequestId(9), bytes: MIB });
    assert_eq!(world.refusals()[0].limit, Bytes::ZERO);
}

#[test]
fn a_repeated_answer_to_a_recall_books_nothing() {
    let mut world = World::new(plain());
    let (session, a) = world.program(gib(2));
    world.send(Event::Recalled { client: a, gpu: GPU, bytes: gib(1) });
    assert_eq!(world.view(session).gpus[0].leased_bytes, gib(2));
}

#[test]
fn an_answer_to_a_recall_is_believed_up_to_what_was_asked() {
    let mut world = World::new(plain());
    let (session, [a, b]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    let reserve = Event::Reserve { client: b, gpu: GPU, request: RequestId(1), bytes: MIB };
    world.tell(reserve);
    world.tell(Event::Recalled { client: a, gpu: GPU, bytes: gib(1) });
    assert_eq!(world.view(session).gpus[0].leased_bytes, Bytes::mib(512), "one of 512 MiB changed hands");
}

#[test]
fn nothing_is_expected_of_the_dead() {
    for dies in 0..2 {
        let mut world = World::new(plain());
        let (_, clients) = small_session::<2>(&mut world);
        assert!(world.allocate(clients[0], GPU, Bytes::mib(512)));
        let reserve = Event::Reserve { client: clients[1], gpu: GPU, request: RequestId(1), bytes: MIB };
        world.tell(reserve);
        world.tell(Event::ClientGone { client: clients[dies] });
        invariants::check(&world.core).unwrap();
    }
}

#[test]
fn a_request_is_decided_even_if_the_answer_to_a_recall_never_comes() {
    let mut world = World::new(plain());
    let (_, [a, b]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(512)));
    let reserve = Event::Reserve { client: b, gpu: GPU, request: RequestId(1), bytes: MIB };
    world.tell(reserve);
    assert_eq!(world.core.next_deadline(), Some(world.now));
    world.tell(Event::Tick);
    let effects = std::iter::from_fn(|| world.core.poll_effect());
    assert!(effects.into_iter().any(|effect| matches!(effect, Effect::Refuse { .. })));
}

#[test]
fn what_free_lease_can_make_up_for_is_kept_from_nobody_and_neither_is_what_can_never_be() {
    let mut world = World::new(chunky());
    let (_, [a, b]) = small_session(&mut world);
    assert!(world.allocate(a, GPU, Bytes::mib(100)));
    assert!(!world.free_lease(a, GPU).is_zero());
    let in_the_way = |mib| world.core.limit_in_the_way(b, GPU, Bytes::mib(mib), Kind::Movable);
    assert_eq!(in_the_way(412), None);
    assert_eq!(in_the_way(413), Some(LimitKind::Session));
    assert_eq!(in_the_way(513), None, "more than the quota");
}
