//! Goals for managed memory: the way out beside the way in of a process that was granted the lock.
//!
//! They are hints. The driver would evict the same bytes, page by page and while the entrant waits for each. A goal
//! is in force only while somebody comes in, so none outlives the handoff for which it was given.

use std::cmp::Reverse;

use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};
use smallvec::SmallVec;

use crate::card::Card;
use crate::events::Effect;
use crate::machine::Core;
use crate::memory::book::Book;
use crate::residency::estimate::{self, NextTurn, Row};
use crate::residency::plan;
use crate::session::Session;
use crate::session::lock::Lock;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

impl View {
    /// Whether a process brings its memory in on a card where memory moves at a switch.
    pub(crate) fn has_entrant(&self, gpu: GpuId) -> bool {
        self.cards
            .get(gpu)
            .is_some_and(|card| card.moves_memory() && card.index.movers() > 0)
    }

    /// Whether a process brings its memory in.
    fn comes_in(&self, client: ClientId) -> bool {
        self.sessions.client(client).is_some_and(|client| client.gate.is_moving())
    }

    /// Managed working set of a process on a card.
    fn managed_on(&self, client: ClientId, gpu: GpuId) -> Bytes {
        let book = self.book(client, gpu).filter(|book| !book.is_remapped);
        book.map_or(Bytes::ZERO, Book::movable)
    }

    /// Processes that have let go, with managed memory on a card.
    fn managed_rows(&self, gpu: GpuId) -> SmallVec<[Row; 4]> {
        let row = |(client, bytes, at): (ClientId, Bytes, Nanos)| {
            let session = self.sessions.get(self.session_of(client)?)?;
            let next = match session.lock {
                _ if !session.may_run() => NextTurn::Barred,
                Lock::Waiting(_) => NextTurn::Waits(at),
                _ => NextTurn::Idles(Reverse(at)),
            };
            Some(Row { client, next, resident: bytes.min(self.managed_on(client, gpu)) })
        };
        let card = self.cards.get(gpu);
        card.into_iter()
            .flat_map(|card| card.estimates.left())
            .filter_map(row)
            .collect()
    }

    /// Bytes of a card for managed memory: its capacity without remapped memory and memory of the dead.
    fn for_managed(&self, gpu: GpuId) -> Bytes {
        let card = self.cards.get(gpu);
        let remapped = plan::claims(&self.rows(gpu)).get();
        let dead = card.map_or(Bytes::ZERO, |card| card.residents.departed());
        card.map_or(Bytes::ZERO, Card::capacity) - self.recovery.used(gpu) - remapped - dead
    }
}

/// Processes of a session with managed memory on a card, and how much that is.
fn managed_of(session: &Session, gpu: GpuId) -> impl Iterator<Item = (ClientId, Bytes)> {
    session.clients.iter().filter_map(move |(client, process)| {
        let book = process.books.get(gpu).filter(|book| !book.is_remapped)?;
        Some((client, book.movable()))
    })
}

impl Core {
    /// Notes that a session was granted the lock: all its managed memory may be on its cards from now on.
    pub(crate) fn managed_enters(&mut self, id: SessionId) {
        for gpu in self.view.cards_of(id) {
            let card = self.view.cards.get_mut(gpu).filter(|card| card.moves_memory());
            if let Some((card, session)) = card.zip(self.view.sessions.get(id)) {
                managed_of(session, gpu).for_each(|(client, _)| card.estimates.enters(client));
            }
        }
    }

    /// Notes that a session has let go.
    pub(crate) fn managed_leaves(&mut self, id: SessionId) {
        for gpu in self.view.cards_of(id) {
            if self.view.cards.get(gpu).is_some_and(Card::moves_memory) {
                self.managed_leaves_card(id, gpu, self.view.now);
            }
        }
    }

    fn managed_leaves_card(&mut self, id: SessionId, gpu: GpuId, at: Nanos) {
        if let Some((card, session)) = self.view.cards.get_mut(gpu).zip(self.view.sessions.get(id)) {
            let left = managed_of(session, gpu).filter(|(_, bytes)| !bytes.is_zero());
            left.for_each(|(client, bytes)| card.estimates.leaves(client, bytes, at));
        }
    }

    /// Gives the goals for managed memory that follow from the grants, and lifts those of handoffs that are over.
    pub(crate) fn place_managed(&mut self) {
        for gpu in self.agenda.cards() {
            let Some(card) = self.view.cards.get(gpu) else { continue };
            let moves = card.moves_memory();
            if card.estimates.are_kept != moves {
                self.begin_or_end_estimates(gpu, moves);
            }
            self.lift_goals_that_are_over(gpu);
            if self.view.cards.get(gpu).is_some_and(|card| card.estimates.have_entrants()) {
                self.place_managed_on(gpu);
            }
        }
    }

    fn lift_goals_that_are_over(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get(gpu).filter(|card| card.estimates.has_goals()) else {
            return;
        };
        let over: SmallVec<[ClientId; 4]> = match self.view.has_entrant(gpu) {
            true => card.estimates.limited().filter(|&client| !self.view.comes_in(client)).collect(),
            false => card.estimates.in_force().map(|(client, _)| client).collect(),
        };
        for client in over {
            self.give_managed_goal(client, gpu, Bytes::MAX);
        }
    }

    /// Begins to keep estimates when memory begins to move, with that of sessions that ran before, and ends when
    /// none moves any more.
    fn begin_or_end_estimates(&mut self, gpu: GpuId, moves: bool) {
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        card.estimates.are_kept = moves;
        if !moves {
            return card.estimates.forget_places();
        }
        for id in card.index.members.clone() {
            let session = self.view.sessions.get(id).filter(|session| session.lock.grant().is_none());
            // Memory that no kernel has touched is nowhere.
            if let Some((at, _)) = session.and_then(|session| session.left) {
                self.managed_leaves_card(id, gpu, at);
            }
        }
    }

    fn place_managed_on(&mut self, gpu: GpuId) {
        let (supply, comes_in) = (self.view.for_managed(gpu), self.view.has_entrant(gpu));
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        let (held, entrants) = (card.index.held_managed(), card.estimates.take_entrants());
        let fits = card.estimates.fit(held, supply);
        let mut rows = if fits { SmallVec::new() } else { self.view.managed_rows(gpu) };
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        let gives = estimate::plan(&mut rows, held, supply);
        gives.iter().for_each(|&(client, stays)| card.estimates.keep(client, stays));
        for (client, stays) in gives {
            self.give_managed_goal(client, gpu, if comes_in { stays } else { Bytes::MAX });
        }
        for client in entrants {
            let own = self.view.managed_on(client, gpu);
            let most = supply - (held - own);
            let is_limited = most < own && comes_in && self.view.comes_in(client);
            self.give_managed_goal(client, gpu, if is_limited { most } else { Bytes::MAX });
            if is_limited && let Some(card) = self.view.cards.get_mut(gpu) {
                card.estimates.limit(client);
            }
        }
    }

    /// Lifts the goals of a process that has come in, or does so no longer.
    pub(crate) fn lift_managed_goals(&mut self, client: ClientId, cards: GpuSet) {
        for gpu in cards {
            if self.view.cards.get(gpu).is_some_and(|card| card.estimates.has_goals()) {
                self.give_managed_goal(client, gpu, Bytes::MAX);
            }
        }
    }

    /// Gives a process a goal, or lifts it with [`Bytes::MAX`].
    fn give_managed_goal(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        let Some(number) = card.estimates.give(client, bytes) else { return };
        // Before the gate: an entrant would keep to the goal from before.
        let is_gate = |effect: &Effect| matches!(effect, Effect::Gate { client: of, .. } if *of == client);
        let at = self.effects.iter().position(is_gate).unwrap_or(self.effects.len());
        self.effects.insert(at, Effect::Goal { client, gpu, number, bytes });
    }
}
