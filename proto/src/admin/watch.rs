//! What `gpushare-ctl watch` is told.

use serde::{Deserialize, Serialize};

use super::settings::Mode;
use crate::ids::{ClientId, GpuId, GpuUuid, SessionId};
use crate::page::MemoryRefusal;
use crate::units::{Bytes, Nanos};

/// Something that a watcher is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// When, in nanoseconds since the daemon started. Never less than the one before.
    pub at_ns: Nanos,
    /// What.
    pub what: WatchEventKind,
}

/// What a watcher is told. Its first is [`Self::Watching`], then comes how things are, as if it happened just now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEventKind {
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
