//! Extent to which a session is frozen, and what stands in the way of that.

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Ability of a daemon to freeze processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezingView {
    /// Reasons why no process can be frozen, in words; empty if processes can be.
    pub obstacles: Vec<String>,
    /// Idle time after which sessions without a time of their own are frozen; none for never.
    pub freeze_after_ns: Option<Nanos>,
}

/// Extent to which a session is frozen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrostView {
    /// Stage of the session.
    pub stage: FrostStage,
    /// Reason why the session cannot be frozen, in words; none if it can.
    pub obstacle: Option<String>,
    /// Idle time after which the session is frozen; none for never.
    pub freeze_after_ns: Option<Nanos>,
    /// Time for which the session is idle; none if it works, is frozen, or is never frozen for that.
    pub idle_ns: Option<Nanos>,
}

/// Stage of a session on its way into a checkpoint of the driver and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrostStage {
    /// No process is frozen or about to be.
    Warm,
    /// The session is to be frozen.
    Freezing,
    /// All processes are frozen.
    Frozen,
    /// Processes come back.
    Thawing,
    /// No process is frozen or about to be, and one has not said yet what stands in the way.
    Unexamined,
}
