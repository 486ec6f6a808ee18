//! Set of a machine's cards in one 64-bit word.

use std::fmt;
use std::iter::FusedIterator;

use gpushare_proto::GpuId;
use serde::{Deserialize, Serialize};

/// Set of cards of one machine.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<GpuId>", try_from = "Vec<GpuId>")]
pub struct GpuSet(u64);

impl From<GpuSet> for Vec<GpuId> {
    fn from(set: GpuSet) -> Self {
        set.into_iter().collect()
    }
}

impl TryFrom<Vec<GpuId>> for GpuSet {
    type Error = String;

    fn try_from(cards: Vec<GpuId>) -> Result<Self, String> {
        let most = Self::MOST;
        match cards.iter().find(|gpu| gpu.0 >= most) {
            Some(gpu) => Err(format!("{gpu} is beyond the {most} cards that a node may have")),
            None => Ok(cards.into_iter().collect()),
        }
    }
}

impl fmt::Debug for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(*self).finish()
    }
}

impl GpuSet {
    /// Largest number of cards that a set can contain.
    pub(crate) const MOST: u8 = 64;

    fn bit(gpu: GpuId) -> u64 {
        debug_assert!(gpu.0 < Self::MOST, "{gpu} is none that the machine was told of");
        1 << (gpu.0 % Self::MOST)
    }

    /// Adds a card, and returns whether the set did not contain it before.
    pub(crate) fn insert(&mut self, gpu: GpuId) -> bool {
        let before = self.0;
        self.0 |= Self::bit(gpu);
        self.0 != before
    }

    pub(crate) fn remove(&mut self, gpu: GpuId) {
        self.0 &= !Self::bit(gpu);
    }

    pub(crate) fn contains(self, gpu: GpuId) -> bool {
        self.0 & Self::bit(gpu) != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns the card of a set of one card.
    pub(crate) fn only(self) -> Option<GpuId> {
        self.into_iter().next().filter(|_| self.len() == 1)
    }

    /// Removes and returns the card with the lowest number.
    pub(crate) fn pop_first(&mut self) -> Option<GpuId> {
        let first = self.into_iter().next()?;
        self.remove(first);
        Some(first)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }
}

/// Iterator over a set of cards, by ascending number.
#[derive(Clone, Debug)]
pub struct GpuSetIter(u64);

impl Iterator for GpuSetIter {
    type Item = GpuId;

    fn next(&mut self) -> Option<GpuId> {
        if self.0 == 0 {
            return None;
        }
        let least = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        // At most 63.
        Some(GpuId(least as u8))
    }
}

impl FusedIterator for GpuSetIter {}

impl IntoIterator for GpuSet {
    type Item = GpuId;
    type IntoIter = GpuSetIter;

    fn into_iter(self) -> GpuSetIter {
        GpuSetIter(self.0)
    }
}

impl From<GpuId> for GpuSet {
    fn from(gpu: GpuId) -> Self {
        Self(Self::bit(gpu))
    }
}

impl FromIterator<GpuId> for GpuSet {
    fn from_iter<I: IntoIterator<Item = GpuId>>(cards: I) -> Self {
        let mut set = Self::default();
        set.extend(cards);
        set
    }
}

impl Extend<GpuId> for GpuSet {
    fn extend<I: IntoIterator<Item = GpuId>>(&mut self, cards: I) {
        for gpu in cards {
            self.insert(gpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iteration_is_in_ascending_order() {
        let mut set: GpuSet = [GpuId(63), GpuId(2), GpuId(0)].into_iter().collect();
        assert!(!set.insert(GpuId(2)));
        assert_eq!(set.pop_first(), Some(GpuId(0)));
        assert_eq!(set.into_iter().collect::<Vec<_>>(), [GpuId(2), GpuId(63)]);
        assert!(GpuSet::from(GpuId(2)).is_within(set));
        assert_eq!(set.without(GpuId(2).into()), GpuId(63).into());
    }
}
