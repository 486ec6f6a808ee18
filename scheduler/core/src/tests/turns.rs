use gpushare_proto::admin::{Knob, LockView};
use gpushare_proto::{Bytes, GateState, Nanos};

use super::world::{GPU, World, gib, ms, plain};
use crate::config::Tuning;
use crate::{Config, Effect, Event, Notice};

fn with_quantum(quantum: Nanos) -> Config {
    Config { quantum: Some(quantum), ..plain() }
}

#[test]
fn busy_sessions_take_turns_in_the_order_in_which_they_came() {
    let mut world = World::new(with_quantum(ms(100)));
    let (first, _) = world.busy_program(gib(6));
    let (second, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    let (third, _) = world.busy_program(gib(6));
    world.take();
    world.run_for(ms(690));
    assert_eq!(world.turns(), [second, third, first, second, third]);
    assert_eq!(world.card().handoffs, 5);
}

#[test]
fn without_waiters_a_holder_keeps_the_lock_beyond_its_quantum() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.program(gib(6));
    world.run_for(Nanos::from_secs(60));
    assert!(world.passes(a));
    world.arrives(b);
    assert!(!world.passes(a), "its quantum is long over");
}

#[test]
fn the_next_is_admitted_only_when_the_last_work_of_the_one_before_has_ended() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, a) = world.busy_program(gib(6));
    let (session, b) = world.busy_program(gib(6));
    world.habits(a).drain = ms(30);
    world.run_for(ms(100));
    assert_eq!(world.open(&[a, b]), [false, false]);
    assert_eq!(world.card().queue, [session]);
    world.run_for(ms(30));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    world.run_for(ms(20));
    assert!(world.passes(b));
    assert_eq!(world.card().drains_ns, [ms(2), ms(30)], "the first was b's, when the card became too small");
}

#[test]
fn the_quantum_begins_when_the_memory_is_in() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.habits(b).moves = ms(80);
    world.run_for(ms(102));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    world.run_for(ms(80 + 99));
    assert_eq!(world.open(&[a, b]), [false, true]);
    world.run_for(ms(2));
    assert!(!world.passes(b));
    assert_eq!(world.card().moved_bytes, gib(6));
}

#[test]
fn a_process_that_never_says_entered_has_two_long_moves_and_a_quantum() {
    let mut world = World::new(Config { bandwidth_per_second: gib(1), ..with_quantum(ms(100)) });
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.habits(b).moves = Nanos::from_secs(3600);
    world.run_for(ms(102));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    world.run_for(ms(4099));
    assert_eq!(world.gate(b).state(), GateState::Moving, "2 GiB too many move in 2 s");
    world.run_for(ms(1));
    assert_eq!(world.gate(b).state(), GateState::Closed);
    world.run_for(ms(30));
    assert!(world.passes(a));
}

#[test]
fn the_quantum_pays_for_the_excess_that_has_to_move() {
    let mut world = World::new(Config { bandwidth_per_second: gib(10), ..plain() });
    let (_, _) = world.busy_program(gib(6));
    let (_, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    let cost = world.card().expected_drain_ns + plain().switch_cost + ms(200);
    assert_eq!(world.card().quantum_ns, Nanos(cost.0 * 19), "5% of the time go to handoffs");
    world.set(Knob::Quantum(Some(ms(300))));
    assert_eq!(world.card().quantum_ns, ms(300));
}

#[test]
fn a_shorter_quantum_also_ends_the_turn_that_is_under_way_and_a_longer_one_begins_with_the_next() {
    let mut world = World::new(with_quantum(Nanos::from_secs(30)));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(3));
    world.set(Knob::Quantum(Some(Nanos::from_secs(4))));
    world.run_for(ms(900));
    assert_eq!(world.open(&[a, b]), [true, false], "it began 3.9 s ago");
    world.set(Knob::Quantum(Some(Nanos::from_secs(60))));
    world.run_for(ms(150));
    assert_eq!(world.open(&[a, b]), [false, true]);
    world.run_for(Nanos::from_secs(50));
    assert!(world.passes(b));
    world.send(Event::Tune(Tuning::QuantumMax(Nanos::from_secs(1))));
    assert!(world.passes(b), "a fixed quantum knows no longest");
    world.set(Knob::Quantum(None));
    assert!(!world.passes(b), "it has been there for longer than any computed one may be");
}

/// A process asks for all of its memory, 6 GiB, and says so; 2 GiB of it have to move, and that is what the
/// next move takes too.
#[test]
fn the_quantum_pays_for_what_moves_take_whatever_was_there_already() {
    let mut world = World::new(Config { bandwidth_per_second: gib(10), ..plain() });
    for _ in 0..2 {
        let (_, client) = world.busy_program(gib(6));
        world.habits(client).moves = ms(80);
    }
    world.run_for(Nanos::from_secs(120));
    let cost = world.card().expected_drain_ns + ms(80);
    let promised = Nanos(cost.0 * 19);
    let off = world.card().quantum_ns.0.abs_diff(promised.0);
    assert!(off < promised.0 / 50, "{} instead of {promised}", world.card().quantum_ns);
}

#[test]
fn the_first_switch_makes_the_quantum_what_its_cost_asks_for() {
    for moves in [ms(40), ms(800)] {
        let mut world = World::new(Config { bandwidth_per_second: gib(10), ..plain() });
        for _ in 0..2 {
            let (_, client) = world.busy_program(gib(6));
            world.habits(client).moves = moves;
        }
        while world.card().moved_bytes.is_zero() {
            world.run_for(ms(1));
        }
        let cost = ms(2) + moves + plain().switch_cost;
        let promised = Nanos(cost.0 * 19);
        let quantum = world.card().quantum_ns;
        assert!(quantum.0.abs_diff(promised.0) < promised.0 / 50, "{quantum} instead of {promised}");
    }
}

#[test]
fn a_grant_says_its_quantum_and_epochs_rise() {
    let mut world = World::new(with_quantum(ms(100)));
    let (first, _) = world.busy_program(gib(6));
    let (second, _) = world.busy_program(gib(6));
    world.take();
    world.run_for(ms(250));
    let grants: Vec<_> = world
        .notices()
        .into_iter()
        .filter_map(|notice| match notice {
            Notice::Granted { session, epoch, quantum, .. } => Some((session, epoch.counter, quantum)),
            _ => None,
        })
        .collect();
    assert_eq!(grants, [(second, 3, ms(100)), (first, 4, ms(100))]);
}

#[test]
fn who_fits_beside_the_holder_runs_beside_it() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    let (_, c) = world.busy_program(gib(3));
    world.run_for(ms(50));
    assert_eq!(world.open(&[a, b, c]), [true, false, true], "c was there when the holders were chosen");
}

#[test]
fn nobody_passes_a_head_that_does_not_fit() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    let (_, c) = world.program(gib(3));
    world.gets_busy(c);
    assert_eq!(world.open(&[a, b, c]), [true, false, false]);
    world.run_for(ms(150));
    assert_eq!(world.open(&[a, b, c]), [false, true, true]);
}

#[test]
fn a_session_larger_than_the_card_runs_alone() {
    let mut world = World::new(with_quantum(ms(100)));
    let large = world.session_with(None, true);
    let a = world.join(large);
    world.attach(a, GPU);
    assert!(world.allocate(a, GPU, gib(20)));
    let (_, b) = world.program(Bytes::ZERO);
    world.gets_busy(b);
    assert_eq!(world.open(&[a, b]), [true, false]);
    world.run_for(ms(150));
    assert_eq!(world.open(&[a, b]), [false, true]);
}

#[test]
fn a_holder_that_grows_pushes_out_who_no_longer_fits() {
    let mut world = World::new(with_quantum(Nanos::from_secs(30)));
    let (_, a) = world.busy_program(gib(3));
    let (_, b) = world.busy_program(gib(3));
    let (_, c) = world.busy_program(gib(6));
    assert_eq!(world.open(&[a, b, c]), [true, true, false]);
    world.allocate(b, GPU, gib(5));
    assert_eq!(world.open(&[a, b, c]), [false, true, false]);
}

#[test]
fn a_second_process_of_a_holder_runs_at_once() {
    let mut world = World::new(with_quantum(ms(100)));
    let (session, a) = world.busy_program(gib(6));
    let (other, b) = world.busy_program(gib(6));
    let second = world.join(session);
    world.attach(second, GPU);
    let waiter = world.join(other);
    world.attach(waiter, GPU);
    assert_eq!(world.open(&[a, second, b, waiter]), [true, true, false, false]);
    world.run_for(ms(150));
    assert_eq!(world.open(&[a, second, b, waiter]), [false, false, true, true]);
}

#[test]
fn a_process_without_memory_has_nothing_to_bring_in() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, _) = world.busy_program(gib(6));
    let (session, b) = world.busy_program(gib(6));
    let light = world.join(session);
    world.attach(light, GPU);
    world.run_for(ms(102));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    assert_eq!(world.gate(light).state(), GateState::Open);
}

#[test]
fn the_death_of_a_holder_admits_the_next_in_the_same_breath() {
    let mut world = World::new(with_quantum(Nanos::from_secs(30)));
    let (_, a) = world.busy_program(gib(6));
    let (session, b) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.take();
    world.dies(a);
    assert_eq!(world.gate(b).state(), GateState::Moving);
    assert_eq!(world.turns(), [session]);
    assert_eq!(world.card().allocated_bytes, gib(6));
}

#[test]
fn the_death_of_a_waiter_leaves_the_queue_in_order() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, _) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    let (third, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.dies(b);
    assert_eq!(world.card().queue, [third]);
}

#[test]
fn waiting_and_holding_are_timed() {
    let mut world = World::new(with_quantum(ms(100)));
    let (first, _) = world.busy_program(gib(6));
    let (second, b) = world.program(gib(6));
    world.run_for(ms(50));
    world.arrives(b);
    world.run_for(ms(40));
    assert_eq!(world.view(second).waited_ns, ms(40));
    assert_eq!(world.view(first).held_ns, ms(90));
    assert!(matches!(world.view(first).lock, LockView::Holding { .. }));
    assert!(matches!(world.view(second).lock, LockView::Waiting { ahead: 0, .. }));
}

#[test]
fn a_stale_release_is_ignored() {
    let mut world = World::new(with_quantum(ms(100)));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.habits(a).answers = false;
    let open = world.gate(a);
    world.run_for(ms(101));
    world.send(Event::Released { client: a, word: open, drain: Nanos::ZERO });
    assert_eq!(world.gate(b).state(), GateState::Closed);
    world.take();
    world.lets_go(a, Nanos::ZERO);
    assert!(
        world
            .take()
            .iter()
            .any(|effect| matches!(effect, Effect::Gate { client, .. } if *client == b))
    );
}

#[test]
fn a_wait_is_about_the_rest_of_the_holder_and_the_turns_ahead() {
    let mut world = World::new(with_quantum(ms(100)));
    let (first, _) = world.busy_program(gib(6));
    let (second, _) = world.busy_program(gib(6));
    let (third, _) = world.busy_program(gib(6));
    world.run_for(ms(330));
    let waits = |world: &World, session| world.core.waiting(world.now, session);
    let card = world.card();
    let (holder, queue) = (card.holders[0], card.queue.clone());
    assert_eq!(queue.len(), 2);
    assert!([first, second, third].contains(&holder));
    assert_eq!(waits(&world, holder), None, "it has its turn");
    let (next, last) = (waits(&world, queue[0]).unwrap(), waits(&world, queue[1]).unwrap());
    let [(who, rest)] = next.holders[..] else { panic!("{next:?}") };
    assert_eq!((who, next.ahead.len()), (holder, 0));
    assert!(rest <= ms(100), "{rest}");
    assert_eq!(next.about(), Some(rest + next.handoff));
    assert_eq!(last.ahead, [(queue[0], ms(100))]);
    assert_eq!(last.about(), Some(rest + last.handoff + ms(100) + last.handoff));
    world.run_for(rest + next.handoff);
    assert_eq!(world.card().holders, [queue[0]], "as was said");
}
