//! What reaches the shell from outside.

use std::fmt;

use gpushare_proto::admin::{AdminRequest, UsageView};
use gpushare_proto::tenant::{Role, TenantRequest};
use gpushare_proto::{ClientId, SessionId};
use tokio::sync::oneshot;

use crate::config::{ConfigError, Settings};
use crate::connection::Outbox;
use crate::identity::{PeerProcess, ProcessId};
use crate::metrics::Picture;
use crate::nvml::Usages;
use crate::registry::Hour;

/// A connection's number. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// Something from outside.
#[derive(Debug)]
pub(crate) enum Input {
    /// A peer said hello.
    Opened {
        connection: ConnectionId,
        place: Place,
        peer: PeerProcess,
        role: Role,
        outbox: Outbox,
    },
    /// A message on the tenant socket.
    Tenant { connection: ConnectionId, request: TenantRequest },
    /// A message on the administrator's socket.
    Admin { connection: ConnectionId, request: AdminRequest },
    /// A connection is over: hang-up, death, or our own doing.
    Closed { connection: ConnectionId },
    /// Somebody who is no administrator asked for administration.
    Trespassed {
        /// By the kernel's word: pid and user.
        process: (u32, u32),
        /// Why it is refused.
        why: String,
    },
    /// Somebody reads the metrics.
    Observe(oneshot::Sender<Picture>),
    /// What processes have on the cards, as NVML says; none where there is no NVML.
    Measured(Option<Usages>),
    /// A process that the daemon watches without a connection is dead.
    Died(Watched),
    /// The configuration was read again.
    Configured { settings: Result<Box<Settings>, ConfigError>, asker: Option<Asker> },
    /// What sessions used, as the store has it since the beginning of an hour.
    Used { connection: ConnectionId, since: Hour, answer: Result<Vec<UsageView>, String> },
}

/// An administrator who waits for an answer.
pub(crate) type Asker = (ConnectionId, PeerProcess);

/// Which of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tenant,
    Admin,
}

/// Why a process without a connection is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// It registered this session.
    Registrar(SessionId),
    /// It was this client of the last daemon.
    Expected(ClientId),
    /// It is this client and hung up.
    Away(ClientId),
    /// It was this client, and is ending.
    Orphan(ClientId),
    /// It entered a session.
    Entrant(ProcessId),
}
