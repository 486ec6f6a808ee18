//! Where the programs come from: cargo builds them, or they lie beside this one.

use std::env;
use std::path::PathBuf;

use anyhow::Context;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::cargo::{self, Profile, Progress};

use crate::output::progress;

/// Release builds of everything. Run by cargo, it builds them; run from a stage, on a machine that may
/// have no Rust, it takes those in its own folder.
pub(crate) fn release() -> anyhow::Result<Artifacts> {
    if by_cargo() {
        progress("building in release (a minute or two the first time)");
        Artifacts::build(Profile::Release, Progress::Shown)
    } else {
        Artifacts::beside(&own_folder()?)
    }
}

/// Where results go unless a flag says otherwise: `target` of the workspace, or the stage itself.
pub(crate) fn results_folder() -> anyhow::Result<PathBuf> {
    if by_cargo() { Ok(cargo::workspace().join("target")) } else { own_folder() }
}

fn by_cargo() -> bool {
    env::var_os("CARGO").is_some()
}

fn own_folder() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find this program's own folder")?;
    Ok(own.parent().unwrap_or(&own).to_owned())
}
