//! One process of a session: its gate, its books, and what it was last told.

use gpushare_proto::{Bytes, Nanos};

use super::gate::Gate;
use crate::few::ByGpu;
use crate::places::Place;

/// What the driver may take for a process beside what it allocated, without its counting against the quota: contexts,
/// kernels, and what ordinary libraries keep.
const ALLOWANCE: Bytes = Bytes::gib(1);

/// How many contexts of one process are believed to take room that nobody measured. What they take is missing to everybody, so
/// a process must not be able to make the card small by a number.
const MOST_CONTEXTS: u32 = 8;

/// What one process has on one card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Book {
    /// Bytes of quota that the process may use without asking.
    pub(crate) leased: Bytes,
    /// Those of them that lay unused in its page when last seen.
    pub(crate) free: Bytes,
    /// Those of them that never move, as the process said: never more than is true, if it is honest.
    pub(crate) fixed: Bytes,
    /// Live contexts.
    pub(crate) contexts: u32,
    /// What its contexts and the rest of the driver's memory take, where that was measured.
    pub(crate) overhead: Option<Bytes>,
}

impl Book {
    /// Bytes allocated, as last seen.
    pub(crate) fn used(&self) -> Bytes {
        self.leased - self.free
    }

    /// Bytes that never move. Whoever claims more than was leased is believed so far.
    pub(crate) fn fixed(&self) -> Bytes {
        self.fixed.min(self.leased)
    }

    /// The most that may be managed memory: all that was leased and is not known to be something else.
    pub(crate) fn managed(&self) -> Bytes {
        self.leased - self.fixed
    }

    /// What moves in and out: the working set.
    pub(crate) fn movable(&self) -> Bytes {
        self.used() - self.fixed
    }

    /// What its contexts take beside what it allocated; `assumed` for each until measured.
    pub(crate) fn overhead(&self, assumed: Bytes) -> Bytes {
        let believed = self.contexts.min(MOST_CONTEXTS);
        let contexts = Bytes(assumed.0.saturating_mul(u64::from(believed)));
        self.overhead.unwrap_or(contexts)
    }

    /// What was measured beyond the allowance (deep stacks, large tables of modules): it counts against the quota.
    pub(crate) fn charged(&self) -> Bytes {
        self.overhead.unwrap_or_default() - ALLOWANCE
    }
}

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
