use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::admin::{Knob, Mode, Setting};
use gpushare_proto::{Bytes, ClientId, Epoch, GateState, GpuId, Nanos, SessionId};

use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::{Config, Effect, Event, Notice, WaitsFor};

const HELD: Option<Epoch> = Some(Epoch { generation: 1, counter: 9 });

/// A client of the last daemon comes back with 6 GiB.
fn returns(world: &mut World, id: u64, holding: Option<Epoch>) -> ClientId {
    let (client, session) = (ClientId(id), SessionId(id));
    world.send(Event::SessionOpened { session, limit: Some(gib(4)), oversubscribe: false });
    world.join_as(client);
    world.send(Event::ClientJoined { client, session, holding });
    world.send(Event::Attached { client, gpu: GPU, used: gib(6) });
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
    let mut world = World::after_restart(policy(StuckPolicy::Wait), [501, 502]);
    used(&mut world, 502, GPU, gib(1));
    let new = world.program(Bytes::ZERO).1;
    world.gets_busy(new);
    let a = returns(&mut world, 501, None);
    world.run_for(Nanos::from_secs(60));
    assert_eq!(world.open(&[a, new]), [false, false]);
    let waiting = &world.core.snapshot(world.now).sessions[0].lock;
    assert!(format!("{waiting:?}").contains("waits for 1 process to return"), "{waiting:?}");
    world.take();
    world.send(Event::ExpectedGone { client: ClientId(502) });
    assert_eq!(world.notices(), [Notice::Recovered { after: Nanos::from_secs(60) }]);
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
    assert_eq!(world.open(&[a, b]), [true, false], "b has let go and nobody of it waits");
}

#[test]
fn a_new_process_that_says_it_holds_the_lock_is_not_believed() {
    let mut world = World::after_restart(policy(StuckPolicy::Wait), [501]);
    used(&mut world, 501, GPU, gib(1));
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

/// One whom the last daemon knew to use so much of a card.
fn used(world: &mut World, id: u64, gpu: GpuId, bytes: Bytes) {
    world.send(Event::ExpectedUses { client: ClientId(id), gpu, bytes });
}

fn policy(stuck_policy: StuckPolicy) -> Config {
    Config { stuck_policy, ..plain() }
}

#[test]
fn who_used_one_card_holds_up_that_one_only() {
    let mut world = World::after_restart(policy(StuckPolicy::Wait), [501]);
    world.second_card();
    used(&mut world, 501, GPU, gib(2));
    let (here, a) = world.busy_program(gib(1));
    let (_, b) = world.busy_program_on(&[(OTHER_GPU, gib(1))]);
    world.run_for(ms(999));
    assert_eq!(world.open(&[a, b]), [false, false], "the first second is everybody's");
    world.run_for(ms(1));
    assert_eq!(world.open(&[a, b]), [false, true]);
    world.run_for(Nanos::from_secs(600));
    assert_eq!(world.open(&[a, b]), [false, true], "the policy is to wait");
    assert_eq!(world.core.awaited_by(here), [ClientId(501)]);
    world.send(Event::ExpectedGone { client: ClientId(501) });
    assert_eq!(world.open(&[a, b]), [true, true]);
}

#[test]
fn a_process_on_no_known_card_holds_up_every_card_until_it_is_overdue() {
    for stuck_policy in [StuckPolicy::RunOthers, StuckPolicy::Wait, StuckPolicy::Kill] {
        let mut world = World::after_restart(policy(stuck_policy), [501]);
        let (_, a) = world.busy_program(gib(1));
        world.run_for(ms(4999));
        assert!(!world.passes(a), "process 501 may use any card with {stuck_policy:?}");
        world.run_for(ms(1));
        assert!(world.passes(a), "nothing says that process 501 uses the card: {stuck_policy:?}");
        assert!(!world.core.is_recovering());
        returns(&mut world, 501, None);
        assert!(!world.core.is_recovering(), "its return holds up nothing again");
    }
}

#[test]
fn who_does_not_return_is_reported_and_others_run_that_fit_beside_it() {
    let mut world = World::after_restart(policy(StuckPolicy::RunOthers), [501]);
    used(&mut world, 501, GPU, gib(6));
    let (_, fits) = world.busy_program(gib(4));
    world.take();
    world.run_for(ms(4999));
    assert!(!world.passes(fits));
    world.run_for(ms(1));
    let client = ClientId(501);
    let after = Nanos::from_secs(5);
    assert!(world.notices().contains(&Notice::Overdue { client, after }), "{:?}", world.notices());
    assert!(world.passes(fits));
    assert_eq!(world.core.snapshot(world.now).recovering, 1);
    assert!(!world.core.is_recovering(), "nobody waits for it any more");
}

#[test]
fn what_does_not_fit_beside_one_who_does_not_return_waits_and_is_told_for_whom() {
    let mut world = World::after_restart(policy(StuckPolicy::RunOthers), [501]);
    used(&mut world, 501, GPU, gib(6));
    let (large, a) = world.busy_program(gib(5));
    let (small, b) = world.busy_program(gib(3));
    world.run_for(Nanos::from_secs(60));
    assert!(!world.passes(a));
    assert!(world.passes(b), "others pass the one that waits");
    assert_eq!(world.turns(), [small], "and let go for nothing that it could use");
    let waiting = world.core.waiting(world.now, large).unwrap();
    assert_eq!((waiting.reason.clone(), waiting.about()), (WaitsFor::Return(1), None));
    // When it comes after all, it is a holder like any other.
    let late = returns(&mut world, 501, HELD);
    assert!(world.passes(late) || world.passes(b));
    world.run_for(Nanos::from_secs(60));
    let ended = world.notices();
    assert!(ended.iter().any(|notice| matches!(notice, Notice::Recovered { .. })), "{ended:?}");
}

#[test]
fn who_does_not_return_is_ended_where_that_is_the_policy() {
    let mut world = World::after_restart(policy(StuckPolicy::Kill), [501, 502]);
    used(&mut world, 501, GPU, gib(6));
    let (_, a) = world.busy_program(gib(4));
    returns(&mut world, 502, None);
    world.take();
    world.run_for(Nanos::from_secs(60));
    let kills = world.take().into_iter().filter(|effect| matches!(effect, Effect::Kill { .. }));
    let kill = Effect::Kill { client: ClientId(501) };
    assert_eq!(kills.collect::<Vec<_>>(), [kill], "once, and no process that is back");
    assert!(!world.passes(a), "until the kernel says that it is dead");
    world.send(Event::ExpectedGone { client: ClientId(501) });
    world.run_for(ms(20));
    assert!(world.passes(a));
}

#[test]
fn who_was_frozen_once_and_does_not_return_is_not_ended() {
    let mut world = World::after_restart(policy(StuckPolicy::Kill), [501, 502]);
    for id in [501, 502] {
        used(&mut world, id, GPU, gib(3));
    }
    world.send(Event::FrozenBefore { client: ClientId(501) });
    let (_, a) = world.busy_program(gib(5));
    world.take();
    world.run_for(Nanos::from_secs(60));
    let kills = world.take().into_iter().filter(|effect| matches!(effect, Effect::Kill { .. }));
    assert_eq!(kills.collect::<Vec<_>>(), [Effect::Kill { client: ClientId(502) }]);
    world.send(Event::ExpectedGone { client: ClientId(502) });
    world.run_for(Nanos::from_secs(60));
    assert!(!world.passes(a), "the card waits for it");
    world.send(Event::ExpectedGone { client: ClientId(501) });
    world.run_for(ms(20));
    assert!(world.passes(a));
}

#[test]
fn who_says_that_it_held_the_lock_and_was_in_no_registry_lets_its_work_end_first() {
    let mut world = World::after_restart(plain(), [501]);
    world.send(Event::Set(Setting { gpu: None, knob: Knob::Mode(Some(Mode::Serialized)) }));
    world.send(Event::ExpectedGone { client: ClientId(501) });
    let (_, waiter) = world.busy_program(gib(6));
    // It drains in 2 ms.
    let unknown = returns(&mut world, 777, HELD);
    assert_eq!(world.gate(unknown).state(), GateState::Closed);
    assert!(world.gate(unknown).change() > 0, "its mover drains what is in flight");
    let lock = |world: &World| format!("{:?}", world.core.snapshot(world.now).sessions[1].lock);
    assert!(lock(&world).contains("Dropping"), "{}", lock(&world));
    world.run_for(ms(2));
    assert!(lock(&world).contains("Idle"), "{}", lock(&world));
    world.run_for(Nanos::from_secs(1) + ms(20));
    assert!(world.passes(waiter));
}

#[test]
fn a_second_is_waited_for_those_whom_no_registry_knows() {
    let mut world = World::new(plain());
    world.core = crate::Core::new(plain(), World::GENERATION, [].into(), World::START).expecting_others();
    world.send(Event::GpuFound { gpu: GPU, total: gib(10) });
    let (_, a) = world.busy_program(gib(1));
    world.run_for(ms(999));
    assert!(!world.passes(a));
    world.run_for(ms(1));
    assert!(world.passes(a));
}

/// Two programs with 6 GiB each take turns on the card, and the daemon restarts in the turn of the first one returned.
fn restarted() -> (World, ClientId, ClientId) {
    let mut world = World::new(plain());
    world.send(Event::HostBudget { bytes: gib(20) });
    let programs = [(); 2].map(|()| world.busy_remapping_program(gib(6)).1);
    world.run_for(Nanos::from_secs(1));
    let [a, b] = programs;
    let (works, waits) = if world.passes(a) { (a, b) } else { (b, a) };
    world.restart(false);
    (world, works, waits)
}

#[test]
fn programs_take_turns_with_all_their_memory_after_a_restart() {
    let (mut world, works, waits) = restarted();
    for client in [waits, works] {
        world.run_for(ms(300));
        world.rejoins(client);
    }
    assert_eq!(world.open(&[works, waits]), [true, false]);
    assert_eq!([works, waits].map(|client| world.used(client, GPU)), [gib(6); 2]);
    world.take();
    world.run_for(Nanos::from_secs(20));
    let turns: BTreeSet<SessionId> = world.turns().into_iter().collect();
    assert_eq!(turns.len(), 2);
}

#[test]
fn nobody_has_a_turn_beside_a_program_that_works_and_has_not_returned() {
    let (mut world, works, waits) = restarted();
    world.rejoins(waits);
    world.run_for(Nanos::from_secs(60));
    assert!(!world.passes(waits));
    world.vanishes(works);
    world.run_for(ms(200));
    assert!(world.passes(waits));
}

/// Last message to each waiting process, and the largest number of messages to one of them.
fn told(effects: &[Effect]) -> (BTreeMap<ClientId, WaitsFor>, usize) {
    let mut last = BTreeMap::new();
    let mut times = BTreeMap::<ClientId, usize>::new();
    for effect in effects {
        if let Effect::Queued { client, reason, .. } = effect {
            last.insert(*client, reason.clone());
            *times.entry(*client).or_default() += 1;
        }
    }
    (last, times.into_values().max().unwrap_or(0))
}

#[test]
fn in_a_crowd_too_whoever_waits_for_the_return_of_others_hears_within_a_second_how_many_are_missing() {
    for mode in [Mode::Parallel, Mode::Serialized] {
        let config = Config { mode: Some(mode), ..policy(StuckPolicy::Wait) };
        let mut world = World::after_restart(config, 501..541);
        let waiting: Vec<ClientId> = (0..24).map(|_| world.busy_program(Bytes::mib(64)).1).collect();
        world.run_for(Nanos::from_secs(2));
        world.take();
        for gone in 501..521 {
            world.send(Event::ExpectedGone { client: ClientId(gone) });
            world.run_for(ms(10));
        }
        world.run_for(ms(1100));
        let (last, times) = told(&world.take());
        let missing = |client| (client, WaitsFor::Return(20));
        assert_eq!(last, waiting.iter().copied().map(missing).collect(), "{mode:?}");
        assert!(times <= 3, "{times} messages to one process in 1.3 s in {mode:?}");
    }
}

#[test]
fn in_a_crowd_those_who_must_let_go_take_nobodys_turn_to_hear_who_is_missing() {
    let mut world = World::after_restart(policy(StuckPolicy::Wait), 501..541);
    world.set(Knob::Mode(Some(Mode::Serialized)));
    let waiting: Vec<ClientId> = (0..24).map(|_| world.busy_program(Bytes::mib(64)).1).collect();
    for id in 701..713 {
        let (client, session) = (ClientId(id), SessionId(id));
        world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
        world.join_as(client);
        let habits = world.habits(client);
        (habits.drain, habits.busy) = (Nanos::from_secs(3600), true);
        world.send(Event::ClientJoined { client, session, holding: HELD });
        let (gpu, used) = (GPU, Bytes::ZERO);
        world.send(Event::Attached { client, gpu, used });
    }
    world.run_for(Nanos::from_secs(2));
    world.take();
    for gone in 501..521 {
        world.send(Event::ExpectedGone { client: ClientId(gone) });
    }
    world.run_for(ms(1100));
    let (last, _) = told(&world.take());
    let missing = |client| (client, WaitsFor::Return(20));
    assert_eq!(last, waiting.into_iter().map(missing).collect());
}
