//! The one way to change a book: everything that is added up from books changes with it.
//!
//! ```text
//!   change_book ─▶ Book ─▶ the session's sums on the card ─▶ the card's census
//! ```

use gpushare_proto::{ClientId, GpuId, SessionId};

use crate::core::Core;
use crate::session::client::Book;
use crate::session::on_card::Listing;
use crate::sums::Sums;

impl Core {
    /// Changes what a process has on a card that it attached; `None` if it did not.
    pub(crate) fn change_book<T>(
        &mut self,
        client: ClientId,
        gpu: GpuId,
        change: impl FnOnce(&mut Book) -> T,
    ) -> Option<T> {
        let id = self.session_of(client)?;
        let session = self.sessions.get_mut(&id)?;
        let book = session.clients.get_mut(&client)?.books.get_mut(&gpu)?;
        let on = session.cards.get_mut(&gpu)?;
        let before = Sums::of(book, self.config.context_reserve);
        let result = change(book);
        on.sums
            .replace(before, Sums::of(book, self.config.context_reserve));
        on.peak = on.peak.max(on.sums.used.get());
        self.recount(id);
        Some(result)
    }

    /// A process attached a card.
    pub(crate) fn open_book(&mut self, client: ClientId, gpu: GpuId, book: Book) {
        let Some(id) = self.session_of(client) else { return };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(process) = session.clients.get_mut(&client) else {
            return;
        };
        process.books.insert(gpu, book);
        let on = session.cards.entry(gpu).or_default();
        on.sums += Sums::of(&book, self.config.context_reserve);
        on.peak = on.peak.max(on.sums.used.get());
        self.recount(id);
    }

    /// A process is gone, and its books with it.
    pub(crate) fn close_books(&mut self, id: SessionId, client: ClientId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(process) = session.clients.remove(&client) else {
            return;
        };
        for (gpu, book) in &process.books {
            if let Some(on) = session.cards.get_mut(gpu) {
                on.sums -= Sums::of(book, self.config.context_reserve);
            }
        }
        self.recount(id);
    }

    /// What a process has on a card.
    pub(crate) fn book(&self, client: ClientId, gpu: GpuId) -> Option<&Book> {
        let home = self.homes.get(&client)?;
        self.sessions.get(home)?.clients.get(&client)?.books.get(&gpu)
    }

    /// Makes the cards count a session as it is.
    pub(crate) fn recount(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let listing = session.listing(Sums::default());
        for (&gpu, on) in &mut session.cards {
            let listing = match on.is_attached() {
                true => Listing {
                    sums: on.sums,
                    ..listing
                },
                false => Listing::default(),
            };
            if listing == on.listed {
                continue;
            }
            if let Some(card) = self.cards.get_mut(&gpu) {
                card.census.list(id, &on.listed, &listing);
                on.listed = listing;
                self.agenda.look_at(gpu);
            }
        }
        self.touch(id);
    }
}
