use std::collections::BTreeMap;

use gpushare_proto::{Bytes, Nanos};
use proptest::prelude::*;

use super::world::{World, ms, plain};
use crate::Config;

const QUANTUM_MAX: Nanos = Nanos::from_secs(1);
/// A drain of at most 60 ms with the tries it may take, and a move of at most 100 ms.
const HANDOFF: Nanos = Nanos::from_millis(500);

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everyone_who_always_wants_the_lock_gets_it_within_a_round(
        programs in prop::collection::vec((1_u64..=10, 0_u64..60, 0_u64..100), 2..7),
    ) {
        let mut world = World::new(Config { quantum_max: QUANTUM_MAX, ..plain() });
        let round = Nanos(programs.len() as u64 * (QUANTUM_MAX + HANDOFF).0);
        let start = world.now;
        let mut last = BTreeMap::new();
        for (gibs, drain, moves) in programs {
            let (session, client) = world.program(Bytes::gib(gibs));
            *world.habits(client) = super::world::Habits { drain: ms(drain), moves: ms(moves), busy: true, answers: true };
            world.arrives(client);
            last.insert(session, start);
        }
        while world.now < start + round + round + round {
            world.run_for(ms(20));
            let now = world.now;
            for session in world.card().holders.into_iter().chain(world.turns()) {
                last.insert(session, now);
            }
            for (session, at) in &last {
                prop_assert!(now - *at <= round, "{session} waits since {at} at {now}");
            }
        }
    }
}
