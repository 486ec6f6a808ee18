//! Comparison of the simulator's prediction for two programs in turns with the real programs.
//!
//! ```text
//!   measured apart:  rate of a full card ─┐
//!                    drain, fixed quantum ┼─▶ trace ─▶ simulator ─▶ quantum, makespan  ─┐
//!                    a step alone ────────┘                                            ├─▶ within a tenth
//!   the same two programs, real processes, computed quantum ─▶ quantum, makespan ──────┘
//! ```

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::World;

use crate::output::progress;
use crate::sim;

use super::fairness::{CARD, TURNS_WORK};
use super::load::{self, Load, Steps};
use super::moving;
use super::watch::{Turns, Watch, median};

const MEMORY: Bytes = Bytes::mib(192);
const STEPS: u32 = 8000;
/// Enough for a few turns of the fixed quantum.
const FEW_STEPS: u32 = 500;

/// Returns the measured quantum and the measured makespan, each divided by what the simulator predicts.
pub(super) fn ratios(artifacts: &Artifacts) -> anyhow::Result<[f64; 2]> {
    let trace = trace(artifacts)?;
    let predicted = sim::predict(&trace)?;
    let (turns, makespan) = in_turns(artifacts, STEPS, &[])?;
    let (quantum, expected) = (settled(&turns.quanta), settled(&predicted.quanta));
    progress(format_args!(
        "quanta {:?}, makespan {makespan:?}, drains {:?}; predicted {:?} and {}",
        turns.quanta, turns.drains, predicted.quanta, predicted.makespan
    ));
    let seconds = |time: Nanos| Duration::from(time).as_secs_f64();
    Ok([seconds(quantum) / seconds(expected), makespan.as_secs_f64() / seconds(predicted.makespan)])
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
    let (turns, _) = in_turns(artifacts, FEW_STEPS, &["--quantum", "300ms"])?;
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

fn in_turns(artifacts: &Artifacts, steps: u32, flags: &[&str]) -> anyhow::Result<(Turns, Duration)> {
    let world = World::simulated(artifacts, CARD)?;
    let _daemon = Daemon::start(&world, flags)?;
    let watch = Watch::start(&world)?;
    let done = load::run(&world, &[hog("first", steps), hog("second", steps)])?;
    Ok((watch.end()?, makespan(&done)?))
}

fn hog(name: &str, steps: u32) -> Load<'_> {
    Load { name, compute_limit: None, memory: MEMORY, steps, work: &TURNS_WORK }
}

/// From the first step's beginning to the last one's end.
fn makespan(all: &[Steps]) -> anyhow::Result<Duration> {
    let first = all.iter().filter_map(|steps| steps.begins.first()).min();
    let last = all.iter().filter_map(|steps| steps.ends.last()).max();
    let (first, last) = first.zip(last).context("no program made a step")?;
    Ok((*last - *first).into())
}
