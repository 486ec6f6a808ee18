//! Types of the state and usage that `gpushare-ctl status` and `usage` print as a table or as JSON.

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, SessionId};
use crate::page::GateState;
use crate::session::{Binding, SessionPhase, Terms};
use crate::settings::Mode;
use crate::units::{Bytes, Nanos};

/// State of the daemon, the cards and the sessions, as `gpushare-ctl status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version, process and uptime of the daemon.
    pub daemon: DaemonView,
    /// States of all cards, ordered by number.
    pub gpus: Vec<GpuView>,
    /// States of all sessions, ordered by number.
    pub sessions: Vec<SessionView>,
}

/// Version, process and uptime of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonView {
    /// Package version of the daemon.
    pub version: String,
    /// Pid of the daemon.
    pub pid: u32,
    /// Duration since the start of the daemon.
    pub uptime_ns: Nanos,
    /// Number of processes of the previous daemon that have neither reconnected nor ended.
    pub recovering: u32,
}

/// State of one card: memory, mode, and the sessions that hold its lock or wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// UUID of the card.
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
    /// Sessions that wait for the card's lock, in the order of their turns.
    pub queue: Vec<SessionId>,
    /// Duration for which the next session may keep the lock while others wait.
    pub quantum_ns: Nanos,
    /// Number of grants in serialized mode since the daemon's start.
    pub handoffs: u64,
    /// Number of times that the daemon reopened a gate, since work in flight seemed to wait for a thread
    /// there.
    pub aborted_drops: u64,
    /// Durations of the latest waits for work in flight, oldest first, at most 256.
    pub drains_ns: Vec<Nanos>,
    /// Moving average of the durations of waits for work in flight.
    pub expected_drain_ns: Nanos,
    /// Bytes of sessions' memory moved to the card on grants since the daemon's start.
    pub moved_bytes: Bytes,
}

/// Parts of the capacity of one card: `capacity = (set, else total − contexts) − fixed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityView {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Total memory of the card.
    pub total_bytes: Bytes,
    /// Capacity that the administrator has set; none for the total less the contexts.
    pub set_bytes: Option<Bytes>,
    /// Bytes of CUDA contexts and other memory of the driver, measured or assumed.
    pub contexts_bytes: Bytes,
    /// Bytes of allocations that cannot leave the card.
    pub fixed_bytes: Bytes,
    /// Bytes that the context of the next process is assumed to take.
    pub next_context_bytes: Bytes,
    /// Bytes that sessions can have on the card together once one more process has its context.
    pub usable_bytes: Bytes,
}

/// User with sessions, among whom the time of a card is divided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserView {
    /// User id in digits, or the path of a container's control group.
    ///
    /// A user in an unknown container is named in words.
    pub user: String,
    /// Weight of the user beside the other users of a class.
    pub weight: u32,
    /// Number of the user's sessions.
    pub sessions: u32,
}

/// State of one session: terms, memory, processes and lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Whether the daemon made the session for processes without a token.
    pub implicit: bool,
    /// Memory limit on every card without a separate limit. None for no limit or a limit in percent.
    pub memory_limit_bytes: Option<Bytes>,
    /// Terms, phase and lifetime of the session.
    pub state: SessionState,
    /// Memory of the session on each card that it uses.
    pub gpus: Vec<SessionGpuView>,
    /// Connected processes of the session.
    pub clients: Vec<ClientView>,
    /// Whether the session holds the lock or waits for it.
    pub lock: LockView,
    /// Total duration of the session's waits at the gate.
    pub waited_ns: Nanos,
    /// Total wall time for which the session's gate was open in serialized mode.
    pub held_ns: Nanos,
    /// Number of the session's refused memory requests.
    pub refusals: u64,
}

/// Terms, phase and lifetime of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// Limits, share and labels of the session.
    pub terms: Terms,
    /// Present phase of the session.
    pub standing: SessionPhase,
    /// Remaining duration of the session's lifetime; none for a lifetime without end, zero after the end.
    pub expires_in_ns: Option<Nanos>,
    /// Rule that decides which processes belong to the session.
    pub binding: Binding,
    /// Whether the session outlives its processes and lasts until an administrator deletes it.
    pub kept: bool,
}

/// Memory of a session on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGpuView {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Bytes that the session has allocated on the card.
    pub allocated_bytes: Bytes,
    /// Memory quota of the session on the card; none for no limit.
    pub limit_bytes: Option<Bytes>,
    /// Bytes of memory quota leased to the session's processes, allocated or not.
    pub leased_bytes: Bytes,
    /// Largest number of bytes that the session has had allocated on the card at one time.
    pub peak_bytes: Bytes,
}

/// Places of a session's remapped memory on one card, that of `--backend remap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidenceView {
    /// Number of the session.
    pub session: SessionId,
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Bytes on the card.
    pub resident_bytes: Bytes,
    /// Bytes that live in host memory and not on the card.
    pub hosted_bytes: Bytes,
    /// Part of them that is mapped from the host, since the card has no room for it. Kernels reach it at the speed
    /// of the bus.
    pub mapped_bytes: Bytes,
    /// Bytes that have to leave the card or to come in, as the goals ask.
    pub moving_bytes: Bytes,
}

/// Card time, waits and memory of one session over a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageView {
    /// Number of the session.
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Whether the session still exists.
    pub alive: bool,
    /// Start of the first hour in the period in which the session used a card, in seconds since 1970.
    pub from_unix_s: u64,
    /// Wall time in which the session held the lock and was not known to be idle.
    pub gpu_time_ns: Nanos,
    /// Duration of the session's waits at the gate.
    pub waited_ns: Nanos,
    /// Wall time for which the session's gate was open in serialized mode.
    pub held_ns: Nanos,
    /// Bytes of the session's memory that were moved to a card on grants.
    pub moved_bytes: Bytes,
    /// Largest number of bytes that the session had allocated on one card at one time.
    pub peak_bytes: Bytes,
}

/// Usage of one session over a period, with the user of the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserUsageView {
    /// User id in digits, or the path of a container's control group.
    ///
    /// None for a session that an administrator made for holders of its token, or that an older daemon stored.
    pub user: Option<String>,
    /// Card time, waits and memory of the session.
    pub usage: UsageView,
}

/// Whether a session holds the lock, waits for it, was asked to give it back, or is frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockView {
    /// The session neither holds the lock nor waits for it.
    Idle,
    /// The session holds the lock.
    Holding {
        /// Number of the grant by which the session holds the lock.
        epoch: Epoch,
    },
    /// The daemon asked the session to give the lock back.
    Dropping {
        /// Number of times that the daemon has closed the gate to wait for the session's work in flight.
        tries: u32,
        /// Whether the session keeps the lock for so long that the daemon reports it as stuck.
        stuck: bool,
        /// Reason why the session has not given the lock back yet, in words.
        reason: String,
    },
    /// The session waits for the lock.
    Waiting {
        /// Number of sessions whose turn comes first.
        ahead: u32,
        /// Reason of the wait, in words.
        reason: String,
    },
    /// The session is frozen: all that its processes had on the cards is in memory of the host.
    Frozen,
}

/// State of one connected process: its gate, and whether its memory may move.
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
    /// Whether gpushare knows all driver functions of the process, so that its memory may be moved.
    pub evictable: bool,
    /// Driver functions of the process that gpushare does not know.
    pub unknown_functions: Vec<String>,
}
