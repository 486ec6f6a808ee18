//! What a switch costs beyond its drain and its move counts wherever a switch is reckoned with.

use gpushare_proto::{Nanos, Percent};

use super::forecasts::foresee;
use super::world::{GPU, World, gib, ms, plain};
use crate::waiting::Waiting;
use crate::{Config, Event};

const COST: Nanos = ms(50);

/// Worlds that differ in this alone: a switch costs nothing more, or [`COST`].
fn worlds() -> [World; 2] {
    [Nanos::ZERO, COST]
        .map(|switch_cost| World::new(Config { switch_cost, quantum: Some(ms(100)), ..plain() }))
}

#[test]
fn a_forecast_has_it_in_the_switch_and_in_the_bound_on_the_wait() {
    let [free, dear] = worlds().map(|mut world| {
        world.busy_program(gib(6));
        world.busy_program(gib(6));
        world.run_for(ms(20));
        foresee(&world, gib(6))
    });
    assert_eq!(dear.switch - free.switch, COST);
    let bounds = dear.bound.unwrap() - free.bound.unwrap();
    assert_eq!(bounds, ms(4 * 50), "both others catch up with one and have one themselves");
}

#[test]
fn who_waits_is_told_of_it() {
    let [free, dear] = worlds().map(|mut world| {
        let (_, _) = world.busy_program(gib(6));
        let (second, _) = world.busy_program(gib(6));
        world.run_for(ms(20));
        world.core.waiting(world.now, second).unwrap()
    });
    assert_eq!(dear.handoff - free.handoff, COST);
    let about = |waiting: &Waiting| waiting.about().unwrap();
    assert_eq!(about(&dear) - about(&free), COST);
}

/// Of a limited session's time in parallel mode, ε is what it may lose by being stopped and started.
#[test]
fn a_limited_session_spends_at_once_what_pays_for_being_stopped_and_started() {
    for (switch_cost, slice) in
        [(Nanos::ZERO, ms(20)), (Nanos(1_500_000), Nanos(28_500_000)), (ms(50), ms(100))]
    {
        let mut world = World::new(Config { switch_cost, ..plain() });
        let (session, client) = world.busy_program(gib(1));
        world.send(Event::Compute { session, gpu: GPU, limit: Some(Percent(5000)) });
        // The first slice is the one that it begins with.
        world.run_for(ms(2000));
        let mut now_when = |passes: bool| {
            while world.passes(client) != passes {
                world.run_for(ms(1));
            }
            world.now
        };
        now_when(true);
        let closed = now_when(false);
        let saved_up = now_when(true) - closed;
        let expected = Nanos(2 * slice.0);
        assert!(saved_up <= expected + ms(4) && expected <= saved_up + ms(4), "{switch_cost}: {saved_up}");
    }
}
