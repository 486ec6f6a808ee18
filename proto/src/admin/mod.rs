//! The administrator's socket (mode 0600), and the views that `gpushare-ctl` prints as table or JSON:
//! one model, serialised once.

mod settings;
mod views;
mod watch;

use serde::{Deserialize, Serialize};

use crate::explain::{Explanation, OrphanView};
use crate::ids::{GpuUuid, SessionId, Token};
use crate::session::{Binding, Priority, Quota};
use crate::tenant::{Failure, Hello, NewSession};
use crate::units::Nanos;

pub use settings::{ConfigChange, Knob, MIN_MEMORY, MIN_QUANTUM, Mode, Setting, UnknownMode};
pub use views::{
    ClientView, DaemonView, GpuView, LockView, SessionGpuView, SessionState, SessionView, Status, UsageView,
};
pub use watch::{Activity, WatchEvent, WatchEventKind};

/// From `gpushare-ctl` to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// The first message of every connection, with [`crate::tenant::Role::Tool`].
    Hello(Hello),
    /// Everything.
    Status,
    /// Changes one setting.
    Set(Setting),
    /// Everything that happens from now on, beginning with how things are. Answered by [`AdminReply::Events`]
    /// until the connection ends; a watcher that does not keep up is disconnected.
    Watch,
    /// Makes or changes a session. Answered by [`AdminReply::Created`] or [`AdminReply::Changed`].
    Session(SessionRequest),
    /// Why a session was refused memory, and why it waits. Answered by [`AdminReply::Explained`].
    Explain {
        /// Its number (`3`, `s3`) or its name.
        which: String,
    },
    /// What sessions used, the ended ones too. Answered by [`AdminReply::Usage`].
    Usage {
        /// Counted from so long ago, back to the beginning of that hour.
        since: Nanos,
    },
    /// Reads the configuration file again and follows it, or refuses it as a whole. Answered by [`AdminReply::Reloaded`].
    Reload,
    /// What dead processes of a session have on the cards still. Answered by [`AdminReply::Orphaned`].
    Orphaned {
        /// The session, by name or number.
        which: String,
    },
}

/// What becomes of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest {
    /// Makes one that lives until it is deleted.
    Create {
        /// What it is.
        new: NewSession,
        /// Whose.
        binding: Binding,
    },
    /// Changes one of its terms.
    Change {
        /// Its number (`3`, `s3`) or its name.
        which: String,
        /// What.
        change: Change,
    },
    /// Begins its time anew; what had expired goes on.
    Renew {
        /// As above.
        which: String,
        /// For how long; none for as long as before.
        ttl: Option<Nanos>,
    },
    /// Ends it for good: its token is no more, its processes keep what they have and get nothing.
    Revoke {
        /// As above.
        which: String,
    },
    /// Takes it away. It must have no processes.
    Delete {
        /// As above.
        which: String,
    },
    /// Grants it nothing until it is resumed.
    Pause {
        /// As above.
        which: String,
    },
    /// Lets a paused one go on.
    Resume {
        /// As above.
        which: String,
    },
    /// Takes its end away: it lasts until it is deleted.
    Endless {
        /// As above.
        which: String,
    },
    /// Gives it another token; the one of before is no more. Answered by [`AdminReply::Token`].
    Token {
        /// As above.
        which: String,
    },
}

/// A change of a session's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Its memory.
    Memory(Quota),
    /// The most of a card's time.
    Compute(Quota),
    /// Its part of the time.
    Weight(u32),
    /// Its class.
    Priority(Priority),
}

/// From the daemon to `gpushare-ctl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminReply {
    /// Answers the hello.
    Ready {
        /// The daemon's protocol.
        protocol: u16,
    },
    /// Answers [`AdminRequest::Status`].
    Status(Box<Status>),
    /// The setting is in effect.
    Changed {
        /// In words, per card that it touched: what it was.
        old: String,
        /// What it is now.
        new: String,
    },
    /// The request failed.
    Error(Failure),
    /// More that a watcher asked for, in order.
    Events(Vec<WatchEvent>),
    /// A session was made.
    Created {
        /// Its number.
        session: SessionId,
        /// Its name.
        name: String,
        /// Its secret, if that is what it is bound to.
        token: Option<Token>,
        /// The card it was placed on, if one was chosen.
        gpu: Option<GpuUuid>,
    },
    /// Answers [`AdminRequest::Explain`].
    Explained(Box<Explanation>),
    /// Answers [`AdminRequest::Usage`], by session number; if there are very many, the newest.
    Usage(Vec<UsageView>),
    /// Answers [`SessionRequest::Token`].
    Token {
        /// Whose it is.
        session: SessionId,
        /// Its name.
        name: String,
        /// Its secret from now on.
        token: Token,
    },
    /// Answers [`AdminRequest::Reload`]: what the file changed.
    Reloaded(Vec<ConfigChange>),
    /// Answers [`AdminRequest::Orphaned`].
    Orphaned(Vec<OrphanView>),
}
