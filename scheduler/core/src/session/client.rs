//! One process of a session: its gate, its memory books, and the values that it was last told.

use gpushare_proto::{Bytes, Nanos};

use super::frost::Frost;
use super::gate::Gate;
use crate::events::Place;
use crate::memory::book::Book;
use crate::values::small_map::ByGpu;

/// Memory figures of one card that a process was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Memory quota of the session on the card.
    pub(crate) limit: Bytes,
    /// Number of bytes that the other processes of the session use.
    pub(crate) siblings: Bytes,
    /// Largest number of bytes that the session may use, apart from its quota.
    pub(crate) ceiling: Bytes,
}

/// Values that a process was told last; the scheduler sends them again only when one changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) flags: u32,
    /// Target for the length of work in flight.
    pub(crate) target: Nanos,
    pub(crate) figures: ByGpu<Figures>,
    pub(crate) queued: Option<Place>,
    /// Point in time at which the process was last told its place in the queue.
    pub(crate) queued_at: Nanos,
}

/// Claim of a process to the lock of the last daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Past {
    /// The process claims no lock of the last daemon.
    #[default]
    Nothing,
    /// The registry file says that the process held the lock, so it runs on.
    Held,
    /// The process says without proof that it held the lock, so its work in flight must end first.
    Claims,
}

/// State of one process of a session.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) gate: Gate,
    /// Claim to the lock of the last daemon, until the process announces a card.
    pub(crate) past: Past,
    /// Whether the process claims a lock without proof, and was granted nothing since.
    pub(crate) unproven: bool,
    /// Whether the process's movable memory is remapped and moves by goals.
    pub(crate) remaps: bool,
    /// Memory books of the process, one for each card that it announced.
    pub(crate) books: ByGpu<Book>,
    pub(crate) told: Told,
    /// Stage of the process on its way into a checkpoint and back.
    pub(crate) frost: Frost,
}

impl Client {
    pub(crate) fn new(past: Past) -> Self {
        Self {
            gate: Gate::new(),
            past,
            unproven: past == Past::Claims,
            remaps: false,
            books: ByGpu::default(),
            told: Told::default(),
            frost: Frost::new(),
        }
    }

    /// Whether the process uses any card. A process without cards never has an open gate.
    pub(crate) fn is_attached(&self) -> bool {
        !self.books.is_empty()
    }

    /// Working set (movable bytes) of the process on all cards.
    pub(crate) fn movable(&self) -> Bytes {
        self.books.values().map(Book::movable).sum()
    }
}
