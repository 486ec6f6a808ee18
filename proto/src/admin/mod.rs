//! Messages of the admin socket (mode 0600), and the views that `gpushare-ctl` prints as a table or as JSON.

mod watch;

use serde::{Deserialize, Serialize};

use crate::explain::{Explanation, OrphanView};
use crate::follow::Increments;
use crate::handoff::CardHandoffs;
use crate::ids::{GpuUuid, SessionId, Token};
use crate::session::{Binding, FreezeAfter, Priority, Quota};
use crate::tenant::{Failure, Hello, NewSession};
use crate::units::Nanos;

pub use crate::copies::CopiesView;
pub use crate::frost::{FreezingView, FrostStage, FrostView};
pub use crate::settings::{ConfigChange, Knob, MIN_MEMORY, Mode, Setting};
pub use crate::views::{
    CapacityView, ClientView, DaemonView, GpuView, LockView, ResidenceView, SessionGpuView, SessionState,
    SessionView, Status, UsageView, UserUsageView, UserView,
};
pub use watch::{Activity, WatchEvent, WatchEventKind};

/// Message from `gpushare-ctl` to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// First message of every connection, with [`crate::tenant::Role::Tool`].
    Hello(Hello),
    /// Asks for the state of the daemon, the cards and the sessions. Answered by [`AdminReply::Status`].
    Status,
    /// Changes one setting of the daemon or of a card. Answered by [`AdminReply::Changed`].
    Set(Setting),
    /// Asks for events that describe the present state, then for all new events. Answered by
    /// [`AdminReply::Events`] until the connection ends. The daemon disconnects a tool that reads too slowly.
    Watch,
    /// Creates or changes a session. Answered by [`AdminReply::Created`], [`AdminReply::Changed`] or
    /// [`AdminReply::Token`].
    Session(SessionRequest),
    /// Asks for a session's refused memory requests and wait for the lock. Answered by
    /// [`AdminReply::Explained`].
    Explain {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Asks for the usage of all sessions, ended ones too. Answered by [`AdminReply::Usage`].
    Usage {
        /// Duration of the period, which ends now and begins at a full hour.
        since: Nanos,
    },
    /// Makes the daemon read its configuration file again. An invalid file changes nothing. Answered by
    /// [`AdminReply::Reloaded`].
    Reload,
    /// Asks for the memory that dead processes of a session still have on cards. Answered by
    /// [`AdminReply::Orphaned`].
    Orphaned {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Asks what the capacity of each card consists of. Answered by [`AdminReply::Capacities`].
    Capacities,
    /// Sets the weight of a user, which divides the time of a class with other users. Answered by
    /// [`AdminReply::Changed`].
    UserWeight {
        /// User id in digits, or the path of a container's control group.
        user: String,
        /// New weight, from 1 to 10,000.
        weight: u32,
    },
    /// Asks for the users with sessions. Answered by [`AdminReply::Users`].
    Users,
    /// Asks for the whole state, then for its increments once a second. Answered by
    /// [`AdminReply::Increments`] until the connection ends. The daemon disconnects a tool that reads too
    /// slowly.
    Follow,
    /// Asks for a link to the daemon's page in the browser, which the daemon starts to serve if it does not
    /// yet. Answered by [`AdminReply::Dashboard`].
    Dashboard {
        /// Whether the page shows names but can change nothing.
        read_only: bool,
    },
    /// Asks for the usage of all sessions in a period, with their users. Answered by
    /// [`AdminReply::UserUsage`].
    UsageBetween {
        /// Start of the period in seconds since 1970. The count begins at the full hour before.
        from_unix_s: u64,
        /// End of the period in seconds since 1970. The count ends at the full hour after.
        until_unix_s: u64,
    },
    /// Asks where the remapped memory of all sessions is. Answered by [`AdminReply::Residences`].
    Residences,
    /// Asks for the running and the last handoff of each card. Answered by [`AdminReply::Handoffs`].
    Handoffs,
    /// Asks how far a session is frozen. Answered by [`AdminReply::Frost`].
    Frost {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Asks what keeps all sessions of this daemon from being frozen. Answered by [`AdminReply::Freezing`].
    Freezing,
    /// Asks how many host copies processes share. Answered by [`AdminReply::Copies`].
    Copies,
    /// Asks for the running handoff of each card, and the last one there that moved memory of a session. Answered by
    /// [`AdminReply::Handoffs`].
    HandoffsOf {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
}

/// Creation or change of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest {
    /// Creates a session that lasts until [`Self::Delete`].
    Create {
        /// Name and terms of the new session.
        new: NewSession,
        /// Rule that decides which processes belong to the new session.
        binding: Binding,
    },
    /// Changes one of a session's terms: a limit, the weight or the priority class.
    Change {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
        /// Term to change, with its new value.
        change: Change,
    },
    /// Restarts the lifetime of a session; an expired session works again.
    Renew {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
        /// New lifetime of the session; none for the session's former lifetime.
        ttl: Option<Nanos>,
    },
    /// Revokes a session: the token becomes invalid. The processes keep their memory and get no more memory
    /// or grants.
    Revoke {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Deletes a session, which must have no processes.
    Delete {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Pauses a session, which gets no grants until [`Self::Resume`].
    Pause {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Resumes a paused session.
    Resume {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Removes the end of a session's lifetime. The session lasts until an administrator deletes it.
    Endless {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Gives a session a new token and invalidates the old one. Answered by [`AdminReply::Token`].
    Token {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Freezes the processes of an idle session. Answered by [`AdminReply::Changed`] at once, while the
    /// driver still moves their memory; [`AdminRequest::Frost`] asks how far that is.
    Freeze {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
    /// Lets the frozen processes of a session come back. The answer is [`AdminReply::Changed`].
    Thaw {
        /// Number (`3`, `s3`) or name of the session.
        which: String,
    },
}

/// New value of one of a session's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Largest memory that the session may use, per card.
    Memory(Quota),
    /// Largest share of each card's time that the session may use.
    Compute(Quota),
    /// Weight of the session: share of the time on a card that several sessions use.
    Weight(u32),
    /// Priority class of the session.
    Priority(Priority),
    /// Idle time after which the session is frozen.
    FreezeAfter(FreezeAfter),
}

/// Message from the daemon to `gpushare-ctl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminReply {
    /// Answers [`AdminRequest::Hello`].
    Ready {
        /// Protocol version of the daemon.
        protocol: u16,
    },
    /// Answers [`AdminRequest::Status`].
    Status(Box<Status>),
    /// Answers a request that changed a setting or a session.
    Changed {
        /// Old value of the setting or term in words, for each card that changed.
        old: String,
        /// New value of the setting or term, in words.
        new: String,
    },
    /// Answers a request that failed.
    Error(Failure),
    /// Answers [`AdminRequest::Watch`] with the next events, in order.
    Events(Vec<WatchEvent>),
    /// Answers [`SessionRequest::Create`].
    Created {
        /// Number of the new session.
        session: SessionId,
        /// Name of the new session.
        name: String,
        /// Token of the new session; none if the session is bound to a user or control group.
        token: Option<Token>,
        /// Card that the session is to use; none for any card.
        gpu: Option<GpuUuid>,
    },
    /// Answers [`AdminRequest::Explain`].
    Explained(Box<Explanation>),
    /// Answers [`AdminRequest::Usage`], ordered by session number; the newest sessions if not all fit.
    Usage(Vec<UsageView>),
    /// Answers [`SessionRequest::Token`].
    Token {
        /// Number of the session.
        session: SessionId,
        /// Name of the session.
        name: String,
        /// New token of the session.
        token: Token,
    },
    /// Answers [`AdminRequest::Reload`] with the changed keys of the configuration.
    Reloaded(Vec<ConfigChange>),
    /// Answers [`AdminRequest::Orphaned`].
    Orphaned(Vec<OrphanView>),
    /// Answers [`AdminRequest::Capacities`], ordered by card.
    Capacities(Vec<CapacityView>),
    /// Answers [`AdminRequest::Users`], ordered by user.
    Users(Vec<UserView>),
    /// Answers [`AdminRequest::Follow`] with the whole state, and then once a second with what changed.
    Increments(Box<Increments>),
    /// Answers [`AdminRequest::Dashboard`].
    Dashboard {
        /// IP address and port at which the daemon serves the page, like `127.0.0.1:9403`.
        address: String,
        /// Secret that a browser can exchange once for a key of the page.
        link: Token,
        /// Duration for which the link is valid.
        valid_ns: Nanos,
    },
    /// Answers [`AdminRequest::UsageBetween`], ordered by session number; the sessions that used most if not
    /// all fit.
    UserUsage(Vec<UserUsageView>),
    /// Answers [`AdminRequest::Residences`], ordered by session and card.
    Residences(Vec<ResidenceView>),
    /// Answers [`AdminRequest::Handoffs`] and [`AdminRequest::HandoffsOf`], ordered by card. Cards without any of these
    /// handoffs are left out.
    Handoffs(Vec<CardHandoffs>),
    /// Answers [`AdminRequest::Frost`].
    Frost(FrostView),
    /// Answers [`AdminRequest::Freezing`].
    Freezing(FreezingView),
    /// Answers [`AdminRequest::Copies`].
    Copies(CopiesView),
}
