use gpushare_proto::admin::LockView;
use gpushare_proto::{Bytes, ClientId, GateState, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::{Config, Effect, Notice};

fn short_turns(policy: StuckPolicy) -> World {
    World::new(Config { quantum: Some(ms(100)), stuck_policy: policy, ..plain() })
}

/// A holder that drains in `drain`, and somebody who waits for it. At 100 ms the drop begins.
fn a_slow_holder(world: &mut World, drain: Nanos) -> ((SessionId, ClientId), (SessionId, ClientId)) {
    let slow = world.program(gib(6));
    let waiter = world.busy_program(gib(6));
    world.habits(slow.1).drain = drain;
    world.run_for(ms(99));
    assert!(world.passes(slow.1));
    world.take();
    (slow, waiter)
}

fn stuck(world: &mut World, session: SessionId) -> bool {
    world
        .notices()
        .iter()
        .any(|notice| matches!(notice, Notice::Stuck { session: s, .. } if *s == session))
}

#[test]
fn a_late_drop_with_a_thread_at_the_gate_is_undone_under_the_same_epoch() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((session, a), (_, b)) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    world.habits(a).busy = true;
    let before = world.view(session).lock;
    world.run_for(ms(2));
    let closed = world.gate(a);
    assert_eq!(closed.state(), GateState::Closed);
    world.run_for(ms(40));
    assert_eq!(world.gate(a), closed.next(GateState::Open));
    assert!(!world.passes(b));
    assert_eq!(world.card().aborted_drops, 1);
    let LockView::Holding { epoch } = before else { panic!("{before:?}") };
    let reopened = Effect::Gate { client: a, word: world.gate(a), epoch };
    let effects = world.take();
    assert!(effects.contains(&reopened));
    assert!(effects.contains(&Effect::Notice(Notice::DropReopened { session, tries: 1 })));
}

#[test]
fn the_pause_and_the_patience_double_with_every_try() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((_, a), _) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    world.habits(a).busy = true;
    world.run_for(ms(1));
    let mut changes = vec![(ms(0), GateState::Closed)];
    let start = world.now;
    while changes.len() < 7 {
        world.run_for(ms(1));
        if world.gate(a).state() != changes[changes.len() - 1].1 {
            changes.push((world.now - start, world.gate(a).state()));
        }
    }
    let times: Vec<u64> = changes.iter().map(|(at, _)| at.0 / 1_000_000).collect();
    // The first drop of the waiter took 2 ms, so the expected drain is below the target of 10 ms.
    assert_eq!(times, [0, 40, 60, 140, 180, 340, 420]);
}

#[test]
fn a_program_that_runs_ahead_and_always_has_a_thread_at_the_gate_is_drained_all_the_same() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((_, a), (waiter, _)) = a_slow_holder(&mut world, ms(800));
    world.habits(a).busy = true;
    world.run_for(ms(3000));
    assert_eq!(world.turns().first(), Some(&waiter));
    assert!(world.card().drains_ns.contains(&ms(800)));
    world.run_for(ms(10_000));
    let session = world.core.view.sessions.of(a).unwrap();
    let expected = world.core.view.expected_drain(session);
    assert!(expected > ms(100), "the next drop expects it: {expected}");
}

#[test]
fn a_holder_that_is_late_while_nobody_waits_at_its_gate_stays_closed_and_is_stuck_after_five_seconds() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((session, a), (other, _)) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    world.run_for(ms(5000));
    assert!(!stuck(&mut world, session));
    world.run_for(ms(2));
    assert!(stuck(&mut world, session));
    world.run_for(Nanos::from_secs(60));
    assert_eq!(world.gate(a).state(), GateState::Closed);
    assert!(!stuck(&mut world, session), "said once");
    let LockView::Dropping { stuck, .. } = world.view(session).lock else {
        panic!("still dropping")
    };
    assert!(stuck);
    let LockView::Waiting { reason, .. } = world.view(other).lock else {
        panic!("still waiting")
    };
    assert!(reason.starts_with("session s1 does not let go: its work in flight has not ended"), "{reason}");
}

#[test]
fn a_stuck_holder_is_opened_soon_after_a_thread_of_it_arrives() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((_, a), _) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    world.run_for(Nanos::from_secs(10));
    assert!(!world.passes(a));
    world.arrives(a);
    world.run_for(ms(9));
    assert!(!world.passes(a), "perhaps the report of its drain is on its way");
    world.run_for(ms(2));
    assert!(world.passes(a));
}

/// A program that synchronises and then launches more: its thread arrives when its drain is done, just before
/// the report of that does.
#[test]
fn a_thread_that_arrives_at_the_end_of_a_late_drain_does_not_undo_the_drop() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((_, a), (_, b)) = a_slow_holder(&mut world, ms(300));
    world.run_for(ms(299));
    world.arrives(a);
    world.run_for(ms(30));
    assert!(!world.passes(a));
    assert!(world.passes(b));
    assert_eq!(world.card().aborted_drops, 0);
}

#[test]
fn a_holder_is_stuck_after_five_tries_and_still_opened_from_time_to_time() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((session, a), _) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    world.habits(a).busy = true;
    world.run_for(Nanos::from_secs(4));
    assert!(stuck(&mut world, session));
    let before = world.card().aborted_drops;
    world.run_for(Nanos::from_secs(120));
    assert!(world.card().aborted_drops >= before + 4, "at most 30 s closed at a time");
}

#[test]
fn a_stuck_holder_that_drains_after_all_lets_the_next_one_in() {
    let mut world = short_turns(StuckPolicy::Wait);
    let (_, (_, b)) = a_slow_holder(&mut world, ms(10_000));
    world.run_for(ms(10_022));
    assert!(world.passes(b));
}

#[test]
fn others_that_fit_beside_a_stuck_holder_pass_the_head() {
    for (policy, passes) in [(StuckPolicy::RunOthers, true), (StuckPolicy::Wait, false)] {
        let mut world = short_turns(policy);
        let ((_, _), (_, b)) = a_slow_holder(&mut world, Nanos::from_secs(3600));
        let (_, c) = world.program(Bytes::ZERO);
        world.gets_busy(c);
        assert!(!world.passes(c), "the head does not fit");
        world.run_for(ms(5010));
        assert_eq!(world.open(&[b, c]), [false, passes], "{policy:?}");
    }
}

#[test]
fn who_fits_beside_a_stuck_holder_does_not_let_go_for_one_that_does_not() {
    let mut world = short_turns(StuckPolicy::RunOthers);
    let (_, (large, b)) = a_slow_holder(&mut world, Nanos::from_secs(20));
    let (small, c) = world.busy_program(gib(2));
    world.run_for(Nanos::from_secs(20));
    assert_eq!(world.open(&[b, c]), [false, true]);
    assert_eq!(world.turns(), [small]);
    world.run_for(ms(300));
    assert!(world.turns().contains(&large), "the stuck one drained after all");
}

#[test]
fn a_stuck_holder_is_killed_only_if_that_is_the_policy_and_not_before_its_time() {
    let mut world = short_turns(StuckPolicy::Kill);
    let ((_, a), (_, b)) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    world.run_for(ms(4990));
    assert!(!world.take().contains(&Effect::Kill { client: a }));
    world.run_for(ms(20));
    let kills = world.take().into_iter().filter(|effect| matches!(effect, Effect::Kill { .. }));
    assert_eq!(kills.collect::<Vec<_>>(), [Effect::Kill { client: a }]);
    world.dies(a);
    world.run_for(ms(30));
    assert!(world.passes(b));
}

#[test]
fn all_processes_of_a_session_are_reopened_for_the_one_that_waits() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((session, a), _) = a_slow_holder(&mut world, Nanos::from_secs(3600));
    let peer = world.join_on(session, GPU);
    world.habits(peer).busy = true;
    world.run_for(ms(10));
    assert_eq!(world.open(&[a, peer]), [false, false], "the peer has drained, its thread waits at the gate");
    world.run_for(ms(33));
    assert_eq!(world.open(&[a, peer]), [true, true]);
}

#[test]
fn a_claimed_drain_is_never_longer_than_the_gate_was_closed() {
    let mut world = short_turns(StuckPolicy::Wait);
    let ((_, a), _) = a_slow_holder(&mut world, ms(10));
    world.habits(a).answers = false;
    world.run_for(ms(11));
    world.lets_go(a, Nanos::MAX);
    assert_eq!(world.card().drains_ns.last(), Some(&ms(10)));
}
