//! Runs the two programs and gathers everything that is known about it.
//!
//! Each run has a fresh card, so that its counters are this run's alone.

use std::fmt;
use std::time::{Duration, Instant};

use gpushare_proto::Nanos;
use gpushare_proto::admin::Status;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::patience;
use gpushare_tests::training::Training;
use gpushare_tests::world::{Sharing, World};
use gpushare_workload::report::percentile;
use gpushare_workload::train;
use simgpu_card::constants::Constants;

use super::plan::{Card, Plan};
use super::timeline::{Sampler, Timeline};
use crate::output::progress;

/// The two programs.
pub(crate) const NAMES: [&str; 2] = ["A", "B"];

/// How the two share the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Not at all: one after the other, each with the plain card to itself.
    InTurn,
    /// At once, without gpushare.
    Without,
    /// At once, with gpushare.
    With,
}

/// Results of one run. A card that does not report a value leaves it `None`.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From the start of the first program to the end of the last.
    pub(crate) elapsed: Duration,
    /// Page faults of the card.
    pub(crate) faults: Option<u64>,
    /// How the daemon shared the card.
    pub(crate) turns: Option<Turns>,
    /// Buffers that were wrong at the end.
    pub(crate) corrupted: u32,
    /// Timeline of the card's use by the two programs.
    pub(crate) timeline: Option<Timeline>,
    /// The numbers that the simulated card ran with.
    pub(crate) constants: Option<Constants>,
}

/// Counts of the daemon at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    pub(crate) handoffs: u64,
    pub(crate) drain_p50: Option<Nanos>,
}

/// One run.
pub(crate) fn measure(plan: &Plan, artifacts: &Artifacts, side: Side) -> anyhow::Result<Measured> {
    let world = plan.world(artifacts)?;
    match side {
        Side::InTurn => {
            progress("running one after the other");
            race(plan, &world, None, |_| Sharing::Native, "mem", Start::InTurn)
        }
        Side::Without => {
            progress("running both without gpushare");
            let door = match plan.card {
                Card::Simulated => "managed",
                Card::Real { .. } => "mem",
            };
            race(plan, &world, None, |_| Sharing::Native, door, Start::AtOnce)
        }
        Side::With => {
            progress("running both with gpushare");
            let flags = plan.daemon_flags();
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let daemon = Daemon::start(&world, &flags)?;
            let managed = |name: &str| Sharing::session(name).and(&["--backend", "managed"]);
            race(plan, &world, Some(&daemon), managed, "mem", Start::AtOnce)
        }
    }
}

/// When the second program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    AtOnce,
    /// At the end of the first.
    InTurn,
}

fn race(
    plan: &Plan,
    world: &World,
    daemon: Option<&Daemon>,
    sharing: impl Fn(&str) -> Sharing,
    door: &str,
    order: Start,
) -> anyhow::Result<Measured> {
    let steps = plan.steps.to_string();
    let start = Instant::now();
    let mut programs: Vec<Training> = Vec::new();
    for (name, seed) in NAMES.iter().zip(["1", "1001"]) {
        if let (Some(first), Start::InTurn) = (programs.first_mut(), order) {
            patience::until("the end of the first program", || Ok(first.ended()?.then_some(())))?;
        }
        let mut flags = vec!["--steps", &steps, "--seed", seed, "--door", door];
        flags.extend(plan.work);
        programs.push(Training::start(world, &sharing(name), name, plan.memory, &flags)?);
    }
    let pids = [programs[0].process().pid(), programs[1].process().pid()];

    let mut sampler = Sampler::default();
    patience::until("the end of both programs", || {
        // A real card does not tell who has it; the daemon does.
        if let (Some(daemon), Card::Real { .. }) = (daemon, plan.card) {
            sampler.sample(&daemon.status()?);
        }
        let ended = programs[0].ended()? && programs[1].ended()?;
        Ok(ended.then_some(()))
    })?;
    let elapsed = start.elapsed();

    let reports: Vec<train::Report> =
        programs.iter_mut().map(Training::report).collect::<anyhow::Result<_>>()?;
    let stats = world.card().map(gpushare_tests::card::Card::stats).transpose()?;
    Ok(Measured {
        elapsed,
        faults: stats.as_ref().map(|stats| stats.total.faults),
        turns: daemon.map(Daemon::status).transpose()?.as_ref().map(turns),
        corrupted: reports.iter().map(|report| report.corrupted).sum(),
        timeline: match &stats {
            Some(stats) => Some(Timeline::of_card(stats, pids)),
            None => sampler.timeline(),
        },
        constants: stats.map(|stats| stats.constants),
    })
}

fn turns(status: &Status) -> Turns {
    let mut drains: Vec<Nanos> = status.gpus.iter().flat_map(|gpu| gpu.drains_ns.iter().copied()).collect();
    drains.sort_unstable();
    Turns {
        handoffs: status.gpus.iter().map(|gpu| gpu.handoffs).sum(),
        drain_p50: (!drains.is_empty()).then(|| percentile(&drains, 50)),
    }
}

/// The run in one line.
impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:.2} s", self.elapsed.as_secs_f64())?;
        if let Some(faults) = self.faults {
            write!(f, ", {faults} page faults")?;
        }
        if let Some(turns) = self.turns {
            write!(f, ", {} handoffs", turns.handoffs)?;
        }
        write!(f, ", {} corrupted buffers", self.corrupted)
    }
}
