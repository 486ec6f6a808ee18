//! Shape of the code: formatting and circles of imports.

use std::process::Command;

use anyhow::Context;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::imports;
use crate::promise::{Bound, Check, Effort};

/// Crate whose calls and objects still import each other.
const SIMULATED_DRIVER: &str = "tests/simgpu/cuda";

pub(super) const CHECK: Check = Check {
    name: "code",
    effort: Effort::Counted,
    bounds: &[
        Bound::at_most("Rust files that rustfmt would change", 0.0, "files"),
        Bound::at_most(
            "circles of imports wider than one folder, without the simulated driver",
            0.0,
            "circles",
        ),
    ],
    measure: || {
        let circles = imports::count(|member| member != SIMULATED_DRIVER)?;
        let values = [unformatted(&listed("*.rs")?)?, circles];
        Ok(values.map(|count| count as f64).to_vec())
    },
};

/// Files of the repository whose names match.
pub(crate) fn listed(pattern: &str) -> anyhow::Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace())
        .args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = output_of({
        git.arg(pattern);
        git
    })?;
    let exists = |file: &&str| cargo::workspace().join(file).is_file();
    Ok(listed.lines().filter(exists).map(str::to_owned).collect())
}

/// Number of files that rustfmt would change.
fn unformatted(files: &[String]) -> anyhow::Result<usize> {
    let mut rustfmt = Command::new("rustfmt");
    rustfmt
        .current_dir(cargo::workspace())
        .args(["--check", "-l", "--edition", "2024"])
        .args(files);
    let output = rustfmt.output().context("cannot run rustfmt; is it installed?")?;
    let mut changed: Vec<&[u8]> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    changed.sort_unstable();
    changed.dedup();
    anyhow::ensure!(output.status.success() || !changed.is_empty(), "rustfmt cannot read a file");
    Ok(changed.len())
}
