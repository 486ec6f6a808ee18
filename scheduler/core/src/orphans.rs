//! Orphaned memory: what a dead process has on its cards for as long as the driver keeps it there.
//!
//! ```text
//!   ClientEnded ──▶ no lock, no gate, no lease; its books are orphans ── ClientGone ──▶ nothing
//! ```
//!
//! The driver gives memory back when the last process has closed the card's files, and a forked child has
//! those of its parent. If it were free in the books before, whoever forks a sleeper and dies could have a
//! whole quota again, as often as it likes.
//!
//! An orphan counts against its session's quota and takes room on the card as it did. It is no working set:
//! nobody uses it, nobody brings it in, and the driver may move what of it is managed out of the way of
//! others.

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::core::Core;
use crate::few::ByGpu;
use crate::session::client::Book;
use crate::sums::Sums;

/// What one dead process left.
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

    /// What it counts as on each card; a context that nobody measured takes `assumed`.
    pub(crate) fn sums(&self, assumed: Bytes) -> impl Iterator<Item = (GpuId, Sums)> {
        let books = self.books.iter();
        books.map(move |(gpu, book)| (gpu, Sums::of_orphan(book, assumed)))
    }
}

impl Core {
    /// A process is dead, and the card has its memory still.
    pub(crate) fn client_ended(&mut self, client: ClientId) {
        let Some((session, books)) = self.part_with(client) else {
            return;
        };
        let orphan = Orphan::new(session, books);
        for (gpu, sums) in orphan.sums(self.config.context_reserve) {
            self.add_up(session, gpu, Sums::default(), sums);
        }
        self.orphans.insert(client, orphan);
        self.recount(session);
    }

    /// What a process that is dead already had on one more card: nobody worked with it under this daemon.
    pub(crate) fn left_on(&mut self, client: ClientId, gpu: GpuId, used: Bytes) {
        let assumed = self.config.context_reserve;
        let known = self.cards.contains(gpu);
        let Some(orphan) = self.orphans.get_mut(&client).filter(|_| known) else {
            return;
        };
        if orphan.books.contains(gpu) {
            return;
        }
        let book = Book { leased: used, ..Book::default() };
        let (session, sums) = (orphan.session, Sums::of_orphan(&book, assumed));
        orphan.books.insert(gpu, book);
        self.add_up(session, gpu, Sums::default(), sums);
        self.recount(session);
    }

    /// The driver has taken back what a dead process had.
    pub(crate) fn bury(&mut self, client: ClientId) {
        let Some(orphan) = self.orphans.remove(&client) else {
            return;
        };
        let session = orphan.session;
        for (gpu, sums) in orphan.sums(self.config.context_reserve) {
            self.add_up(session, gpu, sums, Sums::default());
        }
        self.recount(session);
        self.forget_empty(session);
    }

    /// Whether a dead process left anything that counts as this session's.
    pub(crate) fn has_orphans(&self, session: SessionId) -> bool {
        self.orphans.values().any(|orphan| orphan.session == session)
    }
}
