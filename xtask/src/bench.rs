//! `cargo xtask bench`: measures the cost of single operations, without a GPU: the driver under the library
//! does nothing.
//!
//! Times are held against something that is measured in the same run: a lookup in a hash map behind a mutex,
//! or an echo of the same message between two processes. So the bounds say more about the code than about
//! the machine. An atomic addition is no such measure: it takes 1.9 ns on one processor and more than twice as
//! long on another one that does all else as fast.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Subcommand;
use gpushare_proto::names;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};
use gpushare_workload::report::percentile;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::output::{progress, result};
use crate::promise::{Check, Promises};

mod allocate;
mod hostile;
mod hotpath;
mod instructions;
mod quota;
mod sched;
mod startup;
mod viewers;

/// Checks of all benchmarks.
pub(crate) const CHECKS: [Check; 8] = [
    instructions::CHECK,
    startup::CHECK,
    hotpath::CHECK,
    quota::CHECK,
    viewers::CHECK,
    sched::CHECK,
    allocate::CHECK,
    hostile::CHECK,
];

/// Benchmark to run.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Bench {
    /// Cost that the library adds to a launch, an allocation, a free and the lookups of a start
    Hotpath,
    /// Cost of a quota: in the process, when the last byte is at siblings, and with a thousand clients
    Quota,
    /// Cost of the page for browsers with a thousand sessions
    Viewers,
    /// Cost of an answer of the device plugin to the kubelet
    Allocate,
    /// Cost of a decision: in the core, and from a request to the open gate
    Sched,
    /// Effect of attacks of one user on the grants of a thousand sessions, and the user's share; needs root
    Hostile,
    /// Instructions of a launch, an allocation, a free and an event in the core, under callgrind
    Instructions {
        /// Write them to benches/instructions.toml, for `cargo xtask promises` to compare with
        #[arg(long)]
        write: bool,
    },
}

pub(crate) fn run(bench: &Bench, json: bool) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Hotpath => judge(&hotpath::measure()?, &hotpath::CHECK, hotpath::Hotpath::values, json),
        Bench::Quota => judge(&quota::measure()?, &quota::CHECK, quota::Quota::values, json),
        Bench::Viewers => judge(&viewers::measure()?, &viewers::CHECK, viewers::Viewers::values, json),
        Bench::Sched => judge(&sched::measure()?, &sched::CHECK, sched::Sched::values, json),
        Bench::Allocate => judge(&allocate::measure()?, &allocate::CHECK, allocate::Allocate::values, json),
        Bench::Hostile => hostile::CHECK.run(json),
        Bench::Instructions { write } => {
            let measured = instructions::measure()?;
            if *write {
                instructions::write(measured)?;
            }
            result(&measured, json)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the figures of a benchmark, and fails if one is beyond its bound.
fn judge<T: Serialize + fmt::Display>(
    measured: &T,
    check: &Check,
    values: fn(&T) -> Vec<f64>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    result(measured, json)?;
    let rows = check
        .bounds
        .iter()
        .zip(values(measured))
        .map(|(bound, value)| bound.judge(value));
    Ok(Promises { rows: rows.collect() }.exit_code())
}

/// Release builds of everything, in a world whose driver does nothing.
struct Rig {
    world: World,
    /// Folder of that driver.
    driver: PathBuf,
    built: BTreeMap<String, PathBuf>,
}

/// Cost of one call, as a process of `benches/src/hotpath.rs` prints it.
#[derive(Deserialize)]
struct Call {
    call_ns: f64,
    #[serde(default)]
    free_ns: f64,
    /// File in which the called function is.
    library: String,
}

impl Rig {
    fn build() -> anyhow::Result<Self> {
        progress("building in release");
        let artifacts = Artifacts::build(Profile::Release, Progress::Shown)?;
        let built = cargo::build(&["gpushare-benches"], Profile::Release, Progress::Shown)?;
        let world = World::on_this_machine(&artifacts)?;
        let driver = world.folder().join("noop");
        fs::create_dir(&driver)?;
        symlink(&built["noopcuda"], driver.join("libcuda.so.1"))?;
        Ok(Self { world, driver, built })
    }

    /// The program that makes calls, on the driver that does nothing.
    fn caller(&self, sharing: &Sharing, arguments: &[&str]) -> Command {
        let mut command = self.world.sharing(sharing, &self.built["hotpath"]);
        command
            .env("LD_LIBRARY_PATH", &self.driver)
            .env(names::BACKEND, "managed")
            .args(arguments);
        command
    }

    /// CPU time of a lookup in a hash map of a thousand numbers behind a mutex, in nanoseconds.
    fn map_ns(&self) -> anyhow::Result<f64> {
        let runs = (0..RUNS).map(|_| {
            let run: Call = parsed(self.caller(&Sharing::Native, &["--call", "map"]))?;
            Ok(run.call_ns)
        });
        Ok(median(runs.collect::<anyhow::Result<Vec<_>>>()?))
    }

    /// The program that speaks the library's protocol, with the pid of the daemon that it measures.
    fn peer_of(&self, what: &str, daemon: &Daemon) -> Command {
        let mut command = self.world.program(&self.built["daemon"]);
        command.arg(what).arg("--socket").arg(self.world.runtime_dir().tenant_socket());
        command.arg("--daemon").arg(daemon.process().pid().to_string());
        command
    }
}

/// Runs of what takes no time; the median counts.
const RUNS: usize = 5;

/// Reads the line of JSON that a program prints.
fn parsed<T: DeserializeOwned>(command: Command) -> anyhow::Result<T> {
    let line = output_of(command)?;
    serde_json::from_str(&line).with_context(|| format!("no measurement: {line}"))
}

/// Proves that the called function was the library's, or was not.
fn ensure_hooked(library: &str, expected: bool) -> anyhow::Result<()> {
    ensure!((library == Part::Library.file()) == expected, "the call was {library}'s");
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    percentile(&figures, 50)
}

/// A figure in tenths.
fn tenths(figure: f64) -> f64 {
    (figure * 10.0).round() / 10.0
}
