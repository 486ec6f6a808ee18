//! Events that the daemon reports to `gpushare-ctl watch`.

use serde::{Deserialize, Serialize};

use crate::handoff::Handoff;
use crate::ids::{ClientId, GpuId, GpuUuid, SessionId};
use crate::page::MemoryRefusal;
use crate::settings::Mode;
use crate::units::{Bytes, Nanos};

/// An event, and the point in time at which it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// Duration from the daemon's start to the event. Later events have no smaller value.
    pub at_ns: Nanos,
    /// Kind of the event, with the facts about it.
    pub what: WatchEventKind,
}

/// Event for `gpushare-ctl watch`: first [`Self::Watching`], then events that describe the present state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEventKind {
    /// The connection of `gpushare-ctl watch` begins to receive events.
    Watching {
        /// Package version of the daemon.
        version: String,
        /// Pid of the daemon.
        pid: u32,
    },
    /// The daemon found a card.
    CardFound {
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// UUID of the card.
        uuid: GpuUuid,
        /// Product name of the card.
        name: String,
        /// Total memory of the card.
        total_bytes: Bytes,
    },
    /// The mode of a card changed.
    ModeChanged {
        /// Number that the daemon assigned to the card.
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
    /// A process connected to the daemon and joined a session.
    ProcessJoined {
        /// Number of the session.
        session: SessionId,
        /// Client id of the process.
        client: ClientId,
        /// Pid of the process in the daemon's PID namespace.
        pid: u32,
    },
    /// A process ended or disconnected, and so left the session.
    ProcessLeft {
        /// Number of the session.
        session: SessionId,
        /// Client id of the process.
        client: ClientId,
    },
    /// A session began to wait for the lock, to hold it, or changed its [`Activity`] otherwise.
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
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Total bytes that the session has allocated on the card.
        bytes: Bytes,
    },
    /// A session got the lock in serialized mode.
    Granted {
        /// Number of the session.
        session: SessionId,
        /// Duration for which the session keeps the lock while others wait.
        quantum_ns: Nanos,
        /// Duration from the session's entry into the queue to the grant.
        waited_ns: Nanos,
    },
    /// A session that got the lock has moved its memory onto the card.
    Entered {
        /// Number of the session.
        session: SessionId,
        /// Duration since the last drop that this grant needed or the entry into the queue, whichever is
        /// later.
        handoff_ns: Nanos,
    },
    /// A session gave the lock back.
    Dropped {
        /// Number of the session.
        session: SessionId,
        /// Duration of the wait for work in flight; none if an idle session gave the lock back unasked.
        drain_ns: Option<Nanos>,
    },
    /// The daemon reopened the gate of a session that did not give the lock back in time.
    DropReopened {
        /// Number of the session.
        session: SessionId,
        /// Number of times that the daemon has closed the gate to wait for the session's work in flight.
        tries: u32,
    },
    /// A session does not give the lock back.
    Stuck {
        /// Number of the session.
        session: SessionId,
        /// Reason why the session does not give the lock back, in words.
        reason: String,
    },
    /// The daemon refused a memory request.
    Refused {
        /// Number of the session.
        session: SessionId,
        /// Client id of the process.
        client: ClientId,
        /// Number that the daemon assigned to the card.
        gpu: GpuId,
        /// Limit that the request would exceed, with the bytes requested and the bytes in use.
        refusal: MemoryRefusal,
    },
    /// All processes of the previous daemon have reconnected or ended, so grants of the lock begin.
    Recovered {
        /// Duration of the wait for the processes of the previous daemon.
        after_ns: Nanos,
    },
    /// A session got another name, since an administrator gave the former name to a new session.
    SessionRenamed {
        /// Number of the session.
        session: SessionId,
        /// New name of the session.
        name: String,
    },
    /// A handoff of remapped memory has ended.
    HandedOver(Handoff),
    /// A handoff of remapped memory has lasted a second or more, and has not ended. Sent at most once a second.
    HandingOver(Handoff),
}

/// Activity of a session: whether it uses or waits for the lock.
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
    /// The session has the lock and moves its memory onto the card.
    Moving,
    /// The session has the lock and may submit work.
    Holding,
    /// The session waits for its work in flight to end, to give the lock back.
    Dropping,
}
