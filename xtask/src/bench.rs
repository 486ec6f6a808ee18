//! `cargo xtask bench`: one measurement each.

mod quota;
mod sched;

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, ensure};
use clap::Subcommand;
use gpushare_proto::names;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::{Process, output_of};
use gpushare_tests::world::{Sharing, World};
use gpushare_workload::report::percentile;
use serde::{Deserialize, Serialize};

use crate::extra::instructions;
use crate::output::{progress, result};

/// What to measure.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Bench {
    /// What we add to a launch, an allocation, a free and the lookups of a start, where the driver does nothing
    Hotpath,
    /// What a quota costs: in the process, when the last byte is at siblings, and with a thousand clients
    Quota,
    /// What a decision costs: in the core, and from a request to the open gate
    Sched,
    /// Instructions of a launch, an allocation and a free, under callgrind
    Instructions {
        /// Write them down in benches/instructions.toml, for `ci-extra` to compare with
        #[arg(long)]
        write: bool,
    },
}

pub(crate) fn run(bench: &Bench, json: bool) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Hotpath => {
            let measured = hotpath()?;
            result(&measured, json)?;
            measured.hold()?;
        }
        Bench::Quota => {
            let measured = quota::measure()?;
            result(&measured, json)?;
            measured.hold()?;
        }
        Bench::Sched => {
            let measured = sched::measure()?;
            result(&measured, json)?;
            measured.hold()?;
        }
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

/// CPU time that calls cost more with the preload than without it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Hotpath {
    gate_ns: f64,
    gate_ns_8_threads: f64,
    /// A launch while another session has a context: counted, and a marker every W/8.
    window_ns: f64,
    /// `cuMemAlloc` while the lease suffices.
    alloc_ns: f64,
    /// `cuMemFree` of that.
    free_ns: f64,
    /// The lookups that libcudart makes when it starts, together.
    resolve_us: f64,
}

/// What each may be at most.
const BOUNDS: Hotpath = Hotpath {
    gate_ns: 100.0,
    gate_ns_8_threads: 100.0,
    window_ns: 300.0,
    alloc_ns: 150.0,
    free_ns: 150.0,
    resolve_us: 1000.0,
};

/// What one process of the bench prints.
#[derive(Deserialize)]
struct Call {
    call_ns: f64,
    #[serde(default)]
    free_ns: f64,
    library: String,
}

/// Pairs of runs, without and with, one after the other so that a slow minute of the machine hits both.
const PAIRS: usize = 7;
/// The same for what a process does once.
const STARTS: usize = 25;

fn hotpath() -> anyhow::Result<Hotpath> {
    progress("building in release");
    let artifacts = Artifacts::build(Profile::Release, Progress::Shown)?;
    let built = cargo::build(&["gpushare-benches"], Profile::Release, Progress::Shown)?;
    let world = World::on_this_machine(&artifacts)?;
    let driver = world.folder().join("noop");
    fs::create_dir(&driver)?;
    symlink(&built["noopcuda"], driver.join("libcuda.so.1"))?;

    let call = |sharing: &Sharing, arguments: &[&str], required: bool| -> anyhow::Result<Call> {
        let mut command = world.sharing(sharing, &built["hotpath"]);
        command.env("LD_LIBRARY_PATH", &driver).args(arguments);
        if required {
            // Without the daemon something else would be measured.
            command.env(names::REQUIRED, "1");
        }
        let line = output_of(command)?;
        let call: Call = serde_json::from_str(&line).with_context(|| format!("no measurement: {line}"))?;
        let hooked = call.library == Part::Library.file();
        ensure!(hooked == (*sharing == Sharing::Preload), "the call was {}'s", call.library);
        Ok(call)
    };
    let added = |pairs: usize, arguments: &[&str], required: bool| -> anyhow::Result<(f64, f64)> {
        progress(format_args!("measuring {}", arguments.join(" ")));
        let (mut calls, mut frees) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let with = call(&Sharing::Preload, arguments, required)?;
            let without = call(&Sharing::Native, arguments, required)?;
            calls.push(with.call_ns - without.call_ns);
            frees.push(with.free_ns - without.free_ns);
        }
        let median = |differences: &mut [f64]| {
            differences.sort_by(f64::total_cmp);
            (percentile(differences, 50) * 10.0).round() / 10.0
        };
        Ok((median(&mut calls), median(&mut frees)))
    };
    let (gate_ns, _) = added(PAIRS, &["--threads", "1"], false)?;
    let (gate_ns_8_threads, _) = added(PAIRS, &["--threads", "8"], false)?;
    let (resolve_ns, _) = added(STARTS, &["--call", "resolve"], false)?;
    let _daemon = Daemon::start(&world, &[])?;
    let (alloc_ns, free_ns) = added(PAIRS, &["--call", "memory", "--batches", "5000"], true)?;
    let (window_ns, _) = {
        let _rival = rival(&world, &driver, &built["hotpath"])?;
        added(PAIRS, &["--threads", "1", "--context"], true)?
    };
    Ok(Hotpath {
        gate_ns,
        gate_ns_8_threads,
        window_ns,
        alloc_ns,
        free_ns,
        resolve_us: (resolve_ns / 100.0).round() / 10.0,
    })
}

/// A process of another session that has a context, until it is dropped.
fn rival(world: &World, driver: &Path, program: &Path) -> anyhow::Result<Process> {
    let mut command = world.sharing(&Sharing::session("rival"), program);
    command
        .env("LD_LIBRARY_PATH", driver)
        .args(["--call", "hold"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut rival = Process::start(command, world.folder(), "rival")?;
    let stdout = rival.take_stdout().context("the rival has no stdout")?;
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready)?;
    ensure!(!ready.is_empty(), "the rival has no context: {}", rival.stderr().trim());
    Ok(rival)
}

impl Hotpath {
    /// Each figure with its name and unit.
    fn figures(&self) -> [(&'static str, f64, &'static str); 6] {
        [
            ("an open gate", self.gate_ns, "ns"),
            ("an open gate with 8 threads at once", self.gate_ns_8_threads, "ns"),
            ("a launch through the window", self.window_ns, "ns"),
            ("an allocation", self.alloc_ns, "ns"),
            ("a free", self.free_ns, "ns"),
            ("the lookups of a start", self.resolve_us, "us"),
        ]
    }

    /// Whether no figure is above its bound.
    fn hold(&self) -> anyhow::Result<()> {
        let bounded = self.figures().into_iter().zip(BOUNDS.figures());
        within(bounded.map(|((what, measured, unit), (_, bound, _))| {
            let sentence = format!("{what} costs {measured} {unit}, at most {bound} are allowed");
            (measured, bound, sentence)
        }))
    }
}

/// Whether no figure is above its bound: each figure with its bound and what is said if it is.
fn within(figures: impl Iterator<Item = (f64, f64, String)>) -> anyhow::Result<()> {
    let broken = figures.filter(|(measured, bound, _)| measured > bound);
    let broken: Vec<String> = broken.map(|(.., sentence)| sentence).collect();
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    Ok(())
}

impl fmt::Display for Hotpath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gate_ns, gate_ns_8_threads, window_ns, alloc_ns, free_ns, resolve_us } = self;
        write!(
            f,
            "an open gate adds {gate_ns} ns to a launch, {gate_ns_8_threads} ns of CPU time with 8 threads at once, {window_ns} ns through the window; an \
             allocation costs {alloc_ns} ns more, a free {free_ns} ns, the lookups of a start {resolve_us} us"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_bound_is_named_with_both() {
        BOUNDS.hold().unwrap();
        let slow = Hotpath { free_ns: 151.5, ..BOUNDS };
        let error = slow.hold().unwrap_err().to_string();
        assert_eq!(error, "a free costs 151.5 ns, at most 150 are allowed");
    }
}
