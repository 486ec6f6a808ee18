//! Comparison of the simulator's prediction for two programs in turns with the real programs.
//!
//! ```text
//!   measured apart:  rate of a full card ─┐
//!                    drain, fixed quantum ┼─▶ trace ─▶ simulator ─▶ quantum, makespan  ─┐
//!                    a step alone ────────┘                                            ├─▶ within a tenth
//!   the same two programs, real processes, computed quantum ─▶ quantum, makespan ──────┘
//! ```
//!
//! The simulator lets a session bring in all of its memory, since what remained of it is the oldest and goes
//! out first. That is so for a program whose turns end between two passes over its memory. So one kernel of the
//! programs touches all of it: with several, a turn may end within a pass, and the first buffers of the memory
//! are then its newest, stay on the card, and need not come in again.

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::World;

use crate::output::progress;
use crate::programs;
use crate::promise::{Bound, Check, Effort};
use crate::sim;

use super::fairness::CARD;
use super::load::{self, Load, Steps};
use super::moving;
use super::watch::{Turns, Watch, median};

const MEMORY: Bytes = Bytes::mib(192);
const STEPS: u32 = 8000;
/// Enough for a few turns of the fixed quantum.
const FEW_STEPS: u32 = 500;
/// One pass over all memory in one kernel, and a wait.
const WORK: [&str; 8] = ["--buffers", "1", "--passes", "0", "--compute", "4ms", "--async-ahead", "4"];

pub(super) const CHECK: Check = Check {
    name: "prediction",
    effort: Effort::Timed,
    bounds: &[
        Bound::near("quantum of two programs in turns / predicted by the simulator", 1.0, 0.1, "×"),
        Bound::near("makespan of two programs in turns / predicted by the simulator", 1.0, 0.1, "×"),
        Bound::near(
            "memory that comes in at a turn of two programs / predicted by the simulator",
            1.0,
            0.1,
            "×",
        ),
    ],
    measure: ratios,
};

/// Turns of the two programs, and what they took.
struct Run {
    turns: Turns,
    /// From the first step's beginning to the last one's end.
    makespan: Duration,
    /// Memory that came to the card.
    moved: Bytes,
}

/// Returns the measured quantum, makespan and memory of a turn, each divided by what the simulator predicts.
fn ratios() -> anyhow::Result<Vec<f64>> {
    let artifacts = programs::release()?;
    let trace = trace(&artifacts)?;
    let predicted = sim::predict(&trace)?;
    let run = in_turns(&artifacts, STEPS, &[])?;
    progress(format_args!(
        "quanta {:?}, drains {:?}; predicted {:?}",
        run.turns.quanta, run.turns.drains, predicted.quanta
    ));
    let seconds = |time: Nanos| Duration::from(time).as_secs_f64();
    let in_a_turn = |moved: Bytes, quanta: &[Nanos]| moved.0 as f64 / quanta.len() as f64;
    let pairs = [
        ("quantum", seconds(settled(&run.turns.quanta)), seconds(settled(&predicted.quanta))),
        ("makespan", run.makespan.as_secs_f64(), seconds(predicted.makespan)),
        (
            "memory of a turn",
            in_a_turn(run.moved, &run.turns.quanta),
            in_a_turn(predicted.moved, &predicted.quanta),
        ),
    ];
    Ok(pairs
        .map(|(name, measured, predicted)| {
            progress(format_args!("{name}: {measured:.3}, predicted {predicted:.3}"));
            measured / predicted
        })
        .to_vec())
}

/// Of the last third: the first turns of a daemon are from what it was told of the card, and its averages
/// take a dozen to be those of the card.
fn settled(quanta: &[Nanos]) -> Nanos {
    median(&quanta[quanta.len() * 2 / 3..])
}

/// The two programs, as the simulator is told of them.
fn trace(artifacts: &Artifacts) -> anyhow::Result<String> {
    let (rate, capacity) = {
        let world = World::simulated(artifacts, CARD)?;
        let card = world.card().context("there is no simulated card")?;
        let constants = card.stats()?.constants;
        let capacity = Bytes(constants.memory - 2 * constants.context_memory);
        (moving::rate(&world, MEMORY)?, capacity)
    };
    let alone = {
        let world = World::simulated(artifacts, CARD)?;
        let _daemon = Daemon::start(&world, &[])?;
        makespan(&load::run(&world, &[hog("alone", FEW_STEPS)])?)?
    };
    let Run { turns, .. } = in_turns(artifacts, FEW_STEPS, &["--quantum", "300ms"])?;
    let work = alone * STEPS / FEW_STEPS;
    let trace = format!(
        "until = '10min'\nmemory = '{}B'\nbandwidth = '{}B'\nwindow = '{}ns'\n\n[[sessions]]\nname = 'hog'\ncount = 2\n\
         memory = '{}B'\nprogram = 'hog'\nwork = '{}ns'\n",
        capacity.0,
        rate.0,
        median(&turns.drains).0,
        MEMORY.0,
        work.as_nanos()
    );
    progress(format_args!("{trace}"));
    Ok(trace)
}

fn in_turns(artifacts: &Artifacts, steps: u32, flags: &[&str]) -> anyhow::Result<Run> {
    let world = World::simulated(artifacts, CARD)?;
    let _daemon = Daemon::start(&world, flags)?;
    let watch = Watch::start(&world)?;
    let done = load::run(&world, &[hog("first", steps), hog("second", steps)])?;
    let turns = watch.end()?;
    let card = world.card().context("there is no simulated card")?;
    let moved = Bytes(card.stats()?.total.bytes_in());
    Ok(Run { turns, makespan: makespan(&done)?, moved })
}

fn hog(name: &str, steps: u32) -> Load<'_> {
    Load { name, compute_limit: None, memory: MEMORY, steps, work: &WORK }
}

/// From the first step's beginning to the last one's end.
fn makespan(all: &[Steps]) -> anyhow::Result<Duration> {
    let first = all.iter().filter_map(|steps| steps.begins.first()).min();
    let last = all.iter().filter_map(|steps| steps.ends.last()).max();
    let (first, last) = first.zip(last).context("no program made a step")?;
    Ok((*last - *first).into())
}
