//! Accounts of handoffs: bytes, times and sessions of what moved, and what a running handoff says.

use gpushare_proto::admin::Knob;
use gpushare_proto::handoff::{Direction, Handoff, SessionMove};
use gpushare_proto::{Bytes, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::{Config, Event, Notice};

/// Spare chunks of a card of 10 GiB, which are no part of its capacity.
const SPARE: Bytes = Bytes::mib(160);

/// A card of 10 GiB, of which sessions may have 8 together, with turns of half a second.
fn world() -> World {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..plain() });
    world.set(Knob::Capacity(Some(gib(8))));
    world.send(Event::HostBudget { bytes: gib(100) });
    world
}

/// Handoffs that have ended since the last call.
fn ended(world: &mut World) -> Vec<Handoff> {
    let notices = world.notices().into_iter();
    let handoffs = notices.filter_map(|notice| match notice {
        Notice::HandedOver(handoff) => Some(*handoff),
        _ => None,
    });
    handoffs.collect()
}

fn all(session: SessionId, bytes: Bytes) -> Vec<SessionMove> {
    vec![SessionMove { session, bytes }]
}

#[test]
fn a_handoff_tells_exactly_what_left_and_what_came_in() {
    let mut world = world();
    let (first, _) = world.busy_remapping_program(gib(6));
    world.run_for(ms(100));
    let (second, _) = world.busy_remapping_program(gib(6));
    // Memory that was never on the card has come in once each has had its turn.
    world.run_for(Nanos::from_secs(2));
    let first_ones = ended(&mut world);
    world.run_for(Nanos::from_secs(10));
    let handoffs = ended(&mut world);
    assert!(handoffs.len() > 15, "{}", handoffs.len());
    let excess = gib(4) - SPARE;
    for handoff in &handoffs {
        let Handoff { out, copied_out_bytes, into, took_ns, both_ns, .. } = handoff;
        assert_eq!((out.bytes, *copied_out_bytes, into.bytes), (excess, excess, excess), "{handoff:?}");
        let leaver = out.sessions[0].session;
        let entrant = if leaver == first { second } else { first };
        assert_eq!((&out.sessions, &into.sessions), (&all(leaver, excess), &all(entrant, excess)));
        assert_eq!((out.rest_bytes, into.rest_bytes), (Bytes::ZERO, Bytes::ZERO));
        assert!(*both_ns <= out.took_ns.min(into.took_ns) && into.took_ns <= *took_ns, "{handoff:?}");
        assert!(handoff.overlap.0 > 5000, "five chunks leave while five come in: {handoff:?}");
        assert_eq!(out.bytes_per_second.0 / 1_000_000, out.bytes.0 * 1_000 / out.took_ns.0);
    }
    let running = world.core.running_handoff(world.now, GPU);
    let told = first_ones.iter().chain(&handoffs).chain(&running);
    assert_eq!(told.map(|handoff| handoff.out.bytes).sum::<Bytes>(), world.evicted);
}

#[test]
fn a_running_handoff_says_how_much_of_how_much_has_moved() {
    let mut world = world();
    let (_, a) = world.busy_remapping_program(gib(6));
    world.run_for(ms(100));
    let (_, b) = world.busy_remapping_program(gib(6));
    world.run_for(ms(50));
    assert_eq!(world.core.running_handoffs().count(), 0);
    (world.habits(a).answers, world.habits(b).answers) = (false, false);
    world.run_for(ms(500));
    ended(&mut world);
    world.lets_go(a, ms(2));
    let began = world.now;
    assert_eq!(world.core.running_handoffs().collect::<Vec<_>>(), [(GPU, began)]);
    world.step(a, GPU);
    world.step(b, GPU);
    let now = began + Nanos::from_secs(1);
    let handoff = world.core.running_handoff(now, GPU).unwrap();
    let expected = |moved: Bytes, rest_bytes| (moved, rest_bytes);
    let seen = |way: &Direction| (way.bytes, way.rest_bytes);
    assert_eq!(seen(&handoff.out), expected(gib(1), gib(3) - SPARE));
    assert_eq!(seen(&handoff.into), expected(gib(1), gib(5)));
    assert_eq!(handoff.took_ns, Nanos::from_secs(1));
    assert_eq!(world.core.handoffs(now)[0].running, Some(handoff));
    assert_eq!(ended(&mut world), []);
}

#[test]
fn idle_memory_that_gives_way_is_a_handoff_in_one_direction() {
    let mut world = world();
    let (idle, client) = world.remapping_program(gib(4));
    world.run_for(ms(100));
    let working = [(); 2].map(|()| world.busy_remapping_program(gib(3)));
    world.run_for(ms(100));
    world.goes_idle(client);
    world.run_for(Nanos::from_secs(4));
    let left = gib(2) - SPARE;
    let handoffs = ended(&mut world);
    let out: Vec<SessionMove> = handoffs.iter().flat_map(|handoff| handoff.out.sessions.clone()).collect();
    assert_eq!(out, all(idle, left), "{working:?}");
    assert_eq!(world.core.running_handoffs().count(), 0);
}

#[test]
fn a_handoff_whose_leaver_dies_ends_with_the_entrant() {
    let mut world = world();
    let (_, a) = world.busy_remapping_program(gib(6));
    world.run_for(ms(100));
    let (second, b) = world.busy_remapping_program(gib(6));
    world.run_for(ms(50));
    world.habits(a).answers = false;
    world.run_for(ms(500));
    ended(&mut world);
    world.lets_go(a, ms(2));
    world.step(a, GPU);
    world.send(Event::ClientGone { client: a });
    world.run_for(Nanos::from_secs(1));
    assert!(world.passes(b));
    let handoffs = ended(&mut world);
    let into: Bytes = handoffs.iter().map(|handoff| handoff.into.bytes).sum();
    assert_eq!((handoffs.len(), into, handoffs[0].out.bytes), (1, gib(6), gib(1)), "{handoffs:?}");
    assert_eq!(handoffs[0].into.sessions, all(second, gib(6)));
    assert_eq!(world.core.running_handoffs().count(), 0);
}

#[test]
fn a_card_without_remapped_memory_has_no_handoffs() {
    let mut world = world();
    world.busy_program(gib(6));
    world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(5));
    assert!(world.card().handoffs > 5);
    assert_eq!(ended(&mut world), []);
    assert_eq!(world.core.handoffs(world.now), []);
}
