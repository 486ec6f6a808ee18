use gpushare_proto::page::{FLAG_CONTENDED, FLAG_WANTED};
use gpushare_proto::{Bytes, ClientId, Nanos, Percent, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::{Config, Effect, Event, Standing, WaitsFor};

fn queued(world: &mut World) -> Vec<(ClientId, u32, String)> {
    let queued = |effect| match effect {
        Effect::Queued { client, ahead, reason } => Some((client, ahead, reason.to_string())),
        _ => None,
    };
    world.take().into_iter().filter_map(queued).collect()
}

#[test]
fn a_second_session_with_a_context_makes_the_card_contended() {
    let mut world = World::new(plain());
    let (session, a) = world.program(gib(1));
    let sibling = world.join_on(session, GPU);
    assert_eq!(world.flags(a), 0, "one session, two processes");
    let (_, b) = world.program(gib(1));
    assert_eq!([a, sibling, b].map(|client| world.flags(client)), [FLAG_CONTENDED; 3]);
    world.send(Event::Contexts { client: b, gpu: GPU, live: 0 });
    assert_eq!([a, sibling, b].map(|client| world.flags(client)), [0, 0, FLAG_CONTENDED]);
}

#[test]
fn a_holder_knows_when_somebody_waits() {
    let mut world = World::new(plain());
    let (_, a) = world.program(gib(6));
    let (_, b) = world.program(gib(6));
    world.run_for(ms(10));
    assert_eq!(world.flags(a) & FLAG_WANTED, 0);
    world.arrives(b);
    assert_eq!(world.flags(a) & FLAG_WANTED, FLAG_WANTED);
    assert_eq!(world.flags(b) & FLAG_WANTED, 0);
    world.dies(b);
    assert_eq!(world.flags(a) & FLAG_WANTED, 0);
}

#[test]
fn a_process_is_told_its_limit_its_ceiling_and_its_siblings_use() {
    let mut world = World::new(Config { managed_limit: Some(gib(8)), ..plain() });
    let session = world.session_with(Some(gib(4)), false);
    let a = world.join_on(session, GPU);
    let b = world.join_on(session, GPU);
    world.take();
    world.allocate(a, GPU, gib(1));
    let figures: Vec<_> = world
        .take()
        .into_iter()
        .filter(|e| matches!(e, Effect::Figures { .. }))
        .collect();
    let told = Effect::Figures { client: b, gpu: GPU, limit: gib(4), siblings: gib(1), ceiling: gib(8) };
    assert_eq!(figures, [told], "only the sibling's figures changed");
}

#[test]
fn what_others_took_of_the_cards_limit_is_not_promised_to_anybody_else() {
    let mut world = World::new(Config { managed_limit: Some(gib(8)), ..plain() });
    let (mine, theirs) = (world.session_with(None, true), world.session_with(Some(gib(4)), true));
    let (a, b) = (world.join(mine), world.join(theirs));
    world.attach(a, GPU);
    world.attach(b, GPU);
    world.allocate(b, GPU, gib(3));
    let accounts = world.core.memory_figures(mine).unwrap();
    let card = &accounts[0];
    assert_eq!((card.used, card.free), (Bytes::ZERO, gib(5)));
    let theirs = world.core.memory_figures(theirs).unwrap().remove(0);
    assert_eq!((theirs.total, theirs.used, theirs.free), (gib(4), gib(3), gib(1)));
    assert_eq!(theirs.processes, [(b, gib(3))]);
    assert_eq!(world.core.memory_figures(SessionId(99)), None);
}

#[test]
fn a_waiting_process_is_told_its_place_and_for_whom_it_waits_when_that_changes() {
    let mut world = World::new(Config { quantum: Some(Nanos::from_secs(30)), ..plain() });
    let (_, a) = world.program(gib(6));
    let (_, b) = world.program(gib(6));
    let (_, c) = world.program(gib(7));
    world.run_for(ms(10));
    world.take();
    world.arrives(b);
    world.arrives(c);
    assert_eq!(queued(&mut world), [(b, 0, "held by s1".to_owned()), (c, 1, "held by s1".to_owned())]);
    world.run_for(ms(100));
    world.look(a, GPU);
    assert_eq!(queued(&mut world), []);
    world.goes_idle(a);
    assert_eq!(queued(&mut world), [(c, 0, "held by s4".to_owned())]);
}

#[test]
fn for_whom_a_session_waits_is_said_with_the_names_that_the_shell_knows() {
    let name = |session: SessionId| format!("train-{}", session.0);
    let holders = |most: u64| WaitsFor::Holders((1..=most).map(SessionId).collect());
    assert_eq!(holders(2).words(name), "held by train-1, train-2");
    assert_eq!(holders(7).words(name), "held by train-1, train-2, train-3, train-4, train-5 and 2 more");
    let stuck =
        WaitsFor::Stuck { session: SessionId(3), reason: "its work in flight has not ended".to_owned() };
    assert_eq!(stuck.words(name), "session train-3 does not let go: its work in flight has not ended");
    assert_eq!(holders(1).to_string(), "held by s1");
}

#[test]
fn who_waits_again_is_told_again() {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    let (_, _) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.run_for(ms(350));
    let times = queued(&mut world).into_iter().filter(|(client, _, _)| *client == b).count();
    assert_eq!(times, 2);
}

#[test]
fn repetition_changes_nothing_and_tells_nobody() {
    let mut world = World::new(plain());
    let (session, a) = world.program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.take();
    let word = world.gate(b);
    world.send(Event::GpuFound { gpu: GPU, total: Bytes(1) });
    world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
    world.send(Event::ClientJoined { client: a, session, holding: None });
    world.send(Event::Attached { client: a, gpu: GPU, used: gib(5) });
    world.send(Event::Contexts { client: a, gpu: GPU, live: 1 });
    world.send(Event::Wait { client: b, word });
    world.send(Event::Released { client: b, word, drain: Nanos(1) });
    world.send(Event::Tick);
    assert_eq!(world.take(), []);
}

#[test]
fn whoever_takes_no_turns_is_in_nobodys_way() {
    let mut world = World::new(plain());
    let (a, _) = world.busy_program(gib(1));
    let (b, _) = world.busy_program(gib(1));
    let (_, free) = world.busy_program(gib(1));
    for (session, percent) in [(a, Percent(3000)), (b, Percent(6000))] {
        let limit = Some(percent);
        world.send(Event::Compute { session, gpu: GPU, limit });
    }
    world.take();
    world.run_for(Nanos::from_secs(1));
    let told = |effect: &Effect| matches!(effect, Effect::Flags { client, .. } if *client == free);
    assert_eq!(world.take().into_iter().find(told), None, "the two wait for each other, not for it");
}

/// Thirty of them, of which one runs at a time.
fn crowd(world: &mut World) -> Vec<(SessionId, ClientId)> {
    let crowd = (0..30).map(|_| world.busy_program(gib(6))).collect();
    world.run_for(Nanos::from_secs(3));
    world.take();
    crowd
}

#[test]
fn whoever_is_paused_in_a_crowd_hears_so_at_once() {
    let mut world = World::new(plain());
    let crowd = crowd(&mut world);
    let (session, client) = crowd[29];
    let standing = Standing::Paused;
    world.send(Event::Standing { session, standing });
    assert_eq!(queued(&mut world), [(client, 0, WaitsFor::Pardon(standing).to_string())]);
}

#[test]
fn those_who_stand_as_they_did_keep_nobody_in_a_crowd_from_hearing() {
    let mut world = World::new(Config { quantum: Some(Nanos::from_secs(600)), ..plain() });
    let crowd = crowd(&mut world);
    let (_, newcomer) = world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(2));
    let told = |world: &mut World| -> Vec<ClientId> {
        let told = queued(world).into_iter();
        told.map(|(client, ..)| client).collect()
    };
    let heard = told(&mut world);
    assert!(heard.contains(&newcomer), "{heard:?}");
    let (_, leaves) = crowd[20];
    world.dies(leaves);
    world.run_for(Nanos::from_secs(2));
    let heard = told(&mut world);
    let behind = crowd[21..].iter().map(|&(_, client)| client);
    let deaf: Vec<ClientId> = behind.filter(|client| !heard.contains(client)).collect();
    assert_eq!(deaf, [], "all of them moved up");
}
