//! Instructions of a launch through an open gate, an allocation, a free, and an event in the core, counted
//! by callgrind and compared with `benches/instructions.toml`, so that a change that costs more is noticed.
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
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_proto::names;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};
use serde::{Deserialize, Serialize};

use crate::output::progress;
use crate::promise::{Bound, Check, Effort};
use crate::shipped;
use crate::tools;

/// Turns of the program: each is one call of each kind.
const CALLS: u64 = 1000;
/// Part by which a count may differ from the one that is written down.
const TOLERANCE: f64 = 0.03;
/// Rounds of events of the core: each is five events.
const ROUNDS: u64 = 2000;

const HEADER: &str = "\
# Instructions of one call, from the program to a driver that does nothing and back, counted by callgrind.
# Written by `cargo xtask bench instructions --write`; `cargo xtask promises` compares.

";

/// Instructions of one call of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instructions {
    /// `cuLaunchKernel` while the gate is open.
    launch: u64,
    /// `cuMemAlloc` while the lease suffices.
    allocate: u64,
    /// `cuMemFree`.
    free: u64,
    /// An event that the core handles for 1000 sessions on 8 cards.
    event: u64,
}

pub(super) const CHECK: Check = Check {
    name: "instructions",
    effort: Effort::Counted,
    bounds: &[
        Bound::near("instructions of a launch / those of benches/instructions.toml", 1.0, TOLERANCE, "×"),
        Bound::near(
            "instructions of an allocation / those of benches/instructions.toml",
            1.0,
            TOLERANCE,
            "×",
        ),
        Bound::near("instructions of a free / those of benches/instructions.toml", 1.0, TOLERANCE, "×"),
        Bound::near(
            "instructions of an event in the core / those of benches/instructions.toml",
            1.0,
            0.05,
            "×",
        ),
    ],
    measure: || {
        let expected =
            fs::read_to_string(file()).with_context(|| format!("cannot read {}", file().display()))?;
        let expected: Instructions =
            toml::from_str(&expected).with_context(|| format!("cannot understand {}", file().display()))?;
        let measured = measure()?;
        let ratios = measured.counts().into_iter().zip(expected.counts());
        let ratios: Vec<f64> = ratios.map(|(measured, expected)| measured as f64 / expected as f64).collect();
        if ratios.iter().any(|ratio| (ratio - 1.0).abs() > TOLERANCE) {
            progress(format_args!(
                "{measured}; {} says: {expected}. If that is meant to be, better or worse, run `cargo xtask bench \
                 instructions --write` and say why in the commit",
                file().display()
            ));
        }
        Ok(ratios)
    },
};

/// Counts them in what users get.
///
/// # Errors
/// Valgrind is missing and cannot be installed, something does not compile, or the program fails.
pub(super) fn measure() -> anyhow::Result<Instructions> {
    tools::need("valgrind", "valgrind")?;
    let built = shipped::build_counted()?;
    let artifacts = Artifacts::from_targets(built.clone())?;
    let world = World::on_this_machine(&artifacts)?;
    let driver = world.folder().join("noop");
    fs::create_dir(&driver)?;
    symlink(&built["noopcuda"], driver.join("libcuda.so.1"))?;
    let _daemon = Daemon::start(&world, &[])?;
    let count = |call: &str| count(&world, &driver, &built["instructions"], call);
    Ok(Instructions {
        launch: count("launch")?,
        allocate: count("allocate")?,
        free: count("free")?,
        event: event(&world, &built["daemon"])?,
    })
}

/// Writes them down, for later changes to be compared with.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(measured: Instructions) -> anyhow::Result<()> {
    let text = format!("{HEADER}{}", toml::to_string(&measured)?);
    fs::write(file(), text).with_context(|| format!("cannot write {}", file().display()))
}

fn file() -> PathBuf {
    cargo::workspace().join("benches/instructions.toml")
}

/// Instructions of one `call`, one of those that the program has a function `counted_CALL` for.
fn count(world: &World, driver: &Path, program: &Path, call: &str) -> anyhow::Result<u64> {
    let mut valgrind = world.sharing(&Sharing::Preload, Path::new("valgrind"));
    // Without the daemon something else would be counted.
    valgrind
        .env("LD_LIBRARY_PATH", driver)
        .env(names::REQUIRED, "1")
        .env(names::BACKEND, "managed");
    let counts = callgrind(world, valgrind, call, program, &["--calls", &CALLS.to_string()])?;
    ensure!(counts.contains(Part::Library.file()), "the {call} did not go through {}", Part::Library.file());
    Ok(total(&counts)? / CALLS)
}

/// Instructions of one event in the core.
fn event(world: &World, program: &Path) -> anyhow::Result<u64> {
    let valgrind = world.program("valgrind".as_ref());
    let counts = callgrind(world, valgrind, "event", program, &["core", "--rounds", &ROUNDS.to_string()])?;
    Ok(total(&counts)? / (5 * ROUNDS))
}

/// Counts of the program's first thread inside its function `counted_CALL`.
fn callgrind(
    world: &World,
    mut valgrind: Command,
    call: &str,
    program: &Path,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let counts = world.folder().join(call);
    valgrind
        .args(["--tool=callgrind", "--separate-threads=yes"])
        .arg(format!("--toggle-collect=counted_{call}"))
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(program)
        .args(arguments);
    output_of(valgrind)?;
    // Callgrind numbers threads from the first, which is the program's own.
    Ok(fs::read_to_string(world.folder().join(format!("{call}-01")))?)
}

/// The instructions that callgrind counted in all.
fn total(counts: &str) -> anyhow::Result<u64> {
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = total.context("callgrind printed no totals")?;
    total.trim().parse().context("callgrind's total is no number")
}

impl Instructions {
    fn counts(self) -> [u64; 4] {
        [self.launch, self.allocate, self.free, self.event]
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { launch, allocate, free, event } = self;
        write!(
            f,
            "a launch takes {launch} instructions, an allocation {allocate}, a free {free}, an event in the core {event}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_total_is_found_among_its_lines() {
        assert_eq!(total("events: Ir\nfn=(1) x\n12 7\ntotals: 108004\n").unwrap(), 108_004);
        assert!(total("events: Ir\n").is_err());
    }
}
