//! What can be asked about sessions, and done with them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gpushare_proto::Nanos;
use gpushare_proto::tenant::GpuChoice;

use super::{NoneOr, TermsArgs};

/// Look at sessions, make and change them
///
/// `run` makes a session for one program. Those made here last until they are deleted, also over restarts of the
/// daemon, and over those of the machine where the daemon's state folder does (/var/lib/gpushare): any number of programs
/// join one by its token (`run --session`), or belong to it by their user or their control group, whatever token they
/// have.
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
  gpushare-ctl session renew team-a --ttl 4h
  gpushare-ctl session renew team-a --ttl none
  gpushare-ctl session token team-a"
)]
pub(crate) enum SessionCommand {
    /// List all sessions
    List {
        /// Print a JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Show one session: memory per card, lock, waits, refusals, processes
    Show {
        /// Its number (3 or s3) or its name
        #[arg(value_name = "NAME-OR-ID")]
        which: String,
        /// Print one JSON document instead
        #[arg(long)]
        json: bool,
    },
    /// Make a session that lives until it is deleted; its token goes into a file that only you read
    Create(Box<CreateArgs>),
    /// Begin a session's time anew; what had expired goes on
    Renew {
        /// Its number (3 or s3) or its name
        #[arg(value_name = "NAME-OR-ID")]
        which: String,
        /// How long from now, like 2h, or `none` for no end; as long as before without it
        #[arg(long, value_name = "TIME")]
        ttl: Option<NoneOr<Nanos>>,
        /// Print one JSON document instead: `key`, `session`, `old` and `new`
        #[arg(long)]
        json: bool,
    },
    /// Give a session another token, in its file; the one of before opens it no more, and its processes stay
    Token(TokenArgs),
    /// End a session for good: its token is no more, its processes keep what they have and get nothing
    Revoke(Which),
    /// Take a session away that has no processes
    Delete(Which),
    /// Grant a session nothing until it is resumed; it keeps its memory
    Pause(Which),
    /// Let a paused session go on
    Resume(Which),
}

/// One session.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Its number (3 or s3) or its name
    #[arg(value_name = "NAME-OR-ID")]
    pub(crate) which: String,
    /// Print one JSON document instead: `key`, `session`, `old` and `new`
    #[arg(long)]
    pub(crate) json: bool,
}

/// A session that gets another token.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Its number (3 or s3) or its name
    #[arg(value_name = "NAME-OR-ID")]
    pub(crate) which: String,
    /// Where the token goes, as in `session create`
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print one JSON document instead
    #[arg(long)]
    pub(crate) json: bool,
}

/// A new session.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Its name: letters, digits, `-`, `_`, `.` and `/`, and no number. A program's session that has it gets another one
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) terms: TermsArgs,
    /// All processes of this user belong to it
    #[arg(long, value_name = "UID", conflicts_with = "cgroup")]
    pub(crate) uid: Option<u32>,
    /// All processes in this control group and below belong to it: its path as /proc/PID/cgroup has it
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<String>,
    /// The card to use: `auto` for the least loaded one, its number in `status`, or its UUID or the beginning of that
    #[arg(long, value_name = "GPU", default_value = "auto")]
    pub(crate) gpu: GpuChoice,
    /// Let the session be larger than the card's capacity
    #[arg(long)]
    pub(crate) oversubscribe: bool,
    /// Where its token goes, instead of the folder `tokens` in the daemon's state folder (the machine's daemon:
    /// /var/lib/gpushare), under the session's name; delete and revoke remove it there only
    #[arg(long, value_name = "FILE", conflicts_with_all = ["uid", "cgroup"])]
    pub(crate) token_file: Option<PathBuf>,
    /// Print one JSON document instead
    #[arg(long)]
    pub(crate) json: bool,
}
