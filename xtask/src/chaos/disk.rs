//! A disk of the daemon's own that can be full.
//!
//! A small tmpfs on the daemon's folder, in a mount namespace of this command and what it starts. Where
//! nothing may be mounted, a folder lies where the registry's temporary file belongs, so that every write
//! of it fails.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::output::progress;

/// Set for the command that runs in a mount namespace of its own.
const INSIDE: &str = "GPUSHARE_CHAOS_INSIDE";
const NAMESPACES: [&[&str]; 2] =
    [&["--mount", "--propagation", "private"], &["--map-root-user", "--mount", "--propagation", "private"]];

/// Starts this command again in a mount namespace of its own, if that is possible and not yet so.
pub(super) fn enter() -> anyhow::Result<()> {
    if env::var_os(INSIDE).is_some() {
        return Ok(());
    }
    let Some(flags) = NAMESPACES
        .into_iter()
        .find(|flags| works("unshare", &[flags, &["true"][..]].concat()))
    else {
        return Ok(());
    };
    let error = Command::new("unshare")
        .args(flags)
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(error).context("cannot start again in a mount namespace")
}

/// Whether a program ends well.
pub(super) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The daemon's folder. Unmounted on drop.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    mounted: bool,
}

impl Disk {
    pub(super) fn on(folder: &Path) -> Self {
        let text = folder.display().to_string();
        let mounted = env::var_os(INSIDE).is_some()
            && works("mount", &["-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs", &text]);
        if !mounted {
            progress("no tmpfs can be mounted here: instead of a full disk the registry cannot be written");
        }
        Self { folder: folder.to_owned(), mounted }
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.mounted { "tmpfs" } else { "blocked" }
    }

    fn ballast(&self) -> PathBuf {
        self.folder.join(if self.mounted { "ballast" } else { "registry.redb.new" })
    }

    pub(super) fn fill(&self) -> anyhow::Result<()> {
        if !self.mounted {
            // The path may be there for a moment as the daemon's own file.
            let _ = fs::create_dir(self.ballast());
            return Ok(());
        }
        let mut file = File::create(self.ballast())?;
        let mut wrote = 0;
        while file.write_all(&[0; 4096]).is_ok() {
            wrote += 1;
            ensure!(wrote < 4000, "the disk is never full");
        }
        Ok(())
    }

    pub(super) fn free(&self) {
        let _ = if self.mounted {
            fs::remove_file(self.ballast())
        } else {
            fs::remove_dir(self.ballast())
        };
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            works("umount", &["--lazy", &self.folder.display().to_string()]);
        }
    }
}
