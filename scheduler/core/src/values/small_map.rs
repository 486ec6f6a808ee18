//! Map of a few keys, in a sorted vector.
//!
//! A machine has few cards, and most sessions use one card with one process. For so few keys a vector is
//! faster than a tree.

use std::fmt;
use std::ops::Index;

use gpushare_proto::{ClientId, GpuId};
use smallvec::SmallVec;

use crate::values::gpu_set::GpuSet;

/// Key of a [`SmallMap`].
pub(crate) trait Key: Copy + Ord + fmt::Display {
    /// Returns the index at which the key is likely to be found.
    fn guess(self) -> usize;
}

impl Key for GpuId {
    /// Returns the card's number: usually all cards of the node are in the map, in order.
    fn guess(self) -> usize {
        self.0.into()
    }
}

impl Key for ClientId {
    fn guess(self) -> usize {
        0
    }
}

/// Map from keys to values, iterated in ascending order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmallMap<K, T>(SmallVec<[(K, T); 1]>);

/// Map from cards to values.
pub(crate) type ByGpu<T> = SmallMap<GpuId, T>;

impl<K, T> Default for SmallMap<K, T> {
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<K: Key, T> SmallMap<K, T> {
    /// Returns the index of a key, or the index at which the key would be inserted.
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

    /// Inserts a value, and returns the value that it replaces.
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

impl<T> ByGpu<T> {
    /// Returns the values of the cards `cards`, by ascending number of the card.
    pub(crate) fn among(&self, cards: GpuSet) -> impl Iterator<Item = (GpuId, &T)> {
        cards.into_iter().filter_map(|gpu| Some((gpu, self.get(gpu)?)))
    }
}

impl<K: Key, T> Index<K> for SmallMap<K, T> {
    type Output = T;

    fn index(&self, key: K) -> &T {
        match self.get(key) {
            Some(value) => value,
            None => panic!("{key} is not there"),
        }
    }
}

impl<K: Key, T> FromIterator<(K, T)> for SmallMap<K, T> {
    fn from_iter<I: IntoIterator<Item = (K, T)>>(pairs: I) -> Self {
        let mut map = Self::default();
        map.extend(pairs);
        map
    }
}

impl<K: Key, T> Extend<(K, T)> for SmallMap<K, T> {
    fn extend<I: IntoIterator<Item = (K, T)>>(&mut self, pairs: I) {
        for (key, value) in pairs {
            self.insert(key, value);
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
}
