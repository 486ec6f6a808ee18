//! Inputs of the daemon's task.

use gpushare_proto::admin::UsageView;
use gpushare_proto::{ClientId, SessionId};

use crate::config::{ConfigError, Settings};
use crate::connections::{ConnectionEvent, ConnectionId};
use crate::identity::{PeerProcess, ProcessId};
use crate::metrics::PictureRequest;
use crate::nvml::Usages;
use crate::registry::Hour;

#[derive(Debug)]
pub(crate) enum Input {
    Connection(ConnectionEvent),
    /// The metrics server asks for the daemon's state.
    Observe(PictureRequest),
    /// NVML answered which process has what on which card; none if there is no NVML.
    Measured(Option<Usages>),
    Died(Watched),
    Configured {
        settings: Result<Box<Settings>, ConfigError>,
        asker: Option<Asker>,
    },
    /// The store answered how much each session used since an hour.
    Used {
        connection: ConnectionId,
        since: Hour,
        answer: Result<Vec<UsageView>, String>,
    },
}

/// Connection and process of an administrator who waits for an answer.
pub(crate) type Asker = (ConnectionId, PeerProcess);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The process registered this session.
    Registrar(SessionId),
    /// The process was this client of the last daemon.
    Awaited(ClientId),
    /// The process is this client and hung up.
    Away(ClientId),
    /// The process was this client and is ending.
    Orphan(ClientId),
    /// The process entered a session.
    Joined(ProcessId),
}
