//! Choice of a card for a new session, and checks of the cards that limits name.

use gpushare_proto::tenant::{Failure, FailureCode, GpuChoice};
use gpushare_proto::{Bytes, GpuId, GpuUuid, SessionId};
use gpushare_sys::clock;

use crate::cards::Cards;
use crate::engine::Engine;
use crate::operation::{bad_request, failure, plain};
use crate::sessions::terms::names_card;

pub(super) fn cards_in_words(cards: &Cards) -> String {
    let words = cards.iter().map(|(gpu, card)| format!("{} ({})", gpu.0, card.info.uuid));
    words.collect::<Vec<String>>().join(", ")
}

/// Returns whether a named card is known, or may become known with its first process.
pub(super) fn may_exist(cards: &Cards, choice: &GpuChoice) -> bool {
    let has_uuid = matches!(choice, GpuChoice::Uuid(_) | GpuChoice::Prefix(_));
    let mut known = cards.iter();
    let is_known = known.any(|(gpu, known)| names_card(choice, gpu, known.info.uuid));
    is_known || (has_uuid && !cards.is_complete())
}

/// Returns the memory of the largest card; the greatest number if no card is known.
pub(super) fn largest_card(cards: &Cards) -> Bytes {
    let totals = cards.iter().map(|(_, card)| card.info.total);
    totals.max().unwrap_or(Bytes::MAX)
}

/// Chooses the card of a new session. Returns none if no card is known and the wish names none by UUID.
pub(super) fn place(engine: &Engine, wish: &GpuChoice) -> Result<Option<GpuUuid>, Failure> {
    let cards = &engine.cards;
    let unknown = |card: String| {
        let known = cards_in_words(cards);
        failure(FailureCode::NotFound, format!("there is no GPU {card}; this daemon has {known}"))
    };
    let none_known = cards.iter().next().is_none();
    match *wish {
        // One known card may not be the only one: without NVML each is known from its first process.
        GpuChoice::Auto if cards.iter().count() < 2 => Ok(None),
        GpuChoice::Auto => Ok(least_used(engine)),
        GpuChoice::Uuid(uuid) if none_known => Ok(Some(uuid)),
        // The card's own form of the UUID says whether it is a MIG instance; the peer's may not.
        GpuChoice::Uuid(uuid) => match cards.by_uuid(uuid).and_then(|gpu| cards.get(gpu)) {
            Some(card) => Ok(Some(card.info.uuid)),
            None => Err(unknown(uuid.to_string())),
        },
        GpuChoice::Prefix(ref prefix) => {
            let uuids = cards.iter().map(|(_, card)| card.info.uuid);
            let mut found = uuids.filter(|uuid| uuid.begins_with(prefix));
            match (found.next(), found.next()) {
                (Some(uuid), None) => Ok(Some(uuid)),
                (Some(_), Some(_)) => {
                    let prefix = plain(prefix);
                    let message = format!("more than one GPU begins with {prefix}; write more of its UUID");
                    Err(bad_request(message))
                }
                (None, _) => Err(unknown(plain(prefix))),
            }
        }
        GpuChoice::Index(_) if none_known => Ok(None),
        GpuChoice::Index(index) => match cards.get(GpuId(index)) {
            Some(card) => Ok(Some(card.info.uuid)),
            None => Err(unknown(index.to_string())),
        },
    }
}

/// Returns the card with the fewest sessions; among equals, the one with the least memory allocated.
fn least_used(engine: &Engine) -> Option<GpuUuid> {
    let snapshot = engine.machine.snapshot(clock::monotonic());
    let load = |gpu: GpuId, uuid: GpuUuid| {
        let is_on = |id: SessionId| engine.clients.of(id).any(|client| client.page.is_on(gpu));
        let sessions = engine.sessions.iter();
        let count = sessions
            .filter(|(id, session)| session.card == Some(uuid) || is_on(*id))
            .count();
        let card = snapshot.gpus.iter().find(|card| card.gpu == gpu);
        (count, card.map(|card| card.allocated_bytes))
    };
    let cards = engine.cards.iter().map(|(gpu, card)| (gpu, card.info.uuid));
    cards.min_by_key(|&(gpu, uuid)| load(gpu, uuid)).map(|(_, uuid)| uuid)
}
