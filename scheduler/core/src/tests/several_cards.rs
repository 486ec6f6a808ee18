//! How long sessions on three cards wait for their turns, beside the bound that turns/order.rs states for
//! one card. The sets are drawn, and the same every time.

use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::world::{World, gib, ms, plain};
use crate::{Config, Event};

const SETS: usize = 40;
const QUANTUM: u64 = 400;
/// A drain and a move, at most.
const SWITCH: u64 = 30;

/// A session that always has work, and how long after it the next one comes.
#[derive(Clone, Debug)]
struct Busy {
    weight: u32,
    needs: Vec<(GpuId, Bytes)>,
    drain: Nanos,
    pause: Nanos,
}

fn busy(weights: &'static [u32]) -> impl Strategy<Value = Busy> {
    let cards = prop_oneof![2 => (0_u32..3).prop_map(|gpu| 1 << gpu), 1 => 1_u32..8];
    let needs = (cards, prop::array::uniform3(2_u64..9)).prop_map(|(cards, gibs)| {
        let needs = (0..3).zip(gibs).filter(|(gpu, _)| cards & (1 << gpu) != 0);
        needs.map(|(gpu, gibs)| (GpuId(gpu), gib(gibs))).collect()
    });
    let weight = prop::sample::select(weights);
    (weight, needs, 1_u64..7, 0_u64..500).prop_map(|(weight, needs, drain, pause)| Busy {
        weight,
        needs,
        drain: ms(drain),
        pause: ms(pause),
    })
}

fn begins(world: &mut World, busy: &Busy) -> (ClientId, u64) {
    let session = world.session();
    let client = world.join(session);
    world.send(Event::Share { session, weight: busy.weight, priority: Priority::Normal });
    for &(gpu, bytes) in &busy.needs {
        world.attach(client, gpu);
        world.allocate(client, gpu, bytes);
    }
    world.habits(client).drain = busy.drain;
    world.gets_busy(client);
    world.run_for(busy.pause);
    (client, u64::from(busy.weight))
}

/// The longest wait of anybody in a minute, in hundredths of its bound.
fn longest_wait(set: &[Busy]) -> u64 {
    let mut world =
        World::new(Config { quantum: Some(ms(QUANTUM)), bandwidth_per_second: gib(1000), ..plain() });
    world.second_card();
    world.third_card();
    let sessions: Vec<_> = set.iter().map(|busy| begins(&mut world, busy)).collect();
    let bound = |own: usize| {
        let (_, weight) = sessions[own];
        let others = (0..sessions.len()).filter(|other| *other != own);
        let each =
            others.map(|other| (QUANTUM + SWITCH) * sessions[other].1 / weight + QUANTUM * 3 / 2 + SWITCH);
        each.sum::<u64>()
    };
    world.run_for(Nanos::from_secs(40));
    let mut since = vec![world.now; sessions.len()];
    let mut longest = 0;
    for _ in 0..3000 {
        world.run_for(ms(20));
        for (own, &(client, _)) in sessions.iter().enumerate() {
            if world.passes(client) {
                since[own] = world.now;
            }
            let waited = (world.now - since[own]).0 / 1_000_000;
            longest = longest.max(waited * 100 / bound(own));
        }
    }
    longest
}

fn longest_waits(weights: &'static [u32]) -> Vec<u64> {
    let mut runner = TestRunner::deterministic();
    let sets = prop::collection::vec(busy(weights), 3..9);
    let mut waits: Vec<u64> = (0..SETS)
        .map(|_| longest_wait(&sets.new_tree(&mut runner).unwrap().current()))
        .collect();
    waits.sort_unstable();
    waits
}

#[test]
fn nobody_of_equals_waits_longer_for_gangs_than_for_others() {
    let waits = longest_waits(&[100]);
    assert!(waits[SETS - 1] <= 100, "percent of the bound: {waits:?}");
}

#[test]
fn whoever_has_less_weight_waits_seldom_longer_for_gangs_than_for_others() {
    let waits = longest_waits(&[50, 100, 200, 400]);
    assert!(waits[SETS * 9 / 10] <= 100 && waits[SETS - 1] <= 300, "percent of the bound: {waits:?}");
}
