//! Frozen sessions: who is frozen and when, what their memory counts as, and how they come back.

use gpushare_proto::admin::{Knob, LockView};
use gpushare_proto::page::FLAG_FROZEN;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::session::frost::{PARKING, Stage};
use crate::{Config, Effect, Event, FreezeEnd, Notice, Obstacle, Standing, ThawEnd, ThawWait, WaitsFor};

pub(super) const CONTEXT: Bytes = Bytes::mib(512);

pub(super) fn world_with(host: Bytes) -> World {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..plain() });
    world.send(Event::HostBudget { bytes: host });
    world
}

/// An idle program with so much remapped memory, whose context takes half a gibibyte.
pub(super) fn remapped(world: &mut World, bytes: Bytes) -> (SessionId, ClientId) {
    let (session, client) = world.remapping_program(bytes);
    examined(world, GPU, session, client)
}

/// An idle program with so much memory that never moves.
pub(super) fn native(world: &mut World, bytes: Bytes) -> (SessionId, ClientId) {
    native_on(world, GPU, bytes)
}

/// A [`native`] program on a card.
pub(super) fn native_on(world: &mut World, gpu: GpuId, bytes: Bytes) -> (SessionId, ClientId) {
    let (session, client) = world.program_on(&[(gpu, Bytes::ZERO)]);
    assert!(world.allocate_fixed(client, gpu, bytes));
    examined(world, gpu, session, client)
}

pub(super) fn examined(
    world: &mut World,
    gpu: GpuId,
    session: SessionId,
    client: ClientId,
) -> (SessionId, ClientId) {
    world.send(Event::Overhead { client, gpu, bytes: Some(CONTEXT) });
    world.send(Event::Freezable { client, obstacle: None });
    world.run_for(ms(100));
    (session, client)
}

pub(super) fn freezes(world: &mut World, session: SessionId) {
    world.send(Event::Freeze { session, wanted: true });
}

pub(super) fn stage(world: &World, client: ClientId) -> Stage {
    world.core.view.sessions.client(client).unwrap().frost.stage()
}

/// Steps that the daemon was asked for since the last call.
pub(super) fn steps(world: &mut World) -> Vec<(&'static str, ClientId)> {
    world.pick(|effect| match effect {
        Effect::Freeze { client } => Some(("freeze", client)),
        Effect::Thaw { client } => Some(("thaw", client)),
        _ => None,
    })
}

#[test]
fn a_frozen_session_leaves_four_mebibytes_and_comes_back_when_called() {
    let mut world = world_with(gib(100));
    let (session, client) = remapped(&mut world, gib(6));
    let before = world.card().capacity_bytes;
    world.take();
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("freeze", client)]);
    assert_eq!(stage(&world, client), Stage::Frozen);
    assert_eq!((world.resident(client, GPU), world.hosted(client, GPU)), (Bytes::ZERO, gib(6)));
    assert_eq!(world.card().capacity_bytes, before + CONTEXT - Bytes::mib(4));
    assert_eq!(world.gate(client).state(), GateState::Closed);
    assert!(world.flags(client) & FLAG_FROZEN != 0);
    assert_eq!(world.view(session).lock, LockView::Frozen);

    world.gets_busy(client);
    assert_eq!(world.core.waits_for(session), Some(WaitsFor::Thaw(ThawWait::Driver)));
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("thaw", client)]);
    assert!(world.passes(client) && world.flags(client) & FLAG_FROZEN == 0);
    assert_eq!((world.resident(client, GPU), world.card().capacity_bytes), (gib(6), before));
}

#[test]
fn the_driver_moves_a_process_while_it_freezes_and_while_it_thaws() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(4));
    let mut moves = vec![world.core.moves_by_driver()];
    let mut watch = |world: &mut World| {
        for _ in 0..20 {
            world.run_for(ms(100));
            moves.push(world.core.moves_by_driver());
        }
    };
    freezes(&mut world, session);
    watch(&mut world);
    world.send(Event::Called { client });
    watch(&mut world);
    moves.dedup();
    assert_eq!(moves, [false, true, false, true, false]);
}

#[test]
fn what_nvml_says_of_a_frozen_process_is_not_what_it_needs() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(4));
    let before = world.card().capacity_bytes;
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert!(world.core.is_frozen(client));
    world.send(Event::Overhead { client, gpu: GPU, bytes: Some(Bytes::ZERO) });
    world.send(Event::Called { client });
    world.run_for(Nanos::from_secs(2));
    assert_eq!((world.core.is_frozen(client), world.card().capacity_bytes), (false, before));
}

#[test]
fn a_call_that_passes_no_gate_thaws_too() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(4));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Frozen);
    world.send(Event::Called { client });
    world.run_for(Nanos::from_secs(1));
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn memory_of_a_frozen_program_is_free_for_others_and_comes_back_once_it_fits() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    let (_, other) = native(&mut world, gib(8));
    world.send(Event::Called { client });
    world.run_for(Nanos::from_secs(5));
    assert!(matches!(stage(&world, client), Stage::Queued(..)));
    assert_eq!(steps(&mut world), [("freeze", client)], "nothing comes back onto a full card");
    world.gets_busy(client);
    let reason = world.core.waits_for(session).unwrap();
    assert_eq!(reason, WaitsFor::Thaw(ThawWait::Room));
    assert!(reason.to_string().contains("have no room"), "{reason}");
    world.free_fixed(other, GPU, gib(6));
    world.run_for(Nanos::from_secs(1));
    assert_eq!(steps(&mut world), [("thaw", client)]);
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn remapped_memory_of_others_makes_way_for_a_thaw() {
    let mut world = world_with(gib(100));
    world.set(Knob::Capacity(None));
    let (session, client) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    let (_, other) = world.busy_remapping_program(gib(8));
    world.run_for(Nanos::from_secs(1));
    assert_eq!(world.resident(other, GPU), gib(8));
    world.habits(other).busy = false;
    world.lets_go(other, ms(2));
    world.send(Event::Called { client });
    world.run_for(Nanos::from_secs(3));
    assert_eq!(stage(&world, client), Stage::Warm);
    assert!(world.resident(other, GPU) < gib(4), "{}", world.resident(other, GPU));
}

#[test]
fn what_cannot_be_frozen_is_refused_before_anything_is_done() {
    let mut world = world_with(gib(100));
    let (session, client) = world.program(gib(4));
    for obstacle in [Obstacle::Unexamined, Obstacle::Managed] {
        if obstacle == Obstacle::Managed {
            world.send(Event::Freezable { client, obstacle: Some(obstacle) });
        }
        world.take();
        freezes(&mut world, session);
        world.run_for(Nanos::from_secs(3));
        assert_eq!(world.notices(), [Notice::FreezeRefused { session, client, obstacle }]);
        assert_eq!(stage(&world, client), Stage::Warm);
    }
}

#[test]
fn a_process_without_room_for_its_memory_goes_on_until_it_has_some() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(4));
    world.habits(client).answers = false;
    freezes(&mut world, session);
    world.lets_go(client, ms(2));
    world.run_for(ms(100));
    assert!(matches!(stage(&world, client), Stage::Parking(_)));
    world.take();
    // It looks again before it parks.
    let obstacle = Obstacle::HostMemory;
    world.send(Event::Freezable { client, obstacle: Some(obstacle) });
    assert_eq!(world.notices(), [Notice::FreezeRefused { session, client, obstacle }]);
    assert_eq!(stage(&world, client), Stage::Warm);
    assert!(world.flags(client) & FLAG_FROZEN == 0);
    world.habits(client).answers = true;
    world.send(Event::Freezable { client, obstacle: None });
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn pinned_memory_is_an_obstacle() {
    let mut world = world_with(gib(100));
    let (session, client) = remapped(&mut world, gib(4));
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(1));
    world.goes_idle(client);
    world.pins(client, GPU, gib(1));
    world.take();
    freezes(&mut world, session);
    let obstacle = Obstacle::Pinned;
    assert_eq!(world.notices(), [Notice::FreezeRefused { session, client, obstacle }]);
}

#[test]
fn a_program_that_works_goes_on() {
    let mut world = world_with(gib(100));
    let (session, client) = remapped(&mut world, gib(4));
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(1));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert!(world.passes(client));
    assert_eq!(steps(&mut world), []);
}

#[test]
fn a_paused_session_is_frozen_until_it_is_resumed() {
    let mut world = world_with(gib(100));
    let (session, client) = remapped(&mut world, gib(4));
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(1));
    world.send(Event::Standing { session, standing: Standing::Paused });
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(3));
    world.send(Event::Called { client });
    world.run_for(Nanos::from_secs(3));
    assert_eq!(stage(&world, client), Stage::Frozen);
    world.send(Event::Standing { session, standing: Standing::Good });
    world.run_for(Nanos::from_secs(2));
    assert!(world.passes(client));
}

#[test]
fn a_process_that_does_not_answer_is_left_alone() {
    let mut world = world_with(gib(100));
    let (session, client) = remapped(&mut world, gib(4));
    freezes(&mut world, session);
    world.run_for(ms(100));
    let (other_session, other) = native(&mut world, gib(1));
    world.habits(other).answers = false;
    world.take();
    freezes(&mut world, other_session);
    world.lets_go(other, ms(2));
    world.run_for(PARKING + Nanos::from_secs(1));
    assert_eq!(stage(&world, other), Stage::Warm);
    let obstacle = Obstacle::Silent;
    let refused = Notice::FreezeRefused { session: other_session, client: other, obstacle };
    assert!(world.notices().contains(&refused));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn without_host_memory_nothing_is_frozen() {
    let mut world = world_with(gib(4));
    let (session, client) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(3));
    assert_eq!(stage(&world, client), Stage::Warm);
    world.send(Event::HostBudget { bytes: gib(8) });
    world.run_for(Nanos::from_secs(3));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn the_driver_moves_one_process_at_a_time_on_a_card() {
    let mut world = world_with(gib(100));
    let programs = [(); 3].map(|()| native(&mut world, gib(2)));
    world.take();
    programs.iter().for_each(|&(session, _)| freezes(&mut world, session));
    world.run_for(ms(50));
    assert_eq!(steps(&mut world).len(), 1);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world).len(), 2);
    programs
        .iter()
        .rev()
        .for_each(|&(_, client)| world.send(Event::Called { client }));
    world.run_for(ms(50));
    assert_eq!(steps(&mut world), [("thaw", programs[2].1)]);
    world.run_for(Nanos::from_secs(2));
    let order: Vec<ClientId> = programs[..2].iter().rev().map(|&(_, client)| client).collect();
    assert_eq!(steps(&mut world).into_iter().map(|(_, client)| client).collect::<Vec<_>>(), order);
}

#[test]
fn a_freeze_that_is_wanted_while_a_process_comes_back_is_a_new_request() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    world.take();
    world.send(Event::Freeze { session, wanted: false });
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(steps(&mut world), [("thaw", client), ("freeze", client)]);
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn a_process_that_the_driver_refused_is_not_tried_again_whatever_it_reports() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    world.habits(client).ends.0 = FreezeEnd::Refused;
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    world.send(Event::Freezable { client, obstacle: Some(Obstacle::Managed) });
    world.send(Event::Freezable { client, obstacle: None });
    world.take();
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    let obstacle = Obstacle::Refused;
    assert_eq!(world.notices(), [Notice::FreezeRefused { session, client, obstacle }]);
    assert_eq!(stage(&world, client), Stage::Warm);
}

#[test]
fn a_frozen_process_that_dies_gives_everything_back() {
    let mut world = world_with(gib(8));
    let (session, client) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert!(!world.core.view.host.frozen().is_zero());
    world.dies(client);
    assert_eq!(world.card().capacity_bytes, gib(10));
    assert_eq!((world.core.view.host.frozen(), world.core.view.cold.len()), (Bytes::ZERO, 0));
}

#[test]
fn a_process_that_the_last_daemon_froze_comes_back() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    world.send(Event::FoundFrozen { client });
    assert_eq!(world.core.waits_for(session), Some(WaitsFor::Thaw(ThawWait::Driver)));
    world.run_for(Nanos::from_secs(2));
    assert_eq!((steps(&mut world), stage(&world, client)), (vec![("thaw", client)], Stage::Warm));
}

#[test]
fn a_card_without_free_memory_keeps_a_process_frozen_until_it_has_some() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(6));
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(world.core.bytes_to_thaw(client), [(GPU, gib(6) + CONTEXT)]);
    world.habits(client).ends.1 = ThawEnd::NoRoom;
    world.send(Event::Called { client });
    world.run_for(ms(500));
    let reason = world.core.waits_for(session).unwrap();
    assert_eq!(reason, WaitsFor::Thaw(ThawWait::FreeMemory));
    assert!(reason.to_string().contains("NVML shows less free memory"), "{reason}");
    world.run_for(Nanos::from_secs(4));
    assert!(steps(&mut world).len() > 3, "it is tried again");
    assert_ne!(stage(&world, client), Stage::Warm);
    world.habits(client).ends.1 = ThawEnd::Thawed;
    world.run_for(Nanos::from_secs(2));
    assert_eq!((stage(&world, client), world.core.waits_for(session)), (Stage::Warm, None));
}

#[test]
fn without_persistence_mode_nothing_is_frozen() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    world.send(Event::Persistence { gpu: GPU, is_on: false });
    world.take();
    freezes(&mut world, session);
    let obstacle = Obstacle::Persistence;
    assert_eq!(world.notices(), [Notice::FreezeRefused { session, client, obstacle }]);
    world.send(Event::Persistence { gpu: GPU, is_on: true });
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    assert_eq!(stage(&world, client), Stage::Frozen);
}

#[test]
fn a_failed_trial_keeps_all_processes_on_its_card_from_being_frozen() {
    let mut world = world_with(gib(100));
    let (session, client) = native(&mut world, gib(2));
    let (other, its_client) = native(&mut world, gib(2));
    world.habits(client).ends.0 = FreezeEnd::TrialFailed { gpu: GPU };
    world.take();
    freezes(&mut world, session);
    world.run_for(Nanos::from_secs(2));
    let obstacle = Obstacle::Trial;
    assert_eq!(world.notices().last(), Some(&Notice::FreezeRefused { session, client, obstacle }));
    assert_eq!(
        (stage(&world, client), world.core.frost_obstacle(session)),
        (Stage::Warm, Some((client, obstacle)))
    );
    world.take();
    freezes(&mut world, other);
    let refused = Notice::FreezeRefused { session: other, client: its_client, obstacle };
    assert_eq!(world.take(), [Effect::Notice(refused)]);
}

#[test]
fn a_trial_that_fails_after_the_death_of_its_process_counts_all_the_same() {
    let mut world = world_with(gib(100));
    let (_, client) = native(&mut world, gib(2));
    let (other, its_client) = native(&mut world, gib(2));
    world.dies(client);
    world.send(Event::FreezeEnded { client, end: FreezeEnd::TrialFailed { gpu: GPU } });
    assert_eq!(world.core.frost_obstacle(other), Some((its_client, Obstacle::Trial)));
}
