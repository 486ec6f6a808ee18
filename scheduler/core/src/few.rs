//! Maps and sets of few: a node has few cards, a session mostly uses one, with one process. Looking at all of them beats a tree.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::Index;

use gpushare_proto::{ClientId, GpuId};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// What a value is found by.
pub(crate) trait Key: Copy + Ord + fmt::Display {
    /// Where it mostly is.
    fn guess(self) -> usize;
}

impl Key for GpuId {
    /// All cards of the node are mostly known, each at its own number.
    fn guess(self) -> usize {
        self.0.into()
    }
}

impl Key for ClientId {
    fn guess(self) -> usize {
        0
    }
}

/// A value for each of a few keys, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Few<K, T>(SmallVec<[(K, T); 1]>);

/// A value for each of some cards, in order.
pub(crate) type ByGpu<T> = Few<GpuId, T>;

impl<K, T> Default for Few<K, T> {
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<K: Key, T> Few<K, T> {
    /// Where a key is, or where it would be.
    #[inline]
    fn find(&self, key: K) -> Result<usize, usize> {
        match self.0.get(key.guess()) {
            Some((there, _)) if *there == key => Ok(key.guess()),
            _ => self.0.binary_search_by_key(&key, |(there, _)| *there),
        }
    }

    pub(crate) fn get(&self, key: K) -> Option<&T> {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.find(key).ok().map(|at| &mut self.0[at].1)
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.find(key).is_ok()
    }

    /// What was there before, if anything.
    pub(crate) fn insert(&mut self, key: K, value: T) -> Option<T> {
        if self.0.last().is_none_or(|(last, _)| *last < key) {
            self.0.push((key, value));
            return None;
        }
        match self.find(key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }

    pub(crate) fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> T) -> &mut T {
        let at = match self.find(key) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (key, new()));
                at
            }
        };
        &mut self.0[at].1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.0.iter().map(|(key, _)| *key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Key, T> Index<K> for Few<K, T> {
    type Output = T;

    fn index(&self, key: K) -> &T {
        match self.get(key) {
            Some(value) => value,
            None => panic!("{key} is not there"),
        }
    }
}

impl<K: Key, T> FromIterator<(K, T)> for Few<K, T> {
    fn from_iter<I: IntoIterator<Item = (K, T)>>(pairs: I) -> Self {
        let mut map = Self::default();
        map.extend(pairs);
        map
    }
}

impl<K: Key, T> Extend<(K, T)> for Few<K, T> {
    fn extend<I: IntoIterator<Item = (K, T)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.insert(key, value);
        }
    }
}

/// Some of a node's cards.
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
    /// A node has fewer.
    pub(crate) const MOST: u8 = 64;

    fn bit(gpu: GpuId) -> u64 {
        debug_assert!(gpu.0 < Self::MOST, "{gpu} is none that the machine was told of");
        1 << (gpu.0 % Self::MOST)
    }

    /// Whether it was not there.
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

    /// The least, which is taken out.
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

/// In order.
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
    fn values_are_found_by_card_and_listed_in_order() {
        let mut map = ByGpu::default();
        for gpu in [5, 0, 63, 1] {
            assert_eq!(map.insert(GpuId(gpu), gpu), None);
        }
        assert_eq!(map.insert(GpuId(5), 55), Some(5));
        assert_eq!(map.get(GpuId(5)), Some(&55));
        assert_eq!(map.get(GpuId(2)), None);
        assert_eq!(map.remove(GpuId(0)), Some(0));
        assert_eq!(map.keys().collect::<Vec<_>>(), [GpuId(1), GpuId(5), GpuId(63)]);
        *map.get_or_insert_with(GpuId(7), || 7) += 1;
        assert_eq!(map[GpuId(7)], 8);
    }

    #[test]
    fn a_set_of_cards_is_in_order_too() {
        let mut set: GpuSet = [GpuId(63), GpuId(2), GpuId(0)].into_iter().collect();
        assert!(!set.insert(GpuId(2)));
        assert_eq!(set.pop_first(), Some(GpuId(0)));
        assert_eq!(set.into_iter().collect::<Vec<_>>(), [GpuId(2), GpuId(63)]);
        assert!(GpuSet::from(GpuId(2)).is_within(set));
        assert_eq!(set.without(GpuId(2).into()), GpuId(63).into());
    }
}
