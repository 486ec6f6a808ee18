//! `cargo xtask scenario`: promises, each held against what the simulated card shows with real processes.
//!
//! Ratios of time live here and not in `cargo test`, whose neighbours would bend them.

use std::process::ExitCode;

use clap::Subcommand;

use crate::output::result;

mod promise;

mod load;
mod moving;
mod watch;

mod shares;

mod fairness;
mod one_limit;
mod prediction;

mod burst;

mod thrash;

/// What to hold against its promises.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Scenario {
    /// Two programs that together need 1.5 times the card: alone, at once without gpushare, at once with it
    Thrash,
    /// Programs under compute limits, alone and in pairs: their rates, as percent of the rate without one
    Shares,
    /// Equal programs, two beside one with a limit, two under one limit, and the simulator's prediction of two that take turns
    Fairness,
    /// Rare bursts beside a program that always has work, where both fit and where they do not
    Burst,
}

pub(crate) fn run(scenario: &Scenario, json: bool) -> anyhow::Result<ExitCode> {
    let promises = match scenario {
        Scenario::Thrash => thrash::run()?,
        Scenario::Shares => shares::run()?,
        Scenario::Fairness => fairness::run()?,
        Scenario::Burst => burst::run()?,
    };
    result(&promises, json)?;
    Ok(if promises.all_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
