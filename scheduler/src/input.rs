//! Inputs of the daemon's task.

use gpushare_checkpoint::TrialError;
use gpushare_core::{FreezeEnd, ThawEnd};
use gpushare_proto::admin::UserUsageView;
use gpushare_proto::{ClientId, GpuId, SessionId};

use crate::config::{ConfigError, Settings};
use crate::connections::{ConnectionEvent, ConnectionId};
use crate::identity::{PeerProcess, ProcessId};
use crate::nvml::{Readings, Rooms, Usages, Work};
use crate::persist::question::UsageQuestion;

#[derive(Debug)]
pub(crate) enum Input {
    Connection(Box<ConnectionEvent>),
    /// Answer of NVML: memory of each process on each card; none if there is no NVML.
    Measured(Option<Usages>),
    /// Answer of NVML: work of each process on the shared cards; none if there is no NVML.
    Worked(Option<Work>),
    /// Answer of NVML: free memory and persistence mode of the cards; none if there is no NVML.
    Rooms(Option<Rooms>),
    /// Answer of NVML: values of the cards' sensors; none if there is no NVML.
    Sensed(Option<Readings>),
    Died(Watched),
    Configured {
        settings: Result<Box<Settings>, ConfigError>,
        asker: Option<Asker>,
    },
    /// A process of the daemon was frozen and thawed on this card for trial, or was not.
    Tried {
        gpu: GpuId,
        outcome: Result<(), TrialError>,
    },
    /// The driver has frozen or thawed this process, or has not.
    Moved {
        client: ClientId,
        end: End,
    },
    /// Answer of the registry: usage of each session in some hours.
    Used {
        question: UsageQuestion,
        answer: Result<Vec<UserUsageView>, String>,
    },
}

/// End of an operation of the driver about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Freeze(FreezeEnd),
    Thaw(ThawEnd),
}

/// Connection and process of an administrator who waits for an answer.
pub(crate) type Asker = (ConnectionId, PeerProcess);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Process that registered this session.
    Registrar(SessionId),
    /// Process of this client of the last daemon, which has not reconnected.
    Awaited(ClientId),
    /// Process of this client, which has disconnected.
    Away(ClientId),
    /// Process of this former client, which is ending.
    Orphan(ClientId),
    /// Process that entered a session.
    Joined(ProcessId),
}
