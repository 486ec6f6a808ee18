//! The one way to change a book: everything that is added up from books changes with it.
//!
//! ```text
//!   change_book ─▶ Book ─▶ the session's sums on the card ─▶ the card's census
//! ```

use gpushare_proto::{ClientId, GpuId, SessionId};

use crate::core::Core;
use crate::session::client::Book;
use crate::session::on_card::{Listing, Presence};
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
        session.watch_limit(self.now, &self.config);
        let asked = session.waited.since().unwrap_or(self.now);
        let listings: Vec<(GpuId, Listing)> = session
            .cards
            .iter()
            .map(|(&gpu, on)| (gpu, session.listing(on)))
            .collect();
        let (share, limited) = (session.share, session.is_limited());
        let mut moved = Vec::new();
        for (gpu, listing) in listings {
            let (Some(on), Some(card)) = (session.cards.get_mut(&gpu), self.cards.get_mut(&gpu)) else {
                continue;
            };
            let pays = listing.presence != Presence::None && (limited || card.takes_turns());
            match on.entered {
                None if pays => {
                    let (entered, pause) = card.charge.enter(self.now, asked);
                    on.pay(pause, share);
                    on.entered = Some(entered);
                    moved.push(gpu);
                }
                Some(entered) if !pays => {
                    let somebody_waits = !card.census.queue.is_empty();
                    let charged = card.charge.leave(self.now, entered, somebody_waits);
                    on.pay(charged, share);
                    on.entered = None;
                    moved.push(gpu);
                }
                _ => {}
            }
            if listing == on.listed {
                continue;
            }
            card.census.list(id, &on.listed, &listing);
            on.listed = listing;
            self.agenda.look_at(gpu);
        }
        // Only gangs compare floors; whoever wakes finds them anew.
        for gpu in moved {
            if self
                .cards
                .get(&gpu)
                .is_some_and(|card| !card.census.gangs.is_empty())
            {
                self.raise_floors(gpu);
            }
        }
        self.touch(id);
    }
}
