//! Reads the configuration file (TOML). The whole file is checked before any value is used.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use gpushare_core::Config;
use gpushare_core::config::StuckPolicy;
use gpushare_proto::admin::Mode;
use gpushare_proto::ranges;
use gpushare_proto::{Bytes, Nanos, Percent, names};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{AuditSettings, CardLimits, ConfigError, DashboardSettings, Owner, SelfService, replace};
use crate::args::{CardName, LogFormat, ServedAt};
use crate::errors::FileError;
use crate::identity::UserGroups;

/// Value written as text, like `"8GiB"`, `"250ms"` or `"5%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        text(from).map(Self)
    }
}

/// Reads a value written as text, like `"8GiB"`, `"250ms"` or `"5%"`.
pub(super) fn text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(Error::custom)
}

pub(super) fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    text(from).map(Some)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) implicit_sessions: Option<bool>,
    pub(super) pod_sessions: bool,
    #[serde(deserialize_with = "connections_per_user")]
    pub(super) connections_per_user: Option<usize>,
    #[serde(deserialize_with = "user_groups")]
    pub(super) user_groups: UserGroups,
    pub(super) state_dir: Option<PathBuf>,
    #[serde(deserialize_with = "idle_exit")]
    pub(super) idle_exit: Option<Nanos>,
    #[serde(deserialize_with = "freeze_after")]
    pub(super) freeze_after: Option<Nanos>,
    #[serde(deserialize_with = "managed_limit")]
    pub(super) managed_limit: Option<Bytes>,
    #[serde(deserialize_with = "host_budget")]
    pub(super) host_budget: Option<Bytes>,
    pub(super) record: Option<PathBuf>,
    #[serde(deserialize_with = "record_limit")]
    pub(super) record_limit: Option<Bytes>,
    #[serde(deserialize_with = "optional")]
    pub(super) metrics: Option<ServedAt>,
    pub(super) metrics_names: bool,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log_file: Option<PathBuf>,
    pub(super) audit: AuditSettings,
    pub(super) dashboard: DashboardSettings,
    pub(super) scheduling: Scheduling,
    pub(super) gpus: BTreeMap<Text<CardName>, CardLimits>,
    pub(super) self_service: Option<SelfService>,
}

/// Defines the table of the scheduling settings: key, type and function that reads the value.
macro_rules! scheduling {
    ($($key:ident: $type:ty = $read:literal;)*) => {
        /// Settings of the decision machine, by the names that they have there.
        #[derive(Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct Scheduling {
            mode: Option<Mode>,
            #[serde(deserialize_with = "quantum")]
            quantum: Option<Nanos>,
            quantum_min: Option<Spanned<Text<Nanos>>>,
            quantum_max: Option<Spanned<Text<Nanos>>>,
            $(#[serde(deserialize_with = $read)] $key: Option<$type>,)*
        }

        impl Scheduling {
            pub(super) fn apply(self, core: &mut Config) {
                replace(&mut core.mode, self.mode.map(Some));
                replace(&mut core.quantum, self.quantum.map(Some));
                replace(&mut core.quantum_min, self.quantum_min.map(|time| time.into_inner().0));
                replace(&mut core.quantum_max, self.quantum_max.map(|time| time.into_inner().0));
                $(replace(&mut core.$key, self.$key);)*
            }
        }
    };
}

scheduling! {
    epsilon: Percent = "epsilon";
    bandwidth_per_second: Bytes = "bandwidth";
    switch_cost: Nanos = "switch_cost";
    drain_target: Nanos = "target";
    late_factor: u32 = "late_factor";
    retry_max: Nanos = "retry_max";
    stuck_tries: u32 = "stuck_tries";
    stuck_after: Nanos = "stuck_after";
    stuck_policy: StuckPolicy = "Option::deserialize";
    parallel_below: Percent = "parallel_below";
    parallel_after: Nanos = "parallel_after";
    credit: Percent = "credit";
    trickle: Percent = "trickle";
    budget_max: Nanos = "budget_max";
    limit_window: Nanos = "limit_window";
    limit_carry_over: Percent = "limit_carry_over";
    lease_chunk: Bytes = "lease_chunk";
    context_reserve: Bytes = "context_reserve";
}

impl Scheduling {
    /// Checks the shortest and the longest quantum, which must not be shorter.
    fn check(&self) -> Result<(), (Range<usize>, String)> {
        let usual = Config::default();
        let time =
            |time: &Option<Spanned<Text<Nanos>>>, usual| time.as_ref().map_or(usual, |time| time.get_ref().0);
        let both = [(ranges::QUANTUM_MIN, &self.quantum_min), (ranges::QUANTUM_MAX, &self.quantum_max)];
        for (range, written) in both {
            if let Some(written) = written {
                let checked = range.check(written.get_ref().0);
                checked.map_err(|error| (written.span(), error.to_string()))?;
            }
        }
        let min = time(&self.quantum_min, usual.quantum_min);
        let max = time(&self.quantum_max, usual.quantum_max);
        let Some(written) = self.quantum_min.as_ref().or(self.quantum_max.as_ref()).filter(|_| min > max)
        else {
            return Ok(());
        };
        Err((
            written.span(),
            format!("quantum_min ({min}) is longer than quantum_max ({max}); make it shorter"),
        ))
    }
}

impl File {
    /// Reads the configuration file `named` on the command line, else the system's file, which may be absent.
    pub(super) fn read(named: Option<&Path>, owner: Owner) -> Result<Self, ConfigError> {
        let path = match (named, owner) {
            (Some(path), _) => path,
            (None, Owner::System) => Path::new(names::SYSTEM_CONFIG),
            (None, Owner::User) => return Ok(Self::default()),
        };
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && named.is_none() => Ok(Self::default()),
            Err(cause) => {
                let hint = "name another with --config";
                Err(FileError::of("read the configuration file", path, hint)(cause).into())
            }
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let wrong = |span: Option<Range<usize>>, message: &str| {
            let start = span.map_or(0, |span| span.start);
            let line = text.bytes().take(start).filter(|&byte| byte == b'\n').count();
            let message = message.replace("field `", "key `").replace('\n', " ");
            // An error about a value does not name its key.
            let written = text.lines().nth(line).and_then(|line| line.split_once('='));
            let key = written.map(|(key, _)| key.trim()).filter(|key| !message.contains(key));
            ConfigError::Wrong {
                path: path.to_owned(),
                line: line + 1,
                message: match key {
                    Some(key) => format!("{key}: {message}"),
                    None => message,
                },
            }
        };
        let file: Self = toml::from_str(text).map_err(|error| wrong(error.span(), error.message()))?;
        file.scheduling.check().map_err(|(span, message)| wrong(Some(span), &message))?;
        Ok(file)
    }
}

/// Value of a setting as the file has it: a text with a unit, or a number.
trait Written: Sized {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
}

macro_rules! written {
    ($($type:ty: $read:expr;)*) => {
        $(
            impl Written for $type {
                fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    $read(from)
                }
            }
        )*
    };
}

written! {
    Nanos: text;
    Bytes: text;
    Percent: text;
    u32: Self::deserialize;
    usize: Self::deserialize;
}

/// Defines functions that deserialize a value and check its range.
macro_rules! checked {
    ($($name:ident: $type:ty = $range:ident;)*) => {
        $(
            pub(super) fn $name<'de, D: Deserializer<'de>, T: From<$type>>(from: D) -> Result<T, D::Error> {
                let value = <$type as Written>::read(from)?;
                Ok(ranges::$range.check(value).map_err(Error::custom)?.into())
            }
        )*
    };
}

checked! {
    quantum: Nanos = QUANTUM;
    epsilon: Percent = EPSILON;
    bandwidth: Bytes = BANDWIDTH;
    switch_cost: Nanos = SWITCH_COST;
    target: Nanos = DRAIN_TARGET;
    late_factor: u32 = LATE_FACTOR;
    retry_max: Nanos = RETRY_MAX;
    stuck_tries: u32 = STUCK_TRIES;
    stuck_after: Nanos = STUCK_AFTER;
    parallel_below: Percent = PARALLEL_BELOW;
    parallel_after: Nanos = PARALLEL_AFTER;
    credit: Percent = CREDIT;
    trickle: Percent = TRICKLE;
    budget_max: Nanos = BUDGET_MAX;
    limit_window: Nanos = LIMIT_WINDOW;
    limit_carry_over: Percent = LIMIT_CARRY_OVER;
    lease_chunk: Bytes = LEASE_CHUNK;
    context_reserve: Bytes = CONTEXT_RESERVE;
    capacity: Bytes = CAPACITY;
    managed_limit: Bytes = MANAGED_LIMIT;
    host_budget: Bytes = HOST_BUDGET;
    max_memory: Bytes = MAX_MEMORY;
    max_sessions: usize = MAX_SESSIONS;
    connections_per_user: usize = CONNECTIONS_PER_USER;
    idle_exit: Nanos = IDLE_EXIT;
    freeze_after: Nanos = FREEZE_AFTER;
    record_limit: Bytes = RECORD_LIMIT;
    audit_size: Bytes = AUDIT_SIZE;
    audit_files: u32 = AUDIT_FILES;
    dashboard_lifetime: Nanos = DASHBOARD_LIFETIME;
}

/// Reads the control groups that count as users.
fn user_groups<'de, D: Deserializer<'de>>(from: D) -> Result<UserGroups, D::Error> {
    UserGroups::new(&Vec::<String>::deserialize(from)?).map_err(Error::custom)
}

/// Reads the names of hosts by which browsers may ask for the page.
pub(super) fn hosts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let hosts = Vec::<String>::deserialize(from)?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    match hosts.iter().find(|host| host.is_empty() || !host.chars().all(is_part)) {
        Some(wrong) => Err(Error::custom(format!(
            "`{wrong}` is no name of a host; write it without scheme and port, like gpu1.example.org"
        ))),
        None => Ok(hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect()),
    }
}

/// Reads the sampling of reservations in the audit log: `off`, `full`, or a fraction like `1/100`.
pub(super) fn allocations<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    let one_in = match &*text {
        "off" => Some(0),
        "full" => Some(1),
        _ => text.strip_prefix("1/").and_then(|n| n.parse().ok()).filter(|&n| n > 0),
    };
    one_in.ok_or_else(|| {
        Error::custom(format!(
            "`{text}` does not say which allocations to log; write `off`, `full`, or one in so many like `1/100`"
        ))
    })
}
