//! First message of a connection: who the peer is, and what a process that returns claims.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::TenantRequest;
use super::{MAGIC, PROTOCOL};
use crate::ids::{ClientId, Epoch, GpuUuid, SessionId, Token};
use crate::units::Bytes;

/// First message of a connection. The first two fields are the same in every protocol version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Constant bytes [`MAGIC`], which identify the protocol.
    pub magic: [u8; 4],
    /// Protocol version of the sender, [`PROTOCOL`] for this build.
    pub protocol: u16,
    /// Purpose of the connection: a process that uses a card, or a tool.
    pub role: Role,
}

impl Hello {
    /// Returns the first message of a connection, with the protocol version of this build.
    pub fn new(role: Role) -> Self {
        Self { magic: MAGIC, protocol: PROTOCOL, role }
    }
}

/// Purpose of a connection: a process that uses a card, or a command-line tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A process that will use a card.
    Client {
        /// Token of the session, if the process has one.
        token: Option<Token>,
        /// State of a process that reconnects after a lost connection; none for a new process.
        returning: Option<Returning>,
    },
    /// A command-line tool, which registers sessions or asks questions and uses no card.
    Tool,
    /// A process that will use a card, and whose memory moves by goals: that of the backend `remap`.
    Remapping {
        /// Token of the session, if the process has one.
        token: Option<Token>,
        /// State of a process that reconnects after a lost connection; none for a new process.
        returning: Option<Returning>,
    },
}

/// State that a reconnecting process claims. The daemon books the memory, but grants nothing on a claim
/// alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Returning {
    /// Client id of the process before the connection was lost.
    pub client: ClientId,
    /// Session of the process before the connection was lost.
    pub session: SessionId,
    /// Epoch of the grant by which the process still holds the lock; none without the lock.
    pub holding: Option<Epoch>,
    /// Reserved memory and number of CUDA contexts of the process, per card.
    pub gpus: Vec<ReturningGpu>,
    /// Whether a thread of the process sleeps at the closed gate.
    pub waiting: bool,
}

/// Reserved memory and number of CUDA contexts of a reconnecting process on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturningGpu {
    /// Identity, name and memory size of the card, as in [`TenantRequest::Attach`].
    pub info: GpuInfo,
    /// Bytes that the process has reserved on the card, allocated or not.
    pub used: Bytes,
    /// Number of CUDA contexts of the process on the card.
    pub contexts: u32,
}

/// Identity, name and memory size of a card, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// UUID of the card.
    pub uuid: GpuUuid,
    /// Product name of the card.
    pub name: String,
    /// Total memory of the card.
    pub total: Bytes,
}
