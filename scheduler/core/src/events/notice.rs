//! Notices: decisions of the scheduler that are written to the daemon's log.

use gpushare_proto::handoff::Handoff;
use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, Nanos, SessionId};
use serde::{Deserialize, Serialize};

use super::{Obstacle, is_once, once};
use crate::values::gpu_set::GpuSet;

/// Decision of the scheduler that is logged for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The scheduler changed the mode of a card.
    ModeChanged {
        /// Identifier of the card that the notice is about.
        gpu: GpuId,
        /// Mode that the card has from now on.
        mode: gpushare_proto::admin::Mode,
        /// Reason for the change of mode, in words.
        reason: String,
    },
    /// A session was granted the lock for a turn.
    Granted {
        /// Identifier of the session that the notice is about.
        session: SessionId,
        /// Epoch (number) of the grant.
        epoch: Epoch,
        /// Length of the granted turn, as a duration.
        quantum: Nanos,
        /// Cards on which the session takes turns.
        gpus: GpuSet,
        /// Duration from the session's entry into the queue to the grant.
        waited: Nanos,
    },
    /// A session that was granted a turn has its memory on the card and runs.
    Entered {
        /// Identifier of the session that the notice is about.
        session: SessionId,
        /// Cards on which the session takes turns.
        gpus: GpuSet,
        /// Duration from the session's entry into the queue to the moment when its memory was in.
        waited: Nanos,
        /// Duration since the last holder was asked to make room, or since the session queued up if that was
        /// later.
        handoff: Nanos,
    },
    /// A session gave the lock back.
    Dropped {
        /// Identifier of the session that the notice is about.
        session: SessionId,
        /// Epoch (number) of the grant that ended.
        epoch: Epoch,
        /// Cards on which the session takes turns.
        gpus: GpuSet,
        /// Duration of the drain; `None` if the session went idle before it was asked for the lock.
        drain: Option<Nanos>,
    },
    /// A session did not drain in time while one of its threads slept at its gate, so its gates were opened
    /// again.
    DropReopened {
        /// Identifier of the session that the notice is about.
        session: SessionId,
        /// Number of tries to get the lock back so far.
        tries: u32,
    },
    /// A session that was asked for the lock does not give it back in time.
    Stuck {
        /// Identifier of the session that the notice is about.
        session: SessionId,
        /// Reason why the session does not give the lock back, in words.
        reason: String,
    },
    /// A process of a stuck session is not killed, although the policy says so. The driver has frozen it before, or does
    /// so now.
    Spared {
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the process that the notice is about.
        client: ClientId,
    },
    /// A memory request of a process was refused, and perhaps further ones at the same time.
    Refused {
        /// Identifier of the process that the notice is about.
        client: ClientId,
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the card that the notice is about.
        gpu: GpuId,
        /// Limit that the first request would have exceeded, with figures.
        refusal: MemoryRefusal,
        /// Number of refused requests, one in recordings that do not say.
        #[serde(default = "once", skip_serializing_if = "is_once")]
        times: u64,
    },
    /// Every expected process of the last daemon is back or dead, so sessions can be granted the lock.
    Recovered {
        /// Duration since the start of the daemon.
        after: Nanos,
    },
    /// A process that the last daemon knew is alive and has not come back to this daemon.
    Overdue {
        /// Identifier of the process that the notice is about.
        client: ClientId,
        /// Duration since the start of the daemon.
        after: Nanos,
    },
    /// A process was frozen.
    Frozen {
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the process that the notice is about.
        client: ClientId,
        /// Number of bytes that the driver moved into host memory.
        bytes: Bytes,
    },
    /// A process was thawed.
    Thawed {
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the process that the notice is about.
        client: ClientId,
    },
    /// A session was not frozen, since a process of it cannot be.
    FreezeRefused {
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the process that the notice is about.
        client: ClientId,
        /// Reason why the process cannot be frozen.
        obstacle: Obstacle,
    },
    /// An attempt to freeze a process broke off. The process is thawed.
    FreezeBrokeOff {
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the process that the notice is about.
        client: ClientId,
    },
    /// A frozen process could not be thawed. Its calls of the driver fail from now on.
    FrostKilled {
        /// Identifier of the session that the process belongs to.
        session: SessionId,
        /// Identifier of the process that the notice is about.
        client: ClientId,
    },
    /// A handoff of remapped memory has ended on a card.
    HandedOver(Box<Handoff>),
}
