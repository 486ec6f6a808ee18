//! Reads the configuration file (TOML). The whole file is checked before any value is used.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use gpushare_core::Config;
use gpushare_core::config::StuckPolicy;
use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::{Bytes, Nanos, Percent, names};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{
    AuditSettings, CardLimits, ConfigError, MIN_AUDIT_SIZE, MOST_AUDIT_FILES, Owner, SelfService, replace,
};
use crate::args::{CardName, LogFormat, MetricsAt};
use crate::errors::FileError;
use crate::knob::check;

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

fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<Option<T>, D::Error> {
    text(from).map(Some)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) implicit_sessions: Option<bool>,
    pub(super) connections_per_user: Option<usize>,
    pub(super) state_dir: Option<PathBuf>,
    #[serde(deserialize_with = "optional")]
    pub(super) idle_exit: Option<Nanos>,
    #[serde(deserialize_with = "managed_limit")]
    pub(super) managed_limit: Option<Bytes>,
    pub(super) record: Option<PathBuf>,
    #[serde(deserialize_with = "optional")]
    pub(super) record_limit: Option<Bytes>,
    #[serde(deserialize_with = "optional")]
    pub(super) metrics: Option<MetricsAt>,
    pub(super) metrics_names: bool,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log_file: Option<PathBuf>,
    pub(super) audit: AuditSettings,
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
    bandwidth_per_second: Bytes = "optional";
    switch_cost: Nanos = "optional";
    drain_target: Nanos = "target";
    late_factor: u32 = "Option::deserialize";
    retry_max: Nanos = "optional";
    stuck_tries: u32 = "Option::deserialize";
    stuck_after: Nanos = "optional";
    stuck_policy: StuckPolicy = "Option::deserialize";
    parallel_below: Percent = "optional";
    parallel_after: Nanos = "optional";
    credit: Percent = "optional";
    trickle: Percent = "trickle";
    budget_max: Nanos = "optional";
    limit_window: Nanos = "optional";
    limit_carry_over: Percent = "optional";
    lease_chunk: Bytes = "optional";
    context_reserve: Bytes = "reserve";
}

impl Scheduling {
    /// Checks that the shortest quantum is not longer than the longest.
    fn check(&self) -> Result<(), (Range<usize>, String)> {
        let usual = Config::default();
        let time =
            |time: &Option<Spanned<Text<Nanos>>>, usual| time.as_ref().map_or(usual, |time| time.get_ref().0);
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

/// Defines functions that deserialize a value and check its range.
macro_rules! checked {
    ($($name:ident: $type:ty = $check:expr;)*) => {
        $(
            pub(super) fn $name<'de, D: Deserializer<'de>, T: From<$type>>(from: D) -> Result<T, D::Error> {
                let value = text(from)?;
                let check: fn($type) -> Result<(), String> = $check;
                check(value).map_err(Error::custom)?;
                Ok(value.into())
            }
        )*
    };
}

checked! {
    quantum: Nanos = |quantum| check(Knob::Quantum(Some(quantum)));
    epsilon: Percent = |share| check(Knob::Epsilon(share));
    trickle: Percent = |share| match (1..=5_000).contains(&share.0) {
        true => Ok(()),
        false => Err(format!("trickle is a share of time from 0.01% to 50%, not {share}")),
    };
    target: Nanos = |target| check(Knob::WindowTarget(target));
    capacity: Bytes = |bytes| check(Knob::Capacity(Some(bytes)));
    reserve: Bytes = |bytes| check(Knob::ContextReserve(bytes));
    managed_limit: Bytes = |bytes| check(Knob::ManagedLimit(bytes));
    audit_size: Bytes = |size| match size < MIN_AUDIT_SIZE {
        true => Err(format!("an audit file of {size} is too small; give it at least {MIN_AUDIT_SIZE}")),
        false => Ok(()),
    };
}

pub(super) fn audit_files<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let files = u32::deserialize(from)?;
    match (1..=MOST_AUDIT_FILES).contains(&files) {
        true => Ok(files),
        false => {
            Err(Error::custom(format!("[audit] keeps {files} full files; keep 1 to {MOST_AUDIT_FILES}")))
        }
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
