//! Handoffs of remapped memory: their account is kept while events are handled, and shown on request.
//!
//! No decision depends on it. A card without remapped memory pays nothing.

use gpushare_proto::handoff::{CardHandoffs, Handoff};
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};

use crate::card::Card;
use crate::events::{Effect, Notice};
use crate::machine::Core;
use crate::residency::handoff::Rest;
use crate::residency::plan::{Rank, Row};
use crate::residency::transfer::Way;
use crate::view::View;

impl View {
    /// Bytes that a process says it has on a card, as far as it is believed.
    pub(crate) fn said_resident(&self, client: ClientId, gpu: GpuId) -> Bytes {
        let said = || {
            let resident = self.cards.get(gpu)?.residents.get(client)?;
            Some(resident.facts.said_resident(self.book(client, gpu)?))
        };
        said().unwrap_or_default()
    }

    /// Whether a process has the lock and waits for its memory.
    pub(crate) fn enters(&self, row: &Row) -> bool {
        let is_moving = || self.sessions.client(row.client).is_some_and(|client| client.gate.is_moving());
        matches!(row.rank, Rank::Holds(_)) && is_moving()
    }

    /// Bytes on a card that have to move yet.
    fn rest(&self, gpu: GpuId, card: &Card) -> Rest {
        let mut rest = Rest::default();
        for row in self.rows(gpu) {
            let resident = row.figures.resident;
            let transfer = card.residents.get(row.client).map(|process| process.transfer);
            if self.enters(&row) {
                rest.into += row.figures.whole - resident;
            } else {
                rest.out += transfer.map_or(Bytes::ZERO, |transfer| transfer.rest(resident));
            }
        }
        rest
    }
}

impl Core {
    /// Notes the bytes that a process has moved since it had `before` bytes on a card, if it was asked to move.
    pub(crate) fn note_moved(&mut self, client: ClientId, gpu: GpuId, before: Bytes, copied: Bytes) {
        let (now, after) = (self.view.now, self.view.said_resident(client, gpu));
        let session = self.view.session_of(client);
        if let (Some(session), Some(card)) = (session, self.view.cards.get_mut(gpu))
            && let Some(process) = card.residents.get(client)
            && let Some((way, since)) = process.transfer.direction(now)
        {
            let bytes = match way {
                Way::Out => before - after,
                Way::In => after - before,
            };
            let copied = process.facts.copied_out() - copied;
            if !bytes.is_zero() {
                card.residents.handoffs.note(now, since, way, session, bytes);
            }
            card.residents.handoffs.note_copied(copied);
        }
    }

    /// Begins the handoff of a card if memory `moves`. Ends it if none does and no process waits for its memory.
    pub(crate) fn begin_or_end_handoff(&mut self, gpu: GpuId, moves: bool, rows: &[Row]) {
        let is_running = self
            .view
            .cards
            .get(gpu)
            .is_some_and(|card| card.residents.handoffs.began().is_some());
        let goes_on = moves || is_running && rows.iter().any(|row| self.view.enters(row));
        let now = self.view.now;
        let Some(card) = self.view.cards.get_mut(gpu) else { return };
        match goes_on {
            true => card.residents.handoffs.begin(now),
            false => {
                let ended = card.residents.handoffs.end(now, gpu).map(Box::new);
                self.effects
                    .extend(ended.map(|handoff| Effect::Notice(Notice::HandedOver(handoff))));
            }
        }
    }

    /// Returns the cards on which a handoff is running, each with the point in time of its beginning.
    pub fn running_handoffs(&self) -> impl Iterator<Item = (GpuId, Nanos)> {
        let cards = self.view.cards.among(self.view.remapped);
        cards.filter_map(|(gpu, card)| Some((gpu, card.residents.handoffs.began()?)))
    }

    /// Returns the running handoff of a card as it stands; `None` if no memory moves there.
    #[must_use]
    pub fn running_handoff(&self, now: Nanos, gpu: GpuId) -> Option<Handoff> {
        let (now, card) = (self.view.now.max(now), self.view.cards.get(gpu)?);
        card.residents.handoffs.began()?;
        card.residents.handoffs.running(now, gpu, self.view.rest(gpu, card))
    }

    /// Returns the running and the last handoff of each card that had any, by number of the card.
    #[must_use]
    pub fn handoffs(&self, now: Nanos) -> Vec<CardHandoffs> {
        let now = self.view.now.max(now);
        let view =
            |(gpu, card): (GpuId, &Card)| card.residents.handoffs.view(now, gpu, self.view.rest(gpu, card));
        self.view.cards.iter().filter_map(view).collect()
    }
}
