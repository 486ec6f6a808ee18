//! Changes of memory books (one per process and card), and of everything that is derived from them.
//!
//! ```text
//!   change_book ─▶ Book ─▶ sums of the session and of the card ─▶ entry of the session in the card's index
//! ```

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::card::Card;
use crate::machine::Core;
use crate::memory::book::Book;
use crate::memory::sums::Sums;
use crate::residency::hints::Hints;
use crate::session::on_card::{OnCard, Presence, Stance};
use crate::session::share::{Account, Branch};
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;
use crate::view::View;

impl View {
    /// Memory book of a process on a card that the process announced.
    pub(crate) fn book(&self, client: ClientId, gpu: GpuId) -> Option<&Book> {
        self.sessions.book(client, gpu)
    }

    /// Number of bytes that one context takes on a card until it is measured.
    pub(crate) fn assumed(&self, gpu: GpuId) -> Bytes {
        self.cards.get(gpu).map_or(Bytes::ZERO, Card::assumed)
    }
}

impl Core {
    /// Changes the memory book of a process on a card. `None` if the process did not announce the card.
    pub(crate) fn change_book<T>(
        &mut self,
        client: ClientId,
        gpu: GpuId,
        change: impl FnOnce(&mut Book) -> T,
    ) -> Option<T> {
        let id = self.view.session_of(client)?;
        let assumed = self.view.assumed(gpu);
        let session = self.view.sessions.get_mut(id)?;
        let book = session.clients.get_mut(client)?.books.get_mut(gpu)?;
        let (before, lent) = (Sums::of(book, assumed), book.free);
        let result = change(book);
        let (after, lends) = (Sums::of(book, assumed), book.free);
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.index.lend(client, lent, lends);
        }
        if before != after {
            self.add_up(id, gpu, before, after);
            self.recount(id);
        }
        self.touch(id);
        Some(result)
    }

    /// Opens an empty memory book for a process on a card.
    pub(crate) fn open_book(&mut self, client: ClientId, gpu: GpuId, book: Book) {
        let Some(id) = self.view.session_of(client) else { return };
        let Some(process) = self.view.sessions.client_mut(client) else {
            return;
        };
        process.books.insert(gpu, book);
        let after = Sums::of(&book, self.view.assumed(gpu));
        self.add_up(id, gpu, Sums::default(), after);
        self.recount(id);
    }

    /// Takes a process out of its session, and its memory books out of all sums.
    pub(crate) fn close_books(&mut self, client: ClientId) -> Option<(SessionId, ByGpu<Book>)> {
        let (id, process) = self.view.sessions.leave(client)?;
        for (gpu, book) in process.books.iter() {
            let before = Sums::of(book, self.view.assumed(gpu));
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.index.lend(client, book.free, Bytes::ZERO);
            }
            self.add_up(id, gpu, before, Sums::default());
        }
        self.recount(id);
        Some((id, process.books))
    }

    /// Replaces the book `before` by the book `after` in the sums of a session and of a card.
    pub(crate) fn add_up(&mut self, id: SessionId, gpu: GpuId, before: Sums, after: Sums) {
        let (Some(session), Some(card)) = (self.view.sessions.get_mut(id), self.view.cards.get_mut(gpu))
        else {
            return;
        };
        let account = || Account { had: session.resumes_at.get(gpu).copied(), behind: None };
        let on = session
            .cards
            .get_or_insert_with(gpu, || OnCard { account: account(), ..OnCard::default() });
        on.sums.replace(before, after);
        on.peak = on.peak.max(on.sums.used.get());
        match on.is_attached() {
            true => _ = session.uses.insert(gpu),
            false => session.uses.remove(gpu),
        }
        session.figures_moved = true;
        card.index.sums.replace(before, after);
        self.agenda.look_at(gpu);
    }

    /// Updates a session's entry in the indexes of its cards. The session's virtual time is raised on cards
    /// where it begins to share the time.
    pub(crate) fn recount(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        session.compute.choose(session.uses, self.view.now, &self.view.config);
        let (stance, turns) = (session.stance(), session.turn_cards(self.view.in_turns));
        let begins = session.cards.iter().filter(|(gpu, on)| {
            let shares = on.is_attached() && stance.shares(turns.contains(*gpu));
            shares && !(on.listed.shares() && on.listed.branch == stance.branch)
        });
        let begins: GpuSet = begins.map(|(gpu, _)| gpu).collect();
        if !begins.is_empty() {
            // A gang's lead may come from a card that it waited for.
            let keeps = !stance.is_gang() && !self.view.is_rested(id);
            begins.into_iter().for_each(|gpu| self.lift(id, gpu, keeps));
        }
        for gpu in self.list(id, &stance, turns) {
            self.raise_floors(gpu, stance.branch);
        }
        self.touch(id);
    }

    /// Raises the virtual-time floors (least virtual times) of the cards that gangs tie to this one: of all
    /// classes, and of the group `branch`. Only gangs compare floors of several cards.
    pub(crate) fn raise_floors(&mut self, gpu: GpuId, branch: Branch) {
        if !self.view.cards.get(gpu).is_some_and(|card| card.index.has_waiting_gangs()) {
            return;
        }
        // A holder on a card that is not wanted is not looked at, though its virtual time grows.
        for tied in self.view.tied(gpu.into()) {
            if self.raise_floor(tied, branch) {
                self.agenda.look_at(tied);
                self.reordered = true;
            }
        }
    }

    /// Lists a session in the indexes of its cards, on which it takes `turns` or does not, and returns the cards
    /// where it begins or ends to share the time.
    fn list(&mut self, id: SessionId, stance: &Stance, turns: GpuSet) -> GpuSet {
        let (mut moved, mut changed) = (GpuSet::default(), GpuSet::default());
        let Some(session) = self.view.sessions.get_mut(id) else {
            return moved;
        };
        let asked = session.usage.waits_since().unwrap_or(self.view.now);
        for (gpu, on) in session.cards.iter_mut() {
            let Some(card) = self.view.cards.get_mut(gpu) else {
                continue;
            };
            let pays = on.is_attached() && stance.pays(turns.contains(gpu));
            let (old, was_stuck) = (on.listed.branch, on.listed.presence == Presence::Stuck);
            let stuck = stance.presence == Presence::Stuck;
            let before = (old, was_stuck, on.entered);
            let charged = match on.entered {
                None if pays => {
                    let (entered, pause) = card.charge.enter(self.view.now, asked, stance.moves);
                    (on.entered, on.moving) = (Some(entered), Bytes::ZERO);
                    Some(pause)
                }
                Some(entered) if pays && entered.moves != stance.moves => {
                    let (charged, entered) = card.charge.change(self.view.now, entered, stance.moves);
                    on.entered = Some(entered);
                    if !stance.moves
                        && let Some(bandwidth) = on.end_move(charged)
                    {
                        card.moved_at(bandwidth, &self.view.config);
                    }
                    Some(charged)
                }
                Some(entered) if !pays => {
                    let somebody_waits = card.index.waiting() > 0;
                    on.entered = None;
                    Some(card.charge.leave(self.view.now, entered, somebody_waits))
                }
                // From now on, or no longer, its class is charged too.
                Some(entered) if stuck != was_stuck => {
                    let (charged, entered) = card.charge.pay_so_far(self.view.now, entered);
                    on.entered = Some(entered);
                    Some(charged)
                }
                _ => None,
            };
            if let Some(charged) = charged {
                on.pay(charged, stance.share);
                card.groups.pay(stance.branch, was_stuck, charged);
                if card.groups.are_several(stance.branch) {
                    card.index.order_changed();
                    self.agenda.look_at(gpu);
                    self.reordered = true;
                }
            }
            let bounds = (card.assumed(), session.quota.on(gpu));
            let listing = stance.listing(on, turns.contains(gpu), bounds);
            if let Some(share) = listing.user_share {
                card.groups.get_or_insert(listing.branch, share).share = share;
            }
            let after = (listing.branch, stuck, on.entered);
            if after != before {
                let [(old, was_stuck, paid), (new, stuck, pays)] = [before, after];
                card.groups.read(old, was_stuck, paid, false);
                card.groups.read(new, stuck, pays, true);
            }
            if listing == on.listed {
                // Time that was charged may change the places of its user and class.
                card.groups.refresh(listing.branch);
                continue;
            }
            card.groups.list(id, &on.listed, &listing);
            if listing.shares() != on.listed.shares() || listing.pays.is_some() != on.listed.pays.is_some() {
                moved.insert(gpu);
            }
            let in_turn = listing.pays.is_some() || on.listed.pays.is_some();
            if in_turn && card.overlaps() && listing.presence != on.listed.presence {
                changed.insert(gpu);
            }
            card.list(id, &on.listed, &listing);
            if Hints::concern(&on.listed, &listing) && card.hints.note(id, &on.listed, &listing) {
                self.hints_due.insert(gpu);
            }
            on.listed = listing;
            self.agenda.look_at(gpu);
        }
        if !moved.is_empty() {
            // A wait on one card can hold the session up on its other cards, or no longer.
            session.uses.into_iter().for_each(|gpu| self.agenda.look_at(gpu));
        }
        changed.into_iter().for_each(|gpu| self.touch_in_turn(gpu));
        moved
    }
}
