//! Many sessions on few cards: nothing is overlooked there either, and what may be told late is told in time.

use std::collections::BTreeMap;

use gpushare_proto::admin::Knob;
use gpushare_proto::session::Priority;
use gpushare_proto::{ClientId, GpuId, Nanos, SessionId};
use proptest::prelude::*;

use super::drawn;
use super::schedules::{Step, gpu, own, play, priority, standing};
use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::{Config, Effect};

fn step() -> impl Strategy<Value = Step> {
    let who = || 0_usize..64;
    prop_oneof![
        4 => who().prop_map(Step::Busy),
        3 => who().prop_map(Step::GoIdle),
        3 => (who(), gpu(), 0_u64..5).prop_map(|(who, gpu, gibs)| Step::Allocate(who, gpu, gibs)),
        1 => (who(), gpu(), 0_u64..2).prop_map(|(who, gpu, gibs)| Step::AllocateFixed(who, gpu, gibs)),
        1 => (who(), gpu(), 0_u64..5).prop_map(|(who, gpu, gibs)| Step::Free(who, gpu, gibs)),
        1 => (who(), gpu()).prop_map(|(who, gpu)| Step::Look(who, gpu)),
        1 => (who(), gpu()).prop_map(|(who, gpu)| Step::Attach(who, gpu)),
        1 => who().prop_map(Step::Die),
        2 => (who(), standing()).prop_map(|(who, standing)| Step::Stand(who, standing)),
        2 => own(64),
        1 => (who(), 1_u32..400, priority()).prop_map(|(who, weight, class)| Step::Share(who, weight, class)),
        2 => (who(), gpu(), prop::option::of(1_u32..11_000))
            .prop_map(|(who, gpu, limit)| Step::Compute(who, gpu, limit)),
        1 => prop::option::of(10_u64..500).prop_map(|quantum| Step::Set(None, Knob::Quantum(quantum.map(ms)))),
        1 => (4_u64..40).prop_map(|limit| Step::Set(None, Knob::ManagedLimit(gib(limit)))),
        4 => (0_u64..400).prop_map(Step::Run),
    ]
}

/// Effects that may come late and would come now if all sessions were looked at.
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
        for (id, session) in world.core.view.sessions.iter() {
            let place = world.core.view.place(id);
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

/// Cards, memory in GiB and whether it always has work, of each session of a crowd.
fn crowd() -> impl Strategy<Value = Vec<(u8, u64, bool)>> {
    prop::collection::vec((0_u8..8, 0_u64..5, any::<bool>()), 20..40)
}

/// A crowd on two cards that are switched early.
fn world_of(crowd: &[(u8, u64, bool)]) -> World {
    let mut world = World::new(Config { budget_max: Config::default().budget_max, ..plain() });
    world.second_card();
    for &(cards, gibs, busy) in crowd {
        let cards: &[GpuId] = match cards {
            0 => &[GPU, OTHER_GPU],
            1 | 2 => &[OTHER_GPU],
            _ => &[GPU],
        };
        let needs: Vec<_> = cards.iter().map(|&gpu| (gpu, gib(gibs))).collect();
        let (_, client) = world.program_on(&needs);
        if busy {
            world.gets_busy(client);
        }
    }
    world
}

proptest! {
    #![proptest_config(drawn::cases(32))]

    /// The invariants compare gates and flags after every event; figures and places arrive in time.
    #[test]
    fn in_a_crowd_only_figures_and_places_lag_and_not_for_long(
        crowd in crowd(),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut world = world_of(&crowd);
        for step in steps {
            play(&mut world, step);
        }
        world.run_for(ms(15));
        prop_assert_eq!(late_figures(&world), vec![]);
        let mut stale = Stale::default();
        for _ in 0..150 {
            let longest = stale.look(&world);
            let told = longest.is_none_or(|(longest, ..)| longest <= ms(1200));
            prop_assert!(told, "{:?} {:?}", longest, longest.and_then(|(_, id, _)| world.core.view.place(id)));
            world.run_for(ms(20));
        }
    }
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
    let mut world = world_of(&crowd);
    let steps = [
        Step::Die(46),
        Step::Run(86),
        Step::Set(None, Knob::Quantum(Some(ms(137)))),
        Step::Busy(46),
        Step::Run(338),
        Step::Run(56),
        Step::Compute(0, GPU, None),
    ];
    steps.into_iter().for_each(|step| play(&mut world, step));
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
    let mut world = world_of(&crowd);
    let steps = [
        Step::Busy(23),
        Step::Busy(9),
        Step::Run(219),
        Step::Share(15, 338, Priority::Normal),
        Step::Set(None, Knob::Quantum(Some(Nanos(126_000_000)))),
        Step::GoIdle(28),
        Step::Busy(33),
    ];
    steps.into_iter().for_each(|step| play(&mut world, step));
    world.run_for(Nanos::from_secs(4));
}
