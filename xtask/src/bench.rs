//! `cargo xtask bench`: one measurement each.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Subcommand;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};
use gpushare_workload::report::percentile;
use serde::{Deserialize, Serialize};

use crate::extra::instructions;
use crate::output::{progress, result};

/// What to measure.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Bench {
    /// What the hook and an open gate add to a launch that does nothing
    Hotpath,
    /// Instructions of a launch, an allocation and a free, under callgrind
    Instructions {
        /// Write them down in benches/instructions.toml, for `ci-extra` to compare with
        #[arg(long)]
        write: bool,
    },
}

pub(crate) fn run(bench: &Bench, json: bool) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Hotpath => result(&hotpath()?, json)?,
        Bench::Instructions { write } => {
            let measured = instructions::measure()?;
            if *write {
                instructions::write(measured)?;
            }
            result(&measured, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// CPU nanoseconds that one call costs more with the preload than without it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Hotpath {
    gate_ns: f64,
    gate_ns_8_threads: f64,
}

/// What one process of the bench prints.
#[derive(Deserialize)]
struct Call {
    call_ns: f64,
    library: String,
}

/// Pairs of runs, without and with, one after the other so that a slow minute of the machine hits both.
const PAIRS: usize = 7;

fn hotpath() -> anyhow::Result<Hotpath> {
    progress("building in release");
    let artifacts = Artifacts::build(Profile::Release, Progress::Shown)?;
    let built = cargo::build(&["gpushare-benches"], Profile::Release, Progress::Shown)?;
    let world = World::on_this_machine(&artifacts)?;
    let driver = world.folder().join("noop");
    fs::create_dir(&driver)?;
    symlink(&built["noopcuda"], driver.join("libcuda.so.1"))?;

    let call = |sharing: &Sharing, threads: &str| -> anyhow::Result<f64> {
        let mut command = world.sharing(sharing, &built["hotpath"]);
        command
            .env("LD_LIBRARY_PATH", &driver)
            .args(["--threads", threads]);
        let line = output_of(command)?;
        let call: Call = serde_json::from_str(&line).with_context(|| format!("no measurement: {line}"))?;
        let hooked = call.library == Part::Library.file();
        ensure!(
            hooked == (*sharing == Sharing::Preload),
            "the launch was {}'s",
            call.library
        );
        Ok(call.call_ns)
    };
    let added = |threads: &str| -> anyhow::Result<f64> {
        progress(format_args!("measuring {threads} at once"));
        let mut differences = Vec::new();
        for _ in 0..PAIRS {
            differences.push(call(&Sharing::Preload, threads)? - call(&Sharing::Native, threads)?);
        }
        differences.sort_by(f64::total_cmp);
        Ok((percentile(&differences, 50) * 10.0).round() / 10.0)
    };
    let (gate_ns, gate_ns_8_threads) = (added("1")?, added("8")?);
    Ok(Hotpath {
        gate_ns,
        gate_ns_8_threads,
    })
}

impl fmt::Display for Hotpath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gate_ns,
            gate_ns_8_threads,
        } = self;
        write!(
            f,
            "an open gate adds {gate_ns} ns to a launch, {gate_ns_8_threads} ns of CPU time with 8 threads at once"
        )
    }
}
