//! `cargo xtask fuzz`: the targets of `fuzz/` on this compiler, for a fixed time, by a seed.
//!
//! They are a program of their own, whose allocator counts, built with the checks of a debug build.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use gpushare_tests::cargo;
use serde::Deserialize;

use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

/// How long, and which bytes.
#[derive(Args)]
pub(crate) struct Options {
    /// How long, all targets together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which bytes: the same seed gives the same ones in the same order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) const CHECK: Check = Check {
    name: "fuzz",
    effort: Effort::Counted,
    bounds: &[
        Bound::at_least("inputs of the fuzzer", 10_000.0, "inputs"),
        Bound::at_most("inputs that made the codec or the core panic or break a rule", 0.0, "inputs"),
    ],
    measure: || {
        #[derive(Deserialize)]
        struct Report {
            inputs: BTreeMap<String, u64>,
            found: BTreeMap<String, String>,
        }
        let output = fuzzer(&["--rounds", "100", "--json"])?.output()?;
        let report: Report = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
        report
            .found
            .values()
            .for_each(|sentence| progress(format_args!("BROKEN: {sentence}")));
        Ok(vec![report.inputs.values().sum::<u64>() as f64, report.found.len() as f64])
    },
};

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let (seconds, seed) = (options.seconds.to_string(), options.seed.to_string());
    let mut command = fuzzer(&["--seconds", &seconds, "--seed", &seed])?;
    if json {
        command.arg("--json");
    }
    let status = command.status().context("the fuzzer does not start")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fuzzer(arguments: &[&str]) -> anyhow::Result<Command> {
    const NAME: &str = "gpushare-fuzz";
    let mut built = cargo::build_as_tests(&[NAME])?;
    let mut command = Command::new(built.remove(NAME).context("the fuzzer was not built")?);
    command.current_dir(cargo::workspace()).args(arguments);
    Ok(command)
}
