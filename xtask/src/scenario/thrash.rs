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

use super::promise::{Promise, Promises};

/// At most so many times as long as one after the other.
const SLOWER: f64 = 1.15;
/// At least so many times as fast as without gpushare.
const FASTER: f64 = 3.0;

pub(crate) fn run() -> anyhow::Result<Promises> {
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
    Ok(Promises::new(vec![
        Promise::at_most(
            "makespan with gpushare / one after the other",
            SLOWER,
            seconds(&with) / seconds(&in_turn),
            "×",
        ),
        Promise::at_least(
            "makespan without gpushare / with it",
            FASTER,
            seconds(&without) / seconds(&with),
            "×",
        ),
        Promise::at_most("corrupted buffers", 0.0, f64::from(corrupted), "buffers"),
    ]))
}
