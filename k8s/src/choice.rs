//! Choice of shares for a container, among those that are free.
//!
//! ```text
//!   users(card) = max(shares of the card that are taken, sessions of the daemon on the card)
//! ```
//!
//! Each share is taken from the card with the fewest users, then the least allocated memory, then the smallest
//! UUID. A card that the container has already comes after all others, since a second share of it gives nothing.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{Bytes, GpuUuid};

use crate::share::Share;

/// Load of a card, as the daemon reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Load {
    /// Number of sessions with memory on the card.
    pub(crate) sessions: usize,
    /// Bytes that all sessions have allocated on the card.
    pub(crate) allocated: Bytes,
}

/// Returns `size` shares, those in `required` first. `shares` is the number of shares of each card.
pub(crate) fn choose(
    available: &[Share],
    required: &[Share],
    size: usize,
    shares: usize,
    load: &BTreeMap<GpuUuid, Load>,
) -> Vec<Share> {
    let mut chosen = required.to_vec();
    let mut free: BTreeMap<GpuUuid, BTreeSet<Share>> = BTreeMap::new();
    for share in available.iter().filter(|share| !required.contains(share)) {
        free.entry(share.card).or_default().insert(*share);
    }
    while chosen.len() < size {
        let rank = |card: &GpuUuid, free: &BTreeSet<Share>| {
            let taken = shares.saturating_sub(free.len());
            let load = load.get(card).copied().unwrap_or_default();
            let own = chosen.iter().filter(|share| share.card == *card).count();
            (own, taken.max(load.sessions), load.allocated, *card)
        };
        let ranks = free.iter().filter(|(_, free)| !free.is_empty());
        let Some(card) = ranks.map(|(card, free)| rank(card, free)).min().map(|(.., card)| card) else {
            break;
        };
        match free.get_mut(&card).and_then(BTreeSet::pop_first) {
            Some(share) => chosen.push(share),
            None => break,
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(number: u8) -> GpuUuid {
        GpuUuid::gpu([number; 16])
    }

    /// All shares of the cards 1 to `cards`, four of each.
    fn all(cards: u8) -> Vec<Share> {
        (1..=cards)
            .flat_map(|number| (0..4).map(move |share| Share { card: card(number), number: share }))
            .collect()
    }

    fn cards(chosen: &[Share]) -> Vec<GpuUuid> {
        chosen.iter().map(|share| share.card).collect()
    }

    #[test]
    fn the_card_with_the_fewest_users_comes_first() {
        let mut free = all(3);
        // A pod has a share of the first card and has not started yet; a session outside of pods is on the second.
        free.remove(0);
        let load = BTreeMap::from([(card(2), Load { sessions: 1, allocated: Bytes::mib(1) })]);
        assert_eq!(cards(&choose(&free, &[], 1, 4, &load)), [card(3)]);
        let busy = BTreeMap::from([
            (card(2), Load { sessions: 3, allocated: Bytes::mib(1) }),
            (card(3), Load { sessions: 2, allocated: Bytes::mib(9) }),
        ]);
        assert_eq!(cards(&choose(&free, &[], 1, 4, &busy)), [card(1)]);
    }

    #[test]
    fn with_equal_users_the_card_with_less_memory_in_use_comes_first() {
        let load = |bytes| Load { sessions: 1, allocated: Bytes::mib(bytes) };
        let load = BTreeMap::from([(card(1), load(20)), (card(2), load(10))]);
        assert_eq!(cards(&choose(&all(2), &[], 1, 4, &load)), [card(2)]);
    }

    #[test]
    fn several_shares_are_of_several_cards_as_far_as_there_are() {
        let chosen = choose(&all(2), &[Share { card: card(1), number: 2 }], 3, 4, &BTreeMap::new());
        assert_eq!(chosen[0], Share { card: card(1), number: 2 });
        assert_eq!(cards(&chosen[1..]), [card(2), card(1)]);
        assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), 3);
        assert_eq!(choose(&all(1), &[], 9, 4, &BTreeMap::new()).len(), 4);
    }
}
