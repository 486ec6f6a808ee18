//! Command line of the daemon.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Parser, ValueEnum};
use gpushare_proto::admin::Mode;
use gpushare_proto::ranges::{self, Range};
use gpushare_proto::units::UnitError;
use gpushare_proto::{Bytes, GpuUuid, Nanos};
use serde::Deserialize;

/// Shares this machine's NVIDIA GPUs among many processes.
///
/// Started by root it is the system's daemon, else the user's own. --user and --system override this. A
/// folder given by --runtime-dir or GPUSHARE_RUNTIME_DIR makes it the user's own.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "gpushare-scheduler", version)]
#[command(group(ArgGroup::new("owner").args(["user", "system"])))]
#[command(
    after_help = "Exit codes: 0 ended as asked, 1 error, 2 wrong flag or configuration, 4 no permission.\n\
    Environment: GPUSHARE_RUNTIME_DIR, GPUSHARE_LOCK_DIR, GPUSHARE_LOG (a filter like `debug`), \
    STATE_DIRECTORY (systemd's, with --system)."
)]
pub(crate) struct Args {
    /// Serve this user's own processes only
    #[arg(long)]
    pub(crate) user: bool,
    /// Serve the processes of all users of this machine
    #[arg(long)]
    pub(crate) system: bool,
    /// Folder for the sockets [default: /run/gpushare, or $XDG_RUNTIME_DIR/gpushare for a user]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Folder for state that outlives a restart of the machine [default: /var/lib/gpushare with --system, or
    /// $XDG_STATE_HOME/gpushare; else, and with --runtime-dir, that folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Configuration file [default: /etc/gpushare/config.toml with --system, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Bytes that may be resident together on a card, by its index or UUID (repeatable)
    #[arg(long, value_name = "GPU=BYTES")]
    pub(crate) capacity: Vec<ForCard>,
    /// Limit on the managed memory of all sessions together, on every card or on one (repeatable)
    #[arg(long, value_name = "[GPU=]BYTES")]
    pub(crate) managed_limit: Vec<ForCards>,
    /// Largest host memory for memory of `--backend remap` that is not on a card [default: what the machine and the
    /// control group have free, less an eighth of it]
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| within(ranges::HOST_BUDGET, text))]
    pub(crate) host_budget: Option<Bytes>,
    /// Bytes that a CUDA context is assumed to take until they are measured, at most an eighth of the card
    /// [default: 700MiB]
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| within(ranges::CONTEXT_RESERVE, text))]
    pub(crate) context_reserve: Option<Bytes>,
    /// Fixed time quantum instead of the computed one, like 2s
    #[arg(long, value_name = "TIME", value_parser = |text: &str| within(ranges::QUANTUM, text))]
    pub(crate) quantum: Option<Nanos>,
    /// Run all sessions in parallel, or in turns, or decide by their memory
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<ModeChoice>,
    /// End after this time without sessions, like 10min
    #[arg(long, value_name = "TIME", value_parser = |text: &str| within(ranges::IDLE_EXIT, text))]
    pub(crate) idle_exit: Option<Nanos>,
    /// Address for Prometheus metrics, or `off` [default: 127.0.0.1:9402 with --system, else off]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<ServedAt>,
    /// Show names of sessions in the metrics, to everybody who can reach their address
    #[arg(long)]
    pub(crate) metrics_names: bool,
    /// Address of the page for browsers, or `off` [default: none until `gpushare-ctl dashboard` asks for it]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) dashboard: Option<ServedAt>,
    /// Folder for the cards' lock files [default: /run/lock]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) lock_dir: Option<PathBuf>,
    /// Record the scheduler's events for `cargo xtask replay`; an older recording of that name becomes FILE.1
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// End the recording at this size [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| within(ranges::RECORD_LIMIT, text))]
    pub(crate) record_limit: Option<Bytes>,
    /// Format of log lines [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Write the log to this file instead of stderr; at 4 MiB it becomes FILE.1 and a new one begins
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Write one byte to this inherited pipe when both sockets listen
    #[arg(long, value_name = "N")]
    pub(crate) ready_fd: Option<u32>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Plain text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Address at which the daemon serves something over HTTP, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedAt {
    Off,
    Address(SocketAddr),
}

impl FromStr for ServedAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::Address).map_err(|_| {
                format!(
                    "`{text}` is neither `off` nor an address with its port; write it like 127.0.0.1:9402"
                )
            }),
        }
    }
}

/// Sharing mode on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeChoice {
    /// Mode chosen by the sessions' memory and weights.
    Auto,
    /// All sessions at once.
    Parallel,
    /// Short turns without moving memory.
    TimeSliced,
    /// Turns in which memory moves.
    Serialized,
}

impl ModeChoice {
    pub(crate) fn fixed(self) -> Option<Mode> {
        match self {
            Self::Auto => None,
            Self::Parallel => Some(Mode::Parallel),
            Self::TimeSliced => Some(Mode::TimeSliced),
            Self::Serialized => Some(Mode::Serialized),
        }
    }
}

/// Name of a card on the command line and in the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CardName {
    /// Index of the card in the daemon's list of cards.
    Index(u8),
    Uuid(GpuUuid),
}

impl FromStr for CardName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(index) = text.parse() {
            return Ok(Self::Index(index));
        }
        text.parse().map(Self::Uuid).map_err(|_| {
            format!("`{text}` is neither a GPU's index nor its UUID; `nvidia-smi -L` lists both")
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForCard {
    pub(crate) card: CardName,
    pub(crate) bytes: Bytes,
}

impl FromStr for ForCard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=');
        let (card, bytes) = parts.ok_or_else(|| format!("`{text}` names no GPU; write it like 0=8GiB"))?;
        Ok(Self { card: card.parse()?, bytes: within(ranges::CAPACITY, bytes)? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForCards {
    /// Value for each card that has no value of its own.
    Every(Bytes),
    One(ForCard),
}

impl FromStr for ForCards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('=') {
            text.parse().map(Self::One)
        } else {
            within(ranges::MANAGED_LIMIT, text).map(Self::Every)
        }
    }
}

/// Parses a value and checks its range.
fn within<T>(range: Range<T>, text: &str) -> Result<T, String>
where
    T: FromStr<Err = UnitError> + Copy + PartialOrd + Display,
{
    let value = text.parse().map_err(|error: UnitError| error.to_string())?;
    range.check(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn capacities_name_their_card() {
        let args = Args::parse_from(["x", "--capacity", "0=4GiB", "--managed-limit", "16GiB"]);
        let capacity = ForCard { card: CardName::Index(0), bytes: Bytes::gib(4) };
        assert_eq!(args.capacity, [capacity]);
        assert_eq!(args.managed_limit, [ForCards::Every(Bytes::gib(16))]);
    }

    #[test]
    fn wrong_values_say_what_would_be_right() {
        for (flags, hint) in [
            (["--capacity", "4GiB"], "like 0=8GiB"),
            (["--capacity", "x=4GiB"], "nvidia-smi -L"),
            (["--capacity", "0=lots"], "like 8GiB"),
            (["--capacity", "0=0"], "capacity is 1MiB to"),
            (["--quantum", "10us"], "quantum is 1ms to 3600s, not 10µs"),
            (["--record-limit", "10"], "record_limit is 1MiB to"),
            (["--quantum", "2"], "like 250ms"),
            (["--metrics", "9402"], "like 127.0.0.1:9402"),
            (["--dashboard", "localhost"], "like 127.0.0.1:9402"),
            (["--user", "--system"], "cannot be used with"),
        ] {
            let error = Args::try_parse_from(["x"].into_iter().chain(flags)).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
