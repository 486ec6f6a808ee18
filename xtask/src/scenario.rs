//! `cargo xtask scenario`: promises that are measured with real processes on the simulated card.
//!
//! They are ratios of times, which other tests on the same machine would bend. So they are no part of
//! `cargo test`.

use std::process::ExitCode;

use clap::Subcommand;

use crate::promise::Check;

mod load;
mod moving;
mod slices;
pub(crate) mod watch;

mod shares;

mod fairness;
mod one_limit;
mod prediction;

mod burst;

mod thrash;

mod swap;

mod freeze;

/// Checks of all scenarios.
pub(crate) const CHECKS: [Check; 7] = [
    thrash::CHECK,
    shares::CHECK,
    fairness::CHECK,
    prediction::CHECK,
    burst::CHECK,
    swap::CHECK,
    freeze::CHECK,
];

/// Scenario to run.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Scenario {
    /// Two programs that together need 1.5 times the card: alone, at once without gpushare, at once with it
    Thrash,
    /// Programs under compute limits, alone and in pairs: their rates, as percent of the rate without one. Two
    /// programs with weights
    Shares,
    /// Equal programs, two beside one with a limit, two under one limit, and two in time slices
    Fairness,
    /// Two programs that take turns, beside the simulator's prediction of them
    Prediction,
    /// Rare bursts beside a program that always has work, where both fit (with high priority too) and where
    /// they do not
    Burst,
    /// Four programs that together need three times the card, while programs and the daemon are killed, calls find no
    /// memory, and host memory runs out
    Swap(swap::Options),
    /// Programs that are frozen and thawed, while programs, the daemon and its helpers are killed
    Freeze(freeze::Options),
}

pub(crate) fn run(scenario: &Scenario, json: bool) -> anyhow::Result<ExitCode> {
    let [thrash, shares, fairness, prediction, burst, ..] = CHECKS;
    match scenario {
        Scenario::Thrash => thrash.run(json),
        Scenario::Shares => shares.run(json),
        Scenario::Fairness => fairness.run(json),
        Scenario::Prediction => prediction.run(json),
        Scenario::Burst => burst.run(json),
        Scenario::Swap(options) => swap::run(options, json),
        Scenario::Freeze(options) => freeze::run(options, json),
    }
}
