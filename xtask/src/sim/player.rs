//! A session in a run: its gate, the work that it is at, and what it says.

use gpushare_client::gate::idle::Grace;
use gpushare_proto::{Bytes, Nanos};

use super::card::Work;
use super::policy::Who;
use super::tenant::{Phase, Phases, Tenant};

/// Future event of a session or card. An event whose number is not the present one belongs to an abandoned
/// plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Arrives(Who),
    Begins(Who),
    IsIn(Who, u64),
    IsDone(usize, u64),
    WasIdle(Who, u64),
    /// Work in flight of a session that was told to let go then is about to end.
    EndsSoon(Who, Nanos),
}

/// Message of a session to the scheduler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Wants,
    Entered(Bytes, Nanos),
    EndsSoon,
    LetGo(Nanos),
    Leaves,
}

/// Its gate, as it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Shut,
    /// Memory comes in; whether the scheduler waits to hear of it.
    Entering {
        told: bool,
    },
    Open,
    /// Told to let go then.
    Draining(Nanos),
}

/// A session while it is simulated.
#[derive(Debug)]
pub(super) struct Player<'a> {
    pub(super) phases: Phases<'a>,
    pub(super) gate: Gate,
    pub(super) phase: Option<Phase>,
    /// The one that has not begun.
    pub(super) next: Option<Phase>,
    /// Of the phase, on each card.
    pub(super) left: Vec<Work>,
    /// Cards that work on it.
    pub(super) running: usize,
    /// Since when a thread sleeps at the closed gate.
    pub(super) asleep: Option<Nanos>,
    /// Since when there is nothing to do.
    pub(super) idle: Nanos,
    pub(super) wanted: bool,
    /// Idle grace as in gpushare's library, and the last arrival of a thread at the closed gate.
    pub(super) grace: Grace,
    pub(super) came: Nanos,
    /// Memory that comes in: so much, from then on.
    pub(super) coming: Option<(Bytes, Nanos)>,
    pub(super) plan: u64,
    pub(super) ended: Option<Nanos>,
}

impl<'a> Player<'a> {
    /// One that is not there yet.
    pub(super) fn new(tenant: &'a Tenant) -> Self {
        Self {
            phases: tenant.phases(),
            gate: Gate::Shut,
            phase: None,
            next: None,
            left: vec![0.0; tenant.gpus.len()],
            running: 0,
            asleep: None,
            idle: Nanos::ZERO,
            wanted: false,
            grace: Grace::default(),
            came: Nanos::ZERO,
            coming: None,
            plan: 0,
            ended: None,
        }
    }
}
