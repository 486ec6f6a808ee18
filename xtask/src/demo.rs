//! `cargo xtask demo`: shows in one command that taking turns beats paging.
//!
//! ```text
//!   contention   two programs at once without gpushare, then the same two with it
//!   report       a table and both timelines as text, or one line of JSON
//!   picture      both timelines as SVG
//! ```
//!
//! The programs run on the real card if there is one, else on the simulated card. There the demo fails if
//! gpushare is not at least twice as fast, or never handed the card over. It fails on any card if a buffer
//! was corrupted. It says so if other programs kept the processors busy, since both programs then hardly meet.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::contention::measure::{Measured, Side, measure};
use crate::contention::plan::{Card, Plan};
use crate::load::beside_others;
use crate::output::{progress, result};
use crate::programs;
use crate::promise::{Bound, Check, Effort, Promises};

mod report;

mod picture;

use report::Report;

pub(crate) const CHECK: Check = Check {
    name: "demo",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_least("demo: time without gpushare / with it", 2.0, "×"),
        Bound::at_least("demo: handoffs", 1.0, ""),
        Bound::at_most("demo: corrupted buffers", 0.0, "buffers"),
    ],
    measure: || Ok(show(&Options { svg: None, simulated: true })?.1.values()),
};

/// Options of `cargo xtask demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Draw who had the GPU when into this file [default: target/demo.svg]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Use the simulated card even if this machine has a real one
    #[arg(long)]
    simulated: bool,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let (plan, report) = beside_others(|| show(options))?;
    result(&report, json)?;
    let simulated = plan.card == Card::Simulated;
    let rows = CHECK
        .bounds
        .iter()
        .zip(report.values())
        .map(|(bound, value)| bound.judge(value));
    // A real card only proves that nothing is corrupted: there both programs fit.
    let rows = rows.skip(if simulated { 0 } else { 2 }).collect();
    Ok(Promises { rows }.exit_code())
}

/// Runs both sides and draws them.
fn show(options: &Options) -> anyhow::Result<(Plan, Report)> {
    let artifacts = programs::debug()?;
    let svg = match &options.svg {
        Some(file) => file.clone(),
        None => programs::results_folder()?.join("demo.svg"),
    };

    let plan = Plan::choose(&artifacts, options.simulated)?;
    progress(&plan);
    let run = |side| -> anyhow::Result<Measured> {
        let run = measure(&plan, &artifacts, side)?;
        progress(&run);
        Ok(run)
    };
    let (without, with) = (run(Side::Without)?, run(Side::With)?);

    std::fs::write(&svg, picture::draw(&plan, &without, &with))
        .with_context(|| format!("cannot write {}", svg.display()))?;
    let report = Report::new(&plan, &without, &with, &svg);
    Ok((plan, report))
}
