//! Which daemon a command talks to, and where this user's own files go.
//!
//! ```text
//!   --runtime-dir, GPUSHARE_RUNTIME_DIR ──▶ that one and no other
//!   else  /run/gpushare                 ──▶ if it is there (status, set) or answers (run)
//!   else  $XDG_RUNTIME_DIR/gpushare     ──▶ the user's own
//! ```

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;

use gpushare_proto::names::{RUNTIME_DIR, RuntimeDir};

/// The folders a daemon may be in.
#[derive(Debug)]
pub(crate) struct Places {
    candidates: Vec<RuntimeDir>,
    user: RuntimeDir,
    uid: u32,
}

impl Places {
    /// The places of the calling user; `flag` is `--runtime-dir`.
    pub(crate) fn of_this_user(flag: Option<PathBuf>) -> Self {
        let named = flag
            .map(OsString::from)
            .or_else(|| std::env::var_os(RUNTIME_DIR))
            .filter(|dir| !dir.is_empty())
            // The program that `run` starts may change its folder.
            .map(|dir| std::path::absolute(&dir).map_or(dir, OsString::from));
        let xdg = std::env::var_os("XDG_RUNTIME_DIR");
        let uid = rustix::process::geteuid().as_raw();
        Self {
            candidates: RuntimeDir::candidates(named, xdg.clone(), uid),
            user: RuntimeDir::user(xdg, uid),
            uid,
        }
    }

    /// The daemons to try, in order.
    pub(crate) fn candidates(&self) -> &[RuntimeDir] {
        &self.candidates
    }

    /// Where `run` starts a daemon if none answers: the last candidate.
    pub(crate) fn own(&self) -> &RuntimeDir {
        self.candidates.last().unwrap_or(&self.user)
    }

    /// The daemon to administer: the first whose socket exists, else the user's own.
    pub(crate) fn administered(&self) -> &RuntimeDir {
        let exists = |dir: &&RuntimeDir| match dir.admin_socket().symlink_metadata() {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::PermissionDenied,
        };
        self.candidates.iter().find(exists).unwrap_or(self.own())
    }

    /// Where a secret of this user goes: beside the daemon's files if the folder is ours, else beside our own.
    pub(crate) fn secrets<'a>(&'a self, daemon: &'a RuntimeDir) -> &'a RuntimeDir {
        use std::os::unix::fs::MetadataExt as _;
        match daemon.root().symlink_metadata() {
            Ok(folder) if folder.uid() == self.uid => daemon,
            _ => &self.user,
        }
    }
}
