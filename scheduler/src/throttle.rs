//! A log that a tenant cannot fill: at most one line per key and second, or a few, with how many were left out.

use std::collections::BTreeMap;

use gpushare_proto::Nanos;

const PAUSE: Nanos = Nanos::from_secs(1);

/// Since when each key speaks, how often it did, and how often it was not let.
#[derive(Debug)]
pub(crate) struct Throttle<K> {
    lines: u64,
    keys: BTreeMap<K, Key>,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    since: Nanos,
    said: u64,
    left_out: u64,
}

impl<K> Default for Throttle<K> {
    fn default() -> Self {
        Self::lines(1)
    }
}

impl<K> Throttle<K> {
    /// So many lines per key and second.
    pub(crate) const fn lines(lines: u64) -> Self {
        let keys = BTreeMap::new();
        Self { lines, keys }
    }
}

impl<K: Ord> Throttle<K> {
    /// Whether to speak now, and how many were left out before.
    pub(crate) fn pass(&mut self, key: K, now: Nanos) -> Option<u64> {
        let new = Key { since: now, said: 1, left_out: 0 };
        match self.keys.get_mut(&key) {
            Some(known) if now - known.since >= PAUSE => Some(std::mem::replace(known, new).left_out),
            Some(known) if known.said < self.lines => {
                known.said += 1;
                Some(0)
            }
            Some(known) => {
                known.left_out += 1;
                None
            }
            None => {
                self.keys.insert(key, new);
                Some(0)
            }
        }
    }

    /// The key is no more; how many were left out that nobody was told of.
    pub(crate) fn forget(&mut self, key: &K) -> u64 {
        self.keys.remove(key).map_or(0, |key| key.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_and_key() {
        let mut throttle = Throttle::default();
        let at = Nanos::from_millis;
        assert_eq!(throttle.pass('a', at(0)), Some(0));
        assert_eq!(throttle.pass('a', at(10)), None);
        assert_eq!(throttle.pass('b', at(10)), Some(0));
        assert_eq!(throttle.pass('a', at(999)), None);
        assert_eq!(throttle.pass('a', at(1000)), Some(2));
        assert_eq!(throttle.pass('a', at(1500)), None);
        assert_eq!(throttle.forget(&'a'), 1);
        assert_eq!(throttle.pass('a', at(1501)), Some(0));
    }

    #[test]
    fn a_few_lines_a_second_and_key() {
        let mut throttle = Throttle::lines(2);
        let at = Nanos::from_millis;
        let said = [0, 1, 2, 3, 1000, 1001, 1002].map(|ms| throttle.pass((), at(ms)));
        assert_eq!(said, [Some(0), Some(0), None, None, Some(2), Some(0), None]);
    }
}
