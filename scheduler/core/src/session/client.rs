//! One process of a session: its gate, its books, and what it was last told.

use gpushare_proto::{Bytes, Nanos};

use super::gate::Gate;
pub(crate) use crate::memory::book::Book;
use crate::places::Place;
use crate::values::small_map::ByGpu;

/// What the process was told about a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) limit: Bytes,
    pub(crate) siblings: Bytes,
    pub(crate) ceiling: Bytes,
}

/// What the process was told last, so that it is told again only when that changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) flags: u32,
    pub(crate) figures: ByGpu<Figures>,
    pub(crate) queued: Option<Place>,
    /// When it was told that.
    pub(crate) queued_at: Nanos,
}

/// What a process had of the lock when the last daemon ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Past {
    /// Nothing.
    #[default]
    Nothing,
    /// It held it, and runs on.
    Held,
    /// It says that it held it, and nobody knows: what it may have in flight ends first.
    Claims,
}

/// One process.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) gate: Gate,
    /// Until it announces a card.
    pub(crate) past: Past,
    /// Whether nothing but its word says that it ever held the lock, and this machine granted it nothing so far.
    pub(crate) unproven: bool,
    /// By card that it attached.
    pub(crate) books: ByGpu<Book>,
    pub(crate) told: Told,
    /// Whether its memory may be moved off the card by us; never again once it was not.
    pub(crate) evictable: bool,
}

impl Client {
    pub(crate) fn new(past: Past) -> Self {
        Self {
            gate: Gate::new(),
            past,
            unproven: past == Past::Claims,
            books: ByGpu::default(),
            told: Told::default(),
            evictable: true,
        }
    }

    /// Whether the process uses any card; before that its gate matters to nobody.
    pub(crate) fn is_attached(&self) -> bool {
        !self.books.is_empty()
    }

    /// Its working set on all cards.
    pub(crate) fn movable(&self) -> Bytes {
        self.books.values().map(Book::movable).sum()
    }
}
