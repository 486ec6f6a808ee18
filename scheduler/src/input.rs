//! What reaches the shell from outside.

use gpushare_proto::admin::UsageView;
use gpushare_proto::{ClientId, SessionId};

use crate::config::{ConfigError, Settings};
use crate::connections::{ConnectionEvent, ConnectionId};
use crate::identity::{PeerProcess, ProcessId};
use crate::metrics::PictureRequest;
use crate::nvml::Usages;
use crate::registry::Hour;

/// Something from outside.
#[derive(Debug)]
pub(crate) enum Input {
    /// A report of a connection.
    Connection(ConnectionEvent),
    /// Somebody reads the metrics.
    Observe(PictureRequest),
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
