//! Settings of sharing that an administrator can change while the daemon runs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::GpuId;
use crate::units::{Bytes, Nanos, Percent, UnitError, words};

/// Change of a setting, for one card or for all, while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Card to change; none for all cards.
    pub gpu: Option<GpuId>,
    /// Setting to change, with the new value.
    pub knob: Knob,
}

/// A setting of a card, with the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Knob {
    /// Duration of a turn while other sessions wait; none computes the duration from the cost of a handoff.
    Quantum(Option<Nanos>),
    /// Mode of the card; none lets the daemon choose by memory, weights and limits.
    Mode(Option<Mode>),
    /// Capacity of the card: bytes that may be resident at one time; none for the total less the reserve.
    Capacity(Option<Bytes>),
    /// Limit on the managed memory of all sessions on the card together.
    ManagedLimit(Bytes),
    /// Largest share of the card's time that handoffs of the lock may cost.
    Epsilon(Percent),
    /// Target duration of a process's work in flight on a shared card; a handoff waits for that work.
    WindowTarget(Nanos),
    /// Bytes that a context is assumed to take until they are measured, at most an eighth of the card.
    ContextReserve(Bytes),
}

/// Way in which sessions share a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All sessions may submit work at any time, since their memory fits on the card together.
    Parallel,
    /// Sessions take turns and move memory between turns, since their memory does not fit together.
    Serialized,
    /// Sessions take short turns without moves of memory. Their weights or priorities differ, or their
    /// compute limits add up to the whole card.
    #[serde(rename = "time-sliced")]
    TimeSliced,
}

impl Mode {
    /// All modes, ordered by increasing waits.
    pub const ALL: [Self; 3] = [Self::Parallel, Self::TimeSliced, Self::Serialized];
}

words!(
    Mode { Parallel = "parallel", Serialized = "serialized", TimeSliced = "time-sliced" },
    "a mode; write parallel, time-sliced or serialized"
);

/// Key of the configuration file whose value differs from the running daemon's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// Name of the key: `scheduling.quantum_min`, or `quantum of gpu0`.
    pub key: String,
    /// Value in the daemon before the file was read again, in words.
    pub old: String,
    /// Value in the configuration file, in words.
    pub new: String,
    /// Whether the daemon uses the new value already, not only from the daemon's next start on.
    pub live: bool,
}

/// Smallest allowed memory limit of a session. A smaller one would hold no allocation.
pub const MIN_MEMORY: Bytes = crate::ranges::CAPACITY.least();
