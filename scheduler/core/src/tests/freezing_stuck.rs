//! Stuck sessions with processes that the driver has frozen: who is killed, and who is spared.

use gpushare_proto::{ClientId, Nanos, SessionId};

use super::freezing::{freezes, remapped, stage, world_with};
use super::world::{GPU, World, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::session::frost::Stage;
use crate::{Config, Effect, Event, Notice, ThawEnd};

/// A frozen session that is called and does not answer, and another one that wants the card.
fn thawing_in_the_way(world: &mut World) -> (SessionId, ClientId) {
    let (session, client) = remapped(world, gib(6));
    freezes(world, session);
    world.run_for(Nanos::from_secs(2));
    assert!(world.core.is_frozen(client));
    world.habits(client).answers = false;
    world.gets_busy(client);
    let (_, other) = world.remapping_program(gib(6));
    world.gets_busy(other);
    (session, client)
}

/// World in which stuck sessions are killed.
fn world_that_kills() -> World {
    let mut world = World::new(Config { stuck_policy: StuckPolicy::Kill, quantum: Some(ms(500)), ..plain() });
    world.send(Event::HostBudget { bytes: gib(100) });
    world
}

/// Processes that the daemon was asked to kill since the last call, and those that were spared.
fn kills(world: &mut World) -> (Vec<ClientId>, Vec<ClientId>) {
    let kills = world.pick(|effect| match effect {
        Effect::Kill { client } => Some((true, client)),
        Effect::Notice(Notice::Spared { client, .. }) => Some((false, client)),
        _ => None,
    });
    let of = |is_killed| kills.iter().filter(|kill| kill.0 == is_killed).map(|kill| kill.1).collect();
    (of(true), of(false))
}

/// Sessions that are reported as stuck within a time.
fn stuck_within(world: &mut World, seconds: u64) -> Vec<SessionId> {
    world.run_for(Nanos::from_secs(seconds));
    world.pick(|effect| match effect {
        Effect::Notice(Notice::Stuck { session, .. }) => Some(session),
        _ => None,
    })
}

#[test]
fn a_session_that_waits_for_its_thaw_is_not_stuck() {
    let mut world = world_with(gib(100));
    let (session, client) = thawing_in_the_way(&mut world);
    assert_eq!(stuck_within(&mut world, 30), []);
    assert!(matches!(stage(&world, client), Stage::Thawing(_)));
    world.send(Event::ThawEnded { client, end: ThawEnd::Thawed });
    assert_eq!(stuck_within(&mut world, 4), [], "it has five seconds from its thaw on");
    assert_eq!(stuck_within(&mut world, 26), [session], "it does not drain now, though it runs");
}

#[test]
fn a_thaw_that_never_ends_makes_a_session_stuck_after_a_minute() {
    let mut world = world_with(gib(100));
    let (session, _) = thawing_in_the_way(&mut world);
    assert_eq!(stuck_within(&mut world, 90), [session]);
}

#[test]
fn a_restored_process_is_not_killed_when_it_is_stuck() {
    let mut world = world_that_kills();
    let (session, client) = remapped(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(2));
    assert!(world.passes(client));
    world.habits(client).busy = false;
    world.habits(client).drain = Nanos::from_secs(40);
    let (waiting, other) = world.remapping_program(gib(6));
    world.gets_busy(other);
    world.take();
    world.run_for(Nanos::from_secs(20));
    let reason = world.core.waits_for(waiting).unwrap().to_string();
    assert_eq!(kills(&mut world), (vec![], vec![client]));
    assert!(
        reason.ends_with("it is not killed, because the driver has frozen it before or does so now"),
        "{reason}"
    );
    world.run_for(Nanos::from_secs(40));
    assert!(world.passes(other), "it waited for the end of the work");
}

/// Processes that the daemon kills, and those that it spares, once work of the program does not end and another program
/// waits.
fn kills_when_stuck(world: &mut World, client: ClientId) -> (Vec<ClientId>, Vec<ClientId>) {
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(2));
    world.habits(client).drain = Nanos::from_secs(40);
    let (_, other) = world.remapping_program(gib(6));
    world.gets_busy(other);
    world.take();
    world.run_for(Nanos::from_secs(20));
    kills(world)
}

#[test]
fn a_process_that_the_last_daemon_had_frozen_is_not_killed_when_it_is_stuck() {
    let mut world = world_that_kills();
    let (_, client) = remapped(&mut world, gib(6));
    world.send(Event::FrozenBefore { client });
    assert!(world.core.is_spared(client));
    assert_eq!(kills_when_stuck(&mut world, client), (vec![], vec![client]));
}

#[test]
fn a_process_that_was_never_frozen_is_killed_when_it_is_stuck() {
    let mut world = world_that_kills();
    let (_, client) = remapped(&mut world, gib(6));
    assert_eq!(kills_when_stuck(&mut world, client), (vec![client], vec![]));
}

#[test]
fn a_process_whose_thaw_never_ends_is_not_killed() {
    let mut world = world_that_kills();
    let (_, client) = thawing_in_the_way(&mut world);
    world.run_for(Nanos::from_secs(90));
    assert_eq!(kills(&mut world), (vec![], vec![client]));
}

#[test]
fn a_stuck_process_is_killed_beside_a_restored_one_of_its_session() {
    let mut world = world_that_kills();
    let (session, restored) = remapped(&mut world, gib(3));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    world.gets_busy(restored);
    world.run_for(Nanos::from_secs(2));
    let young = world.join_remapping(session);
    world.attach(young, GPU);
    assert!(world.allocate(young, GPU, gib(3)));
    world.gets_busy(young);
    world.run_for(Nanos::from_secs(2));
    for client in [restored, young] {
        world.habits(client).drain = Nanos::from_secs(40);
    }
    let (_, other) = world.remapping_program(gib(6));
    world.gets_busy(other);
    world.take();
    world.run_for(Nanos::from_secs(20));
    assert_eq!(kills(&mut world), (vec![young], vec![restored]));
}

#[test]
fn a_process_without_work_that_waits_for_its_thaw_excuses_no_other_one() {
    let mut world = world_with(gib(100));
    let (session, client) = remapped(&mut world, gib(6));
    let idle = world.join(session);
    world.send(Event::FoundFrozen { client: idle });
    world.habits(client).answers = false;
    world.gets_busy(client);
    let (_, other) = world.remapping_program(gib(6));
    world.gets_busy(other);
    assert_eq!(stuck_within(&mut world, 30), [session]);
}
