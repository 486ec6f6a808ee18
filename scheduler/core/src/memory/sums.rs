//! Sums of memory books, updated as books change, so that no event has to add up all books.
//!
//! A process may claim any number of bytes. The sums have 128 bits, so that each claim can be subtracted
//! exactly.

use std::ops::{AddAssign, SubAssign};

use gpushare_proto::Bytes;

use crate::memory::book::Book;

/// Sum of bytes that does not saturate at 2⁶⁴.
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

/// Sums over one memory book, over a session's books on one card, or over all books on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Number of leased bytes, used or not.
    pub(crate) leased: Total,
    /// Number of bytes that processes have allocated.
    pub(crate) used: Total,
    /// Number of allocated bytes that never leave the card.
    pub(crate) fixed: Total,
    /// Working set: number of bytes that can leave the card, in whole chunks where memory is remapped.
    pub(crate) movable: Total,
    /// Part of `fixed` that is pinned remapped memory.
    pub(crate) pinned: Total,
    /// Part of `movable` that is remapped memory.
    pub(crate) swappable: Total,
    /// Number of leased bytes that may be managed memory.
    pub(crate) managed: Total,
    /// Number of bytes that remapped memory may take: the leased ones, rounded up.
    pub(crate) remapped: Total,
    /// Part of `remapped` that is no leased memory, but the rest of chunks.
    pub(crate) rounding: Total,
    /// Part of `rounding` beyond what the leased bytes can take. It counts against the quota as if it was leased.
    pub(crate) scattered: Total,
    /// Driver memory beyond the free allowance. It counts against the quota: less can be leased, but no lease
    /// is taken back.
    pub(crate) charged: Total,
    /// Measured bytes of CUDA contexts and of other driver memory.
    pub(crate) overhead: Total,
    /// Number of memory books with contexts that are claimed and not measured.
    pub(crate) claims: u64,
    /// Number of memory books whose movable memory is remapped.
    pub(crate) remapping: u64,
    /// Number of memory books that were added up.
    pub(crate) processes: u64,
    /// Number of memory books with a live CUDA context.
    pub(crate) live: u64,
}

impl Sums {
    /// Returns the sums over one memory book; an unmeasured context is charged as `assumed` bytes.
    pub(crate) fn of(book: &Book, assumed: Bytes) -> Self {
        Self {
            leased: book.leased.into(),
            used: book.used().into(),
            fixed: book.stays_here().into(),
            movable: book.movable().into(),
            pinned: if book.is_away {
                Total::default()
            } else {
                (book.stays() - book.fixed()).into()
            },
            swappable: if book.is_remapped { book.movable().into() } else { Total::default() },
            managed: book.managed().into(),
            remapped: (book.remapped() + book.rounding()).into(),
            rounding: book.rounding().into(),
            scattered: book.scattered().into(),
            charged: book.charged(assumed).into(),
            overhead: book.overhead_here().into(),
            claims: u64::from(book.claims()),
            remapping: u64::from(book.is_remapped),
            processes: 1,
            live: u64::from(book.contexts > 0 && !book.is_away),
        }
    }

    /// Returns the sums over the memory book of a dead process, which has no working set.
    pub(crate) fn of_orphan(book: &Book, assumed: Bytes) -> Self {
        let (movable, swappable) = (Total::default(), Total::default());
        Self {
            movable,
            swappable,
            remapping: 0,
            processes: 0,
            live: 0,
            ..Self::of(book, assumed)
        }
    }

    /// Whether the movable memory of all processes is remapped, and there are any.
    pub(crate) fn are_remapped(&self) -> bool {
        self.remapping > 0 && self.remapping == self.processes
    }

    /// Bytes that count against the quota beside the leased ones.
    pub(crate) fn beside_leases(&self) -> Bytes {
        self.charged.get() + self.scattered.get()
    }

    /// Subtracts the sums `before` and adds the sums `after`.
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
        self.pinned += other.pinned;
        self.swappable += other.swappable;
        self.managed += other.managed;
        self.remapped += other.remapped;
        self.rounding += other.rounding;
        self.scattered += other.scattered;
        self.charged += other.charged;
        self.overhead += other.overhead;
        self.claims += other.claims;
        self.remapping += other.remapping;
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
        self.pinned -= other.pinned;
        self.swappable -= other.swappable;
        self.managed -= other.managed;
        self.remapped -= other.remapped;
        self.rounding -= other.rounding;
        self.scattered -= other.scattered;
        self.charged -= other.charged;
        self.overhead -= other.overhead;
        self.claims -= other.claims;
        self.remapping -= other.remapping;
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
