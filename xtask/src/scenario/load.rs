//! Programs that work while others do, each in a session of its own: when each of their steps began and
//! ended.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::training::Training;
use gpushare_tests::world::{Sharing, World};

/// After the last program has begun: they hear of each other.
const START: Duration = Duration::from_secs(1);
/// How long programs may take that were meant to take a minute at most.
const PATIENCE: Duration = Duration::from_secs(240);

/// A program, and its session.
#[derive(Clone, Debug)]
pub(super) struct Load<'a> {
    pub(super) name: &'a str,
    /// Of its session, in percent.
    pub(super) compute_limit: Option<u32>,
    pub(super) memory: Bytes,
    pub(super) steps: u32,
    /// Work of a step, as flags of `train`.
    pub(super) work: &'a [&'a str],
}

/// Begin and end of each step of a program.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) begins: Vec<Nanos>,
    pub(super) ends: Vec<Nanos>,
}

/// Returns the number of steps of length `step` that last a bit longer than `time`, for a program that has
/// this share of the card.
pub(super) fn lasting(time: Duration, step: Duration, share: f64) -> u32 {
    let steps = (START + time + START).as_secs_f64() / step.as_secs_f64();
    (steps * share * 1.15).ceil() as u32
}

/// Runs them at once, to their ends.
pub(super) fn run(world: &World, loads: &[Load<'_>]) -> anyhow::Result<Vec<Steps>> {
    run_as(world, loads, |load| {
        // The predictions are about memory that the driver moves.
        let sharing = Sharing::session(load.name).and(&["--backend", "managed"]);
        match load.compute_limit {
            Some(limit) => sharing.and(&["--compute", &format!("{limit}%")]),
            None => sharing,
        }
    })
}

/// Runs the programs at once without gpushare.
pub(super) fn run_natively(world: &World, loads: &[Load<'_>]) -> anyhow::Result<Vec<Steps>> {
    run_as(world, loads, |_| Sharing::Native)
}

/// Runs the programs at once, each in the session that `sharing` chooses.
pub(super) fn run_as(
    world: &World,
    loads: &[Load<'_>],
    sharing: impl Fn(&Load<'_>) -> Sharing,
) -> anyhow::Result<Vec<Steps>> {
    let mut programs = Vec::new();
    for load in loads {
        let sharing = sharing(load);
        let steps = load.steps.to_string();
        let flags = [&["--steps", &steps, "--trace"], load.work].concat();
        programs.push(Training::start(world, &sharing, load.name, load.memory, &flags)?);
    }
    let begun = Instant::now();
    while !all_ended(&mut programs)? {
        ensure!(begun.elapsed() < PATIENCE, "the programs have not ended within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
    programs.iter_mut().map(steps_of).collect()
}

fn all_ended(programs: &mut [Training]) -> anyhow::Result<bool> {
    for program in programs {
        if !program.ended()? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn steps_of(program: &mut Training) -> anyhow::Result<Steps> {
    let report = program.report()?;
    ensure!(report.ok, "{} buffers are wrong", report.corrupted);
    Ok(Steps {
        begins: report.step_begins_ns.context("the program told no times")?,
        ends: report.step_ends_ns.context("the program told no times")?,
    })
}

/// The stretch of this length in which all of them work, a while after the last has begun.
pub(super) fn together(all: &[Steps], length: Duration) -> anyhow::Result<Range<Nanos>> {
    let begun = all.iter().filter_map(|steps| steps.ends.first()).max();
    let begins = *begun.context("no program made a step")? + Nanos::from(START);
    let ends = begins + Nanos::from(length);
    let last = all.iter().filter_map(|steps| steps.ends.last()).min();
    ensure!(last.is_some_and(|last| *last >= ends), "a program ended before its {length:?} were over");
    Ok(begins..ends)
}

impl Steps {
    /// Steps a second that ended within this stretch.
    pub(super) fn rate(&self, within: &Range<Nanos>) -> f64 {
        let count = self.ends.iter().filter(|at| within.contains(at)).count();
        count as f64 / Duration::from(within.end - within.start).as_secs_f64()
    }

    /// How long each step took, in order of that.
    pub(super) fn latencies(&self) -> Vec<Nanos> {
        let pairs = self.begins.iter().zip(&self.ends);
        let mut times: Vec<Nanos> = pairs.map(|(begin, end)| *end - *begin).collect();
        times.sort_unstable();
        times
    }
}
