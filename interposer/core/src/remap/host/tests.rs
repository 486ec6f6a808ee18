//! The pool of registered memory: growth, hysteresis, budget, and failures at each task.

use proptest::prelude::*;

use super::*;
use crate::remap::fake::FakeCard;
use crate::remap::swap::Engine;
use crate::remap::vmm::Span;

const SMALL: Bytes = Bytes::mib(32);

fn regions(number: u64) -> Bytes {
    Bytes(number * REGION.0)
}

fn pool(budget: u64) -> (Pool, FakeCard) {
    let mut pool = Pool::default();
    pool.set_budget(regions(budget));
    (pool, FakeCard::default())
}

fn work(pool: &mut Pool, card: &FakeCard) {
    while let Some((region, task)) = pool.take_task() {
        pool.done(region, perform(task, card));
    }
}

/// Number of the region of a slot.
fn region(slot: &Slot) -> u32 {
    match slot.home {
        Home::Region(number, _) => number,
        Home::Copy(_) => panic!("a slot of a region"),
    }
}

#[test]
fn slots_come_from_prepared_regions_and_fill_the_fullest_first() {
    let (mut pool, card) = pool(4);
    assert_eq!(pool.take(SMALL), None);
    pool.set_target(regions(2));
    assert_eq!(pool.take(SMALL), None, "not ready");
    work(&mut pool, &card);
    let first = pool.take(SMALL).unwrap();
    let second = pool.take(SMALL).unwrap();
    assert_eq!(region(&first), region(&second));
    assert_ne!(first.address(), second.address());
    let whole = pool.take(REGION).unwrap();
    assert_ne!(region(&whole), region(&first));
    assert_eq!(pool.take(REGION), None);
    assert_eq!(pool.sizes(), PoolSizes { total: regions(2), taken: Bytes::mib(192), free: Bytes::mib(64) });
    [first, second, whole].into_iter().for_each(|slot| pool.put(slot));
    assert_eq!(pool.sizes().taken, Bytes::ZERO);
}

#[test]
fn a_registration_ends_with_its_context_and_is_made_again_for_a_region_in_use() {
    let (mut pool, card) = pool(4);
    pool.demand(regions(2));
    work(&mut pool, &card);
    let slot = pool.take(SMALL).unwrap();
    let number = region(&slot);
    let Home::Region(_, range) = &slot.home else { panic!("a slot of its own") };
    let used = HostAddress(slot.address().0 - range.start);
    let State::Ready(unused, _) = pool.regions[&(1 - number)].state else { panic!("ready") };
    pool.end_registrations(&[used, unused]);
    assert_eq!(pool.take(SMALL), None, "no region is registered");

    let mut tasks = Vec::new();
    while let Some((region, task)) = pool.take_task() {
        tasks.push(task);
        let result = match task {
            // There is no context any more.
            Task::Register(_) if tasks.len() < 4 => Err(HostError::Refused(201)),
            _ => Ok(None),
        };
        pool.done(region, result);
    }
    tasks.sort_by_key(|task| format!("{task:?}"));
    assert_eq!(tasks, [Task::Register(used), Task::Unmap(unused), Task::Unregister(unused)]);
    pool.retry();
    assert_eq!(pool.take_task().map(|(_, task)| task), Some(Task::Register(used)), "in the next context");
    pool.done(MemoryId::Region(number), Ok(None));
    let other = pool.take(SMALL).unwrap();
    assert_eq!(region(&other), number);
    assert_ne!(other.address(), slot.address());
}

#[test]
fn a_region_whose_registration_has_ended_is_given_back_once_it_is_unused() {
    let (mut pool, card) = pool(4);
    pool.demand(regions(2));
    work(&mut pool, &card);
    let slots = [pool.take(SMALL).unwrap(), pool.take(REGION).unwrap()];
    let all = [0, 1].map(|region| match pool.regions[&region].state {
        State::Ready(address, _) => address,
        _ => panic!("ready"),
    });
    pool.end_registrations(&all);
    while let Some((region, _)) = pool.take_task() {
        pool.done(region, Err(HostError::Refused(201)));
    }
    slots.into_iter().for_each(|slot| pool.put(slot));
    while let Some((region, _)) = pool.take_task() {
        pool.done(region, Ok(None));
    }
    assert!(pool.sizes().total <= regions(1), "{:?}", pool.sizes());
}

#[test]
fn a_demand_makes_as_many_regions_as_it_needs_and_no_more() {
    let (mut pool, card) = pool(3);
    assert_eq!(pool.demand(SMALL), Supply::Coming);
    assert_eq!(pool.demand(SMALL), Supply::Coming, "the same demand again");
    assert_eq!(pool.all_regions(), regions(1));
    assert_eq!(pool.demand(regions(3)), Supply::Coming);
    assert_eq!(pool.demand(regions(3) + SMALL), Supply::OverBudget);
    work(&mut pool, &card);
    assert_eq!(pool.sizes(), PoolSizes { total: regions(3), taken: Bytes::ZERO, free: regions(3) });
    assert_eq!(card.regions(), 3);
}

/// The daemon takes what is reported for part of the machine's memory. If what is still to be touched counted, each
/// demand would make the budget larger, which allows the next one, until the machine has no memory left.
#[test]
fn regions_take_memory_of_the_machine_from_their_touch_to_their_end() {
    let (mut pool, card) = pool(8);
    pool.demand(regions(3));
    assert_eq!(pool.sizes().total, Bytes::ZERO, "nothing is touched");
    let (region, task) = pool.take_task().unwrap();
    pool.done(region, perform(task, &card));
    assert_eq!(pool.sizes().total, regions(1));
    work(&mut pool, &card);
    assert_eq!(pool.sizes().total, regions(3));
    pool.set_budget(Bytes::ZERO);
    let (region, task) = pool.take_task().unwrap();
    pool.done(region, perform(task, &card));
    assert_eq!(pool.sizes().total, regions(3), "unregistered memory is still there");
    work(&mut pool, &card);
    assert_eq!(pool.sizes().total, Bytes::ZERO);
}

#[test]
fn what_nobody_demands_any_more_is_not_begun() {
    let (mut pool, card) = pool(8);
    pool.demand(regions(5));
    let (region, task) = pool.take_task().unwrap();
    pool.call_off(regions(3));
    assert_eq!(pool.all_regions(), regions(3));
    pool.call_off(Bytes::ZERO);
    assert_eq!(pool.all_regions(), regions(1), "one is begun");
    pool.done(region, perform(task, &card));
    work(&mut pool, &card);
    assert_eq!(pool.sizes().free, regions(1));
    pool.set_target(regions(2));
    pool.call_off(Bytes::ZERO);
    work(&mut pool, &card);
    assert_eq!(pool.sizes().total, regions(2), "the target is prepared all the same");
}

#[test]
fn the_target_is_prepared_one_region_after_the_other_and_a_demand_at_once() {
    let (mut pool, card) = pool(8);
    pool.set_target(regions(3));
    assert!(pool.has_tasks());
    let (region, task) = pool.take_task().unwrap();
    assert_eq!(pool.take_task(), None, "one at a time");
    pool.demand(regions(3));
    let demanded = std::iter::from_fn(|| pool.take_task()).collect::<Vec<_>>();
    assert_eq!(demanded.len(), 2, "the region that is coming serves the demand");
    for (region, task) in demanded.into_iter().chain([(region, task)]) {
        pool.done(region, perform(task, &card));
    }
    work(&mut pool, &card);
    assert_eq!((pool.sizes().free, pool.has_tasks()), (regions(3), false));
}

#[test]
fn a_region_ahead_of_a_demand_waits_while_preparation_is_paused_and_no_longer() {
    let (mut pool, card) = pool(8);
    pool.set_target(regions(1));
    let (region, task) = pool.take_task().unwrap();
    pool.pause(true);
    pool.done(region, perform(task, &card));
    assert!(!pool.has_tasks() && pool.take_task().is_none(), "it is touched, and not registered");
    assert_eq!(pool.demand(regions(1)), Supply::Coming);
    work(&mut pool, &card);
    assert_eq!(pool.sizes().free, regions(1));
}

#[test]
fn a_region_ahead_of_a_demand_that_could_not_be_made_fails_no_demand() {
    for step in 0..2 {
        let (mut pool, card) = pool(8);
        pool.set_target(regions(3));
        card.fail_at(&[step]);
        work(&mut pool, &card);
        assert_eq!(
            (pool.sizes().total, pool.has_tasks()),
            (Bytes::ZERO, false),
            "step {step}: no more is tried"
        );
        assert_eq!(pool.demand(SMALL), Supply::Coming);
        work(&mut pool, &card);
        assert!(pool.take(SMALL).is_some());
        pool.set_target(regions(2));
        work(&mut pool, &card);
        assert_eq!(pool.sizes().total, regions(2));
    }
}

#[test]
fn regions_are_given_back_only_once_they_exceed_the_target_by_a_quarter() {
    let (mut pool, card) = pool(16);
    pool.set_target(regions(8));
    work(&mut pool, &card);
    pool.set_target(regions(7));
    work(&mut pool, &card);
    assert_eq!(card.regions(), 8, "within a quarter");
    pool.set_target(regions(4));
    work(&mut pool, &card);
    assert_eq!(card.regions(), 4);
    pool.set_target(Bytes::ZERO);
    work(&mut pool, &card);
    assert_eq!(card.regions(), 1, "one stays");
}

#[test]
fn a_smaller_budget_takes_unused_regions_at_once_and_used_ones_later() {
    let (mut pool, card) = pool(4);
    pool.set_target(regions(4));
    work(&mut pool, &card);
    let slots = [(); 3].map(|()| pool.take(REGION).unwrap());
    pool.set_budget(regions(1));
    work(&mut pool, &card);
    assert_eq!(card.regions(), 3);
    assert_eq!(pool.demand(SMALL), Supply::OverBudget);
    slots.into_iter().for_each(|slot| pool.put(slot));
    work(&mut pool, &card);
    assert_eq!(card.regions(), 1);
}

#[test]
fn a_region_that_is_given_back_is_used_again_before_another_is_made() {
    let (mut pool, card) = pool(8);
    pool.set_target(regions(4));
    work(&mut pool, &card);
    pool.set_target(regions(1));
    let (region, task) = pool.take_task().unwrap();
    assert!(matches!(task, Task::Unregister(_)));
    pool.set_target(regions(3));
    pool.done(region, perform(task, &card));
    work(&mut pool, &card);
    assert_eq!((card.regions(), pool.sizes().total), (3, regions(3)));
}

#[test]
fn a_failure_at_any_task_leaks_nothing_and_is_told_to_those_who_wait() {
    for step in 0..2 {
        let (mut pool, card) = pool(2);
        card.fail_at(&[step]);
        assert_eq!(pool.demand(SMALL), Supply::Coming);
        work(&mut pool, &card);
        assert!(matches!(pool.demand(SMALL), Supply::Failed(_)), "step {step}");
        assert_eq!((card.regions(), pool.sizes()), (0, PoolSizes::default()));
        pool.retry();
        assert_eq!(pool.demand(SMALL), Supply::Coming);
        work(&mut pool, &card);
        assert!(pool.take(SMALL).is_some());
    }
    for step in 0..2 {
        let (mut pool, card) = pool(4);
        pool.set_target(regions(2));
        work(&mut pool, &card);
        card.fail_at(&[step]);
        pool.set_budget(regions(1));
        work(&mut pool, &card);
        assert_eq!(pool.sizes().total, regions(2), "step {step}: the region is still there");
        assert_eq!(card.regions(), 2);
        pool.retry();
        pool.set_budget(regions(1));
        work(&mut pool, &card);
        assert_eq!((card.regions(), pool.sizes().total), (1, regions(1)));
    }
}

/// Regions that the slots of many blocks of one size need, of a process that has `small` bytes in small
/// chunks.
fn regions_for(size: Bytes, small: Bytes) -> (Bytes, Bytes) {
    let (mut engine, mut pool, card) = (Engine::default(), Pool::default(), FakeCard::default());
    let mut next = 1 << 40;
    let mut block = |engine: &mut Engine, size: Bytes| {
        let chunks = engine.cut(Span { address: next, size });
        next += size.0;
        chunks.into_iter().inspect(|&chunk| _ = engine.add(chunk)).collect::<Vec<_>>()
    };
    (0..small.0 / SMALL.0).for_each(|_| drop(block(&mut engine, SMALL)));
    let chunks: Vec<_> = (0..60).flat_map(|_| block(&mut engine, size)).collect();
    pool.set_budget(engine.most_regions() - small);
    for chunk in &chunks {
        while pool.take(chunk.size).is_none() {
            assert_eq!(pool.demand(chunk.size), Supply::Coming, "{size} beside {small}: {:?}", pool.sizes());
            work(&mut pool, &card);
        }
    }
    (pool.sizes().total, chunks.iter().map(|chunk| chunk.size).sum())
}

#[test]
fn slots_for_blocks_of_any_size_leave_little_of_the_regions_unused() {
    for size in (1..130).map(|granules| Bytes::mib(2 * granules)) {
        for small in [Bytes::ZERO, Bytes::gib(2)] {
            let (total, bytes) = regions_for(size, small);
            let most = bytes + Bytes(bytes.0 / 16) + REGION;
            assert!(total <= most, "{total} for {bytes} in blocks of {size}, beside {small}");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u64),
    Put(usize),
    Demand(u64),
    Target(u64),
    Budget(u64),
    Work(usize),
    Fail,
    Retry,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..=64).prop_map(Step::Take),
        4 => any::<usize>().prop_map(Step::Put),
        3 => (0_u64..6).prop_map(Step::Demand),
        1 => (0_u64..8).prop_map(Step::Target),
        1 => (0_u64..8).prop_map(Step::Budget),
        6 => (0_usize..4).prop_map(Step::Work),
        1 => Just(Step::Fail),
        1 => Just(Step::Retry),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn slots_never_overlap_and_all_memory_is_given_back_whatever_happens(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        let (mut pool, card) = pool(4);
        let (mut taken, mut budget, mut tasks) = (Vec::<Slot>::new(), 4, Vec::new());
        for step in steps {
            let before = pool.all_regions();
            match step {
                Step::Take(units) => taken.extend(pool.take(Bytes::mib(2 * units))),
                Step::Put(index) if !taken.is_empty() => pool.put(taken.swap_remove(index % taken.len())),
                Step::Put(_) => {}
                Step::Demand(number) => drop(pool.demand(regions(number))),
                Step::Target(number) => pool.set_target(regions(number)),
                Step::Budget(number) => {
                    budget = number;
                    pool.set_budget(regions(number));
                }
                Step::Work(number) => {
                    tasks.extend(std::iter::from_fn(|| pool.take_task()).take(number));
                    // They end in another order.
                    if let Some((region, task)) = tasks.pop() {
                        pool.done(region, perform(task, &card));
                    }
                }
                Step::Fail => card.fail_at(&[0]),
                Step::Retry => pool.retry(),
            }
            let sizes = pool.sizes();
            prop_assert_eq!(sizes.taken, taken.iter().map(Slot::size).sum());
            prop_assert!(pool.all_regions() <= regions(budget).max(before), "grown beyond the budget");
            prop_assert_eq!(sizes.total, regions(card.regions() as u64), "what the machine has given");
            let mut ranges: Vec<_> = taken.iter().map(|slot| (slot.address().0, slot.size().0)).collect();
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "slots overlap");
        }
        card.fail_at(&[]);
        for (region, task) in tasks {
            pool.done(region, perform(task, &card));
        }
        taken.into_iter().for_each(|slot| pool.put(slot));
        pool.retry();
        pool.set_budget(Bytes::ZERO);
        work(&mut pool, &card);
        prop_assert_eq!((card.regions(), pool.sizes()), (0, PoolSizes::default()));
    }
}
