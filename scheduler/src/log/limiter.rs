//! Limits lines by key (such as a user), so that no tenant can fill the log. Omitted lines are counted.

use std::collections::BTreeMap;

use gpushare_proto::Nanos;

/// Duration within which the number of log lines of a key is limited.
const WINDOW: Nanos = Nanos::from_secs(1);

/// Limiter of log lines: allows at most `LINES` lines for each key in a second.
#[derive(Debug)]
pub(crate) struct LogLimiter<K, const LINES: u64 = 1>(BTreeMap<K, Window>);

#[derive(Clone, Copy, Debug)]
struct Window {
    began: Nanos,
    written: u64,
    omitted: u64,
    /// Whether the omitted lines were summed up in this window.
    summed: bool,
}

impl<K, const LINES: u64> Default for LogLimiter<K, LINES> {
    fn default() -> Self {
        Self::new()
    }
}

/// Number of keys from which on those without news are removed.
const MANY: usize = 1024;

impl<K, const LINES: u64> LogLimiter<K, LINES> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, const LINES: u64> LogLimiter<K, LINES> {
    /// Returns the number of lines omitted before this one, or `None` if this line is to be omitted too.
    pub(crate) fn admit(&mut self, key: K, now: Nanos) -> Option<u64> {
        let fresh = Window { began: now, written: 0, omitted: 0, summed: false };
        if self.0.len() >= MANY {
            self.0.retain(|_, window| now - window.began < WINDOW || window.omitted > 0);
        }
        let window = self.0.entry(key).or_insert(fresh);
        let mut omitted = 0;
        if now - window.began >= WINDOW {
            omitted = std::mem::replace(window, fresh).omitted;
        }
        if window.written == LINES {
            window.omitted = window.omitted.saturating_add(1);
            return None;
        }
        window.written += 1;
        Some(omitted)
    }

    /// Counts omitted lines of a key that was admitted or refused before.
    pub(crate) fn omit(&mut self, key: &K, lines: u64) {
        if let Some(window) = self.0.get_mut(key) {
            window.omitted = window.omitted.saturating_add(lines);
        }
    }

    /// Returns the number of a key's omitted lines that no line has reported, at most once in each window.
    pub(crate) fn sum_up(&mut self, key: &K) -> u64 {
        let window = self.0.get_mut(key).filter(|window| !window.summed && window.omitted > 0);
        window.map_or(0, |window| {
            window.summed = true;
            std::mem::take(&mut window.omitted)
        })
    }

    /// Removes a key. Returns the number of its omitted lines that no line has reported.
    pub(crate) fn remove(&mut self, key: &K) -> u64 {
        self.0.remove(key).map_or(0, |window| window.omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_gets_one_line_a_second() {
        let mut limiter = LogLimiter::<char>::default();
        let at = Nanos::from_millis;
        assert_eq!(limiter.admit('a', at(0)), Some(0));
        assert_eq!(limiter.admit('a', at(10)), None);
        assert_eq!(limiter.admit('b', at(10)), Some(0));
        assert_eq!(limiter.admit('a', at(999)), None);
        assert_eq!(limiter.admit('a', at(1000)), Some(2));
        assert_eq!(limiter.admit('a', at(1500)), None);
        limiter.omit(&'a', 7);
        assert_eq!(limiter.remove(&'a'), 8);
        assert_eq!(limiter.admit('a', at(1501)), Some(0));
    }

    #[test]
    fn omitted_lines_are_summed_up_once_in_a_window() {
        let mut limiter = LogLimiter::<char>::default();
        let at = Nanos::from_millis;
        let admitted = [0, 1, 2].map(|ms| limiter.admit('a', at(ms)));
        assert_eq!(admitted, [Some(0), None, None]);
        assert_eq!((limiter.sum_up(&'a'), limiter.sum_up(&'b')), (2, 0));
        assert_eq!((limiter.admit('a', at(3)), limiter.sum_up(&'a')), (None, 0), "not twice");
        assert_eq!(limiter.admit('a', at(1000)), Some(1));
        assert_eq!((limiter.admit('a', at(1001)), limiter.sum_up(&'a')), (None, 1));
    }

    #[test]
    fn a_limiter_may_allow_several_lines_a_second() {
        let mut limiter = LogLimiter::<(), 2>::default();
        let at = Nanos::from_millis;
        let admitted = [0, 1, 2, 3, 1000, 1001, 1002].map(|ms| limiter.admit((), at(ms)));
        assert_eq!(admitted, [Some(0), Some(0), None, None, Some(2), Some(0), None]);
    }
}
