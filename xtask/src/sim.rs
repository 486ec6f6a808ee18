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

use anyhow::{Context, ensure};
use clap::Args;
use gpushare_proto::Nanos;

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
pub(crate) struct Options {
    /// A file, a recording, or one that is built in: hogs, notebooks, mixed, gangs, crowd; for many nodes
    /// `cluster`, or a file of pods that ends in .csv
    trace: String,
    /// Draw figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report of a trace of pods as Markdown
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    cluster: cluster::Cluster,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    if cluster::knows(&options.trace) {
        ensure!(options.out.is_none(), "a trace of pods has no figures: leave out --out");
        let report = cluster::simulate(&options.trace, &options.cluster)?;
        match options.markdown {
            true => print!("{}", report.markdown()),
            false => result(&report, json)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!options.markdown, "only a trace of pods is printed as Markdown: leave out --markdown");
    let trace = Trace::load(&options.trace)?;
    let (report, curves) = simulate(&trace);
    if let Some(folder) = &options.out {
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
    Ok(Prediction { quanta: outcome.quanta, makespan: last - first })
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
fn simulate(trace: &Trace) -> (Report, Vec<Curves>) {
    let machine = &trace.machine;
    let gpushare = Gpushare::new(trace.config.clone(), machine, trace.tenants.len());
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
    (report, curves)
}

fn of(trace: &Trace, policy: impl Policy) -> (Row, Curves) {
    let name = policy.name();
    Row::of(name, trace, &engine::run(trace, policy))
}

#[cfg(test)]
mod tests;
