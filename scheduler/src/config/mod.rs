//! What the daemon was told: flags before the configuration file before the defaults.
//!
//! The file is checked whole before anything of it is used, and a key that nobody knows is an error: a
//! misspelt limit must not be a limit that is not there.

mod file;
mod reload;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use gpushare_core::Config;
use gpushare_proto::admin::Mode;
use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::{Bytes, Nanos, Percent};

use file::File;
pub(crate) use reload::Reader;
pub use reload::Source;

use crate::args::{Args, CardName, ForCard, ForCards, LogFormat, MetricsAt, ModeChoice};
use crate::record::RecordTo;

/// What one file of the audit log may have, and how many full ones are kept, unless configured.
const AUDIT_SIZE: Bytes = Bytes::mib(16);
const AUDIT_FILES: u32 = 8;
/// More are a mistake: each rotation renames them all.
const MOST_FILES: u32 = 1000;
/// Connections that one user other than the daemon's own may have at a time, unless configured.
const CONNECTIONS_PER_USER: usize = 256;
/// Sessions that one user may register with the system's daemon, unless configured.
const SESSIONS_PER_USER: usize = 64;

/// A recording ends at this size, unless configured.
const RECORD_LIMIT: Bytes = Bytes::gib(1);
/// The least that a recording may be limited to.
const MIN_RECORD: Bytes = Bytes::mib(1);

/// Where the system's daemon serves metrics, unless configured.
const SYSTEM_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9402);

/// What is wrong with the flags or the file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {cause}; name another with --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The file says something that has no meaning.
    #[error("the configuration file {} is wrong in line {line}: {message}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What.
        message: String,
    },
    /// Not even the start of a recording fits.
    #[error("a recording of {0} holds next to nothing; give record_limit at least {MIN_RECORD}")]
    Record(Bytes),
}

impl ConfigError {
    /// Whether the cause is a lack of permission.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Unreadable { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// Whom the daemon serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One user.
    User,
    /// Everybody on the machine.
    System,
}

/// What tenants of the system's daemon may take for themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfService {
    /// The largest quota.
    pub max_memory: Bytes,
    /// Sessions of one user at a time.
    pub max_sessions: usize,
    /// Whether a session may be larger than a card's capacity.
    pub oversubscribe: bool,
}

/// What was said about one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardLimits {
    /// What may be resident together.
    pub capacity: Option<Bytes>,
    /// The most managed memory of all sessions together.
    pub managed_limit: Option<Bytes>,
    /// How it is shared.
    pub mode: Option<Mode>,
    /// A fixed quantum.
    pub quantum: Option<Nanos>,
    /// The share of time that handoffs may cost.
    pub epsilon: Option<Percent>,
    /// How long a process's work in flight may take.
    pub window_target: Option<Nanos>,
}

/// Everything the daemon was told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whom it serves.
    pub owner: Owner,
    /// Where its sockets are.
    pub runtime: RuntimeDir,
    /// Where it keeps what must outlive a restart of the machine.
    pub state: PathBuf,
    /// Where the cards' lock files are.
    pub lock_dir: PathBuf,
    /// What the decisions depend on.
    pub core: Config,
    /// The managed limit of cards that have none of their own.
    pub managed_limit: Option<Bytes>,
    /// What was said about single cards.
    pub cards: BTreeMap<CardName, CardLimits>,
    /// Whether peers without a token get a session.
    pub implicit_sessions: bool,
    /// Whether peers may register sessions with the system's daemon.
    pub self_service: Option<SelfService>,
    /// Connections at a time of one principal: another user, or any user in a container.
    pub connections_per_user: usize,
    /// Where to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// End after this time without sessions.
    pub idle_exit: Option<Nanos>,
    /// Where to record what the core is told.
    pub record: Option<RecordTo>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The audit log.
    pub audit: AuditSettings,
}

/// Where the audit log is and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// The file; none for `audit.log` in the state folder.
    pub path: Option<PathBuf>,
    /// The most that one file may have.
    pub size: Bytes,
    /// How many full files are kept.
    pub files: u32,
    /// Of how many reservations one gets a line; 0 for none.
    pub allocations: u64,
}

/// Which reservations get a line, as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocations(u64);

impl std::str::FromStr for Allocations {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one_in = match text {
            "off" => Some(0),
            "full" => Some(1),
            _ => text.strip_prefix("1/").and_then(|n| n.parse().ok()).filter(|&n| n > 0),
        };
        one_in.map(Self).ok_or_else(|| {
            format!("`{text}` is not which allocations to keep; write `off`, `full`, or one in so many like `1/100`")
        })
    }
}

/// What the daemon finds around it. Read once, at the start.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Its effective user.
    pub uid: u32,
    /// [`names::RUNTIME_DIR`].
    pub runtime_dir: Option<OsString>,
    /// `XDG_RUNTIME_DIR`.
    pub xdg_runtime_dir: Option<OsString>,
    /// [`names::LOCK_DIR`].
    pub lock_dir: Option<OsString>,
    /// `STATE_DIRECTORY`, which systemd sets.
    pub state_directory: Option<OsString>,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<OsString>,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
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
}

impl Surroundings {
    /// The state folder where none is configured. A daemon in a folder of its own keeps everything there, so that two never
    /// share a store. A user's home may be on many machines at a time, so it is used where it was said to be for such things only.
    fn state(&self, owner: Owner, has_own_folder: bool) -> Option<PathBuf> {
        match owner {
            Owner::System => {
                // A service may have several.
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
    /// Reads the file, if there is one, and puts it together with the flags.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is not readable or not right in every line.
    pub fn read(args: &Args, around: &Surroundings) -> Result<Self, ConfigError> {
        let folder = args.runtime_dir.clone().or(around.runtime_dir.clone().map(PathBuf::from));
        let system = args.system || (!args.user && around.uid == 0 && folder.is_none());
        let owner = if system { Owner::System } else { Owner::User };
        let file = File::read(args.config.as_deref(), owner)?;

        let mut core = Config::default();
        file.scheduling.apply(&mut core);
        replace(&mut core.quantum, args.quantum.map(Some));
        replace(&mut core.mode, args.mode.map(ModeChoice::fixed));

        let record_limit = args.record_limit.or(file.record_limit.map(|limit| limit.0));
        let limit = record_limit.unwrap_or(RECORD_LIMIT);
        if limit < MIN_RECORD {
            return Err(ConfigError::Record(limit));
        }
        let record = args.record.clone().or(file.record);

        let audit = AuditSettings {
            path: file.audit.path,
            size: file.audit.size.map_or(AUDIT_SIZE, |size| size.0),
            files: file.audit.files.unwrap_or(AUDIT_FILES),
            allocations: file.audit.allocations.map_or(0, |which| which.0.0),
        };

        let mut managed_limit = file.managed_limit.map(|limit| limit.0);
        let mut cards: BTreeMap<CardName, CardLimits> = BTreeMap::new();
        for (card, limits) in file.gpus {
            cards.insert(
                card.0,
                CardLimits {
                    capacity: limits.capacity.map(|bytes| bytes.0),
                    managed_limit: limits.managed_limit.map(|bytes| bytes.0),
                    mode: limits.mode,
                    quantum: limits.quantum.map(|time| time.0),
                    epsilon: limits.epsilon.map(|share| share.0),
                    window_target: limits.drain_target.map(|time| time.0),
                },
            );
        }
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
        let state = state.or_else(|| around.state(owner, folder.is_some()));
        let runtime = match (folder, owner) {
            (Some(folder), _) => RuntimeDir::new(folder),
            (None, Owner::System) => RuntimeDir::system(),
            (None, Owner::User) => RuntimeDir::user(around.xdg_runtime_dir.clone(), around.uid),
        };

        Ok(Self {
            owner,
            state: state.unwrap_or_else(|| runtime.root().to_owned()),
            runtime,
            lock_dir: args
                .lock_dir
                .clone()
                .or(around.lock_dir.clone().map(PathBuf::from))
                .unwrap_or_else(|| names::SYSTEM_LOCK_DIR.into()),
            core,
            managed_limit,
            cards,
            implicit_sessions: file.implicit_sessions.unwrap_or(owner == Owner::User),
            self_service: file.self_service.map(|service| SelfService {
                max_memory: service.max_memory.0,
                max_sessions: service.max_sessions.unwrap_or(SESSIONS_PER_USER),
                oversubscribe: service.oversubscribe,
            }),
            connections_per_user: file.connections_per_user.unwrap_or(CONNECTIONS_PER_USER),
            metrics: match args.metrics.or(file.metrics.map(|at| at.0)) {
                Some(MetricsAt::Address(address)) => Some(address),
                Some(MetricsAt::Off) => None,
                None => (owner == Owner::System).then_some(SYSTEM_METRICS),
            },
            idle_exit: args.idle_exit.or(file.idle_exit.map(|time| time.0)),
            record: record.map(|path| RecordTo { path, limit }),
            log_format: args.log_format.or(file.log_format).unwrap_or_default(),
            audit,
        })
    }
}

fn replace<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;
    use gpushare_core::config::StuckPolicy;

    use super::*;

    fn settings(flags: &[&str], file: &str) -> Result<Settings, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, file).unwrap();
        let mut args = Args::parse_from(["x"].iter().chain(flags));
        args.config = Some(path);
        Settings::read(&args, &Surroundings::default())
    }

    #[test]
    fn every_key_is_read() {
        let settings = settings(
            &[],
            r#"
            implicit_sessions = true
            connections_per_user = 9
            idle_exit = "10min"
            metrics = "127.0.0.1:9999"
            managed_limit = "16GiB"
            state_dir = "/srv/gpushare"
            record = "/var/log/gpushare.jsonl"
            record_limit = "2MiB"
            log_format = "json"
            [scheduling]
            mode = "serialized"
            quantum = "2s"
            epsilon = "1%"
            trickle = "2%"
            budget_max = "500ms"
            limit_carry_over = "10%"
            stuck_policy = "kill"
            [gpus.0]
            capacity = "4GiB"
            mode = "time-sliced"
            quantum = "40ms"
            epsilon = "3%"
            drain_target = "5ms"
            [gpus.GPU-0a1b2c3d-0001-0203-0405-060708090a0b]
            managed_limit = "8GiB"
            [self_service]
            max_memory = "8GiB"
            [audit]
            path = "/var/log/gpushare/audit.log"
            size = "1MiB"
            files = 3
            allocations = "1/100"
            "#,
        )
        .unwrap();
        assert!(settings.implicit_sessions);
        assert_eq!(settings.connections_per_user, 9);
        assert_eq!(settings.idle_exit, Some(Nanos::from_secs(600)));
        assert_eq!(settings.managed_limit, Some(Bytes::gib(16)));
        assert_eq!(settings.metrics, Some(([127, 0, 0, 1], 9999).into()));
        assert_eq!(settings.state, PathBuf::from("/srv/gpushare"));
        let record = RecordTo { path: "/var/log/gpushare.jsonl".into(), limit: Bytes::mib(2) };
        assert_eq!(settings.record, Some(record));
        assert_eq!(settings.core.mode, Some(Mode::Serialized));
        assert_eq!(settings.core.quantum, Some(Nanos::from_secs(2)));
        assert_eq!(settings.core.epsilon, Percent(100));
        assert_eq!(settings.core.trickle, Percent(200));
        assert_eq!(settings.core.budget_max, Nanos::from_millis(500));
        assert_eq!(settings.core.limit_carry_over, Percent(1000));
        assert_eq!(settings.core.stuck_policy, StuckPolicy::Kill);
        let first = CardLimits {
            capacity: Some(Bytes::gib(4)),
            managed_limit: None,
            mode: Some(Mode::TimeSliced),
            quantum: Some(Nanos::from_millis(40)),
            epsilon: Some(Percent(300)),
            window_target: Some(Nanos::from_millis(5)),
        };
        assert_eq!(settings.cards[&CardName::Index(0)], first);
        assert_eq!(settings.cards.len(), 2);
        assert_eq!(settings.self_service.unwrap().max_sessions, SESSIONS_PER_USER);
        assert_eq!(settings.log_format, LogFormat::Json);
        let audit = AuditSettings {
            path: Some("/var/log/gpushare/audit.log".into()),
            size: Bytes::mib(1),
            files: 3,
            allocations: 100,
        };
        assert_eq!(settings.audit, audit);
    }

    #[test]
    fn the_file_in_the_documentation_is_right() {
        let page = include_str!("../../../docs/configuration.md");
        let (_, file) = page.split_once("```toml\n").unwrap();
        let (file, _) = file.split_once("```").unwrap();
        let settings = settings(&[], file).unwrap();
        assert_eq!(settings.cards[&CardName::Index(0)].epsilon, Some(Percent(300)));
        let usual = Config {
            mode: Some(Mode::Serialized),
            quantum: Some(Nanos::from_secs(2)),
            ..Config::default()
        };
        assert_eq!(settings.core, usual, "its values are the defaults");
    }

    #[test]
    fn a_flag_comes_before_the_file() {
        let file = "managed_limit = '16GiB'\nscheduling.mode = 'serialized'\ngpus.0.capacity = '4GiB'";
        let flags = ["--mode=auto", "--capacity=0=1GiB", "--managed-limit=2GiB", "--managed-limit=1=3GiB"];
        let settings = settings(&flags, file).unwrap();
        assert_eq!(settings.core.mode, None);
        assert_eq!(settings.managed_limit, Some(Bytes::gib(2)));
        assert_eq!(settings.cards[&CardName::Index(0)].capacity, Some(Bytes::gib(1)));
        assert_eq!(settings.cards[&CardName::Index(1)].managed_limit, Some(Bytes::gib(3)));
    }

    #[test]
    fn a_wrong_key_or_value_is_named_with_its_line() {
        for (file, expected) in [
            ("\nquantm = '2s'", "line 2: unknown key `quantm`"),
            ("[scheduling]\nquantum = '2 parsecs'", "line 2: quantum: `2 parsecs` is not a time"),
            ("[scheduling]\nmode = 'fast'", "line 2: mode: unknown variant `fast`"),
            ("[self_service]\noversubscribe = true", "missing key `max_memory`"),
            ("[gpus.first]\ncapacity = '1GiB'", "`first` is neither"),
            ("implicit_sessions = [", "line 1"),
            ("log_format = 'xml'", "unknown variant `xml`"),
            ("[audit]\nallocations = 'some'", "like `1/100`"),
            ("[audit]\nallocations = '1/0'", "like `1/100`"),
            (
                "[scheduling]\nepsilon = '100%'",
                "line 2: epsilon is a share of time to lose: more than 0% and less than 100%, not 100%",
            ),
            ("[gpus.0]\nquantum = '10us'", "line 2: a quantum of 10µs lets nobody run"),
            ("[gpus.0]\n\ncapacity = '1KiB'", "line 3: capacity: 1KiB leaves nothing to share"),
            ("[scheduling]\ntrickle = '101%'", "line 2: trickle: `101%` is not a share"),
            (
                "\nscheduling.quantum_min = '1min'",
                "line 2: scheduling.quantum_min: quantum_min (60s) is longer than quantum_max (30s)",
            ),
        ] {
            let error = settings(&[], file).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("config.toml") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn metrics_are_on_for_the_system_and_else_on_request() {
        let metrics = |flags: &[&str], file| settings(flags, file).unwrap().metrics;
        assert_eq!(metrics(&["--user"], ""), None);
        assert_eq!(metrics(&["--system"], ""), Some(SYSTEM_METRICS));
        assert_eq!(metrics(&["--system"], "metrics = 'off'"), None);
        assert_eq!(metrics(&["--metrics=[::1]:80"], "metrics = 'off'"), Some("[::1]:80".parse().unwrap()));
        let error = settings(&[], "metrics = true").unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }

    #[test]
    fn an_audit_log_has_room_and_keeps_something() {
        let settings = |file| settings(&["--log-format=text"], file);
        let usual = settings("log_format = 'json'").unwrap();
        assert_eq!(usual.log_format, LogFormat::Text, "a flag comes first");
        assert_eq!((usual.audit.path, usual.audit.size, usual.audit.allocations), (None, AUDIT_SIZE, 0));
        let error = settings("audit.size = '100B'").unwrap_err().to_string();
        assert!(error.contains("at least 4KiB"), "{error}");
        let error = settings("audit.files = 0").unwrap_err().to_string();
        assert!(error.contains("keep 1 to 1000"), "{error}");
    }

    #[test]
    fn quanta_that_exclude_each_other_are_refused() {
        let file = "[scheduling]\nquantum_min = '2s'\nquantum_max = '1s'";
        let error = settings(&[], file).unwrap_err().to_string();
        assert!(error.contains("line 2: quantum_min (2s) is longer than quantum_max (1s)"), "{error}");
    }

    #[test]
    fn a_recording_has_a_limit_and_the_limit_some_room() {
        assert_eq!(settings(&[], "").unwrap().record, None);
        let record = settings(&["--record=a"], "record = 'b'").unwrap().record.unwrap();
        assert_eq!((record.path, record.limit), ("a".into(), RECORD_LIMIT));
        let error = settings(&["--record=a", "--record-limit=10"], "").unwrap_err();
        assert!(error.to_string().contains("at least 1MiB"), "{error}");
    }

    #[test]
    fn root_without_a_folder_is_the_system() {
        let read = |flags: &[&str], uid, runtime_dir: Option<&str>| {
            let around =
                Surroundings { uid, runtime_dir: runtime_dir.map(Into::into), ..Surroundings::default() };
            let args = Args::parse_from(["x", "--config=/dev/null"].iter().chain(flags));
            let settings = Settings::read(&args, &around).unwrap();
            (settings.owner, settings.runtime, settings.implicit_sessions)
        };
        assert_eq!(read(&[], 0, None), (Owner::System, RuntimeDir::system(), false));
        assert_eq!(read(&["--user"], 0, None), (Owner::User, RuntimeDir::user(None, 0), true));
        assert_eq!(read(&[], 0, Some("/x")), (Owner::User, RuntimeDir::new("/x"), true));
        assert_eq!(read(&[], 7, None).0, Owner::User);
        assert_eq!(read(&["--system"], 0, Some("/x")).0, Owner::System);
    }
    #[test]
    fn what_must_last_is_where_it_lasts_and_else_in_the_daemons_folder() {
        let around =
            Surroundings { xdg_state_home: Some("/home/me/.local/state".into()), ..Surroundings::default() };
        let under_systemd = Surroundings {
            state_directory: Some("/var/lib/private/shared:/var/lib/other".into()),
            ..around.clone()
        };
        let read = |flags: &[&str], around: &Surroundings| {
            let args = Args::parse_from(["x", "--config=/dev/null"].iter().chain(flags));
            Settings::read(&args, around).unwrap().state
        };
        for (flags, around, expected) in [
            (&["--system"][..], &around, names::SYSTEM_STATE_DIR),
            (&["--system"], &under_systemd, "/var/lib/private/shared"),
            (&["--system", "--runtime-dir=/x"], &around, "/x"),
            (&["--system", "--state-dir=/y"], &under_systemd, "/y"),
            (&["--user"], &around, "/home/me/.local/state/gpushare"),
            // Of the service that the user's daemon was started in, not its own.
            (&["--user"], &under_systemd, "/home/me/.local/state/gpushare"),
            (&["--user", "--runtime-dir=/x"], &around, "/x"),
            (&["--user"], &Surroundings::default(), "/tmp/gpushare-0"),
        ] {
            assert_eq!(read(flags, around), PathBuf::from(expected), "{flags:?}");
        }
        let file = settings(&["--user"], "state_dir = '/z'").unwrap().state;
        assert_eq!(file, PathBuf::from("/z"));
    }
}
