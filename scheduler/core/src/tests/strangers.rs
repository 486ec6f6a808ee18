use gpushare_proto::{Bytes, ClientId, GateState, GateWord, GpuId, Nanos, RequestId, SessionId};

use super::world::{GPU, World, gib, plain};
use crate::{Config, Effect, Event};

#[test]
fn contexts_that_nobody_can_have_leave_the_others_their_room() {
    let mut world = World::new(Config { context_reserve: Bytes::mib(512), ..plain() });
    let (honest, _) = world.program(gib(1));
    let (_, liar) = world.program(Bytes::ZERO);
    world.send(Event::Contexts { client: liar, gpu: GPU, live: u32::MAX });
    let card = &world.core.memory_figures(honest).unwrap()[0];
    assert_eq!(card.free, gib(10) - gib(1) - Bytes::mib(512 * 2));
}

#[test]
fn many_processes_that_claim_contexts_take_one_context_or_their_quota_from_others() {
    let mut world = World::new(Config { context_reserve: Bytes::mib(512), ..plain() });
    let session = world.session_with(Some(Bytes::mib(64)), false);
    let claim = |world: &mut World, count| {
        for _ in 0..count {
            let client = world.join_on(session, GPU);
            world.send(Event::Contexts { client, gpu: GPU, live: 1 });
        }
    };
    let capacity = |world: &World| world.card().capacity_bytes;
    claim(&mut world, 12);
    assert_eq!(capacity(&world), gib(10) - Bytes::mib(64), "the quota bounds it");
    world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
    assert_eq!(capacity(&world), gib(10) - Bytes::mib(512), "else one context does");
    let measured = world.join_on(session, GPU);
    world.send(Event::Overhead { client: measured, gpu: GPU, bytes: Some(gib(1)) });
    claim(&mut world, 12);
    assert_eq!(capacity(&world), gib(9) - Bytes::mib(512), "what is measured counts besides");
}

#[test]
fn claimed_contexts_beyond_the_allowance_are_charged_to_the_quota_of_the_claimant() {
    let mut world = World::new(Config { context_reserve: Bytes::mib(512), ..plain() });
    let session = world.session_with(Some(gib(4)), false);
    let claimant = world.join_on(session, GPU);
    let free = |world: &World| world.core.memory_figures(session).unwrap()[0].free;
    assert_eq!(free(&world), gib(4));
    world.send(Event::Contexts { client: claimant, gpu: GPU, live: 8 });
    assert_eq!(free(&world), gib(1), "all but 1 GiB of 4 GiB is charged");
    assert!(!world.allocate(claimant, GPU, gib(1) + Bytes(1)));
    assert_eq!(world.card().overhead_bytes, Bytes::mib(512), "one makes the card smaller");
    world.send(Event::Overhead { client: claimant, gpu: GPU, bytes: Some(Bytes::ZERO) });
    assert_eq!((free(&world), world.card().overhead_bytes), (gib(4), Bytes::ZERO));
}

#[test]
fn who_is_not_there_changes_nothing() {
    let mut world = World::new(plain());
    world.take();
    let (client, gpu, session) = (ClientId(9), GPU, SessionId(9));
    let word = GateWord::new(1, GateState::Open);
    for event in [
        Event::SessionClosed { session },
        Event::ClientJoined { client, session, holding: None },
        Event::ClientGone { client },
        Event::ClientEnded { client },
        Event::Attached { client, gpu, used: gib(1) },
        Event::Contexts { client, gpu, live: 1 },
        Event::LeaseSeen { client, gpu, free: gib(1) },
        Event::Reserve { client, gpu, request: RequestId(1), bytes: gib(1) },
        Event::Recalled { client, gpu, bytes: gib(1) },
        Event::Trim { client, gpu },
        Event::Wait { client, word },
        Event::Entered { client, word, moved: gib(1), took: Nanos(1) },
        Event::Released { client, word, drain: Nanos(1) },
        Event::ExpectedGone { client },
        Event::ExpectedUses { client, gpu: GPU, bytes: Bytes::MAX },
        Event::ClientReturned { client, waiting: true },
        Event::StillUses { client, gpu, bytes: Bytes::MAX },
        Event::RefusedHere { client, gpu: GPU, bytes: Bytes::MAX, times: u64::MAX },
    ] {
        world.send(event);
        assert_eq!(world.take(), [], "{event:?}");
    }
}

#[test]
fn a_closed_session_takes_nobody_in_and_is_forgotten_with_its_last_process() {
    let mut world = World::new(plain());
    let (session, a) = world.program(gib(1));
    world.send(Event::SessionClosed { session });
    let late = ClientId(999);
    world.send(Event::ClientJoined { client: late, session, holding: None });
    assert_eq!(world.view(session).clients.len(), 1);
    world.dies(a);
    assert_eq!(world.core.snapshot(world.now).sessions, []);
}

#[test]
fn a_card_that_does_not_exist_cannot_be_attached() {
    let mut world = World::new(plain());
    let session = world.session();
    let a = world.join(session);
    world.take();
    world.send(Event::Attached { client: a, gpu: GpuId(200), used: gib(1) });
    assert_eq!(world.take(), []);
}

#[test]
fn figures_at_the_end_of_the_number_line_are_survived() {
    let mut world = World::new(plain());
    let session = world.session_with(None, true);
    let a = world.join(session);
    world.send(Event::Attached { client: a, gpu: GPU, used: Bytes::MAX });
    world.send(Event::Contexts { client: a, gpu: GPU, live: u32::MAX });
    world.send(Event::LeaseSeen { client: a, gpu: GPU, free: Bytes::MAX });
    world.take();
    world.send(Event::Reserve { client: a, gpu: GPU, request: RequestId(1), bytes: Bytes::MAX });
    assert!(world.take().iter().any(|effect| matches!(effect, Effect::Refuse { .. })));
    world.core.handle(Nanos::MAX, Event::Tick);
    assert_eq!(world.core.next_deadline(), None);
}
