//! State of a session's lock.
//!
//! A session has one lock for all its cards. It is granted and dropped on all of them at once, so that no
//! session holds a part of its cards and waits for the rest.

use gpushare_proto::{Epoch, Nanos};

use super::clock::Clock;
use super::drop::PendingDrop;
use super::share::{Class, Virtual};

/// Number that a session draws when it queues up, one sequence for all cards. The lowest waits longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// Sort key of a waiting session: urgent ones first, then by virtual time, class and ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    /// Whether the switch budget did not pay for an early turn of the session (preempt.rs).
    pub(crate) regular: bool,
    pub(crate) had: Virtual,
    pub(crate) class: Class,
    pub(crate) ticket: Ticket,
}

/// Right of a session to submit work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) epoch: Epoch,
    pub(crate) clock: Clock,
    /// Whether the grant began a turn. Else the session's memory may still be on its way in, and its drain
    /// says nothing about the drains of others.
    pub(crate) is_turn: bool,
    /// Times of a turn's beginning, until the memory is in.
    pub(crate) entry: Option<Entry>,
}

/// Times from which the length of the way to a turn is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Time at which the session queued up.
    pub(crate) asked: Nanos,
    /// Time at which the last holder was told to make room, or at which the session queued up if that was
    /// later.
    pub(crate) handing_over: Nanos,
}

/// State of a session's lock.
#[derive(Clone, Debug)]
pub(crate) enum Lock {
    /// The session neither holds the lock nor waits for it.
    Idle,
    /// The session waits for its turn.
    Waiting(Ticket),
    /// The session may submit work.
    Holding(Grant),
    /// The session was told to let go and has not yet.
    Dropping(Grant, PendingDrop),
}

impl Lock {
    /// Grant of the session, also while it is being dropped.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Holding(grant) | Self::Dropping(grant, _) => Some(grant),
            Self::Idle | Self::Waiting(_) => None,
        }
    }

    /// Grant of the session, unless it is being dropped.
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
