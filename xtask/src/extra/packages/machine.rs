//! A machine with systemd that exists for one check: this machine's own files, changed in memory only, in
//! namespaces of their own. Docs/install.md is followed there as root.
//!
//! ```text
//!   enter.sh    mount namespace: overlay of / on a tmpfs, a control group of its own
//!   boot.sh     pid, network and cgroup namespaces: becomes systemd
//!   machine.sh  service of that systemd: installs, uses, stops and removes gpushare
//! ```
//!
//! Where namespaces or systemd are missing, the check is skipped with a line.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_tests::artifacts::Part;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use super::blocks::Blocks;
use crate::dist::Packages;
use crate::output::progress;

const SCRIPTS: [(&str, &str); 3] = [
    ("enter.sh", include_str!("enter.sh")),
    ("boot.sh", include_str!("boot.sh")),
    ("machine.sh", include_str!("machine.sh")),
];
/// Blocks of docs/install.md that machine.sh follows.
const BLOCKS: [&str; 6] = [
    "archive-with-installsh",
    "archive-with-installsh-2",
    "debian-package",
    "debian-package-2",
    "debian-package-3",
    "sessions-with-the-system's-daemon",
];
/// Longest time, in seconds, for everything that happens on the machine.
const PATIENCE: &str = "900";

pub(super) fn check(packages: &Packages, blocks: &Blocks) -> anyhow::Result<()> {
    let machine = tempfile::tempdir()?;
    let folder = machine.path();
    for (name, script) in SCRIPTS {
        fs::write(folder.join(name), script)?;
    }
    if let Err(error) = run(folder, "probe") {
        progress(format_args!("SKIPPED install.sh and the Debian package under systemd: {error:#}"));
        return Ok(());
    }
    let stage = cargo::workspace().join("target/stage");
    for part in [Part::Card, Part::SimulatedCuda, Part::SimulatedNvml] {
        fs::copy(stage.join(part.file()), folder.join(part.file()))?;
    }
    fs::rename(folder.join(Part::SimulatedCuda.file()), folder.join("libcuda.so.1"))?;
    fs::rename(folder.join(Part::SimulatedNvml.file()), folder.join("libnvidia-ml.so.1"))?;
    fs::write(folder.join("train.py"), super::super::python::SCRIPT)?;
    for file in packages.files() {
        fs::copy(&file, folder.join(file.file_name().context("a package has no name")?))?;
    }
    for name in BLOCKS {
        fs::write(folder.join(format!("{name}.sh")), blocks.get(name))?;
    }
    let ran = run(folder, "machine");
    let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
    ran.with_context(|| format!("the machine said:\n{log}"))?;
    ensure!(log.ends_with("all is well\n"), "the machine ended early:\n{log}");
    Ok(())
}

/// Starts the machine with a purpose: `machine`, or `probe` to learn whether it can be had.
fn run(folder: &Path, purpose: &str) -> anyhow::Result<()> {
    let mut enter = Command::new("timeout");
    enter.args(["--kill-after=10", PATIENCE, "unshare", "--mount", "--propagation", "private", "sh"]);
    enter.arg(folder.join("enter.sh")).arg(folder).arg(purpose);
    // systemd and dpkg are in /usr/sbin.
    let path = env::var("PATH").unwrap_or_default();
    enter.env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"));
    output_of(enter).map(drop)
}
