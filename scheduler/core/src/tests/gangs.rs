use gpushare_proto::admin::{Knob, Mode, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{ClientId, GateState, GpuId, Nanos, SessionId};

use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::{Config, Event};

fn two_cards() -> World {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    world.second_card();
    world
}

/// A busy session with 6 GiB on each of its cards.
fn on(world: &mut World, cards: &[GpuId]) -> (SessionId, ClientId) {
    let session = world.session();
    let client = world.join(session);
    for &gpu in cards {
        world.attach(client, gpu);
        world.allocate(client, gpu, gib(6));
    }
    world.gets_busy(client);
    (session, client)
}

#[test]
fn a_gang_is_granted_all_its_cards_at_one_instant_or_none() {
    let mut world = two_cards();
    let (_, a) = on(&mut world, &[GPU]);
    let (_, b) = on(&mut world, &[OTHER_GPU]);
    let (_, gang) = on(&mut world, &[GPU, OTHER_GPU]);
    world.run_for(ms(50));
    assert_eq!(world.open(&[a, b, gang]), [true, true, false]);
    world.habits(b).drain = ms(30);
    world.run_for(ms(60));
    assert_eq!(world.open(&[a, b, gang]), [false, false, false], "one card has drained");
    world.run_for(ms(20));
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

/// A holder on each of two cards, whose turns end at 100 and 150 ms, and a gang that waits for both.
fn turns_that_end_apart() -> (World, [ClientId; 3]) {
    let mut world = two_cards();
    let (_, a) = on(&mut world, &[GPU]);
    // Turns are taken on the first card from the beginning, on the other from the gang's arrival.
    let (_, other) = on(&mut world, &[GPU]);
    world.dies(other);
    world.run_for(ms(50));
    let (_, b) = on(&mut world, &[OTHER_GPU]);
    let (_, gang) = on(&mut world, &[GPU, OTHER_GPU]);
    (world, [a, b, gang])
}

#[test]
fn nobody_lets_go_for_a_gang_that_waits_for_another_card_in_any_case() {
    let (mut world, [a, b, gang]) = turns_that_end_apart();
    world.run_for(ms(95));
    assert_eq!(world.open(&[a, b, gang]), [true, true, false], "{:?}", world.now);
    world.run_for(ms(8));
    assert_eq!(world.open(&[a, b]), [false, false], "both turns end at once");
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn who_goes_on_while_a_gang_waits_elsewhere_lets_go_when_it_need_not_any_more() {
    let (mut world, [a, b, gang]) = turns_that_end_apart();
    world.run_for(ms(70));
    assert_eq!(world.open(&[a, b, gang]), [true, true, false]);
    world.dies(b);
    assert!(!world.passes(a));
    world.run_for(ms(5));
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn two_who_go_on_while_a_gang_waits_for_a_third_card_do_not_wait_for_each_other() {
    let mut world = two_cards();
    let third = world.third_card();
    let [(_, a), (_, b)] = [GPU, OTHER_GPU].map(|gpu| on(&mut world, &[gpu]));
    // Turns are taken on these cards from the beginning, on the third from the gang's arrival.
    for gpu in [GPU, OTHER_GPU] {
        let (_, other) = on(&mut world, &[gpu]);
        world.dies(other);
    }
    world.run_for(ms(50));
    let (_, c) = on(&mut world, &[third]);
    let (_, gang) = on(&mut world, &[GPU, OTHER_GPU, third]);
    world.run_for(ms(70));
    assert_eq!(world.open(&[a, b, c, gang]), [true, true, true, false]);
    world.dies(c);
    assert_eq!(world.open(&[a, b]), [false, false]);
    world.run_for(ms(5));
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn who_goes_on_for_a_gang_lets_go_for_the_next_in_line_when_the_gang_is_gone() {
    let (mut world, [a, _, gang]) = turns_that_end_apart();
    let (_, next) = on(&mut world, &[GPU]);
    world.run_for(ms(70));
    assert!(world.passes(a), "beyond its turn");
    world.dies(gang);
    assert!(!world.passes(a));
    world.run_for(ms(5));
    assert_eq!(world.gate(next).state(), GateState::Moving);
}

/// Turns of a second on two cards that move 2 GiB in 20 ms: a holder on each, a gang that waits for both, and
/// one behind it on the first.
fn one_behind_a_gang() -> (World, [ClientId; 4]) {
    let (world, clients, _) = one_behind_a_gang_and_a_sleeper();
    (world, clients)
}

/// As [`one_behind_a_gang`], with a session on the first card that has no memory and no work yet.
fn one_behind_a_gang_and_a_sleeper() -> (World, [ClientId; 4], (SessionId, ClientId)) {
    let mut world =
        World::new(Config { quantum: Some(Nanos::from_secs(1)), bandwidth_per_second: gib(100), ..plain() });
    world.second_card();
    let session = world.session();
    let sleeper = world.join(session);
    world.attach(sleeper, GPU);
    let (_, a) = on(&mut world, &[GPU]);
    let (_, b) = on(&mut world, &[OTHER_GPU]);
    let (_, gang) = on(&mut world, &[GPU, OTHER_GPU]);
    world.goes_idle(sleeper);
    world.run_for(ms(10));
    let (_, next) = on(&mut world, &[GPU]);
    (world, [a, b, gang, next], (session, sleeper))
}

/// The sleeper of [`one_behind_a_gang_and_a_sleeper`] wakes, and goes before the gang: it has had no more
/// time, and is of a higher class.
fn wakes_before_the_gang(world: &mut World, (session, client): (SessionId, ClientId)) {
    world.allocate(client, GPU, gib(6));
    world.gets_busy(client);
    world.send(Event::Share { session, weight: 100, priority: Priority::High });
}

#[test]
fn a_card_that_a_gang_cannot_use_yet_is_backfilled() {
    let (mut world, [a, b, gang, next]) = one_behind_a_gang();
    world.run_for(ms(290));
    world.dies(a);
    world.run_for(ms(30));
    assert_eq!(world.open(&[b, gang, next]), [true, false, true]);
    world.run_for(ms(665));
    assert_eq!(world.open(&[b, gang, next]), [true, false, true]);
    world.run_for(ms(10));
    assert_eq!(world.open(&[b, next]), [false, false], "both turns end at once");
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn a_backfilled_turn_ends_in_time_for_a_session_that_wakes_before_the_gang() {
    let (mut world, [a, b, gang, next], sleeper) = one_behind_a_gang_and_a_sleeper();
    world.run_for(ms(300));
    world.dies(a);
    world.run_for(ms(30));
    assert!(world.passes(next));
    wakes_before_the_gang(&mut world, sleeper);
    world.run_for(ms(600));
    assert_eq!(world.open(&[b, gang, next, sleeper.1]), [true, false, true, false]);
    world.run_for(ms(150));
    assert_eq!(world.open(&[next, sleeper.1]), [false, true]);
}

#[test]
fn of_holders_that_grow_apart_a_backfilled_one_lets_go_though_it_grew() {
    let mut world =
        World::new(Config { quantum: Some(Nanos::from_secs(1)), bandwidth_per_second: gib(100), ..plain() });
    world.second_card();
    let (_, a) = world.busy_program(gib(4));
    on(&mut world, &[OTHER_GPU]);
    let (_, gang) = on(&mut world, &[GPU, OTHER_GPU]);
    world.allocate(gang, GPU, gib(2));
    world.run_for(ms(10));
    let (_, next) = world.busy_program(gib(4));
    world.run_for(ms(30));
    assert_eq!(world.open(&[a, gang, next]), [true, false, true]);
    world.allocate(next, GPU, gib(3));
    assert_eq!(world.open(&[a, next]), [true, false]);
}

#[test]
fn a_backfilled_turn_ends_as_soon_as_the_gang_can_begin() {
    let (mut world, [a, b, gang, next]) = one_behind_a_gang();
    world.run_for(ms(300));
    world.dies(a);
    world.run_for(ms(30));
    assert!(world.passes(next));
    world.dies(b);
    assert!(!world.passes(next));
    world.run_for(ms(5));
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn no_turn_is_backfilled_that_does_not_pay_for_its_moves() {
    let (mut world, [a, b, gang, next]) = one_behind_a_gang();
    world.run_for(ms(900));
    world.dies(a);
    world.run_for(ms(30));
    assert_eq!(world.open(&[b, gang, next]), [true, false, false]);
    world.run_for(ms(75));
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn a_card_is_backfilled_while_its_gang_waits_in_another_line() {
    let mut world =
        World::new(Config { quantum: Some(Nanos::from_secs(1)), bandwidth_per_second: gib(100), ..plain() });
    world.second_card();
    let (_, b) = on(&mut world, &[OTHER_GPU]);
    let [(_, before), (_, gang), (_, a)] = [&[OTHER_GPU][..], &[GPU, OTHER_GPU], &[GPU]].map(|cards| {
        let session = on(&mut world, cards);
        world.run_for(ms(10));
        session
    });
    world.run_for(ms(300));
    assert_eq!(world.open(&[a, b, before, gang]), [true, true, false, false]);
    world.goes_idle(a);
    world.arrives(a);
    world.run_for(ms(30));
    assert_eq!(world.open(&[a, b, before, gang]), [true, true, false, false]);
    world.run_for(ms(870));
    assert_eq!(world.open(&[a, b, before, gang]), [true, false, true, false]);
    world.run_for(ms(800));
    assert_eq!(world.open(&[a, before]), [false, false]);
    assert_eq!(world.gate(gang).state(), GateState::Moving);
}

#[test]
fn a_card_is_not_emptied_for_a_gang_while_the_holder_of_another_has_its_turn_renewed() {
    for heavy_is_first in [false, true] {
        let mut world = two_cards();
        let cards = match heavy_is_first {
            true => [OTHER_GPU, GPU],
            false => [GPU, OTHER_GPU],
        };
        let sessions = cards.map(|gpu| (gpu, on(&mut world, &[gpu]).0));
        let of = |wanted| sessions.iter().find(|(gpu, _)| *gpu == wanted).unwrap().1;
        let (light, heavy) = (of(GPU), of(OTHER_GPU));
        world.send(Event::Share { session: heavy, weight: 1000, priority: Priority::Normal });
        let (gang, _) = on(&mut world, &[GPU, OTHER_GPU]);
        world.run_for(Nanos::from_secs(20));
        let held = [light, heavy, gang].map(|session| world.view(session).held_ns.0 / 200_000_000);
        assert!(held[0] >= 85 && held[1] >= 85 && held[2] >= 8, "{held:?} percent");
    }
}

#[test]
fn nobody_goes_on_until_others_end_that_fit_beside_the_gang_anyway() {
    let mut world = two_cards();
    let large = [GPU, OTHER_GPU].map(|gpu| on(&mut world, &[gpu]).1);
    let session = world.session();
    let gang = world.join(session);
    for gpu in [GPU, OTHER_GPU] {
        world.attach(gang, gpu);
        world.allocate(gang, gpu, gib(6));
    }
    world.run_for(Nanos::from_secs(10));
    let small = [GPU, OTHER_GPU].map(|gpu| {
        let session = world.session();
        let client = world.join(session);
        world.attach(client, gpu);
        world.allocate(client, gpu, gib(1));
        world.gets_busy(client);
        client
    });
    world.run_for(ms(40));
    assert_eq!([world.open(&large), world.open(&small)], [[true, true]; 2]);
    world.arrives(gang);
    assert_eq!(world.open(&large), [false, false], "their turns are long over");
    world.run_for(ms(5));
    assert_eq!(world.gate(gang).state(), GateState::Moving);
    assert_eq!(world.open(&small), [true, true], "and theirs are not");
}

#[test]
fn two_gangs_take_turns_without_deadlock() {
    let mut world = two_cards();
    let (first, _) = on(&mut world, &[GPU, OTHER_GPU]);
    let (second, _) = on(&mut world, &[OTHER_GPU, GPU]);
    world.take();
    world.run_for(ms(500));
    assert_eq!(world.turns(), [second, first, second, first]);
}

#[test]
fn streams_of_single_card_sessions_do_not_starve_a_gang() {
    let mut world = two_cards();
    for gpu in [GPU, OTHER_GPU, GPU, OTHER_GPU, GPU, OTHER_GPU] {
        on(&mut world, &[gpu]);
    }
    let (gang, _) = on(&mut world, &[GPU, OTHER_GPU]);
    world.run_for(Nanos::from_secs(10));
    let turns = world.turns();
    let of_gang = turns.iter().filter(|session| **session == gang).count();
    assert!(of_gang >= 15, "{of_gang} of {} turns", turns.len());
}

#[test]
fn a_card_that_takes_turns_does_not_hold_up_one_that_does_not() {
    let mut world = two_cards();
    on(&mut world, &[GPU]);
    on(&mut world, &[GPU]);
    let (_, alone) = on(&mut world, &[OTHER_GPU]);
    world.run_for(ms(1000));
    assert!(world.passes(alone));
    assert_eq!(world.card().handoffs, 8);
}

#[test]
fn a_holder_that_reaches_for_a_card_with_a_queue_queues_up_for_both() {
    let mut world = two_cards();
    let (_, a) = on(&mut world, &[GPU]);
    on(&mut world, &[GPU]);
    on(&mut world, &[OTHER_GPU]);
    on(&mut world, &[OTHER_GPU]);
    world.run_for(ms(50));
    assert!(world.passes(a));
    world.attach(a, OTHER_GPU);
    assert!(!world.passes(a));
    world.run_for(Nanos::from_secs(1));
    assert!(world.core.snapshot(world.now).gpus.iter().all(|gpu| gpu.handoffs > 3));
}

#[test]
fn a_gang_that_waited_for_a_card_where_turns_end_is_admitted_on_the_other() {
    let mut world = World::new(Config { quantum: Some(Nanos::from_secs(30)), ..plain() });
    world.second_card();
    world.send(Event::Set(Setting { gpu: Some(GPU), knob: Knob::Mode(Some(Mode::Serialized)) }));
    let [(_, first), (session, second)] = [(), ()].map(|()| {
        let session = world.session();
        let client = world.join(session);
        world.attach(client, GPU);
        world.attach(client, OTHER_GPU);
        (session, client)
    });
    world.gets_busy(first);
    world.gets_busy(second);
    for weight in [200, 100] {
        let priority = Priority::Normal;
        world.send(Event::Share { session, weight, priority });
        world.run_for(ms(1900));
        assert_eq!(world.open(&[first, second]), [true, false], "one at a time");
    }
    world.run_for(ms(200));
    assert_eq!(world.open(&[first, second]), [true, true], "equal for two seconds, and they fit");
}

#[test]
fn who_is_new_on_a_card_begins_beside_those_who_use_it_and_not_beside_a_gang_that_another_card_holds_up() {
    let mut world = World::new(Config { quantum: Some(ms(400)), bandwidth_per_second: gib(1000), ..plain() });
    world.second_card();
    let third = world.third_card();
    let begins = |world: &mut World, cards: &[(GpuId, u64)]| {
        let session = world.session();
        let client = world.join(session);
        for &(gpu, gibs) in cards {
            world.attach(client, gpu);
            world.allocate(client, gpu, gib(gibs));
        }
        world.gets_busy(client);
        session
    };
    begins(&mut world, &[(GPU, 7), (OTHER_GPU, 2)]);
    begins(&mut world, &[(GPU, 3)]);
    begins(&mut world, &[(GPU, 7)]);
    let small = begins(&mut world, &[(third, 4)]);
    begins(&mut world, &[(GPU, 3), (OTHER_GPU, 2), (third, 2)]);
    let large = begins(&mut world, &[(third, 7)]);
    begins(&mut world, &[(GPU, 7), (third, 5)]);
    begins(&mut world, &[(GPU, 6)]);
    world.run_for(Nanos::from_secs(100));
    let before = [small, large].map(|session| world.view(session).held_ns);
    let new = begins(&mut world, &[(third, 7)]);
    world.run_for(Nanos::from_secs(20));
    let held = [small, large, new].map(|session| world.view(session).held_ns);
    let held = [held[0] - before[0], held[1] - before[1], held[2]];
    assert!(held.iter().all(|held| *held > Nanos::from_secs(2)), "{held:?}");
}

#[test]
fn those_behind_a_gang_that_waits_elsewhere_take_turns_meanwhile() {
    let mut world = World::new(Config { quantum: Some(ms(100)), bandwidth_per_second: gib(1000), ..plain() });
    world.second_card();
    let (held_up, _) = on(&mut world, &[OTHER_GPU]);
    world.send(Event::Share { session: held_up, weight: 10_000, priority: Priority::High });
    on(&mut world, &[GPU, OTHER_GPU]);
    let singles = [(); 2].map(|()| on(&mut world, &[GPU]).0);
    world.run_for(ms(500));
    let before = singles.map(|session| world.view(session).held_ns);
    world.run_for(Nanos::from_secs(2));
    let [a, b] = [0, 1].map(|at| world.view(singles[at]).held_ns - before[at]);
    assert!(a > ms(800) && b > ms(800), "{a}, {b}");
}
