//! Virtual time after a restart of the daemon.

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Epoch, Nanos, SessionId};
use proptest::prelude::*;

use super::drawn;
use super::world::{GPU, World, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::{Config, Event};

const HELD: Option<Epoch> = Some(Epoch { generation: 1, counter: 9 });
/// First number of the sessions and processes of the last daemon; each session has one process.
const FIRST: u64 = 501;

/// State of a session when the last daemon ended.
#[derive(Clone, Copy, Debug)]
struct Former {
    weight: u32,
    lead: Option<i64>,
    /// Whether its process held the lock.
    held: bool,
}

const WAITED: Former = Former { weight: 100, lead: Some(0), held: false };

fn seconds(n: i64) -> Option<i64> {
    Some(n * 1_000_000_000)
}

fn quick() -> Config {
    Config { quantum: Some(ms(100)), stuck_policy: StuckPolicy::RunOthers, ..plain() }
}

fn session(index: usize) -> SessionId {
    SessionId(FIRST + index as u64)
}

/// Starts a daemon as the shell does, with sessions whose processes are about to return.
fn restart(mode: Option<Mode>, bytes: Bytes, former: &[Former]) -> World {
    let ids = (0..former.len()).map(|index| session(index).0);
    let mut world = World::after_restart(quick(), ids);
    world.set(Knob::Mode(mode));
    for (index, before) in former.iter().enumerate() {
        let session = session(index);
        world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
        world.send(Event::Share { session, weight: before.weight, priority: Priority::Normal });
    }
    for (index, before) in former.iter().enumerate() {
        world.send(Event::ExpectedUses { client: ClientId(session(index).0), gpu: GPU, bytes });
        if let Some(lead_ns) = before.lead {
            world.send(Event::Lead { session: session(index), gpu: GPU, lead_ns });
        }
    }
    world
}

/// Lets the process of a session return and go on with its work.
fn returns(world: &mut World, index: usize, bytes: Bytes, held: bool) -> ClientId {
    let (session, client) = (session(index), ClientId(session(index).0));
    world.join_as(client);
    world.send(Event::ClientJoined { client, session, holding: HELD.filter(|_| held) });
    world.send(Event::Attached { client, gpu: GPU, used: bytes });
    world.send(Event::Contexts { client, gpu: GPU, live: 1 });
    world.gets_busy(client);
    client
}

fn lead(world: &World, index: usize) -> Option<i64> {
    world.core.leads(world.now, session(index)).first().map(|&(_, lead)| lead)
}

/// Time that a session was charged, in nanoseconds of a session of weight 100.
fn charged(world: &World, index: usize) -> i64 {
    let session = world.core.view.sessions.get(session(index)).unwrap();
    let (on, card) = (session.cards.get(GPU).unwrap(), world.core.view.cards.get(GPU).unwrap());
    let owed = on.entered.map_or(Nanos::ZERO, |entered| card.charge.owed(world.now, entered));
    session.share.virtual_time(on.charged + owed).lead(Default::default())
}

#[test]
fn a_session_that_had_more_than_its_share_waits_after_a_restart() {
    let ahead = Former { lead: seconds(2), ..WAITED };
    let mut world = restart(None, gib(6), &[ahead, WAITED]);
    let a = returns(&mut world, 0, gib(6), false);
    world.run_for(ms(300));
    let b = returns(&mut world, 1, gib(6), false);
    world.run_for(ms(700));
    assert_eq!(world.turns(), [session(1)]);
    world.run_for(ms(1900));
    assert_eq!(world.open(&[a, b]), [false, true], "the other has not caught up yet");
    world.run_for(ms(300));
    assert_eq!(world.turns().first(), Some(&session(0)));
}

#[test]
fn virtual_time_is_the_same_before_and_after_a_restart() {
    let mut world = World::new(quick());
    let programs = [(100, 6), (10, 6), (300, 6)].map(|(weight, gibs)| {
        let (session, _) = world.busy_program(gib(gibs));
        world.send(Event::Share { session, weight, priority: Priority::Normal });
        (weight, session)
    });
    world.run_for(ms(2345));
    let before = programs.map(|(weight, session)| {
        let lead = world.core.leads(world.now, session).first().map(|&(_, lead)| lead);
        Former { weight, lead, held: false }
    });
    let leads = before.map(|former| former.lead.unwrap());
    assert!(leads[1] > leads[0] + 500_000_000, "{leads:?}");
    let mut world = restart(None, gib(6), &before);
    for index in [2, 0, 1] {
        returns(&mut world, index, gib(6), false);
    }
    world.run_for(Nanos::from_secs(1));
    let after = [0, 1, 2].map(|index| lead(&world, index).unwrap());
    assert_eq!(after, leads);
}

#[test]
fn who_is_not_back_in_time_keeps_the_usual_credit_only() {
    let ahead = Former { lead: seconds(50), ..WAITED };
    let mut world = restart(None, gib(6), &[ahead, WAITED]);
    returns(&mut world, 0, gib(6), true);
    world.run_for(Nanos::from_secs(20));
    returns(&mut world, 1, gib(6), false);
    let [a, b] = [0, 1].map(|index| lead(&world, index).unwrap());
    assert_eq!(a - b, 50_000_000, "half a quantum");
}

#[test]
fn a_session_without_a_record_begins_level_with_the_least_of_those_present() {
    let ahead = Former { lead: seconds(50), ..WAITED };
    let unknown = Former { lead: None, ..WAITED };
    let mut world = restart(None, gib(6), &[ahead, unknown, WAITED]);
    for index in 0..3 {
        returns(&mut world, index, gib(6), false);
    }
    assert_eq!([0, 1, 2].map(|index| lead(&world, index)), [seconds(50), seconds(50), seconds(0)]);
}

#[test]
fn turns_that_begin_after_the_return_of_all_start_level() {
    let ahead = Former { lead: seconds(50), ..WAITED };
    let mut world = restart(None, gib(1), &[ahead, WAITED]);
    for index in 0..2 {
        returns(&mut world, index, gib(1), false);
    }
    world.run_for(Nanos::from_secs(2));
    assert_eq!([0, 1].map(|index| lead(&world, index)), [None; 2], "there are no turns");
    world.set(Knob::Mode(Some(Mode::TimeSliced)));
    assert_eq!([0, 1].map(|index| lead(&world, index)), [Some(0); 2]);
}

#[test]
fn a_session_that_sleeps_behind_the_floor_is_recorded_level_with_it() {
    let mut world = World::new(quick());
    let (sleeper, client) = world.busy_program(gib(6));
    let [(ahead, _), _] = [(); 2].map(|()| world.busy_program(gib(6)));
    world.send(Event::Share { session: ahead, weight: 10, priority: Priority::Normal });
    world.run_for(ms(10));
    world.habits(client).busy = false;
    world.run_for(Nanos::from_secs(3));
    assert_eq!(world.core.leads(world.now, sleeper), [(GPU, 0)]);
    assert!(world.core.leads(world.now, ahead)[0].1 > 0);
}

proptest! {
    #![proptest_config(drawn::cases(drawn::SCHEDULES))]

    #[test]
    fn distances_outlive_a_restart_in_any_order_of_return(
        mode in prop::sample::select(vec![None, Some(Mode::Serialized), Some(Mode::TimeSliced)]),
        large in any::<bool>(),
        former in prop::collection::vec((-10_000_000_i64..100_000_000_000, 0_u64..400, any::<u32>()), 2..7),
        holder in prop::option::of(0_usize..7),
    ) {
        let bytes = gib(if large { 6 } else { 1 });
        let leads: Vec<i64> = former.iter().map(|&(lead, ..)| lead).collect();
        let before = |(index, &lead)| {
            // Unequal weights make the card take turns where the memory fits.
            Former { weight: 100 + index as u32, lead: Some(lead), held: holder == Some(index) }
        };
        let before: Vec<Former> = leads.iter().enumerate().map(before).collect();
        let mut world = restart(mode, bytes, &before);
        let mut order: Vec<usize> = (0..former.len()).collect();
        order.sort_by_key(|&index| former[index].2);
        for index in order {
            world.run_for(ms(former[index].1));
            returns(&mut world, index, bytes, before[index].held);
        }
        while world.core.is_recovering() {
            world.run_for(ms(1));
        }
        for index in 1..leads.len() {
            let stood = |index: usize| lead(&world, index).unwrap() - charged(&world, index);
            let off = (stood(index) - stood(0)) - (leads[index] - leads[0]);
            prop_assert!(off.abs() <= 4, "{index} is {off} ns off: {leads:?}");
        }
    }
}
