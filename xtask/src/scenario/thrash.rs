//! Two programs that together need 1.5 times the card push each other's pages out at every time slice;
//! gpushare lets them take turns, for about what they take one after the other.
//!
//! Each works long enough alone for a few turns of the length that the daemon computes, since only those
//! show what a turn costs. Without gpushare, steps are mostly faults: a step's own work is some 60 ms, and
//! a quarter of a second goes to its pages.

use crate::contention::measure::{Measured, Side, measure};
use crate::contention::plan::Plan;
use crate::output::progress;
use crate::programs;
use crate::promise::{Bound, Check, Effort};

pub(super) const CHECK: Check = Check {
    name: "thrash",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("makespan with gpushare / one after the other", 1.15, "×"),
        Bound::at_least("makespan without gpushare / with it", 3.0, "×"),
        Bound::at_most("corrupted buffers of thrashing programs", 0.0, "buffers"),
    ],
    measure: run,
};

fn run() -> anyhow::Result<Vec<f64>> {
    let artifacts = programs::release()?;
    let plan = Plan { steps: 80, work: ["--compute", "60ms"], quantum: None, ..Plan::simulated() };
    progress(&plan);
    let run = |side| -> anyhow::Result<Measured> {
        let run = measure(&plan, &artifacts, side)?;
        progress(&run);
        Ok(run)
    };
    let in_turn = run(Side::InTurn)?;
    let without = run(Side::Without)?;
    let with = run(Side::With)?;

    let seconds = |run: &Measured| run.elapsed.as_secs_f64();
    let corrupted: u32 = [&in_turn, &without, &with].map(|run| run.corrupted).iter().sum();
    Ok(vec![seconds(&with) / seconds(&in_turn), seconds(&without) / seconds(&with), f64::from(corrupted)])
}
