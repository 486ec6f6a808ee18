use gpushare_proto::{Bytes, ClientId, Epoch, GateState, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::{Event, Notice};

const HELD: Option<Epoch> = Some(Epoch {
    generation: 1,
    counter: 9,
});

/// A client of the last daemon comes back with 6 GiB.
fn returns(world: &mut World, id: u64, holding: Option<Epoch>) -> ClientId {
    let (client, session) = (ClientId(id), SessionId(id));
    world.send(Event::SessionOpened {
        session,
        limit: Some(gib(4)),
        oversubscribe: false,
    });
    world.join_as(client);
    world.send(Event::ClientJoined {
        client,
        session,
        holding,
    });
    world.send(Event::Attached {
        client,
        gpu: GPU,
        used: gib(6),
    });
    client
}

#[test]
fn a_holder_runs_on_while_the_others_are_awaited() {
    let mut world = World::after_restart(plain(), [501, 502]);
    let a = returns(&mut world, 501, HELD);
    assert!(world.passes(a));
    assert_eq!(world.gate(a).change(), 1, "a fresh word");
    world.run_for(Nanos::from_secs(60));
    assert_eq!(world.core.snapshot(world.now).recovering, 1);
}

#[test]
fn nothing_is_granted_until_everyone_is_back_or_dead() {
    let mut world = World::after_restart(plain(), [501, 502]);
    let new = world.program(Bytes::ZERO).1;
    world.gets_busy(new);
    let a = returns(&mut world, 501, None);
    world.run_for(Nanos::from_secs(60));
    assert_eq!(world.open(&[a, new]), [false, false]);
    let waiting = &world.core.snapshot(world.now).sessions[0].lock;
    assert!(
        format!("{waiting:?}").contains("waits for 1 process to return"),
        "{waiting:?}"
    );
    world.take();
    world.send(Event::ExpectedGone {
        client: ClientId(502),
    });
    assert_eq!(
        world.notices(),
        [Notice::Recovered {
            after: Nanos::from_secs(60)
        }]
    );
    assert_eq!(world.open(&[a, new]), [true, true]);
}

#[test]
fn recovery_lasts_at_least_a_second() {
    let mut world = World::after_restart(plain(), [501]);
    let a = returns(&mut world, 501, None);
    world.run_for(ms(999));
    assert!(!world.passes(a));
    world.run_for(ms(1));
    assert!(world.passes(a));
}

#[test]
fn claims_are_booked_beyond_the_quota_and_nothing_more_is_given() {
    let mut world = World::after_restart(plain(), [501]);
    let a = returns(&mut world, 501, HELD);
    assert_eq!(world.card().allocated_bytes, gib(6));
    assert!(!world.allocate(a, GPU, Bytes(1)), "the quota is 4 GiB");
}

#[test]
fn holders_whose_claims_do_not_fit_together_drop_by_the_usual_rule() {
    let mut world = World::after_restart(plain(), [501, 502]);
    let a = returns(&mut world, 501, HELD);
    let b = returns(&mut world, 502, HELD);
    assert_eq!(world.open(&[a, b]), [true, false]);
    world.run_for(Nanos::from_secs(60));
    assert_eq!(
        world.open(&[a, b]),
        [true, false],
        "b has let go and nobody of it waits"
    );
}

#[test]
fn a_new_process_that_says_it_holds_the_lock_is_not_believed() {
    let mut world = World::after_restart(plain(), [501]);
    let forger = returns(&mut world, 777, HELD);
    world.run_for(Nanos::from_secs(10));
    assert_eq!(world.gate(forger).state(), GateState::Closed);
}

#[test]
fn an_expected_client_that_dies_after_its_return_is_not_awaited_again() {
    let mut world = World::after_restart(plain(), [501]);
    let a = returns(&mut world, 501, HELD);
    world.dies(a);
    let new = world.program(Bytes::ZERO).1;
    world.run_for(Nanos::from_secs(1));
    assert!(world.passes(new));
}
