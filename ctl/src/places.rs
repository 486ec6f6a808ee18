//! Choice of the daemon that a command connects to, and of the folder for this user's own files.
//!
//! ```text
//!   --runtime-dir, GPUSHARE_RUNTIME_DIR ──▶ only that folder
//!   else  /run/gpushare                 ──▶ if its socket exists (status, set) or answers (run)
//!   else  $XDG_RUNTIME_DIR/gpushare     ──▶ the user's own
//! ```

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

use gpushare_proto::names::{RUNTIME_DIR, RuntimeDir};

/// Runtime folders in which the calling user's commands look for a daemon.
#[derive(Debug)]
pub(crate) struct Places {
    candidates: Vec<RuntimeDir>,
    user: RuntimeDir,
    uid: u32,
}

impl Places {
    /// Returns the runtime folders for the calling user; `flag` is the value of `--runtime-dir`.
    pub(crate) fn of_this_user(flag: Option<PathBuf>) -> Self {
        let named = flag
            .map(OsString::from)
            .or_else(|| std::env::var_os(RUNTIME_DIR))
            .filter(|dir| !dir.is_empty())
            // The program that `run` starts may change its working directory.
            .map(|dir| std::path::absolute(&dir).map_or(dir, OsString::from));
        let xdg = std::env::var_os("XDG_RUNTIME_DIR");
        let uid = rustix::process::geteuid().as_raw();
        Self {
            candidates: RuntimeDir::candidates(named, xdg.clone(), uid),
            user: RuntimeDir::user(xdg, uid),
            uid,
        }
    }

    pub(crate) fn candidates(&self) -> &[RuntimeDir] {
        &self.candidates
    }

    /// Returns the runtime folder in which `run` starts a daemon if none answers.
    pub(crate) fn own(&self) -> &RuntimeDir {
        self.candidates.last().unwrap_or(&self.user)
    }

    /// Returns the first runtime folder with an admin socket, else the user's own folder.
    pub(crate) fn administered(&self) -> &RuntimeDir {
        let exists = |dir: &&RuntimeDir| match dir.admin_socket().symlink_metadata() {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
        };
        self.candidates.iter().find(exists).unwrap_or(self.own())
    }

    /// Returns the runtime folder for this user's token files: the daemon's if this user owns it, else their
    /// own.
    pub(crate) fn secrets<'a>(&'a self, daemon: &'a RuntimeDir) -> &'a RuntimeDir {
        use std::os::unix::fs::MetadataExt as _;
        match daemon.root().symlink_metadata() {
            Ok(folder) if folder.uid() == self.uid => daemon,
            _ => &self.user,
        }
    }
}
