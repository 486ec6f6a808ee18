//! Orphaned memory: memory of a dead process that the driver has not taken back yet.
//!
//! ```text
//!   ClientEnded ──▶ no lock, no gate, no lease; its books are orphans ── ClientGone ──▶ nothing
//! ```
//!
//! The driver takes memory back when the last process has closed the card's files, and a forked child has
//! those of its parent. If that memory were free in the books before, a program that forks a sleeper and dies
//! could have a whole quota again and again.
//!
//! An orphan counts against its session's quota and takes room on the card as before. It is no working set:
//! no process uses it, and the driver may move its managed part out of the way.

use gpushare_proto::{Bytes, GpuId, SessionId};

use crate::memory::book::Book;
use crate::memory::sums::Sums;
use crate::values::small_map::ByGpu;

/// Memory that one dead process left and the driver has not freed yet.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub(crate) session: SessionId,
    books: ByGpu<Book>,
}

impl Orphan {
    pub(crate) fn new(session: SessionId, mut books: ByGpu<Book>) -> Self {
        for book in books.values_mut() {
            *book = Book {
                leased: book.used(),
                fixed: book.fixed.min(book.used()),
                free: Bytes::ZERO,
                ..*book
            };
        }
        Self { session, books }
    }

    /// Adds the memory book of a dead process on one more card, unless there is one. Returns its sums.
    pub(crate) fn add(&mut self, gpu: GpuId, book: Book, assumed: Bytes) -> Option<Sums> {
        if self.books.contains(gpu) {
            return None;
        }
        self.books.insert(gpu, book);
        Some(Sums::of_orphan(&book, assumed))
    }

    /// Sums of the left memory on each card; an unmeasured context takes `assumed` bytes there.
    pub(crate) fn sums(&self, assumed: impl Fn(GpuId) -> Bytes) -> impl Iterator<Item = (GpuId, Sums)> {
        let books = self.books.iter();
        books.map(move |(gpu, book)| (gpu, Sums::of_orphan(book, assumed(gpu))))
    }
}
