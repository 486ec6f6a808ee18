//! `cargo xtask fuzz`: the targets of `fuzz/` on this compiler, for a fixed time, by a seed.
//!
//! They are a program of their own, whose allocator counts, built with the checks of a debug build.

use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;
use gpushare_tests::cargo::{self, Profile, Progress};

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

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let mut command = fuzzer(options.seconds, options.seed)?;
    if json {
        command.arg("--json");
    }
    let status = command.status().context("the fuzzer does not start")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A few seconds of it.
pub(crate) fn check() -> anyhow::Result<()> {
    let output = fuzzer(6, 1)?.arg("--json").output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn fuzzer(seconds: u64, seed: u64) -> anyhow::Result<Command> {
    const NAME: &str = "gpushare-fuzz";
    let mut built = cargo::build(&[NAME], Profile::Dev, Progress::Hidden)?;
    let mut command = Command::new(built.remove(NAME).context("the fuzzer was not built")?);
    command.current_dir(cargo::workspace()).args([
        "--seconds",
        &seconds.to_string(),
        "--seed",
        &seed.to_string(),
    ]);
    Ok(command)
}
