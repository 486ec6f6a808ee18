//! Words about freezing: what stands in its way, and how its steps end.

use std::fmt;

use gpushare_proto::GpuId;
use serde::{Deserialize, Serialize};

/// Reason why a process cannot be frozen. It is known before anything is done to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstacle {
    /// The process was not examined yet.
    Unexamined,
    /// The process has managed memory.
    Managed,
    /// The process has a handle of host memory, its own or a library's.
    HostHandles,
    /// The process shares memory of a card with another one.
    Shared,
    /// The process reaches the memory of another card.
    Peers,
    /// A debugger holds the process.
    Debugger,
    /// The driver cannot freeze processes, or no card of this machine was tried with this driver.
    Driver,
    /// The cards are not in persistence mode.
    Persistence,
    /// The daemon froze a process of its own on one of the cards for trial, and that failed.
    Trial,
    /// A part of the process's memory must not move now.
    Pinned,
    /// The process does not answer.
    Silent,
    /// The driver has refused before.
    Refused,
    /// The driver has given the process up.
    Lost,
    /// Calls of the driver do not all pass the library of the process.
    Unseen,
    /// Calls or work were under way for too long, no helper could work, or a trial had no room. It may succeed later.
    Busy,
    /// The control groups of the process have no room for what the driver moves into host memory. It may have some
    /// later.
    HostMemory,
    /// The first thread of the process has ended.
    FirstThread,
    /// The daemon sees no process id of the process.
    Elsewhere,
}

impl Obstacle {
    /// Whether the obstacle stays for as long as the process lives.
    #[must_use]
    pub const fn is_lasting(self) -> bool {
        matches!(self, Self::FirstThread | Self::Elsewhere | Self::Refused | Self::Lost)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unexamined => {
                "it has not said what stands in the way: it has just begun, or its library is older than this daemon"
            }
            Self::Managed => "it has managed memory, which the driver cannot freeze",
            Self::HostHandles => "it has a handle of host memory, with which no process comes back",
            Self::Shared => "it shares memory of a card with another process or a graphics interface",
            Self::Peers => "it reaches the memory of another card",
            Self::Debugger => "a debugger holds it",
            Self::Driver => "this driver is not known to freeze processes",
            Self::Persistence => "its cards are not in persistence mode (`nvidia-smi -pm 1`)",
            Self::Trial => "the trial of a freeze failed on a card of it",
            Self::Pinned => "a part of its memory must not move now",
            Self::Silent => "it does not answer",
            Self::Refused => "the driver has refused it",
            Self::Lost => "the driver has given it up",
            Self::Unseen => {
                "not all its calls of the driver pass gpushare: it is linked with the driver, or looks functions up that \
                 this gpushare does not know"
            }
            Self::Busy => "the driver or its helper was busy; try again",
            Self::HostMemory => {
                "its control groups have no room for what the driver moves into host memory; raise their limit of memory"
            }
            Self::FirstThread => "its first thread has ended, by which the driver finds a process",
            Self::Elsewhere => {
                "it is in a PID namespace that the daemon does not see, so the driver cannot be told which process it is"
            }
        })
    }
}

/// End of an attempt to freeze a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FreezeEnd {
    /// All that the process has is in host memory.
    Frozen,
    /// The driver refused. The process runs as before.
    Refused,
    /// The attempt broke off, and the process may be in any state. A thaw repairs it.
    BrokeOff,
    /// Nothing was done to the process, and a later attempt may succeed. The process runs as before.
    Busy,
    /// Nothing was done to the process, since the trial of a freeze has failed. The process runs as before, and none on
    /// the card is frozen any more.
    TrialFailed {
        /// Card of the trial.
        gpu: GpuId,
    },
    /// Nothing was done to the process, since the daemon found an obstacle. The process runs as before.
    Prevented(Obstacle),
}

/// End of an attempt to thaw a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThawEnd {
    /// The process runs as before.
    Thawed,
    /// The attempt broke off. It is tried again.
    BrokeOff,
    /// The driver has given the process up.
    Lost,
    /// Nothing was done to the process, since a card has less free memory than it needs: memory is in use of which the
    /// daemon does not know. It is tried again.
    NoRoom,
}

/// Reason why a process that is to come back has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ThawWait {
    /// The driver.
    Driver,
    /// Room on its cards, which other sessions use.
    Room,
    /// Free memory on its cards, which is used by somebody of whom the daemon does not know.
    FreeMemory,
}
