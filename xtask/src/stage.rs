//! `cargo xtask gpu stage`: everything that a machine with a GPU but without Rust needs, in one folder.
//!
//! All of it runs on the C library of old systems (`shipped.rs`); how old is said of each file, and is a
//! failure where it is too new. Flat, because each program looks for the others beside itself:
//! `target/stage/xtask demo` works there.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::ensure;
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Progress};
use gpushare_workload::kernels::PTX;
use serde::Serialize;

use crate::output::{progress, result};
use crate::shipped::elf::Version;
use crate::shipped::{self, floor_of};

/// Greatest size of a stage as users get it; one that was built in little time is larger.
const LIMIT: Bytes = Bytes::mib(40);

/// Staged files.
#[derive(Debug, Serialize)]
pub(crate) struct Stage {
    folder: PathBuf,
    total_bytes: Bytes,
    files: Vec<StagedFile>,
}

#[derive(Debug, Serialize)]
struct StagedFile {
    name: String,
    bytes: Bytes,
    /// The oldest C library that it runs with.
    #[serde(skip_serializing_if = "Option::is_none")]
    glibc: Option<Version>,
}

pub(crate) fn run(json: bool) -> anyhow::Result<ExitCode> {
    result(&build()?, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds and stages everything.
pub(crate) fn build() -> anyhow::Result<Stage> {
    progress("building in release for old systems");
    let built = shipped::build(Progress::Shown)?;
    let own = built.get("xtask").cloned();
    let artifacts = Artifacts::from_targets(built)?;
    let folder = cargo::workspace().join("target/stage");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;

    let mut files = Vec::new();
    for part in Part::ALL {
        files.push(stage(&artifacts[part], &folder, part.file())?);
    }
    if let Some(own) = own {
        files.push(stage(&own, &folder, "xtask")?);
    }
    fs::write(folder.join("kernels.ptx"), PTX.to_bytes())?;
    files.push(StagedFile {
        name: "kernels.ptx".to_owned(),
        bytes: Bytes(PTX.count_bytes() as u64),
        glibc: None,
    });

    let total_bytes = files.iter().map(|file| file.bytes).sum();
    ensure!(shipped::is_quick() || total_bytes < LIMIT, "the stage weighs {total_bytes}, more than {LIMIT}");
    Ok(Stage { folder, total_bytes, files })
}

/// Copies a file without its debug information.
fn stage(file: &Path, folder: &Path, name: &str) -> anyhow::Result<StagedFile> {
    let staged = folder.join(name);
    shipped::strip(file, &staged)?;
    let bytes = Bytes(fs::metadata(&staged)?.len());
    Ok(StagedFile { name: name.to_owned(), bytes, glibc: Some(floor_of(&staged)?) })
}

impl Stage {
    /// Where everything is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for file in &self.files {
            write!(f, "{:>10}  {}", file.bytes, file.name)?;
            match file.glibc {
                Some(glibc) => writeln!(f, "  (glibc {glibc})")?,
                None => writeln!(f)?,
            }
        }
        write!(f, "{:>10}  {}", self.total_bytes, self.folder.display())
    }
}
