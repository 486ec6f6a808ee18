//! What can be asked of `gpushare-ctl`, and the help that teaches it.
//!
//! Every line of the help that starts with `gpushare-ctl` is an example, and a test parses it.

mod sessions;
mod terms;
mod usage;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use gpushare_proto::admin::Mode;
use gpushare_proto::session::Priority;
use gpushare_proto::tenant::GpuChoice;
use gpushare_proto::{Backend, Nanos};

pub(crate) use self::sessions::{CreateArgs, SessionCommand, TokenArgs, Which};
pub(crate) use self::terms::{EnvironmentError, Limit, TermsArgs};
pub(crate) use self::usage::parse;
pub(crate) use self::values::{Auto, GpuName, Memory, NoneOr, Quantum, Share, Since};

/// Shares NVIDIA GPUs between processes: each sees the whole card's memory, and takes turns with the
/// others only when their memory together does not fit.
#[derive(Debug, Parser)]
#[command(name = "gpushare-ctl", version, max_term_width = 100, arg_required_else_help = false)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl run -- python train.py
  gpushare-ctl run --memory 8GiB --name train -- python train.py
  gpushare-ctl status
  gpushare-ctl set quantum 100ms --gpu 0
  gpushare-ctl explain train
  gpushare-ctl audit tail --follow
  gpushare-ctl doctor

Which daemon: the one whose folder --runtime-dir or GPUSHARE_RUNTIME_DIR names, else the system's \
(/run/gpushare), else your own ($XDG_RUNTIME_DIR/gpushare, or /tmp/gpushare-UID).

Exit codes: 0 done, 1 error, 2 usage, 3 the daemon is down, 4 permission, 5 no such thing. \
`run` and `doctor` have their own: see their --help.")]
pub(crate) struct Cli {
    /// The daemon's folder, instead of the system's or your own [env: GPUSHARE_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Status(StatusArgs),
    #[command(subcommand)]
    Session(SessionCommand),
    Set(SetArgs),
    Reload(ReloadArgs),
    Watch(WatchArgs),
    Explain(ExplainArgs),
    #[command(subcommand)]
    Audit(AuditCommand),
    Usage(UsageArgs),
    Doctor(DoctorArgs),
    Env(EnvArgs),
    /// The stage between `run` and the daemon it starts
    #[command(hide = true)]
    StartDaemon,
    /// The process that the driver may take with it
    #[command(hide = true)]
    DoctorProbe {
        /// What is asked
        question: String,
    },
}

/// Run a program that shares its GPUs
///
/// Registers a session with the daemon and becomes the program: same pid, its own signals and exit code.
/// The program's children join the session, which ends with the last process that uses CUDA in it, or with the
/// program if none does: a child that goes on in the background must make its first CUDA call before the program ends,
/// or it finds the session over. Without a daemon, your own is started; it ends after ten idle minutes and leaves its
/// log, scheduler.log, in its folder.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl run -- python train.py
  gpushare-ctl run --memory 8GiB --name train -- python train.py --epochs 3
  gpushare-ctl run --gpu 1 -- ./simulate
  gpushare-ctl run --backend native -- mpirun ./with-ipc
  gpushare-ctl run --oversubscribe -- ./larger-than-the-card
  gpushare-ctl run --session team-a -- python train.py
  gpushare-ctl run --dry-run --memory 8GiB -- python train.py
  gpushare-ctl run --dry-run --json --session team-a

With --dry-run: 0 it would run beside the others, 1 it would take turns, 125 it would be refused.
Exit codes: 125 gpushare failed (also usage, also no daemon), 126 the program is not executable, \
127 it is not found; anything else is the program's own.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// Join this session instead of making one: its name, else the file with its token
    #[arg(long, value_name = "NAME-OR-FILE", conflicts_with_all = ["memory", "compute", "weight", "priority", "ttl", "labels", "name", "oversubscribe"])]
    pub(crate) session: Option<String>,
    /// A name for the session, for `status` and the logs; the daemon makes one up without it, or if an administrator's has it
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The card to use: `auto` for the least loaded one, its number in `status`, or its UUID (`GPU-…`,
    /// `MIG-…`) or the beginning of that
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub(crate) gpu: GpuChoice,
    /// Let the session be larger than the card's capacity
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// Where the program's memory is: `managed` moves out of the card when others need it, `native` stays, for programs
    /// that share it with other processes or devices (IPC, RDMA) [default: managed, or GPUSHARE_BACKEND]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// Only say whether the program would fit beside the others, and how long it may wait for a turn; nothing is made or
    /// started
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With --dry-run: print one JSON document instead (bytes and nanoseconds as numbers), `null` without a daemon
    #[arg(long, requires = "dry_run")]
    pub(crate) json: bool,
    /// The program and its arguments, after `--`
    #[arg(required_unless_present = "dry_run", trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Print what a shell must export so that everything it starts is shared
///
/// Processes that a shell starts so belong to one session: that of --session, else one that the daemon makes for the shell; a token
/// that the shell has from before is taken out.
/// PATH, LD_PRELOAD and LD_LIBRARY_PATH keep what is in them; nothing comes twice.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl env
  gpushare-ctl env --session team-a --append
  gpushare-ctl env --shell fish

In a shell: eval \"$(gpushare-ctl env --session team-a)\"")]
pub(crate) struct EnvArgs {
    /// The session of what the shell starts: its name, or the file with its token
    #[arg(long, value_name = "NAME-OR-FILE")]
    pub(crate) session: Option<String>,
    /// Put ours behind what is in the lists, instead of in front
    #[arg(long)]
    pub(crate) append: bool,
    /// As `run --backend`
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// Whose words to use
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    pub(crate) shell: Shell,
    /// Print one JSON document instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// A kind of shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    /// sh, bash, zsh, dash
    Sh,
    /// fish
    Fish,
}

/// Show the cards and the sessions that share them
///
/// For each card: how it is shared and why, what may be resident and what is allocated, who holds it and
/// who waits, the time quantum and the handoffs so far. For each session: its memory, what its lock is
/// doing and why, how long it waited, and its processes.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl status
  gpushare-ctl status --json")]
pub(crate) struct StatusArgs {
    /// Print one JSON document instead of tables (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what sessions used, also those that ended
///
/// GPU time is wall time in which a session could submit work; held is the part of it with the card to itself while
/// sessions took turns; peak is the most it had on one card. It is kept by the hour for thirty days and outlives the
/// daemon, so the count begins with the hour that --since falls into.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl usage
  gpushare-ctl usage --since 7d --session train
  gpushare-ctl usage --since 30d --json")]
pub(crate) struct UsageArgs {
    /// How far back, like 90m, 24h or 7d; whole hours count
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = values::past)]
    pub(crate) since: Nanos,
    /// Only sessions of this name or number (3 or s3)
    #[arg(long, value_name = "NAME-OR-ID")]
    pub(crate) session: Option<String>,
    /// Print a JSON array instead of a table (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make the daemon read its configuration file again
///
/// The file is checked as a whole and followed, or nothing changes and the message names key, value and line. Everything counts
/// as at the daemon's start, flags before the file before the defaults: what `set` changed since is gone. SIGHUP does the same.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl reload
  gpushare-ctl reload --json

Exit codes: 0 the file is in effect, but for what is said to need a start; 1 it was refused.")]
pub(crate) struct ReloadArgs {
    /// Print a JSON array of what changed instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell what happens, as it happens
///
/// Grants and drops, modes, refusals, sessions and their memory, until the daemon ends or Ctrl-C.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl watch
  gpushare-ctl watch --trace out.json

The trace opens in https://ui.perfetto.dev and is whole however the watch ends.")]
pub(crate) struct WatchArgs {
    /// Print one JSON object a line instead (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a trace to this file: who held, waited, moved and let go when
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Say why a session was refused memory, and why it waits
///
/// The last refusals with their figures, what limits the session on each card, who holds the lock and who is ahead, and about
/// how long it takes; for one that is paused or whose time is over, what to do.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl explain train
  gpushare-ctl explain s3 --json

The time is that of the slow case: the holder uses its time up, and so does everybody ahead, one after the other.")]
pub(crate) struct ExplainArgs {
    /// Its number (3 or s3) or its name
    #[arg(value_name = "NAME-OR-ID")]
    pub(crate) which: String,
    /// Print one JSON document instead (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Read the audit log: who changed what, and who was refused memory
///
/// Also what was rotated away, and also while no daemon runs. docs/audit.md says what is in it.
#[derive(Debug, Subcommand)]
#[command(
    arg_required_else_help = false,
    after_long_help = "\
Examples:
  gpushare-ctl audit tail
  gpushare-ctl audit tail -n 100 --follow --json
  gpushare-ctl audit grep refusal --since 2h --session train
  gpushare-ctl audit grep session.delete --since 2026-11-22T08:00"
)]
pub(crate) enum AuditCommand {
    /// The last lines
    Tail {
        /// How many
        #[arg(short = 'n', long, value_name = "N", default_value = "10")]
        lines: usize,
        /// Go on with what is added, until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        /// Print the lines as they are: one JSON object each
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: AuditPlace,
    },
    /// The lines that contain a text, in what people read or in the JSON
    Grep {
        /// The text, as it is
        pattern: String,
        /// Only what is younger than this, like 2h, or not before an instant, like 2026-11-22T08:00 (UTC)
        #[arg(long, value_name = "TIME")]
        since: Option<Since>,
        /// Only what is about this session: its number (3 or s3) or its name
        #[arg(long, value_name = "NAME-OR-ID")]
        session: Option<String>,
        /// Print the lines as they are: one JSON object each
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: AuditPlace,
    },
}

/// Where the audit log is.
#[derive(Debug, Args)]
pub(crate) struct AuditPlace {
    /// The log, if the daemon's configuration says another place than audit.log in its state folder
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Look for what is wrong here, and say what to do
///
/// The driver and its cards, with the memory backend that results; the C library, the preloaded library, the
/// daemon, this user, container and host. Run it where the program runs: same user, same container. It changes
/// nothing; a driver that crashes or hangs is a finding.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl doctor
  gpushare-ctl doctor --program python
  gpushare-ctl doctor --bundle report.tar.gz

Exit codes: 0 fine, 1 warnings, 2 errors.")]
pub(crate) struct DoctorArgs {
    /// Print one JSON document instead (docs/doctor.md has its keys)
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write an archive for a bug report, without secrets, names and addresses
    #[arg(long, value_name = "FILE")]
    pub(crate) bundle: Option<PathBuf>,
    /// Also look whether this program can be shared
    #[arg(long, value_name = "CMD")]
    pub(crate) program: Option<OsString>,
    /// The daemon's configuration, for the archive, instead of /etc/gpushare/config.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How long the driver may take to answer
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: Nanos,
    /// Look at the files below this folder instead of those of the machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}

/// Change a setting of the running daemon
///
/// Holds until the daemon ends or reads its configuration file again (`reload`); the file makes it last. `auto` clears a fixed value.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = false,
    after_long_help = "\
Examples:
  gpushare-ctl set quantum 100ms --gpu 0
  gpushare-ctl set quantum auto
  gpushare-ctl set mode serialized
  gpushare-ctl set capacity 4GiB --gpu 0
  gpushare-ctl set managed-limit 10GiB
  gpushare-ctl set epsilon 2.5%
  gpushare-ctl set window-target 5ms --gpu 0
  gpushare-ctl set memory 4GiB --session train
  gpushare-ctl set weight 200 --session train
  gpushare-ctl set priority low --session train --json"
)]
pub(crate) struct SetArgs {
    #[command(subcommand)]
    pub(crate) command: SetCommand,
    /// Print one JSON document instead: `key`, `gpu` (null for all cards) or `session`, `old` and `new`
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// What can be changed.
#[derive(Debug, Subcommand)]
pub(crate) enum SetCommand {
    /// How long a session holds the card when they take turns: like 100ms, or `auto` (from the cost of a handoff)
    Quantum(Change<Auto<Quantum>>),
    /// How the card is shared: `parallel`, `time-sliced`, `serialized`, or `auto` (as memory fits and sessions are equal)
    Mode(Change<Auto<Mode>>),
    /// What may be resident on the card together: like 4GiB, or `auto` (its memory less the reserve)
    Capacity(Change<Auto<Memory>>),
    /// The most managed memory of all sessions together, like 10GiB
    ManagedLimit(Change<Memory>),
    /// How long a process's work in flight may take where it shares the card, like 10ms: a switch waits for it
    WindowTarget(Change<Nanos>),
    /// The share of time that handoffs may cost, like 5%
    Epsilon(Change<Share>),
    /// The most memory of a session: like 4GiB, 50%, card by card 0=8GiB,1=50%, or `none`
    Memory(ChangeSession<NoneOr<Limit>>),
    /// The most of a card's time for a session, like 25%, or `none`
    Compute(ChangeSession<NoneOr<Limit>>),
    /// A session's part of the time, relative to 100
    Weight(ChangeSession<u32>),
    /// A session's class: low, normal or high
    Priority(ChangeSession<Priority>),
}

/// A new value, for one session.
#[derive(Debug, Args)]
pub(crate) struct ChangeSession<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    /// The new value
    pub(crate) value: T,
    /// The session: its number (3 or s3) or its name
    #[arg(long, value_name = "NAME-OR-ID")]
    pub(crate) session: String,
}

/// A new value, for one card or for all.
#[derive(Debug, Args)]
pub(crate) struct Change<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    /// The new value
    pub(crate) value: T,
    /// Only this card: its number in `status`, or its UUID
    #[arg(long, value_name = "GPU")]
    pub(crate) gpu: Option<GpuName>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_example_of_the_help_is_understood() {
        let mut examples = 0;
        let mut commands = vec![Cli::command()];
        while let Some(mut command) = commands.pop() {
            for line in command.render_long_help().to_string().lines() {
                if line.trim_start().starts_with("gpushare-ctl ") {
                    let words = line.split_whitespace().map(OsString::from);
                    assert!(parse(words).is_ok(), "{line}");
                    examples += 1;
                }
            }
            commands.extend(command.get_subcommands().cloned());
        }
        assert_eq!(examples, 56);
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        let cli = parse(
            "gpushare-ctl run --gpu gpu1 python -m x --name y --help"
                .split(' ')
                .map(Into::into),
        );
        let Command::Run(run) = cli.unwrap().command else { panic!("not a run") };
        assert_eq!(run.gpu, GpuChoice::Index(1));
        assert_eq!(run.name, None);
        assert_eq!(run.command, ["python", "-m", "x", "--name", "y", "--help"]);
    }
}
