//! How many instructions a launch through an open gate, an allocation and a free take, counted by callgrind
//! and held against what is written down, so that no change makes them slower unseen.
//!
//! ```text
//!   callgrind ─▶ instructions ─▶ libgpushare.so ─▶ libcuda that does nothing
//!   (benches/)   1000 turns            ╎ page, lease
//!                               a real daemon
//! ```
//!
//! Only the program's own thread counts, and only inside the function that makes the call: start-up, other
//! threads and the daemon leave no trace, so the same build counts the same every time. What another
//! compiler changes, the tolerance absorbs.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use gpushare_proto::names;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Progress};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};
use serde::{Deserialize, Serialize};

use crate::shipped;
use crate::tools;

/// Turns of the program: each is one call of each kind.
const CALLS: u64 = 1000;
/// What a count may differ from the one that is written down.
const TOLERANCE_PERCENT: u64 = 3;

const HEADER: &str = "\
# Instructions of one call, from the program to a driver that does nothing and back, counted by callgrind.
# Written by `cargo xtask bench instructions --write`; `cargo xtask ci-extra` compares.

";

/// Instructions of one call of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Instructions {
    /// `cuLaunchKernel` while the gate is open.
    launch: u64,
    /// `cuMemAlloc` while the lease suffices.
    allocate: u64,
    /// `cuMemFree`.
    free: u64,
}

pub(super) fn check() -> anyhow::Result<()> {
    let written = fs::read_to_string(file()).with_context(|| format!("cannot read {}", file().display()))?;
    let written: Instructions =
        toml::from_str(&written).with_context(|| format!("cannot understand {}", file().display()))?;
    compare(written, measure()?)
}

/// Counts them in what users get.
///
/// # Errors
/// Valgrind is missing and cannot be installed, something does not compile, or the program fails.
pub(crate) fn measure() -> anyhow::Result<Instructions> {
    tools::need("valgrind", "valgrind")?;
    let built = shipped::build(Progress::Hidden)?;
    let artifacts = Artifacts::from_targets(built.clone())?;
    let world = World::on_this_machine(&artifacts)?;
    let driver = world.folder().join("noop");
    fs::create_dir(&driver)?;
    symlink(&built["noopcuda"], driver.join("libcuda.so.1"))?;
    let _daemon = Daemon::start(&world, &[])?;
    let count = |call: &str| count(&world, &driver, &built["instructions"], call);
    Ok(Instructions { launch: count("launch")?, allocate: count("allocate")?, free: count("free")? })
}

/// Writes them down, for later changes to be compared with.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(measured: Instructions) -> anyhow::Result<()> {
    let text = format!("{HEADER}{}", toml::to_string(&measured)?);
    fs::write(file(), text).with_context(|| format!("cannot write {}", file().display()))
}

fn file() -> PathBuf {
    cargo::workspace().join("benches/instructions.toml")
}

/// Instructions of one `call`, one of those that the program has a function `counted_CALL` for.
fn count(world: &World, driver: &Path, program: &Path, call: &str) -> anyhow::Result<u64> {
    let counts = world.folder().join(call);
    let mut valgrind = world.sharing(&Sharing::Preload, Path::new("valgrind"));
    valgrind
        .env("LD_LIBRARY_PATH", driver)
        // Without the daemon something else would be counted.
        .env(names::REQUIRED, "1")
        .args(["--tool=callgrind", "--separate-threads=yes"])
        .arg(format!("--toggle-collect=counted_{call}"))
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(program)
        .args(["--calls", &CALLS.to_string()]);
    output_of(valgrind)?;

    // Callgrind numbers threads from the first, which is the program's own.
    let counts = fs::read_to_string(world.folder().join(format!("{call}-01")))?;
    ensure!(counts.contains(Part::Library.file()), "the {call} did not go through {}", Part::Library.file());
    Ok(total(&counts)? / CALLS)
}

/// The instructions that callgrind counted in all.
fn total(counts: &str) -> anyhow::Result<u64> {
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.context("callgrind printed no totals")?;
    total.trim().parse().context("callgrind's total is no number")
}

fn compare(written: Instructions, measured: Instructions) -> anyhow::Result<()> {
    let off = |written: u64, measured: u64| written.abs_diff(measured) * 100 > written * TOLERANCE_PERCENT;
    let same = !off(written.launch, measured.launch)
        && !off(written.allocate, measured.allocate)
        && !off(written.free, measured.free);
    ensure!(
        same,
        "{measured}; written down: {written}. If that is meant to be, better or worse, run `cargo xtask \
         bench instructions --write` and say why in the commit"
    );
    Ok(())
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { launch, allocate, free } = self;
        write!(f, "a launch takes {launch} instructions, an allocation {allocate}, a free {free}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: Instructions = Instructions { launch: 100, allocate: 500, free: 400 };

    #[test]
    fn a_few_instructions_more_or_less_are_the_compilers() {
        let measured = Instructions { launch: 103, allocate: 485, ..WRITTEN };
        compare(WRITTEN, measured).unwrap();
    }

    #[test]
    fn more_and_fewer_are_both_told_with_what_to_do() {
        for free in [387, 413] {
            let error = compare(WRITTEN, Instructions { free, ..WRITTEN }).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(&format!("a free {free}; written down:")), "{error}");
            assert!(error.contains("`cargo xtask bench instructions --write`"), "{error}");
        }
    }

    #[test]
    fn callgrinds_total_is_found_among_its_lines() {
        assert_eq!(total("events: Ir\nfn=(1) x\n12 7\ntotals: 108004\n").unwrap(), 108_004);
        assert!(total("events: Ir\n").is_err());
    }
}
