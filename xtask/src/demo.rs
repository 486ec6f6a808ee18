//! `cargo xtask demo`: what gpushare is for, in one command.
//!
//! ```text
//!   contention   two programs at once without gpushare, then the same two with it
//!   report       the table, or one line of JSON
//!   picture      who had the GPU when, as SVG
//! ```
//!
//! They run on the simulated card, or on the real one if there is one.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::contention::measure::{Side, measure};
use crate::contention::plan::Plan;
use crate::output::{progress, result};
use crate::programs;

mod report;

mod picture;

use report::Report;

/// What to show, and where.
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
    let artifacts = programs::release()?;
    let svg = match &options.svg {
        Some(file) => file.clone(),
        None => programs::results_folder()?.join("demo.svg"),
    };

    let plan = Plan::choose(&artifacts, options.simulated)?;
    progress(&plan);
    let without = measure(&plan, &artifacts, Side::Without)?;
    let with = measure(&plan, &artifacts, Side::With)?;

    std::fs::write(&svg, picture::draw(&plan, &without, &with))
        .with_context(|| format!("cannot write {}", svg.display()))?;
    let report = Report::new(&plan, &without, &with, &svg);
    result(&report, json)?;
    Ok(if report.corrupted == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
