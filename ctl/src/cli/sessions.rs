//! Arguments of `session`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gpushare_proto::Nanos;
use gpushare_proto::tenant::GpuChoice;

use super::{NoneOr, TermsArgs};

/// List, create and change sessions
///
/// `run` makes a session for one program. Sessions that are created here last until they are deleted. They outlive
/// restarts of the daemon, and of the machine if the daemon's state folder does (/var/lib/gpushare). Any number of
/// programs join a session by its token (`run --session`), or belong to it by their user or control group.
#[derive(Debug, Subcommand)]
#[command(
    arg_required_else_help = false,
    after_long_help = "\
Examples:
  gpushare-ctl session list
  gpushare-ctl session show train
  gpushare-ctl session show s3 --json
  gpushare-ctl session create team-a --memory 50% --ttl 8h --label owner=alice
  gpushare-ctl session create students --memory 4GiB --uid 1001
  gpushare-ctl session create pod --memory 0=8GiB,1=4GiB --cgroup /kubepods/pod7
  gpushare-ctl session pause team-a
  gpushare-ctl session pause team-a --free-memory
  gpushare-ctl session renew team-a --ttl 4h
  gpushare-ctl session renew team-a --ttl none
  gpushare-ctl session token team-a"
)]
pub(crate) enum SessionCommand {
    /// List all sessions
    List {
        /// Print a JSON array in place of a table
        #[arg(long)]
        json: bool,
    },
    /// Show one session: memory per card, lock, waits, refusals, processes
    Show {
        /// Number (3 or s3) or name of the session
        #[arg(value_name = "NAME-OR-ID")]
        which: String,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Create a session that lasts until it is deleted, and write its token to a file that only you can read
    Create(Box<CreateArgs>),
    /// Restart the lifetime of a session; an expired session works again
    Renew {
        /// New lifetime, like 2h, or `none` for no end; by default the same as before
        #[arg(long, value_name = "TIME")]
        ttl: Option<NoneOr<Nanos>>,
        #[command(flatten)]
        session: Which,
    },
    /// Give a session a new token, in its file; the old token becomes invalid, and the session's processes stay
    Token(TokenArgs),
    /// End a session: its token becomes invalid; its processes keep their memory and get no more memory or turns
    Revoke(Which),
    /// Delete a session that has no processes
    Delete(Which),
    /// Give a session no turns until it is resumed; it keeps its memory, unless --free-memory is given
    Pause {
        /// Freeze it too: all that its processes have on the cards leaves for host memory. If that cannot be, the session is
        /// paused all the same, and the command fails with the reason
        #[arg(long)]
        free_memory: bool,
        #[command(flatten)]
        session: Which,
    },
    /// Resume a paused session, and let it come back if it is frozen
    Resume(Which),
    /// Move all that the processes of an idle session have on the cards into host memory, and wait until it is there;
    /// the next call of the driver brings it back. Users may freeze and thaw sessions of their own
    Freeze(Which),
    /// Bring a frozen session back, and wait until it is
    Thaw(Which),
}

/// Reference to a session.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Number (3 or s3) or name of the session
    #[arg(value_name = "NAME-OR-ID")]
    pub(crate) which: String,
    /// Print one JSON document: `key`, `session`, `old` and `new`
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Number (3 or s3) or name of the session
    #[arg(value_name = "NAME-OR-ID")]
    pub(crate) which: String,
    /// File for the token, as in `session create`
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `session create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the session: letters, digits, `-`, `_`, `.` and `/`, and not a number. A program's session of that name is
    /// renamed
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// All processes of this user belong to the session
    #[arg(long, value_name = "UID", conflicts_with = "cgroup")]
    pub(crate) uid: Option<u32>,
    /// All processes in this control group and below belong to the session; a path as in /proc/PID/cgroup
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,
    /// Card to use: `auto` for the least loaded one, its number in `status`, or its UUID or a prefix of it
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub(crate) gpu: GpuChoice,
    /// Allow the session more memory than the card's capacity
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// File for the token, in place of the folder `tokens` in the daemon's state folder (/var/lib/gpushare for the
    /// system's daemon); delete and revoke remove the token only there
    #[arg(long, value_name = "FILE", conflicts_with_all = ["uid", "cgroup"])]
    pub(crate) token_file: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
