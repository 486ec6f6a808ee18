//! Settings that an administrator can change while the daemon runs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::GpuId;
use crate::units::{Bytes, Nanos, Percent, UnitError, words};

/// Change of a setting while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Card to change; none for all cards.
    pub gpu: Option<GpuId>,
    /// Setting and its new value.
    pub knob: Knob,
}

/// A setting of a card with its value. The defaults are in the core's `Config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Knob {
    /// Fixed quantum; none computes it from the cost of a handoff.
    Quantum(Option<Nanos>),
    /// Fixed mode; none lets the daemon choose.
    Mode(Option<Mode>),
    /// Capacity: bytes that may be resident at the same time; none takes the card's total less the reserve.
    Capacity(Option<Bytes>),
    /// Limit on the managed memory of all sessions together.
    ManagedLimit(Bytes),
    /// Share of card time that handoffs may cost.
    Epsilon(Percent),
    /// Target of a process's launch window: the time that its work in flight takes.
    WindowTarget(Nanos),
}

/// Mode: the way in which sessions share a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The working sets fit together, and every gate is open.
    Parallel,
    /// The working sets do not fit together, and sessions take turns.
    Serialized,
    /// The working sets fit, and sessions take short turns: their weights or priorities differ, or their
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

/// Configuration key whose value in the file differs from the daemon's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// Name of the key: `scheduling.quantum_min`, or `quantum of gpu0`.
    pub key: String,
    /// Old value, in words.
    pub old: String,
    /// Value in the file.
    pub new: String,
    /// Whether the new value is in effect; otherwise it takes effect at the daemon's next start.
    pub live: bool,
}

/// Minimum quantum; a shorter one would be spent on handoffs alone.
pub const MIN_QUANTUM: Nanos = Nanos::from_millis(1);
/// Minimum capacity of a card and minimum memory limit of a session; less would hold no allocation.
pub const MIN_MEMORY: Bytes = Bytes::mib(1);
