//! Reading the configuration again, and what of it can change while the daemon runs.
//!
//! ```text
//!   SIGHUP, `gpushare-ctl reload` ─▶ Source::read ─▶ Settings, all of them, or why not ─▶ the shell
//!                                     (a thread that may wait for a disk)
//! ```
//!
//! Everything counts as at the start: flags before the file before the defaults. What was set by `gpushare-ctl set` is gone by
//! that, as it would be after a restart. A file that is wrong anywhere changes nothing.

use std::sync::{Arc, Mutex, PoisonError};

use gpushare_core::config::Tuning;
use gpushare_proto::admin::ConfigChange;
use tokio::sync::mpsc;

use super::{ConfigError, Settings, Surroundings};
use crate::args::Args;
use crate::input::{Asker, Input};

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The flags.
    pub args: Args,
    /// What was around at the start.
    pub around: Surroundings,
}

impl Source {
    /// The settings as they are written now.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn read(&self) -> Result<Settings, ConfigError> {
        Settings::read(&self.args, &self.around)
    }
}

/// Reads them aside, in the order in which it was asked: what was read later is told later.
#[derive(Clone, Debug)]
pub(crate) struct Reader(Arc<Mutex<Source>>);

impl Reader {
    pub(crate) fn new(source: Source) -> Self {
        Self(Arc::new(Mutex::new(source)))
    }

    /// Reads them and reports to `inputs`. Must be called inside a runtime.
    pub(crate) fn start(&self, inputs: mpsc::Sender<Input>, asker: Option<Asker>) {
        let source = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let source = source.lock().unwrap_or_else(PoisonError::into_inner);
            let settings = source.read().map(Box::new);
            // Nobody listens only when the daemon ends.
            let _ = inputs.blocking_send(Input::Configured { settings, asker });
        });
    }
}

impl Settings {
    /// Takes over what can change while the daemon runs; what that was, and what else is another. Settings of single cards are
    /// the cards' own ([`crate::cards::Cards::reload`]), and the core must hear the tunings.
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
            "self_service" self_service;
        }
        let time =
            |time: Option<gpushare_proto::Nanos>| time.map_or("off".to_owned(), |time| time.to_string());
        compare("idle_exit", time(self.idle_exit), time(new.idle_exit), true);
        let bytes = |settings: &Self| {
            let of = |bytes: gpushare_proto::Bytes| bytes.to_string();
            [of(settings.core.bandwidth_per_second), of(settings.core.context_reserve)]
        };
        let ([old_rate, old_reserve], [rate, reserve]) = (bytes(self), bytes(&new));
        compare("scheduling.bandwidth_per_second", old_rate, rate, false);
        compare("scheduling.context_reserve", old_reserve, reserve, false);
        compare! { false:
            "connections_per_user" connections_per_user;
            "state_dir" state;
            "metrics" metrics;
            "record, record_limit" record;
            "log_format" log_format;
            "audit.path" audit.path;
            "audit.size" audit.size;
            "audit.files" audit.files;
            "audit.allocations" audit.allocations;
        }
        for (_, tuning) in &tunings {
            self.core.tune(*tuning);
        }
        self.implicit_sessions = new.implicit_sessions;
        self.self_service = new.self_service;
        self.idle_exit = new.idle_exit;
        (tunings.into_iter().map(|(_, new)| new).collect(), changes)
    }
}

/// A value without the words of the language it is kept in.
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
    use gpushare_proto::Nanos;

    use super::*;

    fn source(folder: &tempfile::TempDir, text: &str) -> Source {
        let path = folder.path().join("config.toml");
        fs::write(&path, text).unwrap();
        let mut args = Args::parse_from(["x", "--user"]);
        args.config = Some(path);
        let around = Surroundings::default();
        Source { args, around }
    }

    #[test]
    fn what_cannot_change_live_is_said_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = source(&folder, "").read().unwrap();
        let text = "metrics = '127.0.0.1:9999'\nidle_exit = '1min'\nscheduling.stuck_after = '9s'\nscheduling.context_reserve = '1GiB'";
        let new = source(&folder, text).read().unwrap();
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
                "scheduling.context_reserve 700MiB → 1GiB false",
                "metrics none → 127.0.0.1:9999 false",
            ]
        );
        assert_eq!((settings.metrics, settings.idle_exit), (None, Some(Nanos::from_secs(60))));
        let (tunings, changes) = settings.follow(new);
        assert_eq!((tunings.len(), changes.len()), (0, 2), "said each time until the daemon starts with it");
    }
}
