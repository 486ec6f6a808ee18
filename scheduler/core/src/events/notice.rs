//! Notices: decisions that are worth a line in the log.

use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{ClientId, Epoch, GpuId, Nanos, SessionId};
use serde::{Deserialize, Serialize};

use crate::values::gpu_set::GpuSet;

/// Decision of the scheduler that is logged for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A card changed its mode.
    ModeChanged {
        /// Number of the card.
        gpu: GpuId,
        /// Mode from now on.
        mode: gpushare_proto::admin::Mode,
        /// Reason for the change, in words.
        reason: String,
    },
    /// A session was granted a turn.
    Granted {
        /// Number of the session.
        session: SessionId,
        /// Epoch of the grant.
        epoch: Epoch,
        /// Length of the turn.
        quantum: Nanos,
        /// Cards on which the session takes turns.
        gpus: GpuSet,
        /// Time since the session queued up.
        waited: Nanos,
    },
    /// A session that was granted a turn has its memory on the card and runs.
    Entered {
        /// Number of the session.
        session: SessionId,
        /// Cards on which the session takes turns.
        gpus: GpuSet,
        /// Time since the session queued up.
        waited: Nanos,
        /// Time since the last holder was told to make room, or since the session queued up if that was
        /// later.
        handoff: Nanos,
    },
    /// A session gave the lock back.
    Dropped {
        /// Number of the session.
        session: SessionId,
        /// Epoch of the grant.
        epoch: Epoch,
        /// Cards on which the session takes turns.
        gpus: GpuSet,
        /// Duration of the drain; `None` if the session went idle before it was told to let go.
        drain: Option<Nanos>,
    },
    /// A drop was late while a thread slept at the session's gate, so the gates opened again.
    DropReopened {
        /// Number of the session.
        session: SessionId,
        /// Number of tries so far.
        tries: u32,
    },
    /// A session does not give the lock back in time.
    Stuck {
        /// Number of the session.
        session: SessionId,
        /// Reason, in words.
        reason: String,
    },
    /// A process was refused memory.
    Refused {
        /// Number of the process.
        client: ClientId,
        /// Number of the process's session.
        session: SessionId,
        /// Number of the card.
        gpu: GpuId,
        /// Limit that was exceeded, with figures.
        refusal: MemoryRefusal,
    },
    /// Every expected process of the last daemon is back or dead, so grants begin.
    Recovered {
        /// Time since the start of the daemon.
        after: Nanos,
    },
    /// An expected process of the last daemon lives and has not come back.
    Overdue {
        /// Number of the process.
        client: ClientId,
        /// Time since the start of the daemon.
        after: Nanos,
    },
}
