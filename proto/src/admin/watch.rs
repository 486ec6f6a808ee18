//! Events that the daemon reports to `gpushare-ctl watch`.

use serde::{Deserialize, Serialize};

use crate::ids::{ClientId, GpuId, GpuUuid, SessionId};
use crate::page::MemoryRefusal;
use crate::settings::Mode;
use crate::units::{Bytes, Nanos};

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// Time of the event since the daemon's start; it never decreases.
    pub at_ns: Nanos,
    /// Event.
    pub what: WatchEventKind,
}

/// Event that a watcher is told. The first is [`Self::Watching`]; then come events that build up the present
/// state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEventKind {
    /// The watch began.
    Watching {
        /// Package version of the daemon.
        version: String,
        /// Pid of the daemon.
        pid: u32,
    },
    /// The daemon found a card.
    CardFound {
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Identity of the card.
        uuid: GpuUuid,
        /// Product name of the card.
        name: String,
        /// Total memory of the card.
        total_bytes: Bytes,
    },
    /// The mode of a card changed.
    ModeChanged {
        /// The daemon's number of the card.
        gpu: GpuId,
        /// New mode of the card.
        mode: Mode,
        /// Reason of the new mode, in words.
        reason: String,
    },
    /// A session began.
    SessionBegan {
        /// Number of the session.
        session: SessionId,
        /// Name of the session.
        name: String,
    },
    /// A session ended.
    SessionEnded {
        /// Number of the session.
        session: SessionId,
    },
    /// A process joined its session.
    ProcessJoined {
        /// Number of the session.
        session: SessionId,
        /// Client id of the process.
        client: ClientId,
        /// Pid of the process in the daemon's PID namespace.
        pid: u32,
    },
    /// A process left its session.
    ProcessLeft {
        /// Number of the session.
        session: SessionId,
        /// Client id of the process.
        client: ClientId,
    },
    /// The activity of a session changed.
    Turned {
        /// Number of the session.
        session: SessionId,
        /// New activity of the session.
        to: Activity,
    },
    /// The memory of a session on a card changed.
    Allocated {
        /// Number of the session.
        session: SessionId,
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Total bytes that the session has allocated on the card.
        bytes: Bytes,
    },
    /// A session got the lock in serialized mode.
    Granted {
        /// Number of the session.
        session: SessionId,
        /// Quantum of the grant.
        quantum_ns: Nanos,
        /// Time from the session's entry into the queue to the grant.
        waited_ns: Nanos,
    },
    /// A session that got the lock has brought its memory onto the card.
    Entered {
        /// Number of the session.
        session: SessionId,
        /// Time since the last drop that this grant needed, or since the session's entry into the queue if
        /// that is later.
        handoff_ns: Nanos,
    },
    /// A session gave the lock back.
    Dropped {
        /// Number of the session.
        session: SessionId,
        /// Duration of the drain; none if the session was idle and gave the lock back unasked.
        drain_ns: Option<Nanos>,
    },
    /// A drop was late while a thread of the session slept at the gate, so the gate was reopened.
    DropReopened {
        /// Number of the session.
        session: SessionId,
        /// Number of tries to drain the session.
        tries: u32,
    },
    /// A session does not give the lock back.
    Stuck {
        /// Number of the session.
        session: SessionId,
        /// Reason why the session does not give the lock back, in words.
        reason: String,
    },
    /// The daemon refused memory.
    Refused {
        /// Number of the session.
        session: SessionId,
        /// Client id of the process.
        client: ClientId,
        /// The daemon's number of the card.
        gpu: GpuId,
        /// Limit and figures of the refusal.
        refusal: MemoryRefusal,
    },
    /// All processes of the last daemon have reconnected or ended, and grants begin.
    Recovered {
        /// Duration of the recovery.
        after_ns: Nanos,
    },
    /// A session got another name because an administrator gave its name to a new session.
    SessionRenamed {
        /// Number of the session.
        session: SessionId,
        /// New name of the session.
        name: String,
    },
}

/// Activity of a session as the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// The session neither holds the lock nor waits for it.
    Idle,
    /// The session waits for the lock.
    Waiting {
        /// Reason of the wait, in words.
        reason: String,
    },
    /// The session has the lock and brings its memory onto the card.
    Moving,
    /// The session has the lock and may submit work.
    Holding,
    /// The session waits for its work in flight to end, to give the lock back.
    Dropping,
}
