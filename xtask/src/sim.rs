//! `cargo xtask sim TRACE`: the daemon's own core in virtual time, for as many sessions and days as one
//! likes, against what others do on the same cards.
//!
//! ```text
//!   trace (built in, a file, a recording) ─▶ sessions ─┐            ┌─▶ table, JSON
//!                                                      ├─▶ engine ──┤
//!   gpushare's core · FCFS · 5 s per GB · nobody ──────┘  on cards  └─▶ figures
//! ```
//!
//! All schedulers get the same cards, which `card.rs` and docs/simulator.md describe. Nothing here is a
//! measurement.

mod account;
mod between;
mod card;
mod cluster;
mod draw;
mod engine;
mod player;
mod policy;
mod progress;
mod recorded;
mod report;
mod tenant;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use gpushare_proto::{Backend, Bytes, Nanos};

use crate::output::{progress, result};
use crate::promise::{Bound, Check, Effort};
use policy::Policy;
use policy::fifo::Fifo;
use policy::gpushare::Gpushare;
use policy::unscheduled::Unscheduled;
use report::{Curves, Report, Row};
use trace::Trace;

/// Options of `cargo xtask sim`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    nodes: Option<Nodes>,
    #[command(flatten)]
    node: Option<Node>,
}

/// Simulations of many nodes.
#[derive(Subcommand)]
enum Nodes {
    /// Simulate pods on the nodes of a cluster
    Cluster(cluster::Options),
}

/// Simulation of one node.
#[derive(Args)]
struct Node {
    /// A file, a recording, or a built-in trace: hogs, notebooks, mixed, gangs, crowd
    trace: String,
    /// Draw figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Memory of the sessions under gpushare: `managed`, which moves when a session begins to run, or `remap`,
    /// which also moves in advance and both ways at once
    #[arg(long, default_value_t = Backend::Managed)]
    backend: Backend,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    if let Some(Nodes::Cluster(options)) = &options.nodes {
        let report = cluster::simulate(options)?;
        match options.markdown {
            true => print!("{}", report.markdown()),
            false => result(&report, json)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let node = options.node.as_ref().context("name a trace")?;
    let trace = Trace::load(&node.trace)?;
    let (report, curves) = simulate(&trace, node.backend)?;
    if let Some(folder) = &node.out {
        for file in draw::figures(&report, &curves, folder)? {
            progress(format_args!("drew {}", file.display()));
        }
    }
    result(&report, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Prediction of the simulator for a trace under gpushare.
#[derive(Clone, Debug)]
pub(crate) struct Prediction {
    /// Of each grant.
    pub(crate) quanta: Vec<Nanos>,
    /// From the first arrival to the last end.
    pub(crate) makespan: Nanos,
    /// Memory that came to the cards.
    pub(crate) moved: Bytes,
}

/// Runs the trace of this text under gpushare alone.
pub(crate) fn predict(text: &str) -> anyhow::Result<Prediction> {
    let trace = Trace::parse("prediction", text)?;
    let policy = Gpushare::new(trace.config.clone(), &trace.machine, trace.tenants.len());
    let outcome = engine::run(&trace, policy);
    let ended: Option<Vec<Nanos>> = outcome.ended.iter().copied().collect();
    let last = ended.and_then(|ended| ended.into_iter().max());
    let first = trace.tenants.iter().map(|tenant| tenant.arrives).min();
    let (first, last) = first.zip(last).context("the sessions of a prediction did not end")?;
    Ok(Prediction { quanta: outcome.quanta, makespan: last - first, moved: outcome.moved })
}

/// Rows of the scoreboard about many nodes.
pub(crate) const CLUSTER: Check = cluster::CHECK;

pub(crate) const CHECK: Check = Check {
    name: "sim",
    effort: Effort::Counted,
    bounds: &[
        Bound::at_least("simulator, hogs: Jain's index", 0.98, ""),
        Bound::at_most("simulator, hogs: p99 of a wait / that of FCFS", 0.75, "×"),
        Bound::at_most("simulator, hogs: time lost / that of FCFS", 0.75, "×"),
        Bound::at_least("simulator, notebooks: Jain's index", 0.98, ""),
        Bound::at_most("simulator, notebooks: p99 of a wait / that of FCFS", 0.75, "×"),
        Bound::at_most("simulator, notebooks: time lost / that of FCFS", 0.75, "×"),
        Bound::at_least("simulator, mixed: Jain's index", 0.98, ""),
        Bound::at_most("simulator, mixed: p99 of a wait / that of FCFS", 0.75, "×"),
        Bound::at_most("simulator, mixed: time lost / that of FCFS", 0.75, "×"),
        Bound::at_least("simulator, gangs: Jain's index", 0.97, ""),
        Bound::at_most("simulator, gangs: p99 of a wait / that of FCFS", 0.75, "×"),
        Bound::at_most("simulator, gangs: time lost / that of FCFS", 0.75, "×"),
        Bound::at_least("simulator, crowd: Jain's index", 0.98, ""),
        Bound::at_most("simulator, crowd: p99 of a wait / that of FCFS", 0.75, "×"),
        Bound::at_most("simulator, crowd: time lost / that of FCFS", 0.75, "×"),
    ],
    measure: || {
        let values = |name: &str| -> anyhow::Result<[f64; 3]> {
            let trace = Trace::load(name)?;
            let (gpushare, _) =
                of(&trace, Gpushare::new(trace.config.clone(), &trace.machine, trace.tenants.len()));
            let (fcfs, _) = of(&trace, Fifo::fixed(&trace.machine));
            Ok([
                gpushare.jain,
                gpushare.wait_p99_s / fcfs.wait_p99_s,
                gpushare.lost_percent / fcfs.lost_percent,
            ])
        };
        let all = ["hogs", "notebooks", "mixed", "gangs", "crowd"].map(values);
        Ok(all.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat())
    },
};

/// Every scheduler on the same sessions and cards.
fn simulate(trace: &Trace, backend: Backend) -> anyhow::Result<(Report, Vec<Curves>)> {
    let machine = &trace.machine;
    let gpushare = Gpushare::new(trace.config.clone(), machine, trace.tenants.len());
    let gpushare = match backend {
        Backend::Managed => gpushare,
        Backend::Remap => {
            let fit = trace.tenants.iter().all(|tenant| tenant.memory <= machine.capacity);
            ensure!(
                fit,
                "a session is larger than a card; its memory is simulated with `--backend managed` only"
            );
            gpushare.remapped(machine)
        }
        Backend::Native => bail!("native memory does not move; choose managed or remap"),
    };
    let (rows, curves) = [
        of(trace, gpushare),
        of(trace, Fifo::fixed(machine)),
        of(trace, Fifo::per_gigabyte(machine)),
        of(trace, Unscheduled::default()),
    ]
    .into_iter()
    .unzip();
    let report = Report {
        trace: trace.name.clone(),
        gpus: machine.gpus,
        sessions: trace.tenants.len(),
        rows,
    };
    Ok((report, curves))
}

fn of(trace: &Trace, policy: impl Policy) -> (Row, Curves) {
    let name = policy.name();
    Row::of(name, trace, &engine::run(trace, policy))
}

#[cfg(test)]
mod tests;
