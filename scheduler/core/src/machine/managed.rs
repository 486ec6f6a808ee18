//! Goals for managed memory: the way out beside the way in of a process that was granted the lock.
//!
//! They are hints. The driver would evict the same bytes, page by page and while the entrant waits for each. A goal
//! is in force only while somebody comes in, so none outlives the handoff for which it was given.

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::card::Card;
use crate::events::Effect;
use crate::machine::Core;
use crate::machine::residency::rank;
use crate::residency::estimate::{self, Row};
use crate::residency::plan;
use crate::session::Session;
use crate::session::client::Client;
use crate::view::View;

impl View {
    /// Whether a process brings its memory in on a card.
    pub(crate) fn has_entrant(&self, gpu: GpuId) -> bool {
        let holders = self.cards.get(gpu).into_iter().flat_map(|card| &card.index.holders);
        let mut sessions = holders.filter_map(|&id| self.sessions.get(id));
        sessions.any(|session| session.attached().any(|(_, client)| enters(client, gpu)))
    }

    /// Processes with managed memory on a card, in the order of keeping it.
    fn managed_rows(&self, gpu: GpuId) -> Vec<Row> {
        let Some(card) = self.cards.get(gpu) else { return Vec::new() };
        let places: BTreeMap<SessionId, u32> = card.groups.in_order(|_| true).zip(0..).collect();
        let of_session = |(id, session): (SessionId, &Session)| {
            let rank = rank(session, places.get(&id).copied());
            // Memory that no kernel has touched is nowhere.
            let has_run = rank.has_lock() || session.left.is_some();
            let row = |(client, process): (ClientId, &Client)| {
                let movable = process.books.get(gpu).filter(|book| !book.is_remapped)?.movable();
                let estimate = card.estimates.resident(client);
                let resident = match (rank.has_lock(), has_run) {
                    (true, _) => movable,
                    (false, true) => estimate.min(movable),
                    (false, false) => Bytes::ZERO,
                };
                Some(Row { client, rank, enters: enters(process, gpu), movable, resident })
            };
            session.attached().filter_map(row).collect::<Vec<_>>()
        };
        let members = card.index.members.iter();
        let sessions = members.filter_map(|&id| Some((id, self.sessions.get(id)?)));
        let mut rows: Vec<Row> = sessions.flat_map(of_session).collect();
        rows.sort_by_key(|row| row.rank);
        rows
    }

    /// Bytes of a card for managed memory: its capacity without remapped memory and memory of the dead.
    fn for_managed(&self, gpu: GpuId) -> Bytes {
        let card = self.cards.get(gpu);
        let remapped = plan::claims(&self.rows(gpu)).get();
        let dead = card.map_or(Bytes::ZERO, |card| card.residents.departed());
        card.map_or(Bytes::ZERO, Card::capacity) - self.recovery.used(gpu) - remapped - dead
    }
}

impl Core {
    /// Gives the goals for managed memory that follow from all facts, and lifts those of handoffs that are over.
    pub(crate) fn place_managed(&mut self) {
        let touched = (0..self.agenda.len()).map(|at| self.view.cards_of(self.agenda.session(at)));
        for gpu in touched.fold(self.agenda.cards(), |cards, more| cards.with(more)) {
            let Some(card) = self.view.cards.get(gpu) else { continue };
            let enters = card.moves_memory() && self.view.has_entrant(gpu);
            if enters || card.estimates.goals().next().is_some() {
                self.place_managed_on(gpu, enters);
            }
        }
    }

    fn place_managed_on(&mut self, gpu: GpuId, enters: bool) {
        let rows = self.view.managed_rows(gpu);
        let stays = estimate::plan(&rows, self.view.for_managed(gpu));
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        for (row, stays) in rows.iter().zip(stays) {
            match row.rank.has_lock() {
                true => card.estimates.set_resident(row.client, Bytes::MAX),
                // All who came in have their memory, so what others had in excess has left.
                false if !enters && stays < Bytes::MAX => card.estimates.set_resident(row.client, stays),
                false => {}
            }
            let goal = if enters { stays } else { Bytes::MAX };
            if let Some(number) = card.estimates.give(row.client, goal) {
                let client = row.client;
                // Before the gate: an entrant would keep to the goal from before.
                let is_gate =
                    |effect: &Effect| matches!(effect, Effect::Gate { client: of, .. } if *of == client);
                let at = self.effects.iter().position(is_gate).unwrap_or(self.effects.len());
                self.effects.insert(at, Effect::Goal { client, gpu, number, bytes: goal });
            }
        }
    }
}

fn enters(client: &Client, gpu: GpuId) -> bool {
    client.gate.is_moving() && client.books.contains(gpu)
}
