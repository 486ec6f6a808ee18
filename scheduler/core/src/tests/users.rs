//! Users as tenants: time is divided among classes, then users, then sessions.

use std::collections::BTreeMap;

use gpushare_proto::admin::Mode;
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};
use proptest::prelude::*;

use super::drawn;
use super::world::{GPU, Habits, OTHER_GPU, World, gib, ms, plain};
use crate::{Config, Event, UserId};

const ANA: UserId = UserId(1);
const BOB: UserId = UserId(2);

fn quick() -> Config {
    Config { quantum: Some(ms(20)), switch_cost: Nanos::ZERO, ..plain() }
}

fn own(world: &mut World, session: SessionId, user: UserId, weight: u32) {
    world.send(Event::Owner { session, user, weight });
}

fn share(world: &mut World, session: SessionId, weight: u32, priority: Priority) {
    world.send(Event::Share { session, weight, priority });
}

/// Adds a session of a user that always has work.
fn program(world: &mut World, user: UserId, bytes: Bytes) -> (SessionId, ClientId) {
    let (session, client) = world.program(bytes);
    own(world, session, user, 100);
    world.habits(client).drain = Nanos::ZERO;
    world.gets_busy(client);
    (session, client)
}

/// Thousandths of the held time that each group of sessions held of a period.
fn parts<const N: usize>(world: &mut World, groups: [&[SessionId]; N], span: Nanos) -> [u64; N] {
    let held = |world: &World| {
        groups.map(|group| group.iter().map(|&session| world.view(session).held_ns.0).sum::<u64>())
    };
    let before = held(world);
    world.run_for(span);
    let after = held(world);
    let held: [u64; N] = std::array::from_fn(|at| after[at] - before[at]);
    let all: u64 = held.iter().sum();
    held.map(|held| held * 1000 / all)
}

fn assert_near(parts: &[u64], due: &[u64]) {
    for (part, due) in parts.iter().zip(due) {
        assert!(part.abs_diff(*due) <= 15, "{parts:?} are not {due:?} thousandths");
    }
}

#[test]
fn a_user_with_many_sessions_gets_no_more_than_a_user_with_one() {
    for bytes in [gib(1), gib(6)] {
        let mut world = World::new(quick());
        let many: Vec<SessionId> = (0..8).map(|_| program(&mut world, ANA, bytes).0).collect();
        let (one, _) = program(&mut world, BOB, bytes);
        world.run_for(Nanos::from_secs(2));
        let halves = parts(&mut world, [&many, &[one]], Nanos::from_secs(20));
        assert_near(&halves, &[500, 500]);
        let own = parts(&mut world, [&many[..1], &many[1..]], Nanos::from_secs(20));
        assert_near(&own, &[125, 875]);
    }
}

#[test]
fn time_is_divided_by_the_weights_of_users_and_then_of_their_sessions() {
    let mut world = World::new(quick());
    let [a, b] = [(); 2].map(|()| program(&mut world, ANA, gib(6)).0);
    let (c, _) = program(&mut world, BOB, gib(6));
    own(&mut world, b, ANA, 300);
    share(&mut world, a, 200, Priority::Normal);
    world.run_for(Nanos::from_secs(2));
    let all = parts(&mut world, [&[a], &[b], &[c]], Nanos::from_secs(60));
    assert_near(&all, &[500, 250, 250]);
}

#[test]
fn a_session_of_nobody_counts_as_a_user() {
    let mut world = World::new(quick());
    let many: Vec<SessionId> = (0..3).map(|_| program(&mut world, ANA, gib(6)).0).collect();
    let (alone, client) = world.busy_program(gib(6));
    world.habits(client).drain = Nanos::ZERO;
    share(&mut world, alone, 300, Priority::Normal);
    world.run_for(Nanos::from_secs(2));
    let parts = parts(&mut world, [&many, &[alone]], Nanos::from_secs(30));
    assert_near(&parts, &[250, 750]);
}

#[test]
fn classes_divide_the_time_before_users_and_sessions_do() {
    let mut world = World::new(quick());
    let high: Vec<SessionId> = (0..6).map(|_| program(&mut world, ANA, gib(6)).0).collect();
    let normal: Vec<SessionId> = [ANA, BOB].map(|user| program(&mut world, user, gib(6)).0).into();
    high.iter().for_each(|&session| share(&mut world, session, 100, Priority::High));
    world.run_for(Nanos::from_secs(2));
    let parts = parts(&mut world, [&high, &normal[..1], &normal[1..]], Nanos::from_secs(60));
    assert_near(&parts, &[950, 25, 25]);
}

#[test]
fn users_of_unequal_numbers_of_sessions_take_turns_where_all_fits() {
    let mut world = World::new(quick());
    program(&mut world, ANA, gib(1));
    program(&mut world, BOB, gib(1));
    world.run_for(ms(100));
    assert_eq!(world.card().mode, Mode::Parallel);
    let (third, _) = program(&mut world, ANA, gib(1));
    assert_eq!(world.card().mode, Mode::TimeSliced);
    let reason = "sessions with unequal shares of the time want the card";
    assert_eq!(world.card().reason, reason);
    own(&mut world, third, UserId(3), 100);
    world.run_for(Nanos::from_secs(3));
    assert_eq!(world.card().mode, Mode::Parallel);
}

/// Each session of the first user sleeps after a turn, and another one of them wakes.
#[test]
fn sessions_that_relieve_each_other_gain_their_user_nothing() {
    let mut world = World::new(quick());
    let crew: Vec<(SessionId, ClientId)> = (0..12)
        .map(|_| {
            let (session, client) = world.program(gib(6));
            own(&mut world, session, ANA, 100);
            world.habits(client).drain = Nanos::ZERO;
            (session, client)
        })
        .collect();
    let (victim, _) = program(&mut world, BOB, gib(6));
    world.run_for(ms(100));
    let before = world.view(victim).held_ns;
    let (begin, mut next) = (world.now, 0);
    world.arrives(crew[0].1);
    while world.now < begin + Nanos::from_secs(20) {
        world.run_for(ms(1));
        let (session, client) = crew[next];
        if world.passes(client) && world.view(session).held_ns.0 > 0 {
            world.run_for(ms(19));
            if world.passes(client) {
                world.goes_idle(client);
            }
            next = (next + 1) % crew.len();
            world.arrives(crew[next].1);
        }
    }
    let held = world.view(victim).held_ns - before;
    assert!(held >= Nanos::from_millis(9_000), "half of 20 s, less moves: {held}");
}

#[test]
fn a_user_that_ends_its_sessions_and_comes_back_still_owes_its_time() {
    let mut world = World::new(Config { quantum: Some(Nanos::from_secs(2)), ..quick() });
    let (_, client) = program(&mut world, ANA, gib(6));
    let (_, other) = program(&mut world, BOB, gib(6));
    while !world.passes(client) {
        world.run_for(ms(1));
    }
    world.run_for(ms(1500));
    let session = world.core.view.sessions.of(client).unwrap();
    world.dies(client);
    world.send(Event::SessionClosed { session });
    let (_, client) = program(&mut world, ANA, gib(6));
    let (late, new) = (world.now, world.now + ms(1200));
    while world.now < new {
        world.run_for(ms(10));
        assert!(!world.passes(client), "it has had 1.5 s; {} s later", world.now - late);
    }
    assert!(world.passes(other));
}

#[test]
fn a_gang_is_not_starved_by_other_sessions_of_its_user() {
    let mut world = World::new(quick());
    world.second_card();
    let on = |world: &mut World, user, cards: &[GpuId]| {
        let needs: Vec<_> = cards.iter().map(|&gpu| (gpu, gib(6))).collect();
        let (session, _) = world.busy_program_on(&needs);
        own(world, session, user, 100);
        session
    };
    for user in [ANA, BOB] {
        on(&mut world, user, &[GPU]);
        on(&mut world, user, &[OTHER_GPU]);
    }
    let gang = on(&mut world, ANA, &[GPU, OTHER_GPU]);
    world.run_for(Nanos::from_secs(5));
    let before = world.view(gang).held_ns;
    world.run_for(Nanos::from_secs(60));
    let held = world.view(gang).held_ns - before;
    assert!(held >= Nanos::from_secs(6), "a quarter of the time, less what gangs lose: {held}");
}

#[test]
fn a_user_that_had_more_than_its_share_waits_after_a_restart() {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..quick() });
    let (a, _) = program(&mut world, ANA, gib(6));
    program(&mut world, BOB, gib(6));
    own(&mut world, a, ANA, 25);
    world.run_for(ms(2300));
    let ahead = world.core.user_leads(world.now, ANA);
    assert!(ahead[0].2 > 0, "{ahead:?}");
    let mut world = World::after_restart(Config { quantum: Some(ms(500)), ..quick() }, [501, 502]);
    for (number, user, lead_ns) in [(501, ANA, ahead[0].2), (502, BOB, 0)] {
        let (session, client) = (SessionId(number), ClientId(number));
        world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
        own(&mut world, session, user, if user == ANA { 25 } else { 100 });
        world.send(Event::ExpectedUses { client, gpu: GPU, bytes: gib(6) });
        world.send(Event::UserLead { user, priority: Priority::Normal, gpu: GPU, lead_ns });
    }
    assert_eq!(world.core.user_leads(world.now, ANA), ahead);
    for number in [501, 502] {
        let (session, client) = (SessionId(number), ClientId(number));
        world.join_as(client);
        world.send(Event::ClientJoined { client, session, holding: None });
        world.send(Event::Attached { client, gpu: GPU, used: gib(6) });
        world.send(Event::Contexts { client, gpu: GPU, live: 1 });
        world.gets_busy(client);
    }
    world.run_for(Nanos::from_secs(1));
    assert_eq!(world.turns(), [SessionId(502)]);
}

/// Weight of a user and of each of its sessions, by class.
type Drawn = Vec<(u32, Vec<(u32, Priority)>)>;

fn users() -> impl Strategy<Value = Drawn> {
    let weight = || prop_oneof![2 => Just(100_u32), 1 => 50_u32..300];
    let class = prop_oneof![4 => Just(Priority::Normal), 1 => Just(Priority::High)];
    let session = (weight(), class);
    prop::collection::vec((weight(), prop::collection::vec(session, 1..4)), 1..4)
}

proptest! {
    #![proptest_config(drawn::cases(60))]

    #[test]
    fn each_session_gets_its_part_of_its_users_part_of_its_class(users in users(), fits in any::<bool>()) {
        let mut world = World::new(Config { quantum: Some(ms(10)), ..quick() });
        let mut all = Vec::new();
        for (number, (weight, sessions)) in users.iter().enumerate() {
            for &(own_weight, class) in sessions {
                let (session, client) = world.program(if fits { gib(0) } else { gib(6) });
                *world.habits(client) = Habits { drain: Nanos::ZERO, moves: Nanos::ZERO, busy: true, ..Habits::default() };
                own(&mut world, session, UserId(number as u64), *weight);
                share(&mut world, session, own_weight, class);
                world.arrives(client);
                all.push((session, number, *weight, own_weight, class));
            }
        }
        world.run_for(Nanos::from_secs(2));
        let before: BTreeMap<_, _> = all.iter().map(|one| (one.0, world.view(one.0).held_ns)).collect();
        world.run_for(Nanos::from_secs(60));
        let held = |id| (world.view(id).held_ns - before[&id]).0;
        let sum = all.iter().map(|one| held(one.0)).sum::<u64>().max(1);
        let classes: BTreeMap<_, u32> = all.iter().map(|one| (one.4, if one.4 == Priority::High { 19 } else { 1 })).collect();
        for &(id, user, weight, own_weight, class) in &all {
            let peers: BTreeMap<usize, u32> =
                all.iter().filter(|one| one.4 == class).map(|one| (one.1, one.2)).collect();
            let siblings: u32 = all.iter().filter(|one| (one.1, one.4) == (user, class)).map(|one| one.3).sum();
            let [whole, peers, siblings] = [classes.values().sum::<u32>(), peers.values().sum(), siblings];
            let due = u64::from(classes[&class]) * u64::from(weight) * u64::from(own_weight) * 1000
                / (u64::from(whole) * u64::from(peers) * u64::from(siblings));
            let part = held(id) * 1000 / sum;
            // Equal sessions that fit run side by side.
            let sliced = world.card().mode != Mode::Parallel;
            prop_assert!(!sliced || part.abs_diff(due) <= 12, "{id} has {part} thousandths, due are {due} of {all:?}");
        }
    }
}
