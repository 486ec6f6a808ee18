//! The one way to change a book: everything that is added up from books changes with it.
//!
//! ```text
//!   change_book ─▶ Book ─▶ the session's sums on the card ─▶ the card's census
//! ```

use gpushare_proto::{ClientId, GpuId, SessionId};

use crate::core::Core;
use crate::gpu::Card;
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

    /// Makes the cards count a session as it is. Where it becomes one of those who share a card's time, it starts beside them.
    pub(crate) fn recount(&mut self, id: SessionId) {
        let now = self.now;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.watch_limit(now, &self.config);
        }
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let begins = session.cards.iter().filter(|(gpu, on)| {
            let listing = session.listing(on, self.takes_turns_on(id, **gpu));
            listing.shares() && !on.listed.shares()
        });
        let begins: Vec<GpuId> = begins.map(|(&gpu, _)| gpu).collect();
        begins.into_iter().for_each(|gpu| self.lift(id, gpu));
        for gpu in self.list(id) {
            // Only gangs compare floors; whoever is lifted finds them anew.
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

    /// Puts a session into the books of its cards as it is; the cards where it begins or ends to share the time.
    fn list(&mut self, id: SessionId) -> Vec<GpuId> {
        let mut moved = Vec::new();
        let Some(session) = self.sessions.get_mut(&id) else {
            return moved;
        };
        let asked = session.waited.since().unwrap_or(self.now);
        let (share, limited) = (session.share, session.is_limited());
        let turns = |card: &Card| limited || card.takes_turns();
        let cards = session.cards.iter();
        let listings: Vec<(GpuId, Listing)> = cards
            .filter_map(|(&gpu, on)| Some((gpu, session.listing(on, turns(self.cards.get(&gpu)?)))))
            .collect();
        for (gpu, listing) in listings {
            let (Some(on), Some(card)) = (session.cards.get_mut(&gpu), self.cards.get_mut(&gpu)) else {
                continue;
            };
            match on.entered {
                None if listing.pays => {
                    let (entered, pause) = card.charge.enter(self.now, asked);
                    on.pay(pause, share);
                    on.entered = Some(entered);
                }
                Some(entered) if !listing.pays => {
                    let somebody_waits = !card.census.queue.is_empty();
                    let charged = card.charge.leave(self.now, entered, somebody_waits);
                    on.pay(charged, share);
                    on.entered = None;
                }
                _ => {}
            }
            if listing == on.listed {
                continue;
            }
            if listing.shares() != on.listed.shares() || listing.pays != on.listed.pays {
                moved.push(gpu);
            }
            card.census.list(id, &on.listed, &listing);
            on.listed = listing;
            self.agenda.look_at(gpu);
        }
        if !moved.is_empty() {
            // What it waits for on one card may hold it up on the others, or no more.
            session.needs().for_each(|(gpu, _)| self.agenda.look_at(gpu));
        }
        moved
    }
}
