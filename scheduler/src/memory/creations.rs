//! Contexts that processes are creating, and restores of frozen processes: neither begins on a card while the other one
//! is under way there (`gpushare_sys::growth`).
//!
//! ```text
//!   Effect::Thaw ─▶ its cards in every page ─▶ a process is creating a context there?  no ─▶ room.rs ─▶ helper
//!                                    ▲                     │ yes, for at most 2 s                       │
//!                                    └─────── 20 ms ───────┘                                            ▼
//!   bells ◀─ its cards out of every page ◀─────────────────────────────────────────── Event::ThawEnded
//! ```
//!
//! A process that is stopped in the middle of a creation announces it for ever, and any process may lie. So a thaw waits
//! only for a while, whoever announces. A context that is announced longer counts as memory that others may still take,
//! once for each session. So its announcement does no more harm than the context, which every process may create on its
//! cards. For the same reason a restore keeps contexts away for a while only: somebody may have stopped its process.
//!
//! After the end of a restore the next one waits a little, so that the threads that wait have their turn.

use std::collections::BTreeSet;

use gpushare_core::ThawEnd;
use gpushare_proto::page::card_bit;
use gpushare_proto::{ClientId, GpuId, Nanos};
use gpushare_sys::clock;
use tracing::debug;

use super::room;
use crate::clients::table::Client;
use crate::engine::Engine;
use crate::freeze::restores::Restores;
use crate::input::End;

/// Thaws a process, once no other one is creating a context on its cards.
pub(crate) fn begin(engine: &mut Engine, client: ClientId) {
    let now = clock::monotonic();
    engine.restores.add(client, now);
    look_if_due(engine, now);
}

/// Looks again for which thaws no process is creating a context any more, and for restores that have taken too long.
pub(crate) fn look_if_due(engine: &mut Engine, now: Nanos) {
    change(engine, |restores| restores.release_slow(now));
    for (client, since) in engine.restores.take_due(now) {
        let cards = engine.clients.get(client).map_or(0, |client| client.page.cards());
        change(engine, |restores| restores.insert(client, cards, now));
        // After the cards are in every page.
        let creator = creating(engine, client, cards).next();
        if let Some(creator) = creator
            && engine.restores.wait(client, since, now)
        {
            debug!("{client} is not thawed yet, since {creator} is creating a context on its cards");
        } else {
            room::thaw(engine, client);
        }
    }
}

/// Takes the end of an operation of the driver about a process.
pub(crate) fn moved(engine: &mut Engine, client: ClientId, end: End) {
    if let End::Thaw(thawed) = end {
        end_restore(engine, client);
        if thawed == ThawEnd::Thawed {
            engine.restores.forget_slow(client);
        }
    }
    engine.moved_by_driver(client, end);
}

/// Notes the end of a restore, or of a thaw that does not come to it.
pub(super) fn end_restore(engine: &mut Engine, client: ClientId) {
    change(engine, |restores| restores.remove(client, clock::monotonic()));
}

/// Returns the number of sessions with processes other than `client` that are creating a context on a card. Contexts
/// that were not measured count once for each session, as elsewhere.
pub(super) fn creating_on(engine: &Engine, client: ClientId, gpu: GpuId) -> usize {
    let creators = creating(engine, client, card_bit(gpu)).filter_map(|id| engine.clients.get(id));
    creators.map(|creator| creator.session).collect::<BTreeSet<_>>().len()
}

fn creating(engine: &Engine, client: ClientId, cards: u32) -> impl Iterator<Item = ClientId> {
    let creates =
        move |(id, other): (ClientId, &Client)| (id != client && other.page.creates_on(cards)).then_some(id);
    engine.clients.iter().filter_map(creates)
}

/// Changes the restores, and writes the cards that follow into every page.
fn change(engine: &mut Engine, change: impl FnOnce(&mut Restores)) {
    let before = engine.restores.held_back();
    change(&mut engine.restores);
    let cards = engine.restores.held_back();
    if cards != before {
        engine
            .clients
            .iter()
            .for_each(|(_, client)| client.page.hold_back(cards, before & !cards));
    }
}
