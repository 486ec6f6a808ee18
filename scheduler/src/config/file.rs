//! The configuration file: TOML, checked whole.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gpushare_core::Config;
use gpushare_core::config::StuckPolicy;
use gpushare_proto::admin::Mode;
use gpushare_proto::names;
use gpushare_proto::{Bytes, Nanos, Percent};
use serde::{Deserialize, Deserializer};

use super::{Allocations, ConfigError, Owner, replace};
use crate::args::{CardName, LogFormat, MetricsAt};

/// A quantity as people write it: `"8GiB"`, `"250ms"`, `"5%"`.
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
    pub(super) size: Option<Text<Bytes>>,
    pub(super) files: Option<u32>,
    pub(super) allocations: Option<Text<Allocations>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CardFile {
    pub(super) capacity: Option<Text<Bytes>>,
    pub(super) managed_limit: Option<Text<Bytes>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SelfServiceFile {
    pub(super) max_memory: Text<Bytes>,
    pub(super) max_sessions: Option<usize>,
    #[serde(default)]
    pub(super) oversubscribe: bool,
}

/// The core's settings, by the same names.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Scheduling {
    mode: Option<Mode>,
    quantum: Option<Text<Nanos>>,
    quantum_min: Option<Text<Nanos>>,
    quantum_max: Option<Text<Nanos>>,
    epsilon: Option<Text<Percent>>,
    bandwidth_per_second: Option<Text<Bytes>>,
    drain_target: Option<Text<Nanos>>,
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
        replace(&mut core.mode, self.mode.map(Some));
        replace(&mut core.quantum, self.quantum.map(|time| Some(time.0)));
        replace(&mut core.quantum_min, self.quantum_min.map(|time| time.0));
        replace(&mut core.quantum_max, self.quantum_max.map(|time| time.0));
        replace(&mut core.epsilon, self.epsilon.map(|share| share.0));
        replace(
            &mut core.bandwidth_per_second,
            self.bandwidth_per_second.map(|bytes| bytes.0),
        );
        replace(&mut core.drain_target, self.drain_target.map(|time| time.0));
        replace(&mut core.stuck_after, self.stuck_after.map(|time| time.0));
        replace(&mut core.stuck_policy, self.stuck_policy);
        replace(&mut core.parallel_below, self.parallel_below.map(|share| share.0));
        replace(&mut core.parallel_after, self.parallel_after.map(|time| time.0));
        replace(&mut core.credit, self.credit.map(|share| share.0));
        replace(&mut core.trickle, self.trickle.map(|share| share.0));
        replace(&mut core.budget_max, self.budget_max.map(|time| time.0));
        replace(&mut core.limit_window, self.limit_window.map(|time| time.0));
        replace(
            &mut core.limit_carry_over,
            self.limit_carry_over.map(|share| share.0),
        );
        replace(&mut core.lease_chunk, self.lease_chunk.map(|bytes| bytes.0));
        replace(
            &mut core.context_reserve,
            self.context_reserve.map(|bytes| bytes.0),
        );
    }
}

impl File {
    /// The file that was named; else the system's, which need not be there.
    pub(super) fn read(named: Option<&Path>, owner: Owner) -> Result<Self, ConfigError> {
        let path = match (named, owner) {
            (Some(path), _) => path,
            (None, Owner::System) => Path::new(names::SYSTEM_CONFIG),
            (None, Owner::User) => return Ok(Self::default()),
        };
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(path, &text),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && named.is_none() => Ok(Self::default()),
            Err(cause) => Err(ConfigError::Unreadable {
                path: path.to_owned(),
                cause,
            }),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            ConfigError::Wrong {
                path: path.to_owned(),
                line: 1 + text.bytes().take(start).filter(|&byte| byte == b'\n').count(),
                message: error.message().replace("field `", "key `").replace('\n', " "),
            }
        })
    }
}
