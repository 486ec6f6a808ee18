//! How things are: what `gpushare-ctl status` and `usage` print, as table or JSON.

use serde::{Deserialize, Serialize};

use super::settings::Mode;
use crate::ids::{ClientId, Epoch, GpuId, GpuUuid, SessionId};
use crate::page::GateState;
use crate::session::{Binding, SessionPhase, Terms};
use crate::units::{Bytes, Nanos};

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
    pub standing: SessionPhase,
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
