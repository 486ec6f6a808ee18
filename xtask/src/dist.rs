//! `cargo xtask dist`: the packages for users, in `target/dist`, from the release builds for old systems.
//!
//! ```text
//!   shipped builds ─┐             ┌─▶ gpushare-V-ARCH-linux.tar.gz   with install.sh
//!   manual pages    ├─▶ contents ─┼─▶ gpushare-V-py3-none-….whl
//!   completions     │             └─▶ gpushare_V_ARCH.deb
//!   units, licence  │                 SHA256SUMS
//!   ctl/jupyter ────┴───────────────▶ gpushare_jupyter-V-py3-none-any.whl, also within the others
//!   shipped builds, device plugin ──▶ gpushare-node-V-ARCH-linux.tar.gz  for k8s/image/Dockerfile
//! ```
//!
//! The same programs give the same bytes. The time in the packages is that of
//! `SOURCE_DATE_EPOCH`, else that of the last commit.

mod contents;
mod deb;
pub(crate) mod jupyter;
#[cfg(test)]
mod installer;
pub(crate) mod node;
mod tarball;
mod tree;
mod wheel;

use std::env;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use gpushare_proto::Bytes;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use self::contents::Binaries;
use crate::output::{progress, result};

/// Version of all packages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// One line of description.
const SUMMARY: &str = "share NVIDIA GPUs among many processes";
/// Earliest time that a package format can hold, for sources outside of git: 1 January 1980.
const EARLIEST: u64 = 315_532_800;

/// Options of `cargo xtask dist`.
#[derive(Args)]
pub(crate) struct Options {
    /// Machine that the packages are for: x86_64 or aarch64 [default: this machine's kind]
    #[arg(long, value_name = "ARCH", default_value = env::consts::ARCH, hide_default_value = true)]
    architecture: String,
}

/// Packages of one architecture.
#[derive(Debug, Serialize)]
pub(crate) struct Packages {
    folder: PathBuf,
    tarball: Package,
    wheel: Package,
    deb: Package,
    /// Wheel of the IPython extension.
    jupyter: Package,
    /// Files of the image of a cluster's nodes, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<Package>,
}

/// Whether the archive for the image of a cluster's nodes is made, which needs another build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForNodes {
    Made,
    LeftOut,
}

/// Packages that are made together, each as a file of a folder.
struct Batch<'a> {
    folder: &'a Path,
    architecture: &'a str,
    binaries: &'a Binaries,
    /// Time of all files, in seconds since 1970.
    time: u64,
}

#[derive(Debug, Serialize)]
struct Package {
    name: String,
    bytes: Bytes,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    result(&build(&options.architecture, ForNodes::Made)?, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the packages for an architecture.
pub(crate) fn build(architecture: &str, for_nodes: ForNodes) -> anyhow::Result<Packages> {
    let binaries = Binaries::build(architecture)?;
    let folder = cargo::workspace().join("target/dist");
    fs::create_dir_all(&folder)?;
    let batch = Batch { folder: &folder, architecture, binaries: &binaries, time: time()? };
    progress("writing the packages");
    let package = |name: String| {
        let bytes = Bytes(fs::metadata(folder.join(&name))?.len());
        Ok::<_, anyhow::Error>(Package { name, bytes })
    };
    fs::write(folder.join(jupyter::name()), jupyter::bytes()?)?;
    let packages = Packages {
        tarball: package(tarball::write(&batch)?)?,
        wheel: package(wheel::write(&batch)?)?,
        deb: package(deb::write(&batch)?)?,
        jupyter: package(jupyter::name())?,
        node: match for_nodes {
            ForNodes::Made => Some(package(node::write(&batch)?)?),
            ForNodes::LeftOut => None,
        },
        folder: folder.clone(),
    };
    fs::write(folder.join("SHA256SUMS"), checksums(&folder)?)?;
    Ok(packages)
}

/// Time in the packages, in seconds since 1970.
fn time() -> anyhow::Result<u64> {
    if let Ok(epoch) = env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().with_context(|| {
            format!("SOURCE_DATE_EPOCH is `{epoch}`, which is no number of seconds since 1970")
        });
    }
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace()).args(["log", "-1", "--format=%ct"]);
    Ok(output_of(git)
        .ok()
        .and_then(|time| time.trim().parse().ok())
        .unwrap_or(EARLIEST))
}

/// Checksums of all packages of this version in the folder, in the form of sha256sum(1).
fn checksums(folder: &Path) -> anyhow::Result<String> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let names = entries
        .into_iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let of_this_version = [
        format!("gpushare-{VERSION}-"),
        format!("gpushare_{VERSION}_"),
        format!("gpushare-node-{VERSION}-"),
        jupyter::name(),
    ];
    let mut names: Vec<String> = names
        .filter(|name| of_this_version.iter().any(|start| name.starts_with(start)))
        .collect();
    names.sort();
    let mut sums = String::new();
    for name in names {
        let bytes = fs::read(folder.join(&name))?;
        let _ = writeln!(sums, "{}  {name}", checksum(&Sha256::digest(bytes)));
    }
    Ok(sums)
}

/// A digest in hexadecimal digits.
fn checksum(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Packages {
    /// Paths of all packages.
    pub(crate) fn files(&self) -> [PathBuf; 4] {
        [&self.tarball, &self.wheel, &self.deb, &self.jupyter].map(|package| self.folder.join(&package.name))
    }

    /// Path of the wheel.
    pub(crate) fn wheel(&self) -> PathBuf {
        self.folder.join(&self.wheel.name)
    }

    /// Name of the folder in the archive.
    pub(crate) fn archive_folder(&self) -> String {
        self.tarball.name.trim_end_matches(".tar.gz").to_owned()
    }
}

impl fmt::Display for Packages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let always = [&self.tarball, &self.wheel, &self.deb, &self.jupyter];
        for package in always.into_iter().chain(&self.node) {
            writeln!(f, "{:>10}  {}", package.bytes, package.name)?;
        }
        write!(f, "in {}", self.folder.display())
    }
}
