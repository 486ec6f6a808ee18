//! Events about processes: joining and returning, cards, contexts, waiting, entering, releasing, and death.

use gpushare_proto::{Bytes, ClientId, Epoch, GateWord, GpuId, Nanos, RequestId, SessionId};

use crate::events::Effect;
use crate::machine::Core;
use crate::memory::book::Book;
use crate::session::client::{Client, Past, Told};
use crate::session::gate::Release;
use crate::session::lock::Lock;
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;

impl Core {
    pub(crate) fn client_joined(&mut self, client: ClientId, session: SessionId, holding: Option<Epoch>) {
        let opened = self.view.sessions.get(session).is_some_and(|session| !session.closed);
        let known = self.view.sessions.of(client).is_some() || self.view.orphans.contains_key(&client);
        if !opened || known {
            return;
        }
        let past = match (self.view.recovery.returned(client, self.view.now), holding) {
            (_, None) => Past::Nothing,
            (true, Some(_)) => Past::Held,
            (false, Some(_)) => Past::Claims,
        };
        self.view.sessions.join(session, client, Client::new(past));
    }

    pub(crate) fn expected_uses(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if self.view.cards.contains(gpu) {
            self.view.recovery.uses(client, gpu, bytes);
        }
    }

    /// Continues with a process that is back on a new shared page.
    ///
    /// The free lease of the process is gone; its session keeps the lock or the place in the queue. The
    /// process's answer to the last gate word may be lost, so an equal word is sent again.
    pub(crate) fn client_returned(&mut self, client: ClientId, waiting: bool) {
        let Some(id) = self.view.session_of(client) else { return };
        let Some(process) = self.client_mut(client) else {
            return;
        };
        let gpus: GpuSet = process.books.keys().collect();
        process.told = Told::default();
        for gpu in gpus {
            self.has_new_page(client, gpu);
            self.change_book(client, gpu, |book| {
                book.leased = book.used();
                (book.free, book.fixed) = (Bytes::ZERO, Bytes::ZERO);
            });
        }
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        session.figures_moved = true;
        let epoch = session.lock.grant().map(|grant| grant.epoch);
        if let Some(process) = session.clients.get_mut(client)
            && let Some((word, epoch)) = process.gate.move_to_new_page(waiting).zip(epoch)
        {
            self.effects.push_back(Effect::Gate { client, word, epoch });
        }
        self.recount(id);
    }

    pub(crate) fn still_uses(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let grew = self.change_book(client, gpu, |book| {
            let before = book.leased;
            book.leased = before.max(bytes + book.free);
            book.leased > before
        });
        if grew == Some(true) {
            self.grown = self.view.session_of(client);
        }
    }

    pub(crate) fn client_gone(&mut self, client: ClientId) {
        self.departs(client, false);
        if let Some((home, _)) = self.part_with(client) {
            self.forget_empty(home);
        }
        self.remove_orphan(client);
    }

    /// Removes a process everywhere, and returns its session and its memory books.
    pub(crate) fn part_with(&mut self, client: ClientId) -> Option<(SessionId, ByGpu<Book>)> {
        self.view.recovery.gone(client);
        self.recalls.forget(client);
        let cards = self.view.tied(self.view.cards_of(self.view.session_of(client)?));
        let (home, books) = self.close_books(client)?;
        if let Some(session) = self.view.sessions.get_mut(home)
            && session.attached().next().is_none()
        {
            session.shut();
            self.end_backfill(cards);
        }
        self.recount(home);
        self.let_interrupted_go_on(self.view.in_turns.and(cards));
        Some((home, books))
    }

    /// Opens the memory book of a process on a card. A holder whose new card is wanted by others queues up
    /// again for all its cards.
    pub(crate) fn attached(&mut self, client: ClientId, gpu: GpuId, used: Bytes) {
        let Some(id) = self.view.session_of(client) else {
            return self.add_orphan_book(client, gpu, used);
        };
        let Some(card) = self.view.cards.get(gpu) else { return };
        let queues = card.takes_turns() && self.view.is_wanted(gpu);
        let known = card.index.members.contains(&id);
        if self.view.book(client, gpu).is_some() {
            return;
        }
        let is_remapped = self.view.remaps(client);
        let is_away = self.view.sessions.client(client).is_some_and(|process| process.frost.is_away());
        let book = Book { leased: used, is_remapped, is_away, ..Book::default() };
        self.open_book(client, gpu, book);
        if is_remapped && let Some(card) = self.view.cards.get_mut(gpu) {
            card.residents.join(client);
            self.view.remapped.insert(gpu);
        }
        if queues && !known {
            self.begin_drop(id, true);
        }
    }

    pub(crate) fn contexts(&mut self, client: ClientId, gpu: GpuId, live: u32) {
        self.change_book(client, gpu, |book| book.contexts = live);
    }

    /// Notes the measured driver memory of a process; `None` if measuring is no longer possible. What NVML says of a
    /// frozen process is not what it needs when it comes back.
    pub(crate) fn overhead(&mut self, client: ClientId, gpu: GpuId, bytes: Option<Bytes>) {
        if self.is_frozen(client) {
            return;
        }
        self.change_book(client, gpu, |book| book.overhead = bytes);
    }

    /// Answers how many of the asked bytes the driver can find, once it has moved movable memory away.
    pub(crate) fn room(&mut self, client: ClientId, gpu: GpuId, request: RequestId, bytes: Bytes) {
        let known = self.view.book(client, gpu).is_some();
        let Some(card) = self.view.cards.get(gpu).filter(|_| known) else {
            return;
        };
        let room = bytes.min(card.room_left());
        self.effects.push_back(Effect::Room { client, gpu, request, bytes: room });
        self.card_is_short(client, gpu, bytes);
    }

    pub(crate) fn wait(&mut self, client: ClientId, word: GateWord) {
        let Some(id) = self.view.session_of(client) else { return };
        if let Some(client) = self.client_mut(client) {
            client.gate.wait(word);
        }
        // In parallel mode, a session that wants the card may contend with others there. Remapped memory counts for
        // the mode from now on, also where the session takes turns for its compute limit.
        if !self.view.takes_turns(id) || self.view.has_remapped(id) {
            self.recount(id);
        }
    }

    pub(crate) fn entered(&mut self, client: ClientId, word: GateWord, moved: Bytes) {
        let now = self.view.now;
        let Some(id) = self.view.session_of(client) else { return };
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let Some(process) = session.clients.get_mut(client) else {
            return;
        };
        if !process.gate.entered(word) {
            return;
        }
        let moved = moved.min(process.movable());
        let cards: GpuSet = process.books.keys().collect();
        session.usage.add_moved(moved);
        self.note_move(id, cards, moved);
        if let Some(session) = self.view.sessions.get_mut(id)
            && !session.is_moving()
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock.entered(now);
            // From now on it pays by the other clock.
            self.recount(id);
        }
    }

    pub(crate) fn released(&mut self, client: ClientId, word: GateWord, drain: Nanos) {
        let now = self.view.now;
        let Some(id) = self.view.session_of(client) else { return };
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let Some(process) = session.clients.get_mut(client) else {
            return;
        };
        let was_moving = process.gate.is_moving();
        let release = process.gate.released(word);
        if let (Some(Release::Drained), Lock::Dropping(_, drop)) = (release, &mut session.lock) {
            drop.drained(now, drain);
        }
        // A session that lets go is charged when its lock is released.
        if was_moving && !session.has_let_go(self.view.on_demand) {
            self.recount(id);
        }
    }

    pub(crate) fn nearly_drained(&mut self, client: ClientId, word: GateWord) {
        if let Some(client) = self.client_mut(client) {
            client.gate.nearly_drained(word);
        }
    }

    /// Accounts the bytes that a process moved to its cards, divided equally over these cards.
    ///
    /// A process asks the driver for all its memory and cannot know how much was there already. So the
    /// bandwidth is computed from the part that did not fit beside the other sessions.
    fn note_move(&mut self, id: SessionId, cards: GpuSet, moved: Bytes) {
        let share = Bytes(moved.0 / u64::from(cards.len().max(1)));
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        for (gpu, on) in session.cards.iter_mut().filter(|(gpu, _)| cards.contains(*gpu)) {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.moved += share;
                on.moving = (on.moving + share).min(card.excess(on.sums.movable.get()));
                self.agenda.look_at(gpu);
            }
        }
    }
}
