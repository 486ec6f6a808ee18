//! The tools of others that checks need.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::output::progress;

/// Makes sure that `program` can be run, by apt-get if it is not there.
pub(crate) fn need(program: &str, package: &str) -> anyhow::Result<()> {
    if is_there(program) {
        return Ok(());
    }
    progress(format_args!("installing {package}"));
    let mut install = Command::new("apt-get");
    // Another check may install something too.
    install.args(["--option", "DPkg::Lock::Timeout=300", "install", "--yes", "--quiet", package]);
    output_of(install).with_context(|| format!("{program} is missing; install {package}"))?;
    Ok(())
}

/// The interpreter of an environment of its own, below `target/`.
pub(crate) fn python() -> anyhow::Result<PathBuf> {
    need("python3", "python3-venv")?;
    let folder = cargo::workspace().join("target/python");
    let python = folder.join("bin/python");
    if !python.is_file() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(&folder);
        output_of(venv)?;
    }
    Ok(python)
}

/// `pip install`, which does nothing where a package is there already.
pub(crate) fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip
}

fn is_there(program: &str) -> bool {
    let mut version = Command::new(program);
    version.arg("--version");
    output_of(version).is_ok()
}
