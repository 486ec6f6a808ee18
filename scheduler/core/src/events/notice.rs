//! What the log is told.

use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{ClientId, Epoch, GpuId, Nanos, SessionId};
use serde::{Deserialize, Serialize};

use crate::values::gpu_set::GpuSet;

/// What an operator should be able to read in the log afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A card changed its mode.
    ModeChanged {
        /// The card.
        gpu: GpuId,
        /// The new mode.
        mode: gpushare_proto::admin::Mode,
        /// Why.
        reason: String,
    },
    /// A session got the lock in serialized mode.
    Granted {
        /// The session.
        session: SessionId,
        /// Its grant.
        epoch: Epoch,
        /// Its quantum.
        quantum: Nanos,
        /// The cards that it takes turns on.
        gpus: GpuSet,
        /// Since it queued up.
        waited: Nanos,
    },
    /// The memory of a session that got the lock in serialized mode is in: it goes on.
    Entered {
        /// The session.
        session: SessionId,
        /// The cards that it takes turns on.
        gpus: GpuSet,
        /// Since it queued up.
        waited: Nanos,
        /// Since the last session to make room was told to, or since it queued up, whichever came later.
        handoff: Nanos,
    },
    /// A session let go.
    Dropped {
        /// The session.
        session: SessionId,
        /// Its grant.
        epoch: Epoch,
        /// The cards that it takes turns on.
        gpus: GpuSet,
        /// Its drain; none if it went idle before it was told to let go.
        drain: Option<Nanos>,
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
        /// The process.
        client: ClientId,
        /// Its session.
        session: SessionId,
        /// The card.
        gpu: GpuId,
        /// The figures.
        refusal: MemoryRefusal,
    },
    /// All clients of the last daemon are back or dead: grants begin.
    Recovered {
        /// How long that took.
        after: Nanos,
    },
    /// A client of the last daemon lives and does not come back.
    Overdue {
        /// The process.
        client: ClientId,
        /// How long it was awaited.
        after: Nanos,
    },
}
