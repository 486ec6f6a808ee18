//! Restores of frozen processes that are about to begin or run, and the thaws that wait for contexts that are being
//! created (`memory/creations.rs`).

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{ClientId, Nanos};

/// Longest wait of a thaw for contexts that are being created.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// Pause between two looks at them.
const LOOK: Nanos = Nanos::from_millis(20);
/// Pause between two restores, in which contexts that wait are announced.
const REST: Nanos = Nanos::from_millis(20);
/// Longest time for which a restore keeps contexts from its cards. One that takes longer may be that of a process which
/// somebody has stopped.
const HOLD: Nanos = Nanos::from_secs(10);

/// Restore that is about to begin or runs.
#[derive(Clone, Copy, Debug)]
struct Restore {
    /// Cards on which no context is created meanwhile, as bits ([`card_bit`](gpushare_proto::page::card_bit)).
    cards: u32,
    since: Nanos,
}

/// Restores that are about to begin or run, and thaws that wait for contexts that are being created.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    /// Restore of each process that comes back.
    running: BTreeMap<ClientId, Restore>,
    /// Processes that took too long. They keep no contexts from their cards until they are back.
    slow: BTreeSet<ClientId>,
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
        self.running.values().fold(0, |cards, restore| cards | restore.cards)
    }

    /// Returns the point in monotonic time of the next look, or at which a restore has taken too long.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let holding = self.running.values().filter(|restore| restore.cards != 0);
        self.next_look()
            .into_iter()
            .chain(holding.map(|restore| restore.since + HOLD))
            .min()
    }

    fn next_look(&self) -> Option<Nanos> {
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
        match self.next_look() {
            Some(due) if due <= now => std::mem::take(&mut self.waiting),
            _ => Vec::new(),
        }
    }

    /// Adds a restore that is about to begin on `cards`, unless it was added before.
    pub(crate) fn insert(&mut self, client: ClientId, cards: u32, now: Nanos) {
        let cards = if self.slow.contains(&client) { 0 } else { cards };
        self.running.entry(client).or_insert(Restore { cards, since: now });
    }

    /// Lets contexts be created on the cards of restores that have taken too long.
    pub(crate) fn release_slow(&mut self, now: Nanos) {
        for (client, restore) in &mut self.running {
            if restore.cards != 0 && restore.since + HOLD <= now {
                restore.cards = 0;
                self.slow.insert(*client);
            }
        }
    }

    /// Forgets that a process took too long: it is back, or it has ended.
    pub(crate) fn forget_slow(&mut self, client: ClientId) {
        self.slow.remove(&client);
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
        if self.running.remove(&client).is_some() {
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
        restores.insert(ClientId(1), 0b01, MS);
        restores.insert(ClientId(2), 0b11, MS);
        restores.remove(ClientId(2), MS);
        assert_eq!(restores.held_back(), 0b01);
        restores.remove(ClientId(1), MS);
        assert_eq!(restores.held_back(), 0);
    }

    #[test]
    fn a_restore_that_takes_too_long_holds_no_card_back_until_the_process_was_back() {
        let (mut restores, client) = (Restores::default(), ClientId(1));
        restores.insert(client, 1, MS);
        restores.insert(client, 1, HOLD);
        assert_eq!(restores.due(), Some(MS + HOLD));
        restores.release_slow(HOLD);
        assert_eq!(restores.held_back(), 1);
        restores.release_slow(MS + HOLD);
        assert_eq!((restores.held_back(), restores.due()), (0, None));
        restores.remove(client, MS + HOLD);
        restores.insert(client, 1, MS + HOLD);
        assert_eq!(restores.held_back(), 0, "it is tried again");
        restores.remove(client, MS + HOLD);
        restores.forget_slow(client);
        restores.insert(client, 1, MS + HOLD);
        assert_eq!(restores.held_back(), 1);
    }

    #[test]
    fn the_next_restore_lets_contexts_that_wait_go_first() {
        let mut restores = Restores::default();
        restores.insert(ClientId(1), 1, MS);
        restores.remove(ClientId(1), MS);
        restores.remove(ClientId(1), MS + REST);
        restores.add(ClientId(2), MS);
        assert_eq!((restores.due(), restores.take_due(MS)), (Some(MS + REST), vec![]));
        assert_eq!(restores.take_due(MS + REST), [(ClientId(2), MS + REST)]);
    }
}
