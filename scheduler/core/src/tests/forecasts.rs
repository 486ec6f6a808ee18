use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::forecast::{DryRunSession, Forecast};

/// Forecast for a session of the usual share.
pub(super) fn foresee(world: &World, limit: Bytes) -> Forecast {
    let prospect = DryRunSession {
        session: SessionId(900),
        limit: Some(limit),
        compute: None,
        weight: 100,
        priority: Priority::Normal,
        user: None,
        oversubscribe: false,
    };
    world.core.foresee(world.now, GPU, prospect).unwrap()
}

#[test]
fn what_fits_runs_at_once_and_waits_for_nobody() {
    let mut world = World::new(plain());
    world.busy_program(gib(4));
    let foreseen = foresee(&world, gib(5));
    assert_eq!((foreseen.mode, foreseen.then, foreseen.fits), (Mode::Parallel, Mode::Parallel, true));
    assert_eq!((foreseen.used, foreseen.promised), (gib(4), gib(4)));
    assert_eq!((foreseen.ahead, foreseen.bound), (vec![], Some(Nanos::ZERO)));
}

#[test]
fn what_does_not_fit_takes_turns_and_its_wait_is_within_the_bound() {
    let mut world = World::new(plain());
    world.set(Knob::Quantum(Some(ms(100))));
    world.busy_program(gib(6));
    world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(5));
    let foreseen = foresee(&world, gib(6));
    assert_eq!((foreseen.mode, foreseen.then, foreseen.fits), (Mode::Serialized, Mode::Serialized, false));
    assert_eq!((foreseen.ahead.is_empty(), foreseen.quantum), (false, ms(100)));
    let bound = foreseen.bound.unwrap();

    let (session, _) = world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(20));
    let turns = world.view(session).held_ns.0 / ms(100).0;
    let longest = Nanos(world.view(session).waited_ns.0 / turns.max(1));
    assert!(turns > 20 && longest <= bound, "{longest} on average of {turns} turns, {bound} foreseen");
}

#[test]
fn a_question_changes_nothing() {
    let mut world = World::new(plain());
    world.busy_program(gib(6));
    world.run_for(ms(100));
    let before = world.core.snapshot(world.now);
    foresee(&world, gib(6));
    assert_eq!(world.core.snapshot(world.now), before);
    assert_eq!(world.core.poll_effect(), None);
}
