//! Random operations, in which any call may fail and copies end in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Adopt(u64),
    GiveUp(usize),
    Free(usize),
    Goal(u64),
    Close,
    Enter,
    Open,
    Park,
    Take(Lane),
    Answer(usize),
    Make(usize),
    Report(usize),
    Land(usize),
    Prepare,
    Run,
    Fail(usize),
    Retry,
    Pin(usize),
    Budget(u64),
    HostRoom(u64, bool),
    Overflow(bool),
    Capacity(u64),
    Uses(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any_index = any::<usize>;
    prop_oneof![
        6 => (1_u64..=64).prop_map(Step::Allocate),
        3 => (1_u64..=64).prop_map(Step::Adopt),
        2 => any_index().prop_map(Step::GiveUp),
        3 => any_index().prop_map(Step::Free),
        4 => (0_u64..12).prop_map(Step::Goal),
        4 => Just(Step::Close),
        3 => Just(Step::Enter),
        4 => Just(Step::Open),
        1 => Just(Step::Park),
        12 => Just(Step::Take(Lane::Calls)),
        8 => Just(Step::Take(Lane::Copies)),
        8 => Just(Step::Take(Lane::Digests)),
        14 => any_index().prop_map(Step::Answer),
        6 => any_index().prop_map(Step::Make),
        6 => any_index().prop_map(Step::Report),
        10 => any_index().prop_map(Step::Land),
        6 => Just(Step::Prepare),
        2 => Just(Step::Run),
        3 => (0_usize..6).prop_map(Step::Fail),
        3 => Just(Step::Retry),
        1 => any_index().prop_map(Step::Pin),
        1 => (0_u64..8).prop_map(Step::Budget),
        1 => (0_u64..8, any::<bool>()).prop_map(|(room, beyond)| Step::HostRoom(room, beyond)),
        2 => any::<bool>().prop_map(Step::Overflow),
        1 => (4_u64..12).prop_map(Step::Capacity),
        3 => any_index().prop_map(Step::Uses),
    ]
}

impl World {
    fn pick(&self, index: usize) -> Option<CUdeviceptr> {
        let addresses: Vec<_> = self.truth.keys().copied().collect();
        (!addresses.is_empty()).then(|| addresses[index % addresses.len()])
    }

    /// Gives memory up to the program, which lets the engine move it again.
    fn give_up_for_a_moment(&mut self, address: CUdeviceptr) {
        let Some(backing) = self.give_up(address) else { return };
        let (size, value) = self.truth[&address];
        assert_eq!(self.card.at(address), Some(value));
        self.engine.adopt(Span { address, size }, backing);
    }

    fn apply(&mut self, number: u64, step: &Step) {
        match *step {
            Step::Allocate(units) => drop(self.allocate(Bytes::mib(2 * units))),
            Step::Adopt(units) => {
                self.card.fail_at(&[]);
                let _ = self.adopt(Bytes::mib(2 * units));
            }
            Step::GiveUp(index) => {
                self.pick(index)
                    .into_iter()
                    .for_each(|address| self.give_up_for_a_moment(address));
            }
            Step::Free(index) => self.pick(index).into_iter().for_each(|address| self.free(address)),
            Step::Goal(units) => self.set_goal(number + 1, Bytes::mib(64 * units)),
            Step::Close => self.set_phase(Phase::Drained),
            Step::Enter if self.phase != Phase::Open => self.set_phase(Phase::Entering),
            Step::Park if self.phase != Phase::Open => self.set_phase(Phase::Parked),
            Step::Open if self.phase == Phase::Entering => drop(self.open()),
            Step::Open if self.phase == Phase::Open => self.work(),
            Step::Take(lane) => drop(self.take(lane)),
            Step::Answer(index) if !self.orders.is_empty() => self.answer(index % self.orders.len()),
            Step::Land(index) => {
                let copies = self.known_copies();
                if !copies.is_empty() {
                    self.land(copies[index % copies.len()]);
                }
            }
            Step::Make(index) if !self.orders.is_empty() => self.make(index % self.orders.len()),
            Step::Report(index) if !self.made_orders.is_empty() => {
                self.report(index % self.made_orders.len());
            }
            Step::Prepare => drop(self.prepare()),
            Step::Run if self.made_orders.is_empty() => self.run(),
            Step::Run => self.report(0),
            Step::Fail(distance) => self.card.fail_at(&[distance]),
            Step::Retry => {
                self.engine.retry();
                self.pool.retry();
            }
            Step::Pin(index) => self.pick(index).into_iter().for_each(|address| self.engine.pin(address)),
            Step::Budget(units) => self.pool.set_budget(Bytes::mib(128 * units)),
            Step::HostRoom(units, beyond) => self.engine.set_host_room(Bytes::mib(128 * units), beyond),
            Step::Overflow(overflows) => self.engine.set_overflows(overflows),
            Step::Uses(index) => self.engine.note_uses(&self.pick(index).into_iter().collect()),
            Step::Capacity(units) => self.card.set_capacity(Bytes::mib(128 * units)),
            Step::Enter | Step::Park | Step::Open | Step::Answer(_) | Step::Make(_) | Step::Report(_) => {}
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_byte_is_lost_or_unaccounted_whatever_happens(
        is_paranoid in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(is_paranoid);
        for (number, step) in (0..).zip(&steps) {
            world.apply(number, step);
        }
        world.card.set_capacity(Bytes::MAX);
        world.end();
    }
}
