//! Attempts to freeze and to thaw that fail: what becomes of the process, and who is told.

use gpushare_proto::{Bytes, Nanos};

use super::freezing::{CONTEXT, freezes, native, stage, steps, world_with};
use super::world::{gib, ms};
use crate::session::frost::Stage;
use crate::{Event, FreezeEnd, Notice, Obstacle, ThawEnd};

#[test]
fn an_attempt_that_breaks_off_is_repaired_by_thaws_until_one_succeeds() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    world.habits(client).ends = (FreezeEnd::BrokeOff, ThawEnd::BrokeOff);
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(4));
    let taken = steps(&mut world);
    assert!(taken.len() >= 3 && taken[1..].iter().all(|step| *step == ("thaw", client)), "{taken:?}");
    world.habits(client).ends.1 = ThawEnd::Thawed;
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn an_obstacle_that_the_daemon_finds_at_last_is_named_and_stays_if_it_lasts() {
    for (obstacle, stays) in [(Obstacle::Debugger, false), (Obstacle::FirstThread, true)] {
        let mut world = world_with(gib(100));
        let (session, client) = native(&mut world, gib(2));
        world.habits(client).ends.0 = FreezeEnd::Prevented(obstacle);
        freezes(&mut world, session);
        world.run_for(Nanos::from_secs(2));
        assert_eq!(stage(&world, client), Stage::Warm);
        assert!(world.notices().contains(&Notice::FreezeRefused { session, client, obstacle }));
        assert_eq!(world.core.frost_obstacle(session).is_some(), stays, "{obstacle}");
    }
}

#[test]
fn a_process_of_which_nobody_knows_where_it_is_may_need_no_memory_to_come_back() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    world.habits(client).ends = (FreezeEnd::BrokeOff, ThawEnd::NoRoom);
    freezes(&mut world, session);
    world.run_for(ms(400));
    assert!(world.core.may_be_on_cards(client));
    world.run_for(Nanos::from_secs(2));
    assert!(!world.core.may_be_on_cards(client), "the driver said that it is in its checkpoint");
}

#[test]
fn a_lost_process_has_nothing_on_the_card_and_stops_nobody() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(6));
    let before = world.card().capacity_bytes;
    world.habits(client).ends.1 = ThawEnd::Lost;
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    world.take();
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(2));
    assert!(world.notices().contains(&Notice::FrostKilled { session, client }));
    assert!(world.passes(client), "its calls fail by themselves");
    assert_eq!(world.card().capacity_bytes, before + gib(6) + CONTEXT - Bytes::mib(4));
    world.dies(client);
    assert_eq!(world.card().capacity_bytes, gib(10));
}

#[test]
fn a_lost_process_keeps_its_session_from_being_frozen_whatever_it_reports() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(6));
    world.habits(client).ends.1 = ThawEnd::Lost;
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    world.send(Event::Called { client });
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Lost);
    world.send(Event::ClientReturned { client, waiting: false });
    world.send(Event::Freezable { client, obstacle: None });
    world.take();
    freezes(&mut world, session);
    let obstacle = Obstacle::Lost;
    assert_eq!(world.notices(), [Notice::FreezeRefused { session, client, obstacle }]);
    assert_eq!(world.core.frost_obstacle(session), Some((client, obstacle)));
    assert!(!world.core.begins_to_freeze());
}
