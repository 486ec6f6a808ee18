//! What books add up to, kept as they change: nobody adds up all books for one event.
//!
//! A process may claim any number of bytes. Sums of claims are wide, so that what was added is taken away again
//! exactly, whatever it was.

use std::ops::{AddAssign, SubAssign};

use gpushare_proto::Bytes;

use crate::memory::book::Book;

/// A sum of bytes that forgets nothing at the top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Total(u128);

impl Total {
    pub(crate) fn get(self) -> Bytes {
        Bytes(u64::try_from(self.0).unwrap_or(u64::MAX))
    }
}

impl From<Bytes> for Total {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.0.into())
    }
}

impl AddAssign for Total {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl SubAssign for Total {
    fn sub_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_sub(other.0);
    }
}

/// Of one book, of a session's on one card, or of all on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Bytes leased, used or not.
    pub(crate) leased: Total,
    /// Bytes allocated.
    pub(crate) used: Total,
    /// Those of them that never move.
    pub(crate) fixed: Total,
    /// The others: the working set.
    pub(crate) movable: Total,
    /// Bytes leased that may be managed memory.
    pub(crate) managed: Total,
    /// Bytes that nobody leased and that count against the quota all the same: what the driver keeps beyond an allowance. They
    /// leave less to be leased, and take back nothing that was.
    pub(crate) charged: Total,
    /// What the contexts take, measured or assumed.
    pub(crate) overhead: Total,
    /// How many books.
    pub(crate) processes: u64,
    /// How many of them have a live context.
    pub(crate) live: u64,
}

impl Sums {
    /// Of one book, where a context that nobody measured takes `assumed`.
    pub(crate) fn of(book: &Book, assumed: Bytes) -> Self {
        Self {
            leased: book.leased.into(),
            used: book.used().into(),
            fixed: book.fixed().into(),
            movable: book.movable().into(),
            managed: book.managed().into(),
            charged: book.charged().into(),
            overhead: book.overhead(assumed).into(),
            processes: 1,
            live: u64::from(book.contexts > 0),
        }
    }

    /// Of a dead process's book: nobody works with it.
    pub(crate) fn of_orphan(book: &Book, assumed: Bytes) -> Self {
        Self { movable: Total::default(), processes: 0, live: 0, ..Self::of(book, assumed) }
    }

    /// A part of these was `before` and is `after`.
    pub(crate) fn replace(&mut self, before: Self, after: Self) {
        *self -= before;
        *self += after;
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.leased += other.leased;
        self.used += other.used;
        self.fixed += other.fixed;
        self.movable += other.movable;
        self.managed += other.managed;
        self.charged += other.charged;
        self.overhead += other.overhead;
        self.processes += other.processes;
        self.live += other.live;
    }
}

impl SubAssign for Sums {
    fn sub_assign(&mut self, other: Self) {
        self.leased -= other.leased;
        self.used -= other.used;
        self.fixed -= other.fixed;
        self.movable -= other.movable;
        self.managed -= other.managed;
        self.charged -= other.charged;
        self.overhead -= other.overhead;
        self.processes -= other.processes;
        self.live -= other.live;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_of_everything_leaves_no_trace_when_it_is_gone() {
        let honest = Book { leased: Bytes(5), ..Book::default() };
        let liar = Book { leased: Bytes::MAX, ..Book::default() };
        let mut sums = Sums::default();
        sums += Sums::of(&honest, Bytes::ZERO);
        sums += Sums::of(&liar, Bytes::ZERO);
        assert_eq!(sums.leased.get(), Bytes::MAX);
        sums -= Sums::of(&liar, Bytes::ZERO);
        assert_eq!(sums, Sums::of(&honest, Bytes::ZERO));
    }
}
