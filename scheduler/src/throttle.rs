//! A log that a tenant cannot fill: at most one line per key and second, with how many were left out.

use std::collections::BTreeMap;

use gpushare_proto::Nanos;

const PAUSE: Nanos = Nanos::from_secs(1);

/// When each key was last heard, and how often since.
#[derive(Debug)]
pub(crate) struct Throttle<K>(BTreeMap<K, (Nanos, u64)>);

impl<K> Default for Throttle<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Throttle<K> {
    /// Whether to speak now, and how many were left out before.
    pub(crate) fn pass(&mut self, key: K, now: Nanos) -> Option<u64> {
        if let Some((last, left_out)) = self.0.get_mut(&key)
            && now - *last < PAUSE
        {
            *left_out += 1;
            return None;
        }
        Some(self.0.insert(key, (now, 0)).map_or(0, |(_, left_out)| left_out))
    }

    /// The key is no more.
    pub(crate) fn forget(&mut self, key: &K) {
        self.0.remove(key);
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
        throttle.forget(&'a');
        assert_eq!(throttle.pass('a', at(1001)), Some(0));
    }
}
