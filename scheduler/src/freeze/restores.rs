//! Restores of frozen processes that are about to begin or run, and the thaws that wait for contexts that are being
//! created (`memory/creations.rs`).

use std::collections::BTreeMap;

use gpushare_proto::{ClientId, Nanos};

/// Longest wait of a thaw for contexts that are being created.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// Pause between two looks at them.
const LOOK: Nanos = Nanos::from_millis(20);
/// Pause between two restores, in which contexts that wait are announced.
const REST: Nanos = Nanos::from_millis(20);

/// Restores that are about to begin or run, and thaws that wait for contexts that are being created.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    /// Cards of each process that comes back, as bits ([`card_bit`](gpushare_proto::page::card_bit)).
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
    pub(crate) fn add(&mut self, client: ClientId, now: Nanos) {
        // Its time counts from its first look.
        self.waiting.push((client, now.max(self.rests_until)));
        self.next = now.max(self.rests_until);
    }

    /// Removes and returns the thaws that are to be looked at.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Vec<(ClientId, Nanos)> {
        match self.due() {
            Some(due) if due <= now => std::mem::take(&mut self.waiting),
            _ => Vec::new(),
        }
    }

    /// Adds a restore that is about to begin on `cards`.
    pub(crate) fn insert(&mut self, client: ClientId, cards: u32) {
        self.cards.insert(client, cards);
    }

    /// Keeps a thaw waiting, unless its patience is over. Returns whether it waits.
    pub(crate) fn wait(&mut self, client: ClientId, since: Nanos, now: Nanos) -> bool {
        let is_patient = now < since + PATIENCE;
        if is_patient {
            self.waiting.push((client, since));
            self.next = now + LOOK;
        }
        is_patient
    }

    /// Removes a restore that has ended.
    pub(crate) fn remove(&mut self, client: ClientId, now: Nanos) {
        if self.cards.remove(&client).is_some() {
            self.rests_until = now + REST;
        }
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
