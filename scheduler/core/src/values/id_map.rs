//! Hash map from numbers to values that is iterated in ascending order of the numbers.
//!
//! The order makes decisions repeatable: the same events always give the same effects.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Map from numbers to values in which a look-up needs one probe.
#[derive(Clone, Debug)]
pub(crate) struct IdMap<K, V>(FxHashMap<K, V>);

impl<K, V> Default for IdMap<K, V> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<K: Copy + Ord + Hash, V> IdMap<K, V> {
    pub(crate) fn get(&self, id: K) -> Option<&V> {
        self.0.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: K) -> Option<&mut V> {
        self.0.get_mut(&id)
    }

    pub(crate) fn get_or_insert_with(&mut self, id: K, new: impl FnOnce() -> V) -> &mut V {
        self.0.entry(id).or_insert_with(new)
    }

    pub(crate) fn insert(&mut self, id: K, value: V) -> Option<V> {
        self.0.insert(id, value)
    }

    pub(crate) fn remove(&mut self, id: K) -> Option<V> {
        self.0.remove(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn ids(&self) -> Vec<K> {
        let mut ids: Vec<K> = self.0.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let mut all: Vec<(K, &V)> = self.0.iter().map(|(id, value)| (*id, value)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iteration_is_in_ascending_order() {
        let mut map = IdMap::default();
        for id in [3, 1, 4, 15, 9, 2] {
            map.insert(id, id * 10);
        }
        assert_eq!(map.remove(4), Some(40));
        assert_eq!(map.ids(), [1, 2, 3, 9, 15]);
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [10, 20, 30, 90, 150]);
        *map.get_or_insert_with(2, || 0) += 1;
        assert_eq!(map.get(2), Some(&21));
    }
}
