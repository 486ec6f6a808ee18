//! Several frozen processes that are to come back: in which order, and what those count as that have to wait.

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::{Bytes, ClientId, Nanos, SessionId};

use super::freezing::{examined, freezes, native, native_on, stage, steps, world_with};
use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::config::StuckPolicy;
use crate::session::frost::Stage;
use crate::{Config, Event, ThawEnd, ThawWait, WaitsFor};

/// Frozen programs with so much memory that never moves.
fn frozen(world: &mut World, sizes: &[Bytes]) -> Vec<ClientId> {
    let programs: Vec<_> = sizes.iter().map(|&bytes| native(world, bytes)).collect();
    programs.iter().for_each(|&(session, _)| freezes(world, session));
    world.run_for(Nanos::from_secs(5));
    let clients: Vec<ClientId> = programs.into_iter().map(|(_, client)| client).collect();
    assert!(clients.iter().all(|&client| stage(world, client) == Stage::Frozen));
    world.take();
    clients
}

#[test]
fn a_thaw_without_free_memory_is_overtaken_by_smaller_ones_only() {
    let mut world = world_with(gib(100));
    let clients = frozen(&mut world, &[gib(3), gib(3), gib(1)]);
    let [first, equal, small] = clients[..] else { unreachable!() };
    world.habits(first).ends.1 = ThawEnd::NoRoom;
    for client in [first, equal, small] {
        world.send(Event::Called { client });
    }
    world.run_for(Nanos::from_secs(10));
    assert_eq!(stage(&world, small), Stage::Warm);
    let taken = steps(&mut world);
    assert_eq!(taken[..3], [("thaw", first), ("thaw", small), ("thaw", first)]);
    assert!(taken.len() > 5 && !taken.contains(&("thaw", equal)), "{taken:?}");
    world.habits(first).ends.1 = ThawEnd::Thawed;
    world.run_for(Nanos::from_secs(4));
    let taken = steps(&mut world);
    assert_eq!(taken[taken.len() - 2..], [("thaw", first), ("thaw", equal)]);
    assert_eq!((stage(&world, first), stage(&world, equal)), (Stage::Warm, Stage::Warm));
}

#[test]
fn a_thaw_that_broke_off_comes_after_all_others() {
    let mut world = world_with(gib(100));
    let clients = frozen(&mut world, &[Bytes::mib(512); 8]);
    world.habits(clients[0]).ends.1 = ThawEnd::BrokeOff;
    for &client in &clients {
        world.send(Event::Called { client });
    }
    world.run_for(Nanos::from_secs(4));
    let order: Vec<ClientId> = steps(&mut world).into_iter().map(|(_, client)| client).collect();
    assert_eq!(order[..8], clients);
    assert!(order.len() > 8, "it is tried again");
    assert!(clients[1..].iter().all(|&client| stage(&world, client) == Stage::Warm), "{order:?}");
}

/// Programs that were frozen one after the other, each while it was alone on the card.
fn frozen_alone(world: &mut World, sizes: &[Bytes]) -> Vec<ClientId> {
    sizes.iter().map(|&bytes| frozen(world, &[bytes])[0]).collect()
}

#[test]
fn frozen_programs_that_need_more_together_than_the_card_has_come_back_one_by_one() {
    let mut world = world_with(gib(100));
    let clients = frozen_alone(&mut world, &[gib(6), gib(6)]);
    let (_, other) = native(&mut world, gib(6));
    for &client in &clients {
        world.send(Event::Called { client });
    }
    world.run_for(Nanos::from_secs(2));
    assert!(clients.iter().all(|&client| matches!(stage(&world, client), Stage::Queued(_))));
    assert!(world.card().capacity_bytes >= gib(2), "they have no claim: {:?}", world.card());
    assert!(world.allocate_fixed(other, GPU, gib(1)), "so they take no room from others");

    world.dies(other);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("thaw", clients[0])]);
    let second = world.core.view.session_of(clients[1]).unwrap();
    assert_eq!(world.core.waits_for(second), Some(WaitsFor::Thaw(ThawWait::Room)));
    let first = world.core.view.session_of(clients[0]).unwrap();
    freezes(&mut world, first);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("freeze", clients[0]), ("thaw", clients[1])]);
    assert_eq!(stage(&world, clients[1]), Stage::Warm);
}

#[test]
fn a_program_that_does_not_fit_is_overtaken_by_smaller_ones_only() {
    let mut world = world_with(gib(100));
    let clients = frozen_alone(&mut world, &[gib(6), gib(6), gib(1)]);
    let [first, equal, small] = clients[..] else { unreachable!() };
    let (_, other) = native(&mut world, gib(6));
    for client in [first, equal, small] {
        world.send(Event::Called { client });
    }
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("thaw", small)]);
    world.dies(other);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("thaw", first)]);
    assert!(matches!(stage(&world, equal), Stage::Queued(_)));
}

#[test]
fn a_program_that_waits_for_room_keeps_no_turn_from_others() {
    let mut world = world_with(gib(100));
    world.set(Knob::Mode(Some(Mode::Serialized)));
    let [client] = frozen_alone(&mut world, &[gib(6)])[..] else { unreachable!() };
    let (_, other) = native(&mut world, gib(6));
    world.gets_busy(client);
    world.gets_busy(other);
    world.run_for(Nanos::from_secs(2));
    assert!(world.passes(other) && !world.passes(client));
    world.free_fixed(other, GPU, gib(5));
    world.run_for(Nanos::from_secs(3));
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn processes_that_the_last_daemon_froze_come_back_although_their_contexts_were_not_measured() {
    let config = Config { context_reserve: Bytes::mib(700), quantum: Some(ms(500)), ..plain() };
    let mut world = World::new(config);
    world.send(Event::HostBudget { bytes: gib(100) });
    let clients: Vec<ClientId> = (0..40).map(|_| world.remapping_program(Bytes::mib(16)).1).collect();
    for &client in &clients {
        world.send(Event::Contexts { client, gpu: GPU, live: 1 });
        world.send(Event::FoundFrozen { client });
    }
    for _ in &clients {
        world.run_for(Nanos::from_secs(1));
        for &client in &clients {
            if stage(&world, client) == Stage::Warm {
                world.send(Event::Overhead { client, gpu: GPU, bytes: Some(Bytes::mib(128)) });
            }
        }
    }
    let waiting: Vec<ClientId> = clients
        .iter()
        .copied()
        .filter(|&client| stage(&world, client) != Stage::Warm)
        .collect();
    assert!(waiting.is_empty(), "{waiting:?}");
}

/// Another process of a session, with so much memory that never moves.
fn joins(world: &mut World, session: SessionId, bytes: Bytes) -> ClientId {
    let client = world.join_on(session, GPU);
    assert!(world.allocate_fixed(client, GPU, bytes));
    examined(world, GPU, session, client).1
}

#[test]
fn a_process_whose_thaw_broke_off_is_tried_again_beside_one_that_does_not_fit() {
    let mut world = world_with(gib(100));
    let clients = frozen_alone(&mut world, &[gib(6), gib(6)]);
    world.habits(clients[0]).ends.1 = ThawEnd::BrokeOff;
    for &client in &clients {
        world.send(Event::Called { client });
    }
    world.run_for(Nanos::from_secs(5));
    let taken = steps(&mut world);
    assert!(taken.len() > 2 && taken.iter().all(|step| *step == ("thaw", clients[0])), "{taken:?}");
    world.habits(clients[0]).ends.1 = ThawEnd::Thawed;
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, clients[0]), Stage::Warm);
}

#[test]
fn a_process_that_has_its_turn_already_is_not_put_back() {
    let mut world = world_with(gib(100));
    let [client] = frozen_alone(&mut world, &[gib(6)])[..] else { unreachable!() };
    let (_, other) = native(&mut world, gib(2));
    world.habits(client).ends.1 = ThawEnd::NoRoom;
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(1));
    assert!(world.passes(client));
    world.send(Event::Overhead { client: other, gpu: GPU, bytes: Some(gib(4)) });
    world.run_for(Nanos::from_secs(2));
    assert!(matches!(stage(&world, client), Stage::Due(..) | Stage::Thawing(_)));
    world.habits(client).ends.1 = ThawEnd::Thawed;
    world.dies(other);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn a_session_runs_while_one_of_its_processes_waits_for_room() {
    let mut world = world_with(gib(100));
    let (session, frozen) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    native(&mut world, gib(6));
    let sibling = joins(&mut world, session, Bytes::ZERO);
    world.gets_busy(sibling);
    world.run_for(Nanos::from_secs(2));
    assert!(matches!(stage(&world, frozen), Stage::Queued(_)));
    assert!(world.passes(sibling));
}

#[test]
fn a_process_that_waits_for_room_takes_no_turn_while_its_sibling_is_idle() {
    let mut world = world_with(gib(100));
    world.set(Knob::Mode(Some(Mode::Serialized)));
    let (session, frozen) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    let (_, other) = native(&mut world, gib(6));
    let sibling = joins(&mut world, session, Bytes::ZERO);
    world.gets_busy(sibling);
    world.gets_busy(frozen);
    world.run_for(Nanos::from_secs(2));
    world.goes_idle(sibling);
    world.gets_busy(other);
    world.run_for(Nanos::from_secs(2));
    assert!(world.passes(other) && !world.passes(sibling));
    world.free_fixed(other, GPU, gib(5));
    world.run_for(Nanos::from_secs(3));
    assert_eq!(stage(&world, frozen), Stage::Warm);
}

#[test]
fn processes_of_one_session_come_back_one_by_one_after_a_restart() {
    let config = Config { context_reserve: Bytes::mib(700), quantum: Some(ms(500)), ..plain() };
    let mut world = World::new(config);
    world.send(Event::HostBudget { bytes: gib(100) });
    let (session, first) = world.remapping_program(Bytes::mib(16));
    let mut clients = vec![first];
    clients.extend((0..30).map(|_| world.join_on(session, GPU)));
    for &client in &clients {
        world.send(Event::FoundFrozen { client });
    }
    world.run_for(Nanos::from_secs(20));
    assert!(clients.iter().all(|&client| stage(&world, client) == Stage::Warm));
}

/// Tests a card with a process of the last daemon, whose bytes nobody knows, beside a card without one.
#[test]
fn a_process_of_the_last_daemon_holds_up_freezes_and_thaws_on_its_own_card_only() {
    let config = Config { stuck_policy: StuckPolicy::Wait, ..plain() };
    let mut world = World::after_restart(config, [501]);
    world.second_card();
    world.send(Event::HostBudget { bytes: gib(100) });
    world.send(Event::ExpectedUses { client: ClientId(501), gpu: GPU, bytes: gib(2) });
    world.run_for(Nanos::from_secs(2));
    let [here, there] = [GPU, OTHER_GPU].map(|gpu| {
        let (session, client) = native_on(&mut world, gpu, gib(1));
        freezes(&mut world, session);
        client
    });
    world.run_for(Nanos::from_secs(5));
    assert_eq!((stage(&world, here), stage(&world, there)), (Stage::Warm, Stage::Frozen));
    world.send(Event::Called { client: there });
    world.run_for(Nanos::from_secs(5));
    assert_eq!((stage(&world, here), stage(&world, there)), (Stage::Warm, Stage::Warm));
    assert_eq!(steps(&mut world), [("freeze", there), ("thaw", there)]);
    world.send(Event::ExpectedGone { client: ClientId(501) });
    world.run_for(Nanos::from_secs(5));
    assert_eq!(stage(&world, here), Stage::Frozen);
}

/// Each frozen process leaves some bytes on the card, so what fits beside others must fit beside those that wait, too.
#[test]
fn what_waits_for_room_does_not_keep_those_from_thawing_that_have_it() {
    let mut world = world_with(gib(100));
    let clients = frozen_alone(&mut world, &[Bytes::mib(4608); 3]);
    for &client in &clients {
        world.send(Event::Called { client });
    }
    world.run_for(Nanos::from_secs(5));
    let warm = clients.iter().filter(|&&client| stage(&world, client) == Stage::Warm);
    assert_eq!(warm.count(), 1, "two of them and four mebibytes of the third one are more than the card");
}

/// The holder never gives the lock back by itself, and nobody calls.
#[test]
fn a_thaw_that_nobody_calls_for_gets_its_room_from_a_busy_holder() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(5));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Frozen);
    let (_, holder) = world.remapping_program(gib(8));
    world.gets_busy(holder);
    world.run_for(Nanos::from_secs(2));
    assert!(world.passes(holder));
    world.send(Event::Freeze { session, wanted: false });
    world.run_for(Nanos::from_secs(10));
    assert_eq!(stage(&world, client), Stage::Warm);
    world.run_for(Nanos::from_secs(10));
    assert!(world.passes(holder), "the one that came back has no work");
}
