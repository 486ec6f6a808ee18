//! Placements: the card that a waiting pod gets, if any.
//!
//! | placement | a pod takes | node | card of the node |
//! |---|---|---|---|
//! | whole | a card | emptiest | free one |
//! | sliced | a replica of NVIDIA's plugin; memory has no limits | emptiest | fewest pods |
//! | shares | a share; memory that does not fit takes turns | emptiest, or fullest | fewest pods, as the plugin |
//! | fitting | a share and its memory, which must fit | emptiest, or fullest | fewest pods |
//!
//! Emptiest is kube-scheduler's LeastAllocated, fullest its MostAllocated. RequestedToCapacityRatio with a
//! rising line orders nodes as MostAllocated does. Of equals the first one is taken.

use std::cmp::Reverse;

use gpushare_proto::Bytes;
use serde::Serialize;

use super::card::Card;

/// Rule that chooses a card for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Placement {
    Whole,
    Sliced,
    FittingSpread,
    FittingPacked,
    SharesSpread,
    SharesPacked,
}

impl Placement {
    pub(super) const ALL: [Self; 6] = [
        Self::Whole,
        Self::Sliced,
        Self::FittingSpread,
        Self::FittingPacked,
        Self::SharesSpread,
        Self::SharesPacked,
    ];

    /// Returns the two lines above the placement's column of a table.
    pub(super) fn head(self) -> [&'static str; 2] {
        match self {
            Self::Whole => ["whole", "cards"],
            Self::Sliced => ["time", "slicing"],
            Self::FittingSpread => ["fitting,", "spread"],
            Self::FittingPacked => ["fitting,", "packed"],
            Self::SharesSpread => ["shares,", "spread"],
            Self::SharesPacked => ["shares,", "packed"],
        }
    }

    /// Returns whether a pod fails where its memory does not fit beside that of the others.
    pub(super) fn requires_fit(self) -> bool {
        !matches!(self, Self::SharesSpread | Self::SharesPacked)
    }

    /// Returns the numbers of a node and of its card for a pod with this memory, or none if all are full.
    pub(super) fn choose(self, nodes: &[Vec<Card>], shares: usize, memory: Bytes) -> Option<(usize, usize)> {
        let free = nodes.iter().enumerate().filter_map(|(node, cards)| {
            let card = self.card(cards, shares, memory)?;
            Some((node, card, cards.iter().map(Card::pods).sum::<usize>()))
        });
        let best = match self {
            Self::FittingPacked | Self::SharesPacked => free.min_by_key(|(.., pods)| Reverse(*pods)),
            _ => free.min_by_key(|(.., pods)| *pods),
        };
        best.map(|(node, card, _)| (node, card))
    }

    /// Returns the number of the node's card for a pod with this memory, or none if all are full.
    pub(super) fn card(self, cards: &[Card], shares: usize, memory: Bytes) -> Option<usize> {
        let most = if self == Self::Whole { 1 } else { shares };
        let knows_memory = matches!(self, Self::FittingSpread | Self::FittingPacked);
        let usable = |card: &Card| card.pods() < most && (!knows_memory || card.has_room_for(memory));
        let free = cards.iter().enumerate().filter(|(_, card)| usable(card));
        free.min_by_key(|(_, card)| (card.pods(), card.used()))
            .map(|(number, _)| number)
    }
}
