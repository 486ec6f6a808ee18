//! Reads the configuration again while the daemon runs, and applies the settings that can change live.
//!
//! ```text
//!   SIGHUP, `gpushare-ctl reload` ─▶ Reader::read ─▶ all settings, or an error ─▶ the engine
//!                                     (a thread that may wait for a disk)
//! ```
//!
//! Precedence is the same as at the start: flags, then the file, then the defaults. Values set by
//! `gpushare-ctl set` are lost, as after a restart. A file with any error changes nothing.

use std::sync::{Arc, Mutex, PoisonError};

use gpushare_core::config::Tuning;
use gpushare_proto::admin::ConfigChange;
use gpushare_proto::{Bytes, Nanos};

use super::{ConfigError, Environment, Settings};
use crate::args::Args;

/// Reader of all settings from flags, environment and configuration file.
///
/// Reads run one after another, so the latest result is delivered last.
#[derive(Clone, Debug)]
pub(crate) struct Reader(Arc<Mutex<(Args, Environment)>>);

impl Reader {
    pub(crate) fn new(args: Args, environment: Environment) -> Self {
        Self(Arc::new(Mutex::new((args, environment))))
    }

    /// Reads the current settings and passes the result to `deliver`.
    pub(crate) fn read<T>(&self, deliver: impl FnOnce(Result<Settings, ConfigError>) -> T) -> T {
        let source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        deliver(Settings::read(&source.0, &source.1))
    }

    /// Reads the settings on a background thread, which passes the result to `deliver`.
    pub(crate) fn start(&self, deliver: impl FnOnce(Result<Settings, ConfigError>) + Send + 'static) {
        let reader = self.clone();
        tokio::task::spawn_blocking(move || reader.read(deliver));
    }
}

impl Settings {
    /// Applies the new settings that can change in a running daemon, except those of cards. Returns new
    /// values for the decision machine, and all changes, including those that need a restart.
    pub(crate) fn follow(&mut self, new: Self) -> (Vec<Tuning>, Vec<ConfigChange>) {
        let tunings = self.core.tunings(&new.core);
        let mut changes: Vec<ConfigChange> = tunings
            .iter()
            .map(|(old, new)| {
                change(&format!("scheduling.{}", old.key()), old.to_string(), new.to_string(), true)
            })
            .collect();
        let mut compare = |key: &str, old: String, new: String, live: bool| {
            if old != new {
                changes.push(change(key, old, new, live));
            }
        };
        macro_rules! compare {
            ($live:literal: $($key:literal $field:ident $(. $inner:ident)?;)*) => {
                $(compare(
                    $key,
                    words(&self.$field $(.$inner)?),
                    words(&new.$field $(.$inner)?),
                    $live,
                );)*
            };
        }
        compare! { true:
            "implicit_sessions" implicit_sessions;
            "pod_sessions" pod_sessions;
            "self_service" self_service;
        }
        let time = |time: Option<Nanos>| time.map_or("off".to_owned(), |time| time.to_string());
        let budget =
            |budget: Option<Bytes>| budget.map_or("free memory".to_owned(), |budget| budget.to_string());
        compare("host_budget", budget(self.host_budget), budget(new.host_budget), true);
        compare("idle_exit", time(self.idle_exit), time(new.idle_exit), true);
        compare("freeze_after", time(self.freeze_after), time(new.freeze_after), true);
        let bandwidth = |settings: &Self| settings.core.bandwidth_per_second.to_string();
        compare("scheduling.bandwidth_per_second", bandwidth(self), bandwidth(&new), false);
        compare! { false:
            "connections_per_user" connections_per_user;
            "user_groups" user_groups;
            "state_dir" state;
            "metrics" metrics;
            "metrics_names" metrics_names;
            "record, record_limit" record;
            "log_format" log_format;
            "log_file" log_file;
            "audit.path" audit.path;
            "audit.size" audit.size;
            "audit.files" audit.files;
            "audit.allocations" audit.allocations;
            "dashboard.address" dashboard.address;
            "dashboard.hosts" dashboard.hosts;
            "dashboard.lifetime" dashboard.lifetime;
        }
        for (_, tuning) in &tunings {
            self.core.tune(*tuning);
        }
        self.implicit_sessions = new.implicit_sessions;
        self.pod_sessions = new.pod_sessions;
        self.self_service = new.self_service;
        self.idle_exit = new.idle_exit;
        self.freeze_after = new.freeze_after;
        self.host_budget = new.host_budget;
        (tunings.into_iter().map(|(_, new)| new).collect(), changes)
    }
}

/// Formats a value without the syntax of Rust's `Option`.
fn words(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    let inner = text.strip_prefix("Some(").and_then(|text| text.strip_suffix(')'));
    inner.map_or_else(|| text.replace("None", "none"), str::to_owned)
}

fn change(key: &str, old: String, new: String, live: bool) -> ConfigChange {
    let key = key.to_owned();
    ConfigChange { key, old, new, live }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser as _;

    use super::*;

    fn read(folder: &tempfile::TempDir, text: &str) -> Settings {
        let path = folder.path().join("config.toml");
        fs::write(&path, text).unwrap();
        let mut args = Args::parse_from(["x", "--user"]);
        args.config = Some(path);
        Reader::new(args, Environment::default()).read(Result::unwrap)
    }

    #[test]
    fn a_setting_that_needs_a_restart_is_reported_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = read(&folder, "");
        let text = "metrics = '127.0.0.1:9999'\nidle_exit = '1min'\nscheduling.stuck_after = '9s'\nscheduling.bandwidth_per_second = '1GiB'";
        let new = read(&folder, text);
        let (tunings, changes) = settings.follow(new.clone());
        assert_eq!(tunings, [Tuning::StuckAfter(Nanos::from_secs(9))]);
        let words: Vec<String> = changes
            .iter()
            .map(|change| format!("{} {} → {} {}", change.key, change.old, change.new, change.live))
            .collect();
        assert_eq!(
            words,
            [
                "scheduling.stuck_after 5s → 9s true",
                "idle_exit off → 60s true",
                "scheduling.bandwidth_per_second 12.1GiB → 1GiB false",
                "metrics none → 127.0.0.1:9999 false",
            ]
        );
        assert_eq!((settings.metrics, settings.idle_exit), (None, Some(Nanos::from_secs(60))));
        let (tunings, changes) = settings.follow(new);
        assert_eq!(
            (tunings.len(), changes.len()),
            (0, 2),
            "reported each time until the daemon starts with it"
        );
    }
}
