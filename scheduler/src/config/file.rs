//! Reads the configuration file: TOML, checked as a whole before any value is used.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gpushare_core::Config;
use gpushare_core::config::StuckPolicy;
use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::names;
use gpushare_proto::{Bytes, Nanos, Percent};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{Allocations, ConfigError, MIN_AUDIT_SIZE, MOST_AUDIT_FILES, Owner, replace};
use crate::args::{CardName, LogFormat, MetricsAt};
use crate::exit::FileError;
use crate::knob::check;

/// Value written as text, like `"8GiB"`, `"250ms"` or `"5%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Text<T>(pub(super) T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Text).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) implicit_sessions: Option<bool>,
    pub(super) connections_per_user: Option<usize>,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) idle_exit: Option<Text<Nanos>>,
    #[serde(deserialize_with = "managed_limit")]
    pub(super) managed_limit: Option<Text<Bytes>>,
    pub(super) record: Option<PathBuf>,
    pub(super) record_limit: Option<Text<Bytes>>,
    pub(super) metrics: Option<Text<MetricsAt>>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) audit: AuditFile,
    pub(super) scheduling: Scheduling,
    pub(super) gpus: BTreeMap<Text<CardName>, CardFile>,
    pub(super) self_service: Option<SelfServiceFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AuditFile {
    pub(super) path: Option<PathBuf>,
    #[serde(deserialize_with = "audit_size")]
    pub(super) size: Option<Text<Bytes>>,
    #[serde(deserialize_with = "audit_files")]
    pub(super) files: Option<u32>,
    pub(super) allocations: Option<Text<Allocations>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CardFile {
    #[serde(deserialize_with = "capacity")]
    pub(super) capacity: Option<Text<Bytes>>,
    #[serde(deserialize_with = "managed_limit")]
    pub(super) managed_limit: Option<Text<Bytes>>,
    pub(super) mode: Option<Mode>,
    #[serde(deserialize_with = "quantum")]
    pub(super) quantum: Option<Text<Nanos>>,
    #[serde(deserialize_with = "epsilon")]
    pub(super) epsilon: Option<Text<Percent>>,
    #[serde(deserialize_with = "target")]
    pub(super) drain_target: Option<Text<Nanos>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SelfServiceFile {
    pub(super) max_memory: Text<Bytes>,
    pub(super) max_sessions: Option<usize>,
    #[serde(default)]
    pub(super) oversubscribe: bool,
}

/// Settings of the core, by the names that they have there.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Scheduling {
    mode: Option<Mode>,
    #[serde(deserialize_with = "quantum")]
    quantum: Option<Text<Nanos>>,
    quantum_min: Option<Spanned<Text<Nanos>>>,
    quantum_max: Option<Spanned<Text<Nanos>>>,
    #[serde(deserialize_with = "epsilon")]
    epsilon: Option<Text<Percent>>,
    bandwidth_per_second: Option<Text<Bytes>>,
    switch_cost: Option<Text<Nanos>>,
    #[serde(deserialize_with = "target")]
    drain_target: Option<Text<Nanos>>,
    late_factor: Option<u32>,
    retry_max: Option<Text<Nanos>>,
    stuck_tries: Option<u32>,
    stuck_after: Option<Text<Nanos>>,
    stuck_policy: Option<StuckPolicy>,
    parallel_below: Option<Text<Percent>>,
    parallel_after: Option<Text<Nanos>>,
    credit: Option<Text<Percent>>,
    trickle: Option<Text<Percent>>,
    budget_max: Option<Text<Nanos>>,
    limit_window: Option<Text<Nanos>>,
    limit_carry_over: Option<Text<Percent>>,
    lease_chunk: Option<Text<Bytes>>,
    context_reserve: Option<Text<Bytes>>,
}

impl Scheduling {
    pub(super) fn apply(self, core: &mut Config) {
        macro_rules! take {
            ($($field:ident)*) => {
                $(replace(&mut core.$field, self.$field.map(|value| value.0));)*
            };
        }
        take! {
            epsilon bandwidth_per_second switch_cost drain_target retry_max stuck_after parallel_below
            parallel_after credit trickle budget_max limit_window limit_carry_over lease_chunk context_reserve
        }
        replace(&mut core.mode, self.mode.map(Some));
        replace(&mut core.quantum, self.quantum.map(|time| Some(time.0)));
        replace(&mut core.quantum_min, self.quantum_min.map(|time| time.into_inner().0));
        replace(&mut core.quantum_max, self.quantum_max.map(|time| time.into_inner().0));
        replace(&mut core.late_factor, self.late_factor);
        replace(&mut core.stuck_tries, self.stuck_tries);
        replace(&mut core.stuck_policy, self.stuck_policy);
    }

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
    /// Reads the file `named` on the command line, else the system's, which may be absent.
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
            fn $name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<$type>, D::Error> {
                let value = <$type>::deserialize(deserializer)?;
                let check: fn(&$type) -> Result<(), String> = $check;
                check(&value).map_err(serde::de::Error::custom)?;
                Ok(Some(value))
            }
        )*
    };
}

checked! {
    quantum: Text<Nanos> = |quantum| check(Knob::Quantum(Some(quantum.0)));
    epsilon: Text<Percent> = |share| check(Knob::Epsilon(share.0));
    target: Text<Nanos> = |target| check(Knob::WindowTarget(target.0));
    capacity: Text<Bytes> = |bytes| check(Knob::Capacity(Some(bytes.0)));
    managed_limit: Text<Bytes> = |bytes| check(Knob::ManagedLimit(bytes.0));
    audit_size: Text<Bytes> = |size| match size.0 < MIN_AUDIT_SIZE {
        true => Err(format!("an audit file of {} is too small; give it at least {MIN_AUDIT_SIZE}", size.0)),
        false => Ok(()),
    };
    audit_files: u32 = |files| match (1..=MOST_AUDIT_FILES).contains(files) {
        true => Ok(()),
        false => Err(format!("[audit] keeps {files} full files; keep 1 to {MOST_AUDIT_FILES}")),
    };
}
