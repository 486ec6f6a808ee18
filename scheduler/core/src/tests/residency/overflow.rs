//! Sessions that are larger than the card: what the card has no room for is mapped from the host.

use gpushare_proto::page::LimitKind;
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, ClientId, GateState, Nanos};

use super::{resident, world, world_with};
use crate::tests::world::{GPU, World, gib, ms, plain};
use crate::{Config, Event, Lack, WaitsFor};

/// Capacity of the card with its spare chunks.
const ALL: Bytes = Bytes::mib(8 * 1024 + 160);

fn places(world: &World, client: ClientId) -> (Bytes, Bytes) {
    (world.resident(client, GPU), world.mapped(client, GPU))
}

#[test]
fn a_session_larger_than_the_card_has_all_of_it_and_maps_the_rest() {
    let mut world = world();
    let (session, client) = world.oversubscribing_program(gib(12));
    world.run_for(ms(500));
    assert!(world.passes(client));
    assert_eq!(places(&world, client), (ALL, gib(12) - ALL));
    assert_eq!(world.core.waiting(world.now, session), None);
    let sums = world.card().remapped.unwrap();
    assert_eq!((sums.mapped_bytes, sums.moving_bytes), (gib(12) - ALL, Bytes::ZERO));
    assert_eq!(world.core.host_bytes(), gib(12) - ALL, "mapped memory is part of the host's budget");
    assert_eq!(world.core.mapped_bytes(), gib(12) - ALL);
}

#[test]
fn a_session_that_may_not_be_larger_than_the_card_is_refused_the_rest() {
    let mut world = world();
    let (_, client) = world.remapping_program(gib(8));
    assert!(!world.allocate(client, GPU, gib(1)));
    assert_eq!(world.refusals()[0].by, LimitKind::Capacity);
}

#[test]
fn nothing_is_mapped_from_the_host_before_others_have_left() {
    let mut world = world();
    let (_, idle) = world.remapping_program(gib(5));
    world.run_for(ms(100));
    assert_eq!(world.resident(idle, GPU), gib(5));
    let (session, client) = world.oversubscribing_program(gib(12));
    let mut waited = false;
    for _ in 0..2000 {
        world.run_for(ms(1));
        waited |=
            world.core.view.waits_for_memory(session).is_some_and(|(reason, _)| {
                matches!(reason, WaitsFor::Memory { lack: Some(Lack::Moves), .. })
            });
        if !world.resident(idle, GPU).is_zero() {
            assert_eq!((world.overflows(client, GPU), world.mapped(client, GPU)), (false, Bytes::ZERO));
        }
    }
    assert!(waited, "it waited for the memory of the idle one");
    assert_eq!(places(&world, client), (ALL, gib(12) - ALL));
}

#[test]
fn two_sessions_larger_than_the_card_take_turns_with_all_their_memory() {
    let mut world = world();
    let clients = [(); 2].map(|()| world.oversubscribing_program(gib(12)).1);
    world.run_for(ms(200));
    let mut turns = [0, 0];
    for _ in 0..400 {
        world.run_for(ms(50));
        let open = world.open(&clients);
        assert_ne!(open, [true, true]);
        for (turns, (client, open)) in turns.iter_mut().zip(clients.into_iter().zip(open)) {
            if open {
                *turns += 1;
                let (resident, mapped) = places(&world, client);
                assert_eq!((resident + mapped, resident), (gib(12), ALL));
            }
        }
        assert!(resident(&world, &clients) <= ALL);
    }
    assert!(turns.iter().all(|&turns| turns > 80), "{turns:?}");
}

#[test]
fn a_session_that_fits_has_its_turns_beside_one_that_does_not() {
    let mut world = world();
    let (_, large) = world.oversubscribing_program(gib(12));
    world.run_for(ms(500));
    let (_, small) = world.busy_remapping_program(gib(4));
    let mut turns = [0, 0];
    for _ in 0..300 {
        world.run_for(ms(50));
        let open = world.open(&[large, small]);
        assert_ne!(open, [true, true]);
        turns[0] += u32::from(open[0]);
        turns[1] += u32::from(open[1]);
        if open[1] {
            assert_eq!(places(&world, small), (gib(4), Bytes::ZERO));
            assert_eq!(world.mapped(large, GPU), gib(12) - ALL, "it stays mapped while others run");
        }
    }
    assert!(turns.iter().all(|&turns| turns > 60), "{turns:?}");
}

#[test]
fn memory_that_grows_beyond_the_card_is_mapped_while_the_session_runs() {
    let mut world = world();
    let (_, client) = world.oversubscribing_program(gib(6));
    world.run_for(ms(100));
    assert!(!world.overflows(client, GPU));
    assert!(world.allocate(client, GPU, gib(4)));
    world.run_for(ms(100));
    assert!(world.passes(client) && world.overflows(client, GPU));
    assert_eq!(places(&world, client), (ALL, gib(10) - ALL));
}

#[test]
fn a_session_whose_room_became_fixed_memory_of_others_maps_the_rest_until_that_is_free() {
    let mut world = world();
    let (_, first) = world.remapping_program(gib(6));
    let (_, second) = world.busy_remapping_program(gib(8));
    world.run_for(Nanos::from_secs(3));
    assert!(world.resident(first, GPU) < gib(1), "the second one needs all of the card");
    world.frees_on_card(second, GPU, gib(8));
    world.goes_idle(second);
    let (_, third) = world.remapping_program(Bytes::ZERO);
    assert!(world.allocate_fixed(third, GPU, gib(4)));
    world.gets_busy(first);
    world.run_for(Nanos::from_secs(4));
    let room = ALL - gib(4);
    assert!(world.passes(first), "it does not wait for a program that may run for weeks");
    assert_eq!(places(&world, first), (room, gib(6) - room));

    assert!(!world.allocate(first, GPU, gib(1)), "it grows no further");
    world.goes_idle(first);
    world.free_fixed(third, GPU, gib(4));
    world.gets_busy(first);
    world.run_for(ms(500));
    assert_eq!(places(&world, first), (gib(6), Bytes::ZERO));
}

#[test]
fn a_session_whose_room_became_contexts_of_others_maps_the_rest() {
    let mut world = World::new(Config { context_reserve: gib(1), quantum: Some(ms(500)), ..plain() });
    world.send(Event::HostBudget { bytes: gib(100) });
    let (_, client) = world.remapping_program(gib(8));
    world.run_for(ms(500));
    let (_, second) = world.busy_remapping_program(gib(7));
    world.run_for(Nanos::from_secs(3));
    assert!(world.resident(client, GPU) < gib(1), "the second one needs most of the card");
    world.frees_on_card(second, GPU, gib(7));
    world.goes_idle(second);
    for other in (0..4).map(|_| world.remapping_program(Bytes::ZERO).1).collect::<Vec<_>>() {
        world.send(Event::Contexts { client: other, gpu: GPU, live: 1 });
    }
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(4));
    assert!(world.passes(client));
    let (resident, mapped) = places(&world, client);
    assert_eq!(resident + mapped, gib(8));
    assert!(mapped > gib(1), "{mapped}");
}

#[test]
fn waits_in_several_turns_count_together() {
    let mut world = world();
    let (_, first) = world.remapping_program(gib(6));
    let (_, second) = world.busy_remapping_program(gib(8));
    world.run_for(Nanos::from_secs(3));
    world.frees_on_card(second, GPU, gib(2));
    let (_, third) = world.remapping_program(Bytes::ZERO);
    assert!(world.allocate_fixed(third, GPU, gib(4)));
    world.gets_busy(first);
    let turns = (0..400).filter(|_| {
        world.run_for(ms(50));
        world.passes(first)
    });
    assert!(turns.count() > 50, "each of its turns ends before it has waited long enough");
}

#[test]
fn sessions_that_fit_the_card_one_by_one_map_nothing_when_they_take_turns() {
    let mut world = world();
    let (_, other) = world.busy_remapping_program(gib(5));
    let (_, client) = world.busy_remapping_program(gib(6));
    world.run_for(Nanos::from_secs(2));
    for _ in 0..40 {
        world.run_for(ms(50));
        assert_eq!((world.mapped(client, GPU), world.mapped(other, GPU)), (Bytes::ZERO, Bytes::ZERO));
    }
}

#[test]
fn what_was_mapped_comes_to_the_card_once_the_session_fits() {
    let mut world = world();
    let (_, client) = world.oversubscribing_program(gib(12));
    world.run_for(ms(500));
    world.frees_on_card(client, GPU, gib(6));
    world.run_for(ms(100));
    assert!(!world.overflows(client, GPU));
    assert_eq!(world.mapped(client, GPU), gib(12) - ALL, "the gate is open");
    let (_, other) = world.busy_remapping_program(gib(4));
    world.run_for(Nanos::from_secs(3));
    assert_eq!(world.mapped(client, GPU), Bytes::ZERO);
    world.goes_idle(other);
    world.run_for(Nanos::from_secs(1));
    assert_eq!(places(&world, client), (gib(6), Bytes::ZERO));
}

#[test]
fn a_session_that_waits_or_lets_go_maps_nothing() {
    let mut world = world();
    let (_, client) = world.oversubscribing_program(gib(12));
    world.run_for(ms(500));
    assert!(world.overflows(client, GPU));
    world.goes_idle(client);
    assert_eq!((world.overflows(client, GPU), world.gate(client).state()), (false, GateState::Closed));
    assert_eq!(places(&world, client), (ALL, gib(12) - ALL));
}

#[test]
fn the_host_budget_bounds_a_session_that_is_larger_than_the_card() {
    let mut world = world_with(gib(3));
    let (_, client) = world.oversubscribing_program(gib(10));
    assert!(!world.allocate(client, GPU, gib(2)));
    assert_eq!(world.refusals()[0].by, LimitKind::HostMemory);
    world.run_for(ms(500));
    assert!(world.passes(client));
    assert!(world.core.host_bytes() <= gib(3));
}

#[test]
fn the_memory_of_a_process_that_does_not_answer_is_made_up_for_by_the_host() {
    let mut world = world();
    let (_, stopped) = world.remapping_program(gib(6));
    world.run_for(ms(100));
    world.habits(stopped).answers = false;
    let (_, client) = world.oversubscribing_program(gib(12));
    world.lets_go(stopped, ms(2));
    world.run_for(ms(500));
    assert!(!world.passes(client), "the other one may still give");
    world.run_for(ms(2000));
    assert!(world.passes(client));
    let left = ALL - (gib(6) + Bytes::mib(128));
    assert_eq!(places(&world, client), (left, gib(12) - left), "the credit of the other one counts, too");
}

#[test]
fn a_process_that_maps_from_the_host_for_long_is_not_late() {
    let mut world = world();
    let (_, client) = world.oversubscribing_program(gib(12));
    world.habits(client).answers = false;
    let whole = gib(12);
    for step in 0..6_u64 {
        world.run_for(ms(700));
        let (mapped, seen) = (Bytes::mib(400 * step), world.goal(client, GPU).map(|(number, _)| number));
        let residence = Residence {
            resident: ALL - gib(1),
            hosted: mapped,
            unbacked: whole - (ALL - gib(1)) - mapped,
            mapped,
            ..Residence::default()
        };
        world.send(Event::Resides { client, gpu: GPU, seen: seen.unwrap_or_default(), residence });
        assert!(world.overflows(client, GPU), "after {step} reports");
        assert_eq!(world.goal(client, GPU).unwrap().1, ALL);
    }
}
