//! `gpushare-ctl run` and `env`: programs that share a card, and shells that start them.

use std::ffi::OsString;

use clap::Args;
use gpushare_proto::Backend;
use gpushare_proto::tenant::GpuChoice;

use super::terms::TermsArgs;

/// Run a program that shares its GPUs
///
/// Registers a session with the daemon and becomes the program: same pid, same signals, same exit code. The program's
/// children join the session. The session ends with its last process that uses CUDA, or with the program if no process
/// does. So a child in the background must make its first CUDA call before the program ends. If no daemon runs, your
/// own is started. It ends after ten idle minutes and leaves its log, scheduler.log, in its folder.
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
    /// Join an existing session: its name, or the file with its token
    #[arg(long, value_name = "NAME-OR-FILE", conflicts_with_all = ["memory", "compute", "weight", "priority", "ttl", "freeze_after", "labels", "name", "oversubscribe"])]
    pub(crate) session: Option<String>,
    /// Name of the session in `status` and logs; the daemon chooses one if this is missing or is the name of an
    /// administrator's session
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Card to use: `auto` for the least loaded one, its number in `status`, or its UUID (`GPU-…`, `MIG-…`) or a prefix
    /// of it
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub(crate) gpu: GpuChoice,
    /// Allow the session more memory than the card's capacity. With `--backend remap` the rest is used from host memory,
    /// at the speed of the bus
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// Kind of the program's memory: `remap` moves to host memory and back at the speed of the bus when the card changes
    /// hands; `managed` is moved by the driver, page by page; `native` stays on the card, for programs that share memory
    /// with other processes or devices (IPC, RDMA) [default: GPUSHARE_BACKEND, or the first of these that the cards can
    /// do; `doctor` says which]
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// With --backend remap: check that no work is in flight while memory leaves the card, by reading it twice more;
    /// work that is found keeps the program's memory on the card and is named on stderr
    #[arg(long)]
    pub(crate) paranoid: bool,
    /// Print whether the program would fit beside the others and how long it may wait for a turn, without starting it
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With --dry-run: print one JSON document (bytes and nanoseconds as numbers), `null` without a daemon
    #[arg(long, requires = "dry_run")]
    pub(crate) json: bool,
    /// Program and its arguments, after `--`
    #[arg(required_unless_present = "dry_run", trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Print shell exports with which every program that the shell starts shares its GPUs
///
/// All processes that the shell starts belong to one session: that of --session, else one that the daemon makes for
/// the shell. Without --session, a token in the shell's environment is removed. PATH, LD_PRELOAD and LD_LIBRARY_PATH
/// keep their entries; no entry appears twice.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  gpushare-ctl env
  gpushare-ctl env --session team-a --append
  gpushare-ctl env --shell fish

In a shell: eval \"$(gpushare-ctl env --session team-a)\"")]
pub(crate) struct EnvArgs {
    /// Session of the programs that the shell starts: its name, or the file with its token
    #[arg(long, value_name = "NAME-OR-FILE")]
    pub(crate) session: Option<String>,
    /// Put gpushare's entries last in the lists, not first
    #[arg(long)]
    pub(crate) append: bool,
    /// Kind of the programs' memory, like `run --backend`
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<Backend>,
    /// Syntax of the exports
    #[arg(long, value_enum, default_value_t = Shell::Sh)]
    pub(crate) shell: Shell,
    /// Print one JSON document
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
