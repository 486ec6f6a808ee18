//! View: the facts that decisions read, and what is shown of them: updates for processes, figures for
//! `status`, recordings, and invariants.

pub(crate) mod figures;
mod places;
mod residences;
pub(crate) mod sight;
pub(crate) mod updates;

pub mod forecast;
pub mod snapshot;
pub mod summary;
pub mod waiting;

pub mod invariants;
pub mod log;

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{ClientId, Nanos, SessionId};

use crate::card::Card;
use crate::config::Config;
use crate::memory::orphans::Orphan;
use crate::recovery::Recovery;
use crate::residency::host::Host;
use crate::session::registry::Sessions;
use crate::session::users::Users;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;

/// Facts of one daemon's decision machine. Decisions read a view and change nothing; [`Core`](crate::Core)
/// applies them.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) now: Nanos,
    pub(crate) config: Config,
    pub(crate) cards: ByGpu<Card>,
    /// Cards on which all sessions take turns.
    pub(crate) in_turns: GpuSet,
    /// Cards on which sessions get the lock only while they have work: all cards with turns, and those where
    /// sessions of unequal shares may contend.
    pub(crate) on_demand: GpuSet,
    /// Cards on which a waiting session needs holders to make room.
    pub(crate) wanted: GpuSet,
    pub(crate) sessions: Sessions,
    pub(crate) users: Users,
    /// Memory on cards that dead processes left and the driver has not freed yet.
    pub(crate) orphans: BTreeMap<ClientId, Orphan>,
    pub(crate) recovery: Recovery,
    /// Cards with remapped memory, that of dead processes included.
    pub(crate) remapped: GpuSet,
    /// Budget for host memory.
    pub(crate) host: Host,
    /// Sessions that wish to be frozen, or of which a process is cold.
    pub(crate) cold: BTreeSet<SessionId>,
}
