//! `cargo xtask soak`: the core's property tests with as many schedules as one has time for, and its searches deeper than in CI.
//!
//! Each seed draws [`CHUNK`] schedules, and one after the other is given to as many processes as there are cores. What fails is told
//! with its seed, how to do it again, and the smallest schedule that still fails. The tests are those of a debug build, in which
//! the core is optimised and no overflow passes unseen.

use std::fmt;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use gpushare_tests::cargo;
use serde::Serialize;

use crate::output::{progress, result};

/// Schedules of one seed.
const CHUNK: u64 = 5_000;
/// A case of these takes as long as hundreds of schedules, so there are fewer of them (`tests/drawn.rs`): for 5,000 schedules, three
/// of each.
const LIVENESS: u64 = 200;

/// How many, and which.
#[derive(Args)]
pub(crate) struct Options {
    /// Random schedules
    #[arg(long, default_value_t = 1_000_000)]
    schedules: u64,
    /// The first 5,000 are those of this seed, the next those of the one after it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Without the searches
    #[arg(long)]
    no_search: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    schedules: u64,
    first_seed: u64,
    seconds: u64,
    failures: Vec<Failure>,
}

#[derive(Debug, Serialize)]
struct Failure {
    /// What to run.
    again: String,
    /// What the test said.
    said: String,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    build()?;
    let begun = Instant::now();
    let failures = Mutex::new(Vec::new());
    if !options.no_search {
        search(&failures)?;
    }
    draw(options, begun, &failures)?;
    let report = Report {
        schedules: options.schedules,
        first_seed: options.seed,
        seconds: begun.elapsed().as_secs(),
        failures: failures.into_inner().unwrap_or_else(PoisonError::into_inner),
    };
    result(&report, json)?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The core's tests whose names contain this; arguments of the test program can follow.
fn tests(filter: &str) -> Command {
    let mut cargo = cargo::cargo();
    cargo
        .args(["test", "--quiet", "--package", "gpushare-core", "--lib", filter])
        .env("RUST_BACKTRACE", "0")
        .env_remove("PROPTEST_CASES")
        .env_remove("PROPTEST_RNG_SEED");
    cargo
}

fn build() -> anyhow::Result<()> {
    progress("building the core's tests");
    let mut cargo = tests("");
    cargo.arg("--no-run");
    let status = cargo.status().context("cannot run cargo")?;
    ensure!(status.success(), "the core's tests do not build");
    Ok(())
}

fn search(failures: &Mutex<Vec<Failure>>) -> anyhow::Result<()> {
    progress("searching gangs over two cards");
    let mut search = tests("deeper_");
    search.args(["--", "--ignored"]);
    let again = "cargo test -p gpushare-core deeper_ -- --ignored".to_owned();
    judge(search, again, failures)
}

/// Seed after seed, on all cores.
fn draw(options: &Options, begun: Instant, failures: &Mutex<Vec<Failure>>) -> anyhow::Result<()> {
    let (drawn, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || -> anyhow::Result<()> {
        loop {
            let from = drawn.fetch_add(CHUNK, Ordering::Relaxed);
            let count = options.schedules.saturating_sub(from).min(CHUNK);
            if count == 0 {
                return Ok(());
            }
            chunk(options.seed + from / CHUNK, count, failures)?;
            let done = done.fetch_add(count, Ordering::Relaxed) + count;
            progress(format_args!(
                "{done} of {} schedules in {} s, {} failures",
                options.schedules,
                begun.elapsed().as_secs(),
                lock(failures).len()
            ));
        }
    };
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn chunk(seed: u64, count: u64, failures: &Mutex<Vec<Failure>>) -> anyhow::Result<()> {
    for (filter, cases) in [("whatever_happens", count), ("liveness", (count * LIVENESS).div_ceil(CHUNK))] {
        let (cases, seed_text) = (cases.to_string(), seed.to_string());
        let mut drawn = tests(filter);
        drawn.env("PROPTEST_CASES", cases).env("PROPTEST_RNG_SEED", seed_text);
        let again = format!("cargo xtask soak --schedules {count} --seed {seed} --no-search");
        judge(drawn, again, failures)?;
    }
    Ok(())
}

/// Runs tests and notes what fails.
fn judge(mut tests: Command, again: String, failures: &Mutex<Vec<Failure>>) -> anyhow::Result<()> {
    let output = tests.output().context("cannot run the core's tests")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        ensure!(!said.contains("running 0 tests"), "the core has no such tests any more: {tests:?}");
        return Ok(());
    }
    let failure = Failure { again, said };
    progress(&failure);
    lock(failures).push(failure);
    Ok(())
}

fn lock(failures: &Mutex<Vec<Failure>>) -> std::sync::MutexGuard<'_, Vec<Failure>> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED; again with `{}`:\n{}", self.again, self.said.trim())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (schedules, seconds) = (self.schedules, self.seconds);
        write!(
            f,
            "{schedules} schedules from seed {} on in {seconds} s, {} failures",
            self.first_seed,
            self.failures.len()
        )
    }
}
