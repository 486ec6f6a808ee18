//! The administrator's socket (mode 0600), and the views that `gpushare-ctl` prints as table or JSON:
//! one model, serialised once.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::explain::{Explanation, OrphanView};
use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, SessionId, Token};
use crate::page::{GateState, MemoryRefusal};
use crate::session::{Binding, Priority, Quota, StandingView, Terms};
use crate::tenant::{Failure, Hello, NewSession};
use crate::units::{Bytes, Nanos, Percent};

/// From `gpushare-ctl` to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// The first message of every connection, with [`crate::tenant::Role::Tool`].
    Hello(Hello),
    /// Everything.
    Status,
    /// Changes one setting.
    Set(Setting),
    /// Everything that happens from now on, beginning with how things are. Answered by [`AdminReply::Happened`]
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

/// A setting that can change while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// For one card, or for all.
    pub gpu: Option<GpuId>,
    /// What to change.
    pub knob: Knob,
}

/// The settings. Defaults are in one place, the core's `Config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Knob {
    /// A fixed time quantum; none computes it from the cost of a handoff.
    Quantum(Option<Nanos>),
    /// The mode; none lets the daemon choose.
    Mode(Option<Mode>),
    /// What may be resident together; none takes the card's total less the reserve.
    Capacity(Option<Bytes>),
    /// The most managed memory of all sessions together.
    ManagedLimit(Bytes),
    /// The share of time one is ready to lose to handoffs.
    Epsilon(Percent),
    /// How long the work in flight of a process may take: what its window aims at.
    WindowTarget(Nanos),
}

/// How a card is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The working sets fit: every gate is open.
    Parallel,
    /// They do not fit: sessions take turns.
    Serialized,
    /// They fit, and sessions take short turns, because they are not equal or their limits add up to the whole card.
    #[serde(rename = "time-sliced")]
    TimeSliced,
}

impl Mode {
    /// All of them, the one that holds up least first.
    pub const ALL: [Self; 3] = [Self::Parallel, Self::TimeSliced, Self::Serialized];

    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Serialized => "serialized",
            Self::TimeSliced => "time-sliced",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a mode; write parallel, time-sliced or serialized")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        let named = Self::ALL.into_iter().find(|mode| mode.name() == word);
        named.ok_or_else(|| UnknownMode(word.to_owned()))
    }
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
    Happened(Vec<Happening>),
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
    Reloaded(Vec<Reconfigured>),
    /// Answers [`AdminRequest::Orphaned`].
    Orphaned(Vec<OrphanView>),
}

/// A key of the configuration that is another one than what the daemon runs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconfigured {
    /// Which one: `scheduling.quantum_min`, or `quantum of gpu0`.
    pub key: String,
    /// What it was, in words.
    pub old: String,
    /// What the file says.
    pub new: String,
    /// Whether that is in effect; if not, it will be at the daemon's next start.
    pub live: bool,
}

/// The shortest quantum that is taken: shorter ones are spent on handoffs alone.
pub const LEAST_QUANTUM: Nanos = Nanos::from_millis(1);
/// The least memory that is taken, of a card or a session: less holds no allocation.
pub const LEAST_MEMORY: Bytes = Bytes::mib(1);

/// Everything that `gpushare-ctl status` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon itself.
    pub daemon: DaemonView,
    /// The cards, by number.
    pub gpus: Vec<GpuView>,
    /// The sessions, by number.
    pub sessions: Vec<SessionView>,
}

/// The daemon itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonView {
    /// Its package version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Nanoseconds since it started.
    pub uptime_ns: Nanos,
    /// Clients of the last daemon that are neither back nor dead; grants on their cards wait for them.
    pub recovering: u32,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// Its number.
    pub gpu: GpuId,
    /// Its identity.
    pub uuid: GpuUuid,
    /// Its name.
    pub name: String,
    /// Its memory.
    pub total_bytes: Bytes,
    /// What may be resident together.
    pub capacity_bytes: Bytes,
    /// What the sessions have allocated.
    pub allocated_bytes: Bytes,
    /// The most managed memory of all sessions together.
    pub managed_limit_bytes: Bytes,
    /// How it is shared now.
    pub mode: Mode,
    /// Why.
    pub reason: String,
    /// Mode changes so far.
    pub mode_changes: u64,
    /// Sessions that hold the lock.
    pub holders: Vec<SessionId>,
    /// Sessions that wait for it, in order.
    pub queue: Vec<SessionId>,
    /// The quantum of the next grant.
    pub quantum_ns: Nanos,
    /// Grants in serialized mode so far.
    pub handoffs: u64,
    /// Drops that were reopened because work in flight seemed to wait for a thread at the gate.
    pub aborted_drops: u64,
    /// The latest drains, oldest first, at most 256.
    pub drains_ns: Vec<Nanos>,
    /// Moving average of the drain.
    pub expected_drain_ns: Nanos,
    /// Bytes moved to the card on grants.
    pub moved_bytes: Bytes,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Its number.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// Whether the daemon made it for peers without a token.
    pub implicit: bool,
    /// Its quota on every card that has none of its own, where that is a number of bytes.
    pub memory_limit_bytes: Option<Bytes>,
    /// What it was given, and what has become of it.
    pub state: SessionState,
    /// What it uses, per card.
    pub gpus: Vec<SessionGpuView>,
    /// Its processes.
    pub clients: Vec<ClientView>,
    /// What its lock is doing.
    pub lock: LockView,
    /// Time spent waiting at the gate so far.
    pub waited_ns: Nanos,
    /// Wall time with an open gate in serialized mode so far.
    pub held_ns: Nanos,
    /// Refused allocations so far.
    pub refusals: u64,
}

/// What a session was given, and what has become of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// What it may have.
    pub terms: Terms,
    /// What it may do now.
    pub standing: StandingView,
    /// When its time is over; none for one without an end, and zero when it is.
    pub expires_in_ns: Option<Nanos>,
    /// Which processes are its own.
    pub binding: Binding,
    /// Whether it lives until somebody deletes it.
    pub kept: bool,
}

/// A session on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGpuView {
    /// The card.
    pub gpu: GpuId,
    /// Bytes allocated.
    pub allocated_bytes: Bytes,
    /// Its quota here; none for no limit.
    pub limit_bytes: Option<Bytes>,
    /// Bytes leased to its processes, allocated or not.
    pub leased_bytes: Bytes,
    /// The most that was ever allocated.
    pub peak_bytes: Bytes,
}

/// What a session used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageView {
    /// Its number.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// Whether it is there now.
    pub alive: bool,
    /// The beginning of the first hour that is counted and in which it used anything, in seconds since 1970.
    pub from_unix_s: u64,
    /// Wall time in which it could submit work: with the lock, and not known to be idle.
    pub gpu_time_ns: Nanos,
    /// Time spent waiting at the gate.
    pub waited_ns: Nanos,
    /// Wall time with an open gate in serialized mode.
    pub held_ns: Nanos,
    /// Bytes brought in on grants.
    pub moved_bytes: Bytes,
    /// The most that was allocated on one card.
    pub peak_bytes: Bytes,
}

/// What a session's lock is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockView {
    /// Neither holds nor waits.
    Idle,
    /// Holds the lock.
    Holding {
        /// Its grant.
        epoch: Epoch,
    },
    /// Is asked to let go.
    Dropping {
        /// Tries so far.
        tries: u32,
        /// Whether it is reported as stuck.
        stuck: bool,
        /// What it waits for.
        reason: String,
    },
    /// Waits for the lock.
    Waiting {
        /// Sessions ahead.
        ahead: u32,
        /// For whom or what.
        reason: String,
    },
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientView {
    /// Its number.
    pub client: ClientId,
    /// Its pid, as the kernel told the daemon.
    pub pid: u32,
    /// Its gate.
    pub gate: GateState,
    /// Whether one of its threads sleeps at the gate.
    pub waiting: bool,
    /// Whether its memory may be moved off the card.
    pub evictable: bool,
    /// Driver functions that it was handed and that gpushare does not know: why it is not evictable.
    pub unknown_functions: Vec<String>,
}

/// Something that a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// When, in nanoseconds since the daemon started. Never less than the one before.
    pub at_ns: Nanos,
    /// What.
    pub what: Happened,
}

/// What a watcher is told. Its first is [`Self::Watching`], then comes how things are, as if it happened just now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// The watch begins.
    Watching {
        /// The daemon's package version.
        version: String,
        /// Its process.
        pid: u32,
    },
    /// A card is known.
    CardFound {
        /// Its number.
        gpu: GpuId,
        /// Its identity.
        uuid: GpuUuid,
        /// Its name.
        name: String,
        /// Its memory.
        total_bytes: Bytes,
    },
    /// How a card is shared.
    ModeChanged {
        /// The card.
        gpu: GpuId,
        /// The mode.
        mode: Mode,
        /// Why.
        reason: String,
    },
    /// A session is known.
    SessionBegan {
        /// Its number.
        session: SessionId,
        /// Its name.
        name: String,
    },
    /// A session is over.
    SessionEnded {
        /// Its number.
        session: SessionId,
    },
    /// A process joined its session.
    ProcessJoined {
        /// The session.
        session: SessionId,
        /// The process.
        client: ClientId,
        /// Its pid, as the kernel told the daemon.
        pid: u32,
    },
    /// A process is gone.
    ProcessLeft {
        /// The session.
        session: SessionId,
        /// The process.
        client: ClientId,
    },
    /// What a session does.
    Turned {
        /// The session.
        session: SessionId,
        /// What it does from now on.
        to: Activity,
    },
    /// What a session has allocated on a card.
    Allocated {
        /// The session.
        session: SessionId,
        /// The card.
        gpu: GpuId,
        /// Bytes in all.
        bytes: Bytes,
    },
    /// A session got the lock in serialized mode.
    Granted {
        /// The session.
        session: SessionId,
        /// Its quantum.
        quantum_ns: Nanos,
        /// Since it queued up.
        waited_ns: Nanos,
    },
    /// The memory of a session that got the lock is in.
    Entered {
        /// The session.
        session: SessionId,
        /// Since the last session to make room was told to, or since it queued up, whichever came later.
        handoff_ns: Nanos,
    },
    /// A session let go of the lock.
    Dropped {
        /// The session.
        session: SessionId,
        /// Its drain; none if it went idle before it was told to let go.
        drain_ns: Option<Nanos>,
    },
    /// A drop was late while a thread slept at the session's gate, and was reopened.
    DropReopened {
        /// The session.
        session: SessionId,
        /// Tries so far.
        tries: u32,
    },
    /// A session does not let go.
    Stuck {
        /// The session.
        session: SessionId,
        /// What it waits for.
        reason: String,
    },
    /// Memory was refused.
    Refused {
        /// The session.
        session: SessionId,
        /// The process.
        client: ClientId,
        /// The card.
        gpu: GpuId,
        /// The figures.
        refusal: MemoryRefusal,
    },
    /// All processes of the last daemon are back or gone: grants begin.
    Recovered {
        /// How long that took.
        after_ns: Nanos,
    },
    /// A session is called otherwise: an administrator wanted its name.
    SessionRenamed {
        /// Its number.
        session: SessionId,
        /// Its name from now on.
        name: String,
    },
}

/// What a session does, as far as the daemon can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Neither holds the lock nor waits for it.
    Idle,
    /// Waits for the lock.
    Waiting {
        /// For whom or what.
        reason: String,
    },
    /// Has the lock, and brings its memory in.
    Moving,
    /// Has the lock, and may submit work.
    Holding,
    /// Lets its work in flight end, to give the lock back.
    Dropping,
}
