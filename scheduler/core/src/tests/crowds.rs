//! Many sessions on few cards: nothing is overlooked there either, and what may be told late is told in time.

use std::collections::BTreeMap;

use gpushare_proto::admin::{Knob, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{ClientId, GpuId, Nanos, Percent, SessionId};
use proptest::prelude::*;

use super::drawn;
use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::{Config, Effect, Event, Standing};

/// What happens to one of the crowd.
#[derive(Clone, Debug)]
enum Step {
    Busy(usize),
    Idle(usize),
    Allocate(usize, u64),
    AllocateFixed(usize, u64),
    Free(usize, u64),
    Reach(usize, GpuId),
    Die(usize),
    Stand(usize, Standing),
    Share(usize, u32, Priority),
    Compute(usize, Option<u32>),
    Set(Knob),
    Run(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0_usize..64;
    let standing =
        prop_oneof![2 => Just(Standing::Good), 1 => Just(Standing::Paused), 1 => Just(Standing::Over)];
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)];
    let gpu = prop_oneof![Just(GPU), Just(OTHER_GPU)];
    prop_oneof![
        4 => who().prop_map(Step::Busy),
        3 => who().prop_map(Step::Idle),
        3 => (who(), 0_u64..5).prop_map(|(who, gibs)| Step::Allocate(who, gibs)),
        1 => (who(), 0_u64..2).prop_map(|(who, gibs)| Step::AllocateFixed(who, gibs)),
        1 => (who(), 0_u64..5).prop_map(|(who, gibs)| Step::Free(who, gibs)),
        1 => (who(), gpu).prop_map(|(who, gpu)| Step::Reach(who, gpu)),
        1 => who().prop_map(Step::Die),
        2 => (who(), standing).prop_map(|(who, standing)| Step::Stand(who, standing)),
        1 => (who(), 1_u32..400, priority).prop_map(|(who, weight, class)| Step::Share(who, weight, class)),
        2 => (who(), prop::option::of(1_u32..11_000)).prop_map(|(who, limit)| Step::Compute(who, limit)),
        1 => prop::option::of(10_u64..500).prop_map(|quantum| Step::Set(Knob::Quantum(quantum.map(ms)))),
        1 => (4_u64..40).prop_map(|limit| Step::Set(Knob::ManagedLimit(gib(limit)))),
        4 => (0_u64..400).prop_map(Step::Run),
    ]
}

fn play(world: &mut World, step: &Step) {
    let client = |world: &World, who: usize| {
        let all = world.clients();
        all.get(who % all.len().max(1)).copied()
    };
    let (&Step::Busy(who)
    | &Step::Idle(who)
    | &Step::Allocate(who, _)
    | &Step::AllocateFixed(who, _)
    | &Step::Free(who, _)
    | &Step::Reach(who, _)
    | &Step::Die(who)
    | &Step::Stand(who, _)
    | &Step::Share(who, ..)
    | &Step::Compute(who, _)) = step
    else {
        match *step {
            Step::Set(knob) => world.send(Event::Set(Setting { gpu: None, knob })),
            Step::Run(millis) => world.run_for(ms(millis)),
            _ => {}
        }
        return;
    };
    let Some(client) = client(world, who) else { return };
    let Some(session) = world.core.session_of(client) else {
        return;
    };
    let gpu = world.core.cards_of(session).into_iter().next().unwrap_or(GPU);
    match *step {
        Step::Busy(_) => world.gets_busy(client),
        Step::Idle(_) if world.passes(client) => world.goes_idle(client),
        Step::Idle(_) => world.habits(client).busy = false,
        Step::Allocate(_, gibs) => _ = world.allocate(client, gpu, gib(gibs)),
        Step::AllocateFixed(_, gibs) => _ = world.allocate_fixed(client, gpu, gib(gibs)),
        Step::Free(_, gibs) => {
            let movable = world.used(client, gpu) - world.fixed(client, gpu);
            world.free(client, gpu, gib(gibs).min(movable));
            world.look(client, gpu);
        }
        Step::Reach(_, gpu) => world.attach(client, gpu),
        Step::Die(_) => world.dies(client),
        Step::Stand(_, standing) => world.send(Event::Standing { session, standing }),
        Step::Share(_, weight, priority) => world.send(Event::Share { session, weight, priority }),
        Step::Compute(_, limit) => {
            let limit = limit.map(Percent);
            world.send(Event::Compute { session, gpu, limit });
        }
        Step::Set(_) | Step::Run(_) => {}
    }
}

/// What would be told if everybody were looked at now, of what may be told late.
fn late_figures(world: &World) -> Vec<Effect> {
    let mut again = world.core.clone();
    again.touch_all();
    again.settle();
    let effects = std::iter::from_fn(|| again.poll_effect());
    effects.filter(|effect| matches!(effect, Effect::Figures { .. })).collect()
}

/// Since when each waiting process has a place that it was not told, nor any other.
#[derive(Default)]
struct Stale(BTreeMap<ClientId, Nanos>);

impl Stale {
    /// The longest.
    fn look(&mut self, world: &World) -> Option<(Nanos, SessionId, ClientId)> {
        let mut stale = BTreeMap::new();
        let mut longest = None;
        for (id, session) in world.core.sessions.iter() {
            let place = world.core.place(id);
            for (client, process) in session.attached() {
                let told = &process.told;
                if !process.gate.waiting() || told.queued == place {
                    continue;
                }
                let since = self.0.get(&client).copied().unwrap_or(world.now);
                let since = since.max(told.queued_at);
                stale.insert(client, since);
                longest = longest.max(Some((world.now - since, id, client)));
            }
        }
        self.0 = stale;
        longest
    }
}

/// Which of a crowd has which card, how much, and whether it always has work.
fn crowd() -> impl Strategy<Value = Vec<(u8, u64, bool)>> {
    prop::collection::vec((0_u8..8, 0_u64..5, any::<bool>()), 20..40)
}

fn world_of(config: Config, crowd: &[(u8, u64, bool)]) -> World {
    let mut world = World::new(config);
    world.second_card();
    for &(cards, gibs, busy) in crowd {
        let session = world.session();
        let client = world.join(session);
        let cards: &[GpuId] = match cards {
            0 => &[GPU, OTHER_GPU],
            1 | 2 => &[OTHER_GPU],
            _ => &[GPU],
        };
        for &gpu in cards {
            world.attach(client, gpu);
            world.allocate(client, gpu, gib(gibs));
        }
        if busy {
            world.gets_busy(client);
        }
    }
    world
}

proptest! {
    #![proptest_config(drawn::cases(256))]

    /// The invariants compare gates and flags after every event; figures and places arrive in time.
    #[test]
    fn in_a_crowd_only_figures_and_places_lag_and_not_for_long(
        crowd in crowd(),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let config = Config { budget_max: Config::default().budget_max, ..plain() };
        let mut world = world_of(config, &crowd);
        for step in &steps {
            play(&mut world, step);
        }
        world.run_for(ms(15));
        prop_assert_eq!(late_figures(&world), vec![]);
        let mut stale = Stale::default();
        for _ in 0..150 {
            let longest = stale.look(&world);
            let told = longest.is_none_or(|(longest, ..)| longest <= ms(1200));
            prop_assert!(told, "{:?} {:?}", longest, longest.and_then(|(_, id, _)| world.core.place(id)));
            world.run_for(ms(20));
        }
    }
}

/// A crowd on cards that are switched early.
fn switching(crowd: &[(u8, u64, bool)]) -> World {
    let config = Config { budget_max: Config::default().budget_max, ..plain() };
    world_of(config, crowd)
}

/// Floors rise with time, and may put another gang first by the next event.
#[test]
fn who_goes_on_for_a_gang_may_have_to_let_go_sooner_when_something_happens() {
    let crowd = [
        (3, 0, true),
        (3, 3, true),
        (0, 0, false),
        (0, 4, false),
        (0, 1, true),
        (1, 2, false),
        (0, 3, false),
        (0, 0, false),
        (0, 1, false),
        (0, 0, false),
        (0, 4, true),
        (3, 1, true),
        (0, 0, false),
        (3, 3, true),
        (0, 0, false),
        (1, 1, true),
        (0, 0, false),
        (0, 4, true),
        (0, 0, false),
        (0, 0, false),
        (0, 0, false),
        (3, 0, true),
    ];
    let mut world = switching(&crowd);
    let steps = [
        Step::Die(46),
        Step::Run(86),
        Step::Set(Knob::Quantum(Some(ms(137)))),
        Step::Busy(46),
        Step::Run(338),
        Step::Run(56),
        Step::Compute(0, None),
    ];
    steps.iter().for_each(|step| play(&mut world, step));
}

/// A holder that is far behind has its turn anew when a gang can begin, which therefore waits for it longer
/// than until its quantum is over.
#[test]
fn where_one_goes_on_that_a_gang_waits_for_its_other_cards_can_be_lent_for_longer() {
    let crowd = [
        (3, 4, false),
        (0, 4, true),
        (3, 3, false),
        (3, 0, false),
        (3, 0, true),
        (3, 2, true),
        (1, 2, true),
        (3, 0, false),
        (0, 3, true),
        (1, 3, false),
        (1, 2, false),
        (1, 4, true),
        (3, 1, true),
        (1, 3, true),
        (0, 0, false),
        (1, 2, true),
        (0, 0, false),
        (3, 1, true),
        (3, 0, true),
        (3, 1, true),
        (3, 2, true),
        (3, 4, true),
        (3, 0, true),
    ];
    let mut world = switching(&crowd);
    let steps = [
        Step::Busy(23),
        Step::Busy(9),
        Step::Run(219),
        Step::Share(15, 338, Priority::Normal),
        Step::Set(Knob::Quantum(Some(Nanos(126_000_000)))),
        Step::Idle(28),
        Step::Busy(33),
    ];
    steps.iter().for_each(|step| play(&mut world, step));
    world.run_for(Nanos::from_secs(4));
}
