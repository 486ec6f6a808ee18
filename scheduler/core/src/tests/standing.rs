use gpushare_proto::admin::LockView;
use gpushare_proto::{Bytes, SessionId};

use super::world::{GPU, OTHER_GPU, World, chunky, gib, ms, plain};
use crate::{Event, Standing};

fn stand(world: &mut World, session: SessionId, standing: Standing) {
    world.send(Event::Standing { session, standing });
}

#[test]
fn a_paused_session_lets_go_and_goes_on_when_it_is_resumed() {
    let mut world = World::new(plain());
    let (session, a) = world.busy_program(gib(2));
    let (_, b) = world.busy_program(gib(2));
    stand(&mut world, session, Standing::Paused);
    world.run_for(ms(50));
    assert_eq!(world.open(&[a, b]), [false, true]);
    let LockView::Waiting { reason, .. } = world.view(session).lock else {
        panic!("{:?}", world.view(session).lock)
    };
    assert!(reason.contains("paused"), "{reason}");
    assert!(world.allocate(a, GPU, gib(1)), "it keeps its memory and may ask for more");
    stand(&mut world, session, Standing::Good);
    world.run_for(ms(50));
    assert_eq!(world.open(&[a, b]), [true, true]);
}

#[test]
fn a_paused_session_gives_its_turn_to_the_next() {
    let mut world = World::new(plain());
    let (session, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    stand(&mut world, session, Standing::Paused);
    world.run_for(ms(200));
    assert_eq!(world.open(&[a, b]), [false, true]);
    world.run_for(ms(60_000));
    assert_eq!(world.open(&[a, b]), [false, true], "nobody waits who may run");
    stand(&mut world, session, Standing::Good);
    world.run_for(ms(60_000));
    assert!(world.turns().contains(&session));
}

#[test]
fn a_session_that_is_over_keeps_what_it_has_and_gets_no_more() {
    let mut world = World::new(plain());
    let (session, a) = world.busy_program(gib(2));
    stand(&mut world, session, Standing::Over);
    world.run_for(ms(50));
    assert!(!world.passes(a));
    assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(2));
    assert!(!world.allocate(a, GPU, Bytes(1)));
    stand(&mut world, session, Standing::Good);
    world.run_for(ms(50));
    assert!(world.passes(a) && world.allocate(a, GPU, Bytes(1)));
}

#[test]
fn a_lowered_quota_takes_unused_leases_back_and_refuses_what_is_new() {
    let mut world = World::new(chunky());
    let (session, a) = world.program(gib(2));
    assert!(!world.free_lease(a, GPU).is_zero());
    let quota = |limit| Event::Quota { session, gpu: GPU, limit };
    world.send(quota(Some(gib(1))));
    assert_eq!(world.free_lease(a, GPU), Bytes::ZERO);
    assert_eq!(world.view(session).gpus[0].allocated_bytes, gib(2), "nothing of it is lost");
    assert!(!world.allocate(a, GPU, Bytes(1)));
    world.send(quota(Some(gib(3))));
    assert!(world.allocate(a, GPU, gib(1)));
    assert!(!world.allocate(a, GPU, Bytes(1)));
    world.send(quota(None));
    assert!(world.allocate(a, GPU, gib(1)));
}

#[test]
fn a_quota_of_one_card_is_not_that_of_another() {
    let mut world = World::new(plain());
    world.second_card();
    let session = world.session_with(Some(gib(2)), false);
    let a = world.join_on(session, GPU);
    world.attach(a, OTHER_GPU);
    world.send(Event::Quota { session, gpu: GPU, limit: Some(gib(1)) });
    assert!(!world.allocate(a, GPU, gib(2)));
    assert!(world.allocate(a, OTHER_GPU, gib(2)));
}

#[test]
fn how_long_a_paused_session_waits_is_not_for_the_machine_to_say() {
    let mut world = World::new(plain());
    let (session, _) = world.busy_program(gib(6));
    let (_, _) = world.busy_program(gib(6));
    stand(&mut world, session, Standing::Paused);
    world.run_for(ms(200));
    let waiting = world.core.waiting(world.now, session).unwrap();
    assert_eq!(waiting.reason, crate::WaitsFor::Pardon(Standing::Paused));
    assert_eq!(waiting.about(), None);
}
