//! Names of environment variables, folders, files and sockets.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Environment variable: path of a file (mode 0600) that holds the session's token.
pub const TOKEN_FILE: &str = "GPUSHARE_TOKEN_FILE";
/// Environment variable: `1` refuses the first CUDA context of a process that finds no daemon.
pub const REQUIRED: &str = "GPUSHARE_REQUIRED";
/// Environment variable: folder with the daemon's sockets, in place of the system's and the user's.
pub const RUNTIME_DIR: &str = "GPUSHARE_RUNTIME_DIR";
/// Environment variable: folder with the lock files of the cards, in place of `/run/lock`.
pub const LOCK_DIR: &str = "GPUSHARE_LOCK_DIR";
/// Environment variable: kind of the program's memory, `managed`, `native` or `remap`, like
/// `gpushare-ctl run --backend`.
pub const BACKEND: &str = "GPUSHARE_BACKEND";
/// Environment variable: `1` checks that nothing is in flight while remapped memory moves, like
/// `gpushare-ctl run --paranoid`.
pub const PARANOID: &str = "GPUSHARE_PARANOID";
/// Environment variable: largest memory of a session per card, like `gpushare-ctl run --memory`, or JSON by
/// card in bytes.
pub const MEMORY_LIMIT: &str = "GPUSHARE_MEMORY_LIMIT";
/// Environment variable: largest share of each card's time, like `gpushare-ctl run --compute`, or JSON by
/// card in percent.
pub const COMPUTE_LIMIT: &str = "GPUSHARE_COMPUTE_LIMIT";
/// Environment variable: comma-separated name prefixes of kernels that exchange data with other cards.
pub const COMMUNICATION_KERNELS: &str = "GPUSHARE_COMMUNICATION_KERNELS";
/// Environment variable: `1` prints one line on stderr at exit that sums up card time, waits and memory.
pub const SUMMARY: &str = "GPUSHARE_SUMMARY";
/// Environment variable: filter of the daemon's log in the syntax of `tracing-subscriber`, like `debug`.
pub const LOG: &str = "GPUSHARE_LOG";
/// Environment variable: `1` lets the daemon freeze processes although it was never tried with this driver.
pub const FREEZE_UNTRIED: &str = "GPUSHARE_FREEZE_UNTRIED";
/// Environment variable: library that `gpushare-ctl run` preloads, in place of the installed one.
pub const LIBRARY: &str = "GPUSHARE_LIBRARY";
/// Environment variable: daemon program that `gpushare-ctl run` starts, in place of the installed one.
pub const SCHEDULER: &str = "GPUSHARE_SCHEDULER";
/// Environment variable: path of `gpushare-ctl`, for the notebook extension.
pub const CTL: &str = "GPUSHARE_CTL";

/// Runtime folder of the system's daemon, with its sockets.
pub const SYSTEM_RUNTIME_DIR: &str = "/run/gpushare";
/// Default folder of the system's daemon for data that outlives a restart of the machine.
pub const SYSTEM_STATE_DIR: &str = "/var/lib/gpushare";
/// Name of the registry file in the daemon's state folder. It keeps sessions, usage and connected processes.
pub const REGISTRY: &str = "registry.redb";
/// File name of the audit log in the daemon's state folder.
pub const AUDIT: &str = "audit.log";
/// Path of the configuration of the system's daemon.
pub const SYSTEM_CONFIG: &str = "/etc/gpushare/config.toml";
/// Path of the administrator's rules for every process that uses a GPU. Rules override the environment.
pub const SYSTEM_CLIENT: &str = "/etc/gpushare/client.toml";
/// Default folder of the cards' lock files; [`LOCK_DIR`] overrides it.
pub const SYSTEM_LOCK_DIR: &str = "/run/lock";

/// Returns the environment variable because of which a process must not use the GPU without a daemon:
/// [`REQUIRED`], a token, or a limit, which only a daemon enforces. `variable` reads a variable.
pub fn requirement(variable: impl Fn(&'static str) -> Option<OsString>) -> Option<&'static str> {
    let requires = |name: &&'static str| match variable(name) {
        Some(value) if *name == REQUIRED => value == "1",
        value => value.is_some_and(|value| !value.is_empty()),
    };
    [REQUIRED, TOKEN_FILE, MEMORY_LIMIT, COMPUTE_LIMIT].into_iter().find(requires)
}

/// Runtime folder of one daemon: the folder of its sockets and other files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir {
    root: PathBuf,
    /// User whose own folder was guessed; `None` for a folder that a setting names, and for the system's.
    guessed_for: Option<u32>,
}

impl RuntimeDir {
    /// Returns the runtime folder at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), guessed_for: None }
    }

    /// Returns the runtime folder of the system's daemon.
    pub fn system() -> Self {
        Self::new(SYSTEM_RUNTIME_DIR)
    }

    /// Returns the user's own runtime folder: `$XDG_RUNTIME_DIR/gpushare`, else `/tmp/gpushare-UID`.
    pub fn user(xdg_runtime_dir: Option<OsString>, uid: u32) -> Self {
        let root = match xdg_runtime_dir.filter(|dir| Path::new(dir).is_absolute()) {
            Some(dir) => PathBuf::from(dir).join("gpushare"),
            None => PathBuf::from(format!("/tmp/gpushare-{uid}")),
        };
        Self { root, guessed_for: Some(uid) }
    }

    /// Returns the folders in which a process looks for its daemon, in order: only `override_dir`
    /// ([`RUNTIME_DIR`]) if it is set, else the system's folder and then the user's own.
    pub fn candidates(
        override_dir: Option<OsString>,
        xdg_runtime_dir: Option<OsString>,
        uid: u32,
    ) -> Vec<Self> {
        match override_dir.filter(|dir| !dir.is_empty()) {
            Some(dir) => vec![Self::new(dir)],
            None => vec![Self::system(), Self::user(xdg_runtime_dir, uid)],
        }
    }

    /// Returns whether a listener of user `listener` in this folder can be the daemon that is looked for.
    ///
    /// Only root can make the system's folder, and a setting that names a folder is believed. A folder that
    /// was guessed may be a stranger's, as in `/tmp`. There the listener must be the user's own, or root's.
    /// The owner of a private folder around it (`$XDG_RUNTIME_DIR`) is believed too.
    pub fn may_hold_daemon_of(&self, listener: u32) -> bool {
        let of_folder = || {
            let around = self.root.parent()?.metadata().ok()?;
            (around.mode() & 0o022 == 0).then_some(around.uid())
        };
        match self.guessed_for {
            Some(uid) => [0, uid].contains(&listener) || of_folder() == Some(listener),
            None => true,
        }
    }

    /// Returns the path of the daemon's runtime folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of the tenant socket alone, which is mounted into containers.
    pub fn tenant_dir(&self) -> PathBuf {
        self.root.join("tenant")
    }

    /// Returns the path of the tenant socket, for processes that use a card.
    pub fn tenant_socket(&self) -> PathBuf {
        self.tenant_dir().join("scheduler.sock")
    }

    /// Returns the path of the admin socket (mode 0600).
    pub fn admin_socket(&self) -> PathBuf {
        self.root.join("admin.sock")
    }

    /// Returns the path of the registry file (sessions, usage, processes) without a separate state folder.
    pub fn registry(&self) -> PathBuf {
        self.root.join(REGISTRY)
    }

    /// Returns the default path of the audit log. The daemon's configuration may name another file.
    pub fn audit(&self) -> PathBuf {
        self.state_dir().join(AUDIT)
    }

    /// Returns the path of the log of a daemon that `gpushare-ctl run` started.
    pub fn log(&self) -> PathBuf {
        self.root.join("scheduler.log")
    }

    /// Returns the folder with the token files of the sessions that `gpushare-ctl run` registered.
    pub fn tokens_dir(&self) -> PathBuf {
        self.root.join("tokens")
    }

    /// Returns the path of the symbolic link to a state folder elsewhere. Tools follow the link to token
    /// files and the audit log, even while no daemon runs.
    pub fn state_link(&self) -> PathBuf {
        self.root.join("state")
    }

    /// Returns the folder for data that outlives a restart of the machine: the target of
    /// [`Self::state_link`], else [`SYSTEM_STATE_DIR`] for the system's daemon and the runtime folder for any
    /// other.
    pub fn state_dir(&self) -> PathBuf {
        match std::fs::read_link(self.state_link()) {
            Ok(folder) if folder.is_absolute() => folder,
            _ if *self == Self::system() => SYSTEM_STATE_DIR.into(),
            _ => self.root.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_override_is_the_only_candidate() {
        let dirs = RuntimeDir::candidates(Some("/x".into()), Some("/run/user/7".into()), 7);
        assert_eq!(dirs, [RuntimeDir::new("/x")]);
    }

    #[test]
    fn a_strangers_listener_in_a_guessed_folder_is_not_believed() {
        let believed = |dir: RuntimeDir| [0, 7, 8].map(|uid| dir.may_hold_daemon_of(uid));
        assert_eq!(believed(RuntimeDir::user(None, 7)), [true, true, false]);
        assert_eq!(believed(RuntimeDir::system()), [true; 3]);
        assert_eq!(believed(RuntimeDir::new("/tmp/gpushare-7")), [true; 3], "a setting names it");
        let folder = std::env::temp_dir().join(format!("gpushare-around-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let owner = folder.metadata().unwrap().uid();
        for (mode, private) in [(0o700, true), (0o1777, false)] {
            std::fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            let dir = RuntimeDir::user(Some(folder.clone().into()), owner + 1);
            assert_eq!(dir.may_hold_daemon_of(owner), private || owner == 0);
            assert!(!dir.may_hold_daemon_of(owner + 2));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_state_folder_follows_the_link_in_the_runtime_folder() {
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
        assert_eq!(dirs[0], RuntimeDir::system());
        assert_eq!(dirs[1].root(), Path::new("/run/user/7/gpushare"));
        let dirs = RuntimeDir::candidates(None, None, 7);
        assert_eq!(dirs[1].tenant_socket(), Path::new("/tmp/gpushare-7/tenant/scheduler.sock"));
    }
}
