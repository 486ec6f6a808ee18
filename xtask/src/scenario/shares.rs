//! Compute limits and weights, as rates: what a program gets of the rate that it has alone.
//!
//! The rate is that of its steps over ten seconds, in which it always has work. Programs under limits that
//! run at once are measured over the same ten seconds.

use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::World;

use crate::output::progress;
use crate::programs;
use crate::promise::{Bound, Check, Effort};

use super::load::{self, Load};
use super::slices::{self, Pair};

const WINDOW: Duration = Duration::from_secs(10);
const CARD: Bytes = Bytes::mib(256);
const MEMORY: Bytes = Bytes::mib(16);
/// A step, of which a few are always in flight.
const STEP: Duration = Duration::from_millis(4);
const WORK: [&str; 4] = ["--compute", "4ms", "--async-ahead", "4"];

const WEIGHTS: Pair = Pair {
    name: "weights of 300 and 100",
    run: [&["--weight", "300"], &["--weight", "100"]],
    daemon: &[],
    window: WINDOW,
    due: [0.75, 0.25],
};

pub(super) const CHECK: Check = Check {
    name: "shares",
    effort: Effort::Timed,
    bounds: &[
        Bound::near("compute limit of 25%, alone", 25.0, 2.0, "%"),
        Bound::near("compute limit of 50%, alone", 50.0, 2.0, "%"),
        Bound::near("compute limit of 75%, alone", 75.0, 2.0, "%"),
        Bound::near("compute limit of 25% beside one of 75%", 25.0, 2.0, "%"),
        Bound::near("compute limit of 75% beside one of 25%", 75.0, 2.0, "%"),
        Bound::near("compute limit of 30% beside one of 60%", 30.0, 2.0, "%"),
        Bound::near("compute limit of 60% beside one of 30%", 60.0, 2.0, "%"),
        Bound::near("weight of 300 beside one of 100 where both fit", 75.0, 1.0, "%"),
        Bound::at_least("weights of 300 and 100 where both fit, together / one alone", 0.98, "×"),
    ],
    measure: run,
};

fn run() -> anyhow::Result<Vec<f64>> {
    let artifacts = programs::release()?;
    let alone = rates(&artifacts, &[None])?[0];
    progress(format_args!("{alone:.1} steps a second alone, without a limit"));
    let mut percents = Vec::new();
    for limits in [&[25][..], &[50], &[75], &[25, 75], &[30, 60]] {
        let limited: Vec<Option<u32>> = limits.iter().copied().map(Some).collect();
        let rates = rates(&artifacts, &limited)?;
        percents.extend(rates.iter().map(|rate| 100.0 * rate / alone));
        progress(format_args!("limits of {limits:?} percent: {rates:.1?} steps a second"));
    }
    let [heavy, light] = slices::parts(&artifacts, &WEIGHTS)?;
    percents.extend([100.0 * heavy / (heavy + light), heavy + light]);
    Ok(percents)
}

/// Steps a second of programs that run at once, each under its limit.
fn rates(artifacts: &Artifacts, limits: &[Option<u32>]) -> anyhow::Result<Vec<f64>> {
    let world = World::simulated(artifacts, CARD)?;
    let _daemon = Daemon::start(&world, &[])?;
    let loads = limits.iter().zip(["first", "second"]).map(|(&limit, name)| Load {
        name,
        compute_limit: limit,
        memory: MEMORY,
        steps: load::lasting(WINDOW, STEP, f64::from(limit.unwrap_or(100)) / 100.0),
        work: &WORK,
    });
    let steps = load::run(&world, &loads.collect::<Vec<_>>())?;
    let window = load::together(&steps, WINDOW)?;
    Ok(steps.iter().map(|steps| steps.rate(&window)).collect())
}
