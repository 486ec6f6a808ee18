//! State of a session's lock: idle, waiting, holding or dropping.
//!
//! A session has one lock for all its cards. The lock is granted and taken back on all of them at once. So no
//! session holds a part of its cards and waits for the rest.

use gpushare_proto::{Epoch, Nanos};

use super::clock::Clock;
use super::drop::PendingDrop;
use super::share::{Class, Virtual};

/// Ticket: number that a session draws when it joins the queue, in one sequence for all cards. The lowest
/// number has waited longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// Sort key of a waiting session: sessions with a paid early turn first, then by virtual time, class and
/// ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    /// Whether the session has no early turn for which the switch budget paid (turns/preempt.rs).
    pub(crate) regular: bool,
    pub(crate) had: Virtual,
    pub(crate) class: Class,
    pub(crate) ticket: Ticket,
}

/// Grant: the right of a session to submit work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) epoch: Epoch,
    /// Point in time at which the lock was granted.
    pub(crate) at: Nanos,
    pub(crate) clock: Clock,
    /// Whether the grant began a turn. If not, the session's memory may still be on its way in. Then its
    /// drain says nothing about the drains of others.
    pub(crate) is_turn: bool,
    /// Whether the turn began early, for which the switch budget paid.
    pub(crate) is_early: bool,
    /// Whether a compute limit was given time back for the drain beside which the turn began.
    pub(crate) is_shared: bool,
    /// Points in time before the turn, kept until the session's memory is in.
    pub(crate) entry: Option<Entry>,
}

/// Points in time from which the way of a session to its turn is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Point in time at which the session joined the queue.
    pub(crate) asked: Nanos,
    /// Point in time at which the last holder was asked to make room, or at which the session joined the
    /// queue if that was later.
    pub(crate) handing_over: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) enum Lock {
    /// The session neither holds the lock nor waits for it.
    Idle,
    /// The session waits for its turn.
    Waiting(Ticket),
    /// The session holds the lock and may submit work.
    Holding(Grant),
    /// The session was asked to give the lock back and has not done so yet.
    Dropping(Grant, PendingDrop),
}

impl Lock {
    /// Returns the session's grant, also while the session is asked to give the lock back.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Holding(grant) | Self::Dropping(grant, _) => Some(grant),
            Self::Idle | Self::Waiting(_) => None,
        }
    }

    /// Returns the session's grant, unless the session was asked to give the lock back.
    pub(crate) fn holding(&self) -> Option<&Grant> {
        match self {
            Self::Holding(grant) => Some(grant),
            _ => None,
        }
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Waiting(ticket) => Some(*ticket),
            _ => None,
        }
    }

    pub(crate) fn dropping(&self) -> Option<&PendingDrop> {
        match self {
            Self::Dropping(_, drop) => Some(drop),
            _ => None,
        }
    }
}
