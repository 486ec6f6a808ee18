//! Remapped memory of processes that do not tell the truth.

use super::*;

#[test]
fn who_says_that_less_is_resident_is_counted_by_nvml() {
    let (mut world, a, b) = two_programs();
    world.habits(a).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    world.honest = false;
    world.send(Event::Measured { client: a, gpu: GPU, bytes: gib(6) });
    let (seen, _) = world.goal(a, GPU).unwrap();
    let none = Bytes::ZERO;
    world.send(resides(a, GPU, seen, [none, none, none]));
    world.run_for(ms(500));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    assert!(world.resident(b, GPU) <= gib(2) + Bytes::mib(160));
}

#[test]
fn memory_that_nvml_no_longer_shows_is_given_to_others_at_once() {
    let (mut world, a, b) = two_programs();
    world.habits(a).answers = false;
    world.honest = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    world.send(Event::Measured { client: a, gpu: GPU, bytes: gib(6) });
    let (seen, _) = world.goal(a, GPU).unwrap();
    let none = Bytes::ZERO;
    world.send(resides(a, GPU, seen, [none, gib(6), none]));
    let credit = |world: &World| world.goal(b, GPU).map(|(_, bytes)| bytes);
    assert!(credit(&world) <= Some(gib(2) + Bytes::mib(160)));
    world.send(Event::Measured { client: a, gpu: GPU, bytes: none });
    assert_eq!(credit(&world), Some(gib(6)));
}

#[test]
fn who_says_that_more_is_resident_keeps_no_more_than_its_quota() {
    let mut world = world();
    let session = world.session_with(Some(gib(1)), false);
    let liar = world.join_remapping(session);
    world.attach(liar, GPU);
    assert!(world.allocate(liar, GPU, gib(1)));
    world.run_for(ms(100));
    world.goes_idle(liar);
    world.habits(liar).answers = false;
    world.honest = false;
    let (seen, all) = (GoalNumber(9), Bytes::MAX);
    world.send(resides(liar, GPU, seen, [all, all, all]));
    let (_, other) = world.busy_remapping_program(gib(6));
    world.run_for(ms(500));
    assert!(world.passes(other), "{:?}", world.core.view.rows(GPU));
}

#[test]
fn who_says_that_the_card_is_full_makes_it_smaller_by_a_bounded_number_of_bytes() {
    let mut world = world();
    let (_, idle) = world.remapping_program(gib(3));
    world.run_for(ms(100));
    world.goes_idle(idle);
    let (_, liar) = world.busy_remapping_program(gib(2));
    world.run_for(ms(100));
    for _ in 0..40 {
        world.send(Event::Room { client: liar, gpu: GPU, request: RequestId(7), bytes: Bytes(1) });
        world.run_for(ms(100));
    }
    assert_eq!(world.card().capacity_bytes, gib(7));
    assert_eq!(world.resident(idle, GPU), gib(3));
    world.run_for(Nanos::from_secs(10));
    assert_eq!(world.card().capacity_bytes, gib(8));
}

#[test]
fn who_says_that_all_is_pinned_gives_nothing_and_is_charged() {
    let (mut world, a, b) = two_programs();
    world.pins(a, GPU, gib(6));
    world.run_for(Nanos::from_secs(2));
    assert_eq!(world.resident(a, GPU), gib(6));
    assert!(!world.passes(b));
    assert_eq!(world.card().fixed_bytes, gib(6));
}

#[test]
fn who_says_that_all_host_memory_is_prepared_keeps_no_more_than_its_lease() {
    let mut world = world_with(gib(7));
    let (_, liar) = world.remapping_program(gib(1));
    world.run_for(ms(100));
    world.goes_idle(liar);
    world.habits(liar).answers = false;
    world.honest = false;
    let residence = Residence { resident: gib(1), prepared: Bytes::MAX, ..Residence::default() };
    world.send(Event::Resides { client: liar, gpu: GPU, seen: GoalNumber(1), residence });
    let others = [(); 2].map(|()| world.busy_remapping_program(gib(6)).1);
    let mut opened = [false; 2];
    for _ in 0..100 {
        world.run_for(ms(50));
        for (opened, open) in opened.iter_mut().zip(world.open(&others)) {
            *opened |= open;
        }
    }
    assert_eq!(opened, [true, true], "{:?}", world.core.view.rows(GPU));
}
