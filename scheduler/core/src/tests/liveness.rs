use std::collections::BTreeMap;

use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Nanos, SessionId};
use proptest::prelude::*;

use super::drawn;
use super::world::{Habits, World, ms, plain};
use crate::{Config, Event};

const QUANTUM_MAX: Nanos = Nanos::from_secs(1);
/// A drain of at most 60 ms with the tries it may take, and a move of at most 100 ms, which is expected to
/// take 0.8 s until it was measured; `switch_cost` besides.
const HANDOFF: Nanos = Nanos::from_secs(1);
const BUDGET: Nanos = Nanos::from_secs(2);

/// A program that always has work.
#[derive(Clone, Debug)]
struct Program {
    gibs: u64,
    drain: u64,
    moves: u64,
    weight: u32,
}

fn program() -> impl Strategy<Value = Program> {
    let weight = prop_oneof![3 => Just(100_u32), 2 => 25_u32..400];
    (1_u64..=10, 0_u64..60, 0_u64..100, weight).prop_map(|(gibs, drain, moves, weight)| Program {
        gibs,
        drain,
        moves,
        weight,
    })
}

fn start(world: &mut World, program: &Program, priority: Priority) -> (SessionId, ClientId) {
    let (session, client) = world.program(Bytes::gib(program.gibs));
    let weight = program.weight;
    world.send(Event::Share { session, weight, priority });
    *world.habits(client) = Habits {
        drain: ms(program.drain),
        moves: ms(program.moves),
        busy: true,
        ..Habits::default()
    };
    world.arrives(client);
    (session, client)
}

/// The bound that `turns/order.rs` states for the session of `programs` with that number. Each is due a part of
/// its class, of which the factor is given.
fn bound(programs: &[Program], classes: &[u64], i: usize) -> Nanos {
    let others = programs.iter().enumerate().filter(|(j, _)| *j != i);
    let part = |of: usize| {
        let own = programs.iter().zip(classes).filter(|(_, class)| **class == classes[of]);
        let all: u64 = own.map(|(program, _)| u64::from(program.weight)).sum();
        u64::from(programs[of].weight) * classes[of] * 1_000_000 / all
    };
    let waits = others.map(|(j, _)| {
        let catches_up = (QUANTUM_MAX + HANDOFF).0 / part(i) * part(j);
        Nanos(catches_up) + Nanos(QUANTUM_MAX.0 * 3 / 2) + HANDOFF
    });
    waits.sum::<Nanos>() + BUDGET
}

proptest! {
    #![proptest_config(drawn::cases(120))]

    #[test]
    fn nobody_who_always_has_work_waits_longer_than_the_bound(
        programs in prop::collection::vec(program(), 2..6),
    ) {
        let mut world = World::new(Config { quantum_max: QUANTUM_MAX, budget_max: BUDGET, ..plain() });
        let mut last = BTreeMap::new();
        for (i, program) in programs.iter().enumerate() {
            let (session, _) = start(&mut world, program, Priority::Normal);
            last.insert(session, (world.now, bound(&programs, &vec![1; programs.len()], i)));
        }
        let end = world.now + Nanos::from_secs(30);
        while world.now < end {
            world.run_for(ms(20));
            let now = world.now;
            for session in world.card().holders.into_iter().chain(world.turns()) {
                last.entry(session).and_modify(|(at, _)| *at = now);
            }
            for (session, (at, bound)) in &last {
                prop_assert!(now - *at <= *bound, "{session} waits since {at} at {now}, the bound is {bound}");
            }
        }
    }

    #[test]
    fn a_class_below_waits_no_longer_than_the_bound(
        high in prop::collection::vec(program(), 1..4),
        low in program(),
    ) {
        let mut world = World::new(Config { quantum_max: QUANTUM_MAX, budget_max: BUDGET, ..plain() });
        for program in &high {
            start(&mut world, program, Priority::High);
        }
        let (session, _) = start(&mut world, &low, Priority::Normal);
        let all: Vec<Program> = high.iter().chain([&low]).cloned().collect();
        let weights = all.iter().enumerate().map(|(i, _)| if i < high.len() { 19 } else { 1 }).collect::<Vec<u64>>();
        let bound = bound(&all, &weights, high.len());
        let mut last = world.now;
        let end = world.now + Nanos::from_secs(90);
        while world.now < end {
            world.run_for(ms(50));
            if world.card().holders.contains(&session) || world.turns().contains(&session) {
                last = world.now;
            }
            prop_assert!(world.now - last <= bound, "it waits since {last} at {}, the bound is {bound}", world.now);
        }
    }
}

#[test]
fn time_is_shared_by_weight_where_everything_fits() {
    let mut world = World::new(plain());
    let program = |weight| Program { gibs: 1, drain: 2, moves: 0, weight };
    let sessions = [100, 200, 300].map(|weight| start(&mut world, &program(weight), Priority::Normal).0);
    world.run_for(Nanos::from_secs(60));
    let held = sessions.map(|session| world.view(session).held_ns.0 / 1_000_000);
    let total: u64 = held.iter().sum();
    assert!((59_900..=60_010).contains(&total), "the time is divided, and always used: {held:?}");
    for (held, sixths) in held.into_iter().zip([1, 2, 3]) {
        let fair = total * sixths / 6;
        assert!(held.abs_diff(fair) <= 100, "{held} of {total} ms, fair are {fair}");
    }
}
