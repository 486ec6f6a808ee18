//! `cargo xtask gpu suite`: stages and runs `tests/gpu/suite.py` where a real card is, else says how.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;
use serde::Serialize;
use serde_json::Value;

use crate::output::result;
use crate::stage;

/// Options of `cargo xtask gpu suite`.
#[derive(Args)]
pub(crate) struct Options {
    /// Flags of tests/gpu/suite.py, after `--`; docs/gpu-suite.md lists them
    #[arg(last = true)]
    flags: Vec<String>,
}

/// Result of the command.
#[derive(Debug, Serialize)]
struct Outcome {
    folder: PathBuf,
    passed: usize,
    failed: usize,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let mut list = Command::new("nvidia-smi");
    list.arg("--list-gpus");
    output_of(list).context(
        "no card here; run `cargo xtask gpu stage`, take the repository with target/stage to a machine with one, \
         and run `python3 tests/gpu/suite.py --out DIR` there",
    )?;
    stage::build()?;

    let folder = cargo::workspace().join("target/gpu-suite");
    let mut suite = Command::new("python3");
    suite
        .arg(cargo::workspace().join("tests/gpu/suite.py"))
        .arg("--stage")
        .arg(cargo::workspace().join("target/stage"))
        .arg("--out")
        .arg(&folder)
        .args(&options.flags);
    // Its progress is progress: stdout is for our own last line.
    suite.stdout(io::stderr().as_fd().try_clone_to_owned()?);
    let figures = folder.join("figures.json");
    if figures.exists() {
        fs::remove_file(&figures)?;
    }
    let status = suite.status().context("cannot start python3")?;
    ensure!(figures.exists(), "the suite ended with {status} and wrote no {}", figures.display());

    let figures: Value = serde_json::from_reader(File::open(&figures)?)?;
    let checks = figures["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let passed = checks.iter().filter(|check| check["passed"] == true).count();
    let outcome = Outcome { folder, passed, failed: checks.len() - passed };
    result(&outcome, json)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed; figures and logs are in {}",
            self.passed,
            self.failed,
            self.folder.display()
        )
    }
}
