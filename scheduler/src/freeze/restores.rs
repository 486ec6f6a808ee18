//! Restores of frozen processes that are about to begin or run: no context is created on their cards meanwhile
//! (`gpushare_sys::growth`).
//!
//! ```text
//!   Effect::Thaw ─▶ its cards in every page ─▶ a process is creating a context there?  no ─▶ memory/room.rs ─▶ helper
//!                                    ▲                     │ yes, for at most PATIENCE                          │
//!                                    └──────── LOOK ───────┘                                                    ▼
//!   bells ◀─ its cards out of every page ◀──────────────────────────────────────────────────── Event::ThawEnded
//! ```
//!
//! A process that is stopped in the middle of a creation announces it for ever, and any process may lie. So a thaw waits
//! for at most [`PATIENCE`], whoever announces. A context that is announced longer counts as memory that others may still
//! take. So its announcement does no more harm than the context, which every process may create.
//!
//! After the end of a restore the next one waits for [`REST`], so that the threads that wait have their turn.

use std::collections::BTreeMap;

use gpushare_proto::page::card_bit;
use gpushare_proto::{ClientId, GpuId, Nanos};
use gpushare_sys::clock;
use tracing::debug;

use crate::engine::Engine;
use crate::memory::room;

/// Longest wait of a thaw for contexts that are being created.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// Pause between two looks at them.
const LOOK: Nanos = Nanos::from_millis(20);
/// Pause between two restores, in which contexts that wait are announced.
const REST: Nanos = Nanos::from_millis(20);

/// Restores that are about to begin or run, and thaws that wait for contexts that are being created.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    /// Cards of each process that comes back, as [`card_bit`]s.
    cards: BTreeMap<ClientId, u32>,
    /// Thaws that wait, each with the time of its first look.
    waiting: Vec<(ClientId, Nanos)>,
    /// Time of the next look.
    next: Nanos,
    /// End of the present rest.
    rests_until: Nanos,
}

impl Restores {
    /// Returns the cards on which no context may be created.
    pub(crate) fn held_back(&self) -> u32 {
        self.cards.values().fold(0, |cards, of| cards | of)
    }

    /// Returns the point in monotonic time of the next look.
    pub(crate) fn due(&self) -> Option<Nanos> {
        (!self.waiting.is_empty()).then_some(self.next)
    }

    /// Adds a thaw that comes at `now`.
    fn add(&mut self, client: ClientId, now: Nanos) {
        // Its time counts from its first look.
        self.waiting.push((client, now.max(self.rests_until)));
        self.next = now.max(self.rests_until);
    }

    /// Removes and returns the thaws that are to be looked at.
    fn take_due(&mut self, now: Nanos) -> Vec<(ClientId, Nanos)> {
        match self.due() {
            Some(due) if due <= now => std::mem::take(&mut self.waiting),
            _ => Vec::new(),
        }
    }

    /// Keeps a thaw waiting, unless its patience is over. Returns whether it waits.
    fn wait(&mut self, client: ClientId, since: Nanos, now: Nanos) -> bool {
        let is_patient = now < since + PATIENCE;
        if is_patient {
            self.waiting.push((client, since));
            self.next = now + LOOK;
        }
        is_patient
    }

    /// Removes a restore that has ended.
    fn remove(&mut self, client: ClientId, now: Nanos) {
        if self.cards.remove(&client).is_some() {
            self.rests_until = now + REST;
        }
    }
}

/// Thaws a process, once no other one is creating a context on its cards.
pub(crate) fn begin(engine: &mut Engine, client: ClientId) {
    let now = clock::monotonic();
    engine.restores.add(client, now);
    look_if_due(engine, now);
}

/// Looks again for which thaws no process is creating a context any more.
pub(crate) fn look_if_due(engine: &mut Engine, now: Nanos) {
    for (client, since) in engine.restores.take_due(now) {
        let page = engine.clients.get(client).map(|client| &client.page);
        let cards = page.map_or(0, |page| page.gpus().fold(0, |cards, gpu| cards | card_bit(gpu)));
        change(engine, |restores| _ = restores.cards.insert(client, cards));
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

/// Notes the end of a restore, or of a thaw that did not come to it.
pub(super) fn end(engine: &mut Engine, client: ClientId) {
    change(engine, |restores| restores.remove(client, clock::monotonic()));
}

/// Returns the processes other than `client` that are creating a context on a card.
pub(crate) fn creating_on(engine: &Engine, client: ClientId, gpu: GpuId) -> impl Iterator<Item = ClientId> {
    creating(engine, client, card_bit(gpu))
}

fn creating(engine: &Engine, client: ClientId, cards: u32) -> impl Iterator<Item = ClientId> {
    let creates = move |(id, other): (ClientId, &crate::clients::table::Client)| {
        (id != client && other.page.creates_on(cards)).then_some(id)
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn a_thaw_waits_for_a_context_only_for_a_while() {
        let mut restores = Restores::default();
        let [first, second] = [1, 2].map(ClientId);
        restores.add(first, MS);
        assert_eq!(restores.take_due(MS), [(first, MS)]);
        assert!(restores.wait(first, MS, MS));
        assert_eq!((restores.due(), restores.take_due(LOOK)), (Some(MS + LOOK), vec![]));
        restores.add(second, MS + LOOK);
        assert_eq!(restores.take_due(MS + LOOK), [(first, MS), (second, MS + LOOK)]);
        assert!(!restores.wait(first, MS, MS + PATIENCE));
        assert!(restores.wait(second, MS + LOOK, MS + PATIENCE));
        assert_eq!(restores.due(), Some(MS + PATIENCE + LOOK));
    }

    #[test]
    fn a_card_is_held_back_until_all_its_restores_have_ended() {
        let mut restores = Restores::default();
        restores.cards.extend([(ClientId(1), 0b01), (ClientId(2), 0b11)]);
        restores.remove(ClientId(2), MS);
        assert_eq!(restores.held_back(), 0b01);
        restores.remove(ClientId(1), MS);
        assert_eq!(restores.held_back(), 0);
    }

    #[test]
    fn the_next_restore_lets_contexts_that_wait_go_first() {
        let mut restores = Restores::default();
        restores.cards.insert(ClientId(1), 1);
        restores.remove(ClientId(1), MS);
        restores.remove(ClientId(1), MS + REST);
        restores.add(ClientId(2), MS);
        assert_eq!((restores.due(), restores.take_due(MS)), (Some(MS + REST), vec![]));
        assert_eq!(restores.take_due(MS + REST), [(ClientId(2), MS + REST)]);
    }
}
