//! Source of the programs under test: cargo builds them, or they lie beside this program.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::cargo::{self, Profile, Progress};

use crate::output::progress;

/// Release builds of everything, for measurements.
pub(crate) fn release() -> anyhow::Result<Artifacts> {
    built(Profile::Release, "in release (some minutes the first time)")
}

/// Debug builds of everything, which are ready sooner and share their dependencies with this program.
pub(crate) fn debug() -> anyhow::Result<Artifacts> {
    built(Profile::Dev, "the daemon, the library and the simulated card (about a minute the first time)")
}

/// Run by cargo, it builds; run from a stage, on a machine that may have no Rust, it takes those in its own
/// folder.
fn built(profile: Profile, what: &str) -> anyhow::Result<Artifacts> {
    if by_cargo() {
        progress(format_args!("building {what}"));
        Artifacts::build(profile, Progress::Shown)
    } else {
        Artifacts::beside(&own_folder()?)
    }
}

/// Where results go unless a flag says otherwise: `target` of the workspace, or the stage itself.
pub(crate) fn results_folder() -> anyhow::Result<PathBuf> {
    if !by_cargo() {
        return own_folder();
    }
    // Cargo may build elsewhere.
    let folder = cargo::workspace().join("target");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

fn by_cargo() -> bool {
    env::var_os("CARGO").is_some()
}

fn own_folder() -> anyhow::Result<PathBuf> {
    let own = env::current_exe().context("cannot find this program's own folder")?;
    Ok(own.parent().unwrap_or(&own).to_owned())
}
