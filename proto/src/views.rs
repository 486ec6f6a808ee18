//! Views of the present state that `gpushare-ctl status` and `usage` print as a table or as JSON.

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, SessionId};
use crate::page::GateState;
use crate::session::{Binding, SessionPhase, Terms};
use crate::settings::Mode;
use crate::units::{Bytes, Nanos};

/// State of the daemon, the cards and the sessions, as `gpushare-ctl status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// State of the daemon.
    pub daemon: DaemonView,
    /// Cards, ordered by number.
    pub gpus: Vec<GpuView>,
    /// Sessions, ordered by number.
    pub sessions: Vec<SessionView>,
}

/// State of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonView {
    /// Package version of the daemon.
    pub version: String,
    /// Pid of the daemon.
    pub pid: u32,
    /// Time since the start of the daemon.
    pub uptime_ns: Nanos,
    /// Number of processes of the last daemon that have neither reconnected nor ended; grants on their cards
    /// wait.
    pub recovering: u32,
}

/// State of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// The daemon's number of the card.
    pub gpu: GpuId,
    /// Identity of the card.
    pub uuid: GpuUuid,
    /// Product name of the card.
    pub name: String,
    /// Total memory of the card.
    pub total_bytes: Bytes,
    /// Capacity of the card: bytes that may be resident at the same time.
    pub capacity_bytes: Bytes,
    /// Bytes that all sessions have allocated on the card.
    pub allocated_bytes: Bytes,
    /// Limit on the managed memory of all sessions on the card together.
    pub managed_limit_bytes: Bytes,
    /// Present mode of the card.
    pub mode: Mode,
    /// Reason of the present mode, in words.
    pub reason: String,
    /// Number of mode changes since the daemon's start.
    pub mode_changes: u64,
    /// Sessions that hold the card's lock.
    pub holders: Vec<SessionId>,
    /// Sessions that wait for the card's lock, in order.
    pub queue: Vec<SessionId>,
    /// Quantum of the next grant.
    pub quantum_ns: Nanos,
    /// Number of grants in serialized mode since the daemon's start.
    pub handoffs: u64,
    /// Number of drops that were reopened because work in flight seemed to wait for a thread at the gate.
    pub aborted_drops: u64,
    /// Durations of the latest drains, oldest first, at most 256.
    pub drains_ns: Vec<Nanos>,
    /// Moving average of the drains.
    pub expected_drain_ns: Nanos,
    /// Bytes moved to the card on grants since the daemon's start.
    pub moved_bytes: Bytes,
}

/// State of one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Whether the daemon made the session for processes without a token.
    pub implicit: bool,
    /// Memory limit on every card without a limit of its own; none if there is no limit or the limit is a
    /// share.
    pub memory_limit_bytes: Option<Bytes>,
    /// Terms and phase of the session.
    pub state: SessionState,
    /// Memory of the session on each card that it uses.
    pub gpus: Vec<SessionGpuView>,
    /// Connected processes of the session.
    pub clients: Vec<ClientView>,
    /// Whether the session holds the lock or waits for it.
    pub lock: LockView,
    /// Total time that the session has waited at the gate.
    pub waited_ns: Nanos,
    /// Total wall time with an open gate in serialized mode.
    pub held_ns: Nanos,
    /// Number of refused allocations.
    pub refusals: u64,
}

/// Terms and phase of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// Limits, share and labels of the session.
    pub terms: Terms,
    /// Present phase of the session.
    pub standing: SessionPhase,
    /// Rest of the session's lifetime; none if it has no end, zero if it is over.
    pub expires_in_ns: Option<Nanos>,
    /// Rule that decides which processes belong to the session.
    pub binding: Binding,
    /// Whether the session outlives its processes, until it is deleted.
    pub kept: bool,
}

/// Memory of a session on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGpuView {
    /// The daemon's number of the card.
    pub gpu: GpuId,
    /// Bytes that the session has allocated on the card.
    pub allocated_bytes: Bytes,
    /// Quota of the session on the card; none for no limit.
    pub limit_bytes: Option<Bytes>,
    /// Bytes of quota leased to the session's processes, allocated or not.
    pub leased_bytes: Bytes,
    /// Maximum of the bytes that the session has had allocated on the card.
    pub peak_bytes: Bytes,
}

/// Usage of one session over a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageView {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Whether the session exists now.
    pub alive: bool,
    /// Start of the first hour of the period in which the session used anything, in seconds since 1970.
    pub from_unix_s: u64,
    /// Wall time in which the session could submit work: it held the lock and was not known to be idle.
    pub gpu_time_ns: Nanos,
    /// Time that the session waited at the gate.
    pub waited_ns: Nanos,
    /// Wall time with an open gate in serialized mode.
    pub held_ns: Nanos,
    /// Bytes moved to a card on grants.
    pub moved_bytes: Bytes,
    /// Maximum of the bytes allocated on one card.
    pub peak_bytes: Bytes,
}

/// State of a session's lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockView {
    /// The session neither holds the lock nor waits for it.
    Idle,
    /// The session holds the lock.
    Holding {
        /// Epoch of the grant.
        epoch: Epoch,
    },
    /// The session was asked to give the lock back.
    Dropping {
        /// Number of tries to drain the session.
        tries: u32,
        /// Whether the drop is reported as stuck.
        stuck: bool,
        /// Reason why the drop is not complete, in words.
        reason: String,
    },
    /// The session waits for the lock.
    Waiting {
        /// Number of sessions whose turn comes first.
        ahead: u32,
        /// Reason of the wait, in words.
        reason: String,
    },
}

/// State of one connected process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientView {
    /// Client id of the process.
    pub client: ClientId,
    /// Pid of the process in the daemon's PID namespace.
    pub pid: u32,
    /// State of the gate of the process.
    pub gate: GateState,
    /// Whether a thread of the process sleeps at the gate.
    pub waiting: bool,
    /// Whether the memory of the process may be moved off the card.
    pub evictable: bool,
    /// Driver functions of the process that gpushare does not know; any makes the process not evictable.
    pub unknown_functions: Vec<String>,
}
