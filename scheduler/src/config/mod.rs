//! Settings of the daemon. Flags override the configuration file, and the file overrides the defaults.
//!
//! The whole file is checked before any value is used. An unknown key is an error, because a limit with a
//! misspelt key would otherwise be missing silently.

mod file;
mod reload;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use gpushare_core::Config;
use gpushare_proto::admin::Mode;
use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::{Bytes, Nanos, Percent};

use file::File;
pub(crate) use reload::Reader;
use serde::Deserialize;

use crate::args::{Args, CardName, ForCard, ForCards, LogFormat, ModeChoice, ServedAt};
use crate::errors::FileError;
use crate::identity::UserGroups;
use crate::record::RecordTo;

/// Default size of one audit file.
const AUDIT_SIZE: Bytes = Bytes::mib(16);
const AUDIT_FILES: u32 = 8;
/// Default number of connections allowed to one user other than the daemon's own.
const CONNECTIONS_PER_USER: usize = 256;
/// Returns the default number of sessions that one user may register with the system's daemon.
fn sessions_per_user() -> usize {
    64
}

/// Default size at which a recording ends.
const RECORD_LIMIT: Bytes = Bytes::gib(1);

/// Default duration for which a browser may use its key of the page: a working day.
const DASHBOARD_LIFETIME: Nanos = Nanos::from_secs(8 * 3600);

/// Default address at which the system's daemon serves metrics.
const SYSTEM_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9402);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Unreadable(#[from] FileError),
    /// The file has an unknown key, a wrong value or bad syntax.
    #[error("the configuration file {} is wrong in line {line}: {message}", path.display())]
    Wrong { path: PathBuf, line: usize, message: String },
}

/// Group of processes that the daemon serves: one user's or all users'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    User,
    System,
}

/// Limits on sessions that users register with the system's daemon themselves.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SelfService {
    /// Largest memory quota that a self-registered session may have.
    #[serde(deserialize_with = "file::max_memory")]
    pub(crate) max_memory: Bytes,
    /// Largest number of self-registered sessions of one user.
    #[serde(default = "sessions_per_user", deserialize_with = "file::max_sessions")]
    pub(crate) max_sessions: usize,
    /// Whether the quota of a self-registered session may exceed a card's capacity.
    #[serde(default)]
    pub(crate) oversubscribe: bool,
}

/// Configured settings of one card; `None` where the default applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CardLimits {
    /// Largest number of bytes that may be resident on the card at one time.
    #[serde(deserialize_with = "file::capacity")]
    pub(crate) capacity: Option<Bytes>,
    /// Largest number of managed bytes of all sessions together on the card.
    #[serde(deserialize_with = "file::managed_limit")]
    pub(crate) managed_limit: Option<Bytes>,
    pub(crate) mode: Option<Mode>,
    #[serde(deserialize_with = "file::quantum")]
    pub(crate) quantum: Option<Nanos>,
    /// Largest share of time that moving memory at changes of the lock may cost.
    #[serde(deserialize_with = "file::epsilon")]
    pub(crate) epsilon: Option<Percent>,
    /// Target for the time in which a process's work in flight ends.
    #[serde(rename = "drain_target", deserialize_with = "file::target")]
    pub(crate) window_target: Option<Nanos>,
    /// Bytes that a context is assumed to take until they are measured.
    #[serde(deserialize_with = "file::context_reserve")]
    pub(crate) context_reserve: Option<Bytes>,
}

/// All settings of the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) owner: Owner,
    pub(crate) runtime: RuntimeDir,
    /// Folder for state that outlives a reboot.
    pub(crate) state: PathBuf,
    pub(crate) lock_dir: PathBuf,
    pub(crate) core: Config,
    /// Limit on managed memory, in bytes, for cards without their own limit.
    pub(crate) managed_limit: Option<Bytes>,
    pub(crate) cards: BTreeMap<CardName, CardLimits>,
    /// Largest host memory for remapped memory; `None` for what is free.
    pub(crate) host_budget: Option<Bytes>,
    /// Whether processes without a token get an implicit session.
    pub(crate) implicit_sessions: bool,
    /// Whether processes of pods are only served in the session that is bound to their pod.
    pub(crate) pod_sessions: bool,
    /// Limits on sessions that users register themselves; `None` if users may not register sessions.
    pub(crate) self_service: Option<SelfService>,
    /// Largest number of connections of one user other than the daemon's, or of one user in one container.
    pub(crate) connections_per_user: usize,
    /// Control groups that count as one user each, whatever user ids their processes have.
    pub(crate) user_groups: UserGroups,
    /// Address at which metrics are served; `None` for no metrics.
    pub(crate) metrics: Option<SocketAddr>,
    /// Whether the metrics show names of sessions.
    pub(crate) metrics_names: bool,
    pub(crate) idle_exit: Option<Nanos>,
    /// Idle time after which sessions are frozen that have no such time of their own; `None` for never.
    pub(crate) freeze_after: Option<Nanos>,
    pub(crate) record: Option<RecordTo>,
    pub(crate) log_format: LogFormat,
    /// File of the log; `None` for standard error.
    pub(crate) log_file: Option<PathBuf>,
    pub(crate) audit: AuditSettings,
    pub(crate) dashboard: DashboardSettings,
}

/// Settings of the page for browsers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DashboardSettings {
    /// Address of the page; `None` for a free port of 127.0.0.1 once an administrator asks for the page.
    #[serde(deserialize_with = "file::optional")]
    pub(crate) address: Option<ServedAt>,
    /// Names of hosts, beside `localhost`, by which browsers may ask for the page.
    #[serde(deserialize_with = "file::hosts")]
    pub(crate) hosts: Vec<String>,
    /// Duration for which a browser may use the key that it got for a link.
    #[serde(deserialize_with = "file::dashboard_lifetime")]
    pub(crate) lifetime: Nanos,
}

impl Default for DashboardSettings {
    fn default() -> Self {
        Self { address: None, hosts: Vec::new(), lifetime: DASHBOARD_LIFETIME }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AuditSettings {
    /// Path of the audit log; `None` for `audit.log` in the state folder.
    pub(crate) path: Option<PathBuf>,
    #[serde(deserialize_with = "file::audit_size")]
    pub(crate) size: Bytes,
    /// Number of full audit files that are kept.
    #[serde(deserialize_with = "file::audit_files")]
    pub(crate) files: u32,
    /// Sampling of memory reservations: one of so many gets an audit line; 0 for none.
    #[serde(deserialize_with = "file::allocations")]
    pub(crate) allocations: u64,
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self { path: None, size: AUDIT_SIZE, files: AUDIT_FILES, allocations: 0 }
    }
}

/// User and environment variables of the daemon, read once at its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    pub(crate) uid: u32,
    pub(crate) runtime_dir: Option<OsString>,
    pub(crate) xdg_runtime_dir: Option<OsString>,
    pub(crate) lock_dir: Option<OsString>,
    /// Value of the environment variable `STATE_DIRECTORY`, which systemd sets.
    pub(crate) state_directory: Option<OsString>,
    pub(crate) xdg_state_home: Option<OsString>,
}

impl Environment {
    pub(crate) fn of_this_process() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            uid: rustix::process::geteuid().as_raw(),
            runtime_dir: variable(names::RUNTIME_DIR),
            xdg_runtime_dir: variable("XDG_RUNTIME_DIR"),
            lock_dir: variable(names::LOCK_DIR),
            state_directory: variable("STATE_DIRECTORY"),
            xdg_state_home: variable("XDG_STATE_HOME"),
        }
    }

    /// Returns the default folder for state; `None` for the runtime folder.
    ///
    /// A daemon with its own runtime folder keeps its state there, so that two daemons never share a
    /// registry. A home folder may be shared between machines. So the daemon uses it only if `XDG_STATE_HOME`
    /// names a folder for state.
    fn state(&self, owner: Owner, has_own_folder: bool) -> Option<PathBuf> {
        match owner {
            Owner::System => {
                // A service may have several state folders.
                let first = |folders: &OsString| {
                    let text = folders.to_str()?.split(':').next()?;
                    Some(PathBuf::from(text)).filter(|folder| folder.is_absolute())
                };
                let systemds = self.state_directory.as_ref().and_then(first);
                systemds.or_else(|| (!has_own_folder).then(|| names::SYSTEM_STATE_DIR.into()))
            }
            Owner::User if has_own_folder => None,
            Owner::User => {
                let home = self.xdg_state_home.as_ref().map(PathBuf::from);
                Some(home.filter(|home| home.is_absolute())?.join("gpushare"))
            }
        }
    }
}

impl Settings {
    /// Reads the configuration file, if there is one, and combines its values with flags and environment.
    pub(crate) fn read(args: &Args, environment: &Environment) -> Result<Self, ConfigError> {
        let folder = args.runtime_dir.clone().or(environment.runtime_dir.clone().map(PathBuf::from));
        let system = args.system || (!args.user && environment.uid == 0 && folder.is_none());
        let owner = if system { Owner::System } else { Owner::User };
        let file = File::read(args.config.as_deref(), owner)?;

        let mut core = Config::default();
        file.scheduling.apply(&mut core);
        replace(&mut core.quantum, args.quantum.map(Some));
        replace(&mut core.mode, args.mode.map(ModeChoice::fixed));
        replace(&mut core.context_reserve, args.context_reserve);

        let limit = args.record_limit.or(file.record_limit).unwrap_or(RECORD_LIMIT);
        let record = args.record.clone().or(file.record);

        let mut managed_limit = file.managed_limit;
        let mut cards: BTreeMap<CardName, CardLimits> =
            file.gpus.into_iter().map(|(card, limits)| (card.0, limits)).collect();
        for &ForCard { card, bytes } in &args.capacity {
            cards.entry(card).or_default().capacity = Some(bytes);
        }
        for limit in &args.managed_limit {
            match *limit {
                ForCards::Every(bytes) => managed_limit = Some(bytes),
                ForCards::One(ForCard { card, bytes }) => {
                    cards.entry(card).or_default().managed_limit = Some(bytes);
                }
            }
        }

        let state = args.state_dir.clone().or(file.state_dir);
        let state = state.or_else(|| environment.state(owner, folder.is_some()));
        let lock_dir = args.lock_dir.clone().or(environment.lock_dir.clone().map(PathBuf::from));
        let runtime = match (folder, owner) {
            (Some(folder), _) => RuntimeDir::new(folder),
            (None, Owner::System) => RuntimeDir::system(),
            (None, Owner::User) => RuntimeDir::user(environment.xdg_runtime_dir.clone(), environment.uid),
        };

        Ok(Self {
            owner,
            state: state.unwrap_or_else(|| runtime.root().to_owned()),
            runtime,
            lock_dir: lock_dir.unwrap_or_else(|| names::SYSTEM_LOCK_DIR.into()),
            core,
            managed_limit,
            host_budget: args.host_budget.or(file.host_budget),
            cards,
            implicit_sessions: file.implicit_sessions.unwrap_or(owner == Owner::User),
            pod_sessions: file.pod_sessions,
            self_service: file.self_service,
            user_groups: file.user_groups,
            connections_per_user: file.connections_per_user.unwrap_or(CONNECTIONS_PER_USER),
            metrics: match args.metrics.or(file.metrics) {
                Some(ServedAt::Address(address)) => Some(address),
                Some(ServedAt::Off) => None,
                None => (owner == Owner::System).then_some(SYSTEM_METRICS),
            },
            metrics_names: args.metrics_names || file.metrics_names,
            idle_exit: args.idle_exit.or(file.idle_exit),
            freeze_after: file.freeze_after,
            record: record.map(|path| RecordTo { path, limit }),
            log_format: args.log_format.or(file.log_format).unwrap_or_default(),
            log_file: args.log_file.clone().or(file.log_file),
            audit: file.audit,
            dashboard: DashboardSettings {
                address: args.dashboard.or(file.dashboard.address),
                ..file.dashboard
            },
        })
    }
}

fn replace<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

#[cfg(test)]
mod tests;
