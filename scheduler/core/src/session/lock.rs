//! What a session's lock is doing. There is one lock for all cards of a session: it is granted on all of them
//! at one instant and let go on all of them, so nobody ever holds a part and waits for the rest.

use gpushare_proto::{Epoch, Nanos};

use super::clock::Clock;
use super::drop::PendingDrop;
use super::share::{Class, Virtual};

/// A session's place in the queue, global over cards: the least waits longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// Whose turn comes first: by class, by time had, and by who asked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) class: Class,
    pub(crate) had: Virtual,
    pub(crate) ticket: Ticket,
}

impl Turn {
    /// Before everybody of a class.
    pub(crate) fn first_of(class: Class) -> Self {
        Self { class, had: Virtual::default(), ticket: Ticket(0) }
    }
}

/// The right to submit work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) epoch: Epoch,
    pub(crate) clock: Clock,
    /// For a turn, until its memory is in.
    pub(crate) entry: Option<Entry>,
}

/// When the way to a turn began, for those who ask afterwards how long it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The session queued up.
    pub(crate) asked: Nanos,
    /// The last session to make room was told to, or this one queued up, whichever came later.
    pub(crate) handing_over: Nanos,
}

/// What a session's lock is doing.
#[derive(Clone, Debug)]
pub(crate) enum Lock {
    /// Neither holds nor waits.
    Idle,
    /// Waits for its turn.
    Waiting(Ticket),
    /// May submit work.
    Holding(Grant),
    /// Must let go.
    Dropping(Grant, PendingDrop),
}

impl Lock {
    /// The grant, also while it is being dropped.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Holding(grant) | Self::Dropping(grant, _) => Some(grant),
            Self::Idle | Self::Waiting(_) => None,
        }
    }

    /// The grant while nobody asked for it back.
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
