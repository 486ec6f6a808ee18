//! Commands and flags of `gpushare-ctl`, with their help.
//!
//! Every line of the help that starts with `gpushare-ctl` is an example; a test parses it.

mod cdi;
mod jupyter;
pub(crate) mod moment;
mod run;
mod sessions;
mod set;
mod terms;
mod usage;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use gpushare_proto::Nanos;

pub(crate) use self::cdi::{CdiCommand, CdiPlace, GenerateArgs};
pub(crate) use self::jupyter::{InstallArgs, JupyterCommand};
pub(crate) use self::moment::Moment;
pub(crate) use self::run::{EnvArgs, RunArgs, Shell};
pub(crate) use self::sessions::{CreateArgs, SessionCommand, TokenArgs, Which};
pub(crate) use self::set::{Change, ChangeSession, ChangeWeight, SetArgs, SetCommand};
pub(crate) use self::terms::{ComputeLimit, EnvironmentError, MemoryLimit, TermsArgs};
pub(crate) use self::usage::parse;
pub(crate) use self::values::{Auto, NoneOr, Quantum, Since, Weight};

/// Shares NVIDIA GPUs between processes: each sees the memory of the whole card, and processes take turns
/// only when their memory together does not fit.
#[derive(Debug, Parser)]
#[command(name = "gpushare-ctl", version, max_term_width = 100, arg_required_else_help = false)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl run -- python train.py
  gpushare-ctl run --memory 8GiB --name train -- python train.py
  gpushare-ctl status
  gpushare-ctl top
  gpushare-ctl set quantum 100ms --gpu 0
  gpushare-ctl explain train
  gpushare-ctl audit tail --follow
  gpushare-ctl doctor

Which daemon: the one whose folder --runtime-dir or GPUSHARE_RUNTIME_DIR names, else the system's \
(/run/gpushare), else your own ($XDG_RUNTIME_DIR/gpushare, or /tmp/gpushare-UID).

Exit codes: 0 done, 1 error, 2 usage, 3 the daemon is down, 4 permission, 5 no such card or session. \
`run` and `doctor` have their own: see their --help.")]
pub(crate) struct Cli {
    /// Folder of the daemon, in place of the system's or your own [env: GPUSHARE_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Status(StatusArgs),
    Top(TopArgs),
    #[command(subcommand)]
    Session(SessionCommand),
    Set(SetArgs),
    Reload(ReloadArgs),
    Watch(WatchArgs),
    Dashboard(DashboardArgs),
    Explain(ExplainArgs),
    #[command(subcommand)]
    Audit(AuditCommand),
    Usage(UsageArgs),
    Doctor(DoctorArgs),
    Env(EnvArgs),
    Own(OwnArgs),
    #[command(subcommand)]
    Jupyter(JupyterCommand),
    #[command(subcommand)]
    Cdi(CdiCommand),
    Completions(CompletionsArgs),
    /// Internal: detaches the daemon that `run` starts
    #[command(hide = true)]
    StartDaemon,
    /// Internal: asks the driver in a process that may crash
    #[command(hide = true)]
    DoctorProbe {
        /// Name of the question
        question: String,
    },
}

/// Returns the definition without internal commands. clap cannot remove a command, so the others move to a new root.
pub(crate) fn visible() -> clap::Command {
    let all = Cli::command();
    let root = clap::Command::new("gpushare-ctl")
        .version(env!("CARGO_PKG_VERSION"))
        .about(all.get_about().cloned().unwrap_or_default())
        .after_long_help(all.get_after_long_help().cloned().unwrap_or_default())
        .disable_help_subcommand(true)
        .subcommand_required(true);
    let commands = all.get_subcommands().filter(|command| !command.is_hide_set());
    root.args(all.get_arguments()).subcommands(commands)
}

/// Print the completions of a shell
///
/// The shell then completes the commands and flags of this program, under the name by which it was called. Packages
/// install the completions of bash, zsh and fish.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl completions bash
  gpushare-ctl completions zsh
  gpushare-ctl completions fish

For the present user of bash: gpushare-ctl completions bash > ~/.local/share/bash-completion/completions/gpushare-ctl")]
pub(crate) struct CompletionsArgs {
    /// Shell that reads them
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Show the cards and the sessions that share them
///
/// A line for each card: mode, allocated memory, capacity, number of waiting sessions. Beneath it its sessions: the state
/// of the lock, memory, processes, and the reason for a wait. Colours are for terminals only, and NO_COLOR turns them off.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl status
  gpushare-ctl status --verbose
  gpushare-ctl status --json")]
pub(crate) struct StatusArgs {
    /// Print tables with everything: reasons of modes, parts of the capacity, queue, quantum, handoffs, waits, users
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print everything as one JSON document (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show cards and sessions live, and change weights, priorities and quanta by keys
///
/// The picture changes once a second. The key `?` lists the keys, and `q` quits. A user who is no administrator sees the
/// own sessions, and of others only who holds a card and who waits. docs/top.md describes the columns. NO_COLOR turns
/// colours off.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl top
  gpushare-ctl top --readonly
  gpushare-ctl top --once
  gpushare-ctl top --json")]
pub(crate) struct TopArgs {
    /// Print the picture once, as text, and end; takes a second
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the figures once, as one JSON document (bytes and nanoseconds as numbers), and end
    #[arg(long, conflicts_with = "once")]
    pub(crate) json: bool,
    /// Change nothing, whatever key is pressed
    #[arg(long)]
    pub(crate) readonly: bool,
}

/// Show the session of the program that runs this command
///
/// For use inside a session: a notebook, or a shell under `run`. No administrator's rights are needed.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl own
  gpushare-ctl own --json
  gpushare-ctl own --memory 20GiB")]
pub(crate) struct OwnArgs {
    /// Ask for another memory limit of the session, within what the administrator allows
    #[arg(short = 'm', long, value_name = "SIZE")]
    pub(crate) memory: Option<MemoryLimit>,
    /// Print one JSON document: `session`, `wait` (null if it does not wait) and `changed`
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the usage of sessions, ended ones too
///
/// GPU time is wall time in which a session could submit work. Held is the part of it in which the session had the card
/// to itself while sessions took turns. Peak is the maximum of its memory on one card. The daemon keeps usage by the
/// hour for thirty days, so the count begins and ends at full hours. A time is an age, like 24h, a date, like
/// 2026-11-22, or a date with a time of day, as in RFC 3339. Without an offset it is local, and a date alone is its
/// first midnight.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl usage
  gpushare-ctl usage --since 7d --session train
  gpushare-ctl usage --since 48h --until 24h --user ana
  gpushare-ctl usage --since 30d --json

For one day: gpushare-ctl usage --since 2026-11-22 --until 2026-11-23")]
pub(crate) struct UsageArgs {
    /// Start of the period, like 90m or 7d before now, or like 2026-11-22 or 2026-11-22T08:00
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) since: Moment,
    /// End of the period, in the same forms; the default is now
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Moment>,
    /// Only sessions of this user: name, number, or control group of a container
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Only sessions of this name or number (3 or s3)
    #[arg(long, value_name = "NAME-OR-ID")]
    pub(crate) session: Option<String>,
    /// Print a JSON array in place of a table (bytes, nanoseconds and seconds since 1970 as numbers)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make the daemon read its configuration file again
///
/// The whole file is checked first. If it has an error, nothing changes, and the message names key, value and line.
/// Flags of the daemon override the file, and the file overrides the defaults, as at the daemon's start. Changes made by
/// `set` are lost. SIGHUP has the same effect.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl reload
  gpushare-ctl reload --json

Exit codes: 0 the file is in effect, except for keys that are reported to need a restart; 1 it was refused.")]
pub(crate) struct ReloadArgs {
    /// Print a JSON array of the changes
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print events as they happen
///
/// Events are grants, drops, mode changes, refusals, and changes of sessions and their memory. Ends with the daemon or
/// with Ctrl-C.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl watch
  gpushare-ctl watch --trace out.json

Open the trace in https://ui.perfetto.dev; it is complete however the watch ends.")]
pub(crate) struct WatchArgs {
    /// Print one JSON object per line (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a trace to this file: the times at which sessions waited, moved memory, held the card and dropped it
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// Open the daemon's page in a browser
///
/// Prints a link that works once and opens the page with names and settings. Starts to serve the page at a free port of
/// 127.0.0.1 if the configuration names no address. Opens a browser if the output is a terminal on a desktop.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl dashboard
  gpushare-ctl dashboard --read-only --no-open

docs/dashboard.md says what the page shows and who can see it.")]
pub(crate) struct DashboardArgs {
    /// Link for a page that changes nothing, to be given to others
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Print the link without opening a browser
    #[arg(long)]
    pub(crate) no_open: bool,
    /// Print one JSON document: `url`, `valid_ns`, `read_only`; opens no browser
    #[arg(long)]
    pub(crate) json: bool,
}

/// Explain why a session was refused memory and why it waits
///
/// Shows the last refusals with their figures, the limits of the session on each card, the holders of the lock, the
/// sessions ahead, and the expected wait. For a paused or expired session it says what to do.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl explain train
  gpushare-ctl explain s3 --json

The expected wait is that of the slow case: the holder and all sessions ahead use their whole turns, one after the other.")]
pub(crate) struct ExplainArgs {
    /// Number (3 or s3) or name of the session
    #[arg(value_name = "NAME-OR-ID")]
    pub(crate) which: String,
    /// Print one JSON document (bytes and nanoseconds as numbers)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Read the audit log of administrative changes and refusals of memory
///
/// Reads rotated files too, and works while no daemon runs. docs/audit.md describes the lines.
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
    /// Print the last lines
    Tail {
        /// Number of lines
        #[arg(short = 'n', long, value_name = "N", default_value = "10")]
        lines: usize,
        /// Also print lines that are added later, until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        /// Print the lines unchanged: one JSON object each
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: AuditPlace,
    },
    /// Print the lines that contain a text, in their readable form or in their JSON
    Grep {
        /// Text to find; not a pattern
        pattern: String,
        /// Only lines of this last period, like 2h, or since this time, like 2026-11-22T08:00 (UTC)
        #[arg(long, value_name = "TIME")]
        since: Option<Since>,
        /// Only lines about this session: its number (3 or s3) or its name
        #[arg(long, value_name = "NAME-OR-ID")]
        session: Option<String>,
        /// Print the lines unchanged: one JSON object each
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: AuditPlace,
    },
}

/// Place of the audit log.
#[derive(Debug, Args)]
pub(crate) struct AuditPlace {
    /// Audit log, if the daemon's configuration names another file than audit.log in its state folder
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Find problems of this machine and print what to do
///
/// Checks the driver, the cards and the resulting memory backend, the C library, the preloaded library, the daemon,
/// this user, container and host. Run it where the program runs: same user, same container. It changes nothing. A
/// driver that crashes or hangs is a finding.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl doctor
  gpushare-ctl doctor --program python
  gpushare-ctl doctor --bundle report.tar.gz

Exit codes: 0 fine, 1 warnings, 2 errors.")]
pub(crate) struct DoctorArgs {
    /// Print one JSON document (docs/doctor.md describes its keys)
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write an archive for a bug report, without secrets, names and addresses
    #[arg(long, value_name = "FILE")]
    pub(crate) bundle: Option<PathBuf>,
    /// Also check whether this program can be shared
    #[arg(long, value_name = "CMD")]
    pub(crate) program: Option<OsString>,
    /// Daemon's configuration for the archive, in place of /etc/gpushare/config.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Maximum time for the driver to answer
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: Nanos,
    /// Read files below this folder in place of those of the machine
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}

#[cfg(test)]
mod tests {
    use gpushare_proto::tenant::GpuChoice;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// Parses the examples of a command's help and of its subcommands' help. Returns how many there are.
    fn examples_of(mut command: clap::Command) -> usize {
        let mut examples = 0;
        for line in command.render_long_help().to_string().lines() {
            if line.trim_start().starts_with("gpushare-ctl ") {
                let words = line.split_whitespace().map(OsString::from);
                assert!(parse(words).is_ok(), "{line}");
                examples += 1;
            }
        }
        examples + command.get_subcommands().cloned().map(examples_of).sum::<usize>()
    }

    #[test]
    fn every_example_of_the_help_is_understood_and_every_command_has_one() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name().to_owned();
            assert!(examples_of(command.clone()) > 0 || name == "help", "no example: {name}");
        }
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
