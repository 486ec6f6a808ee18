//! Shares of a card's time: weights, priorities and compute limits, by each way to state them.
//!
//! The daemon's account of card time (`gpushare-ctl usage`) says what a session got, so that the load of the
//! machine does not matter.

use std::time::Instant;

use gpushare_proto::admin::{LockView, Mode, UsageView};
use gpushare_proto::{Bytes, Nanos, names};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::{Sharing, Training, World, patience};

const CARD: Bytes = Bytes::mib(256);
/// Work without end, of which a few steps are always in flight.
pub(crate) const WORK: [&str; 6] = ["--steps", "1000000", "--compute", "4ms", "--async-ahead", "4"];
/// Turns so short that there are many in two seconds.
pub(crate) const SHORT_TURNS: [&str; 2] = ["--quantum", "20ms"];

#[test]
fn in_time_sliced_mode_one_session_runs_at_a_time_and_no_memory_moves() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&["--mode", "time-sliced"])?;
    let _programs = [hog(&world, "a", &[])?, hog(&world, "b", &[])?];
    let status = daemon.until("the card is handed over ten times", |status| {
        let gpu = &status.gpus[0];
        // One turn may begin while the work of the one before ends.
        let turns = status
            .sessions
            .iter()
            .filter(|session| matches!(session.lock, LockView::Holding { .. }));
        assert!(turns.count() <= 1, "{:?} hold the card at once", status.sessions);
        status.sessions.len() == 2 && gpu.mode == Mode::TimeSliced && gpu.handoffs >= 10
    })?;
    assert_eq!(status.gpus[0].moved_bytes, Bytes::ZERO);
    Ok(())
}

#[test]
fn a_session_of_three_times_the_weight_gets_three_times_the_time_until_the_weight_changes()
-> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&SHORT_TURNS)?;
    let _programs = [hog(&world, "light", &[])?, hog(&world, "heavy", &["--weight", "300"])?];
    let share = share_of(&daemon, &["heavy"], &["light"])?;
    assert!((0.68..0.82).contains(&share), "a weight of 300 beside 100 got {share}");
    daemon.set(&["weight", "33", "--session", "heavy"])?;
    let share = share_of(&daemon, &["heavy"], &["light"])?;
    assert!((0.18..0.32).contains(&share), "a weight of 33 beside 100 got {share}");
    Ok(())
}

#[test]
fn a_higher_class_gets_nearly_all_of_the_time() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&SHORT_TURNS)?;
    let _programs = [hog(&world, "normal", &[])?, hog(&world, "other", &["--priority", "low"])?];
    let share = share_of(&daemon, &["other"], &["normal"])?;
    assert!((0.001..0.15).contains(&share), "low beside normal got {share}");
    daemon.set(&["priority", "high", "--session", "other"])?;
    let share = share_of(&daemon, &["other"], &["normal"])?;
    assert!((0.85..0.999).contains(&share), "high beside normal got {share}");
    Ok(())
}

#[test]
fn a_compute_limit_holds_by_flag_by_variable_and_by_set() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let flag = hog(&world, "flag", &["--compute", "25%"])?;
    limited_to_a_quarter(&daemon, "flag")?;
    drop(flag);

    let set = hog(&world, "set", &[])?;
    daemon.until("it is there", |status| status.sessions.iter().any(|session| session.name == "set"))?;
    daemon.set(&["compute", "25%", "--session", "set"])?;
    limited_to_a_quarter(&daemon, "set")?;
    drop(set);
    let nobody = || daemon.until("nobody is there", |status| status.sessions.is_empty());
    nobody()?;

    for (name, limit) in [("share", "25%"), ("json", r#"{"0": 25}"#)] {
        let mut command = world.workload(&Sharing::Preload);
        command.env(names::COMPUTE_LIMIT, limit);
        let program = Training::begin(command, &world, name, Bytes::mib(16), &WORK)?;
        let status = daemon.until("its session is there", |status| !status.sessions.is_empty())?;
        limited_to_a_quarter(&daemon, &status.sessions[0].name)?;
        drop(program);
        nobody()?;
    }
    Ok(())
}

/// Starts a program that always has work for the card.
fn hog(world: &World, name: &str, flags: &[&str]) -> anyhow::Result<Training> {
    Training::start(world, &Sharing::session(name).and(flags), name, Bytes::mib(16), &WORK)
}

/// Share that some sessions get of the next four seconds of card time that they and `others` get. A change takes
/// effect with the next turn, so that the first turns do not count.
pub(crate) fn share_of(daemon: &Daemon, some: &[&str], others: &[&str]) -> anyhow::Result<f64> {
    let both = || anyhow::Ok([card_time(daemon, some)?, card_time(daemon, others)?]);
    let before = daemon.status()?.gpus[0].handoffs;
    daemon.until("both have had a turn", |status| status.gpus[0].handoffs >= before + 3)?;
    let started = both()?;
    patience::until("they have had four seconds", || {
        let now = both()?;
        let [some, others] = [0, 1].map(|at| (now[at] - started[at]).0 as f64 / 1e9);
        Ok((some + others >= 4.0).then(|| some / (some + others)))
    })
}

/// Checks that a session gets three seconds of card time in no less than about twelve seconds. Work in flight that
/// takes long on a busy machine, and what the limit carries over, shorten that by some seconds. Half of the card's
/// time would take six.
fn limited_to_a_quarter(daemon: &Daemon, name: &str) -> anyhow::Result<()> {
    daemon.until("it has a limit", |status| {
        let mut named = status.sessions.iter().filter(|session| session.name == name);
        named.any(|session| session.state.terms.compute.amounts().count() == 1)
    })?;
    // What it had before the limit is no part of the measurement.
    let (began, before) = (Instant::now(), card_time(daemon, &[name])?);
    patience::until("it has had three seconds", || {
        Ok((card_time(daemon, &[name])? - before >= Nanos::from_secs(3)).then_some(()))
    })?;
    let took = began.elapsed().as_secs_f64();
    assert!(took > 8.0, "{name} had three seconds of card time within {took} s");
    Ok(())
}

/// Card time of some sessions so far; zero before their first.
fn card_time(daemon: &Daemon, names: &[&str]) -> anyhow::Result<Nanos> {
    let usages: Vec<UsageView> = serde_json::from_str(&daemon.ctl(&["usage", "--json"])?)?;
    let theirs = usages.iter().filter(|usage| usage.alive && names.contains(&&*usage.name));
    Ok(Nanos(theirs.map(|usage| usage.gpu_time_ns.0).sum()))
}
