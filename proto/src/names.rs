//! Names that people meet: environment variables, folders, sockets.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Path of a file (mode 0600) with the session's token.
pub const TOKEN_FILE: &str = "GPUSHARE_TOKEN_FILE";
/// `1`: a process that finds no daemon must not run (its first context is refused).
pub const REQUIRED: &str = "GPUSHARE_REQUIRED";
/// The folder with the sockets, instead of the system's or the user's.
pub const RUNTIME_DIR: &str = "GPUSHARE_RUNTIME_DIR";
/// The folder with the cards' lock files, instead of `/run/lock`.
pub const LOCK_DIR: &str = "GPUSHARE_LOCK_DIR";
/// How memory is allocated: a [`Backend`](crate::Backend).
pub const BACKEND: &str = "GPUSHARE_BACKEND";
/// The most memory of each card, as `gpushare-ctl run --memory` takes it, or JSON by card.
pub const MEMORY_LIMIT: &str = "GPUSHARE_MEMORY_LIMIT";
/// The most of each card's time, as `gpushare-ctl run --compute` takes it, or JSON by card.
pub const COMPUTE_LIMIT: &str = "GPUSHARE_COMPUTE_LIMIT";
/// Beginnings of the names of kernels that talk to other cards, besides NCCL's: separated by commas.
pub const COMMUNICATION_KERNELS: &str = "GPUSHARE_COMMUNICATION_KERNELS";
/// `1`: one line on stderr at exit with what the process got.
pub const SUMMARY: &str = "GPUSHARE_SUMMARY";
/// What the daemon's log holds: a filter of `tracing-subscriber`, like `debug`.
pub const LOG: &str = "GPUSHARE_LOG";
/// The library that `gpushare-ctl run` preloads, instead of the one beside it.
pub const LIBRARY: &str = "GPUSHARE_LIBRARY";
/// The daemon that `gpushare-ctl run` starts, instead of the one beside it.
pub const SCHEDULER: &str = "GPUSHARE_SCHEDULER";

/// The system daemon's folder.
pub const SYSTEM_RUNTIME_DIR: &str = "/run/gpushare";
/// Where the system's daemon keeps what must outlive a restart of the machine, unless it is told another folder.
pub const SYSTEM_STATE_DIR: &str = "/var/lib/gpushare";
/// The daemon's store in its state folder.
pub const REGISTRY: &str = "registry.redb";
/// The audit log in its state folder.
pub const AUDIT: &str = "audit.log";
/// The system daemon's configuration.
pub const SYSTEM_CONFIG: &str = "/etc/gpushare/config.toml";
/// What the machine's administrator demands of every process that uses a GPU, whatever its environment says.
pub const SYSTEM_CLIENT: &str = "/etc/gpushare/client.toml";
/// Where the lock files of the cards are unless [`LOCK_DIR`] says otherwise.
pub const SYSTEM_LOCK_DIR: &str = "/run/lock";

/// The files of one daemon, by its runtime folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The files below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The system daemon's.
    #[must_use]
    pub fn system() -> Self {
        Self::new(SYSTEM_RUNTIME_DIR)
    }

    /// The user's own: `$XDG_RUNTIME_DIR/gpushare`, else `/tmp/gpushare-UID`.
    #[must_use]
    pub fn user(xdg_runtime_dir: Option<OsString>, uid: u32) -> Self {
        match xdg_runtime_dir.filter(|dir| Path::new(dir).is_absolute()) {
            Some(dir) => Self(PathBuf::from(dir).join("gpushare")),
            None => Self(PathBuf::from(format!("/tmp/gpushare-{uid}"))),
        }
    }

    /// The folders a process looks in for its daemon, in order: the one that `override_dir`
    /// ([`RUNTIME_DIR`]) names and no other, else the system's, then the user's own.
    #[must_use]
    pub fn candidates(
        override_dir: Option<OsString>,
        xdg_runtime_dir: Option<OsString>,
        uid: u32,
    ) -> Vec<Self> {
        match override_dir.filter(|dir| !dir.is_empty()) {
            Some(dir) => vec![Self(PathBuf::from(dir))],
            None => vec![Self::system(), Self::user(xdg_runtime_dir, uid)],
        }
    }

    /// The folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The folder that containers get: only the tenant socket is in it.
    #[must_use]
    pub fn tenant_dir(&self) -> PathBuf {
        self.0.join("tenant")
    }

    /// The socket for sharing processes.
    #[must_use]
    pub fn tenant_socket(&self) -> PathBuf {
        self.tenant_dir().join("scheduler.sock")
    }

    /// The socket for administration (0600).
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.0.join("admin.sock")
    }

    /// What outlives a daemon: sessions, what they used, whom a restarted one must wait for. Here unless the daemon has a
    /// state folder elsewhere.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.0.join(REGISTRY)
    }

    /// What administrators did and what was refused, unless the daemon's configuration says another file.
    #[must_use]
    pub fn audit(&self) -> PathBuf {
        self.state_dir().join(AUDIT)
    }

    /// The log of a daemon that was started by `gpushare-ctl run`.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.0.join("scheduler.log")
    }

    /// Token files of the sessions that `gpushare-ctl run` registered.
    #[must_use]
    pub fn tokens_dir(&self) -> PathBuf {
        self.0.join("tokens")
    }

    /// A link to the daemon's state folder, where that is another one: for whoever looks for what lasts (token files of sessions,
    /// the audit log), also when the daemon does not run.
    #[must_use]
    pub fn state_link(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Where the daemon keeps what outlives a restart of the machine: where the link leads; without one beside the system's store, or
    /// with everything else.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        match std::fs::read_link(self.state_link()) {
            Ok(folder) if folder.is_absolute() => folder,
            _ if *self == Self::system() => SYSTEM_STATE_DIR.into(),
            _ => self.0.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_the_only_candidate() {
        let dirs = RuntimeDir::candidates(Some("/x".into()), Some("/run/user/7".into()), 7);
        assert_eq!(dirs, [RuntimeDir::new("/x")]);
    }

    #[test]
    fn what_lasts_is_in_the_runtime_folder_unless_a_link_there_says_where() {
        let folder = std::env::temp_dir().join(format!("gpushare-names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let dir = RuntimeDir::new(&folder);
        assert_eq!(dir.state_dir(), folder);
        std::os::unix::fs::symlink("/srv/gpushare", dir.state_link()).unwrap();
        assert_eq!(dir.state_dir(), Path::new("/srv/gpushare"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_system_comes_before_the_user() {
        let dirs = RuntimeDir::candidates(None, Some("/run/user/7".into()), 7);
        assert_eq!(dirs, [RuntimeDir::system(), RuntimeDir::new("/run/user/7/gpushare")]);
        let dirs = RuntimeDir::candidates(None, None, 7);
        assert_eq!(dirs[1].tenant_socket(), Path::new("/tmp/gpushare-7/tenant/scheduler.sock"));
    }
}
