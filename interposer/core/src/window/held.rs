//! Flag that at most one thread holds. Launches go on without it; only destructions wait for it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Guard of a flag that at most one thread holds.
#[derive(Debug)]
pub(super) struct Held<'a>(&'a AtomicBool);

impl<'a> Held<'a> {
    pub(super) fn take(flag: &'a AtomicBool) -> Option<Self> {
        let taken = !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Acquire);
        // The guard is made only after success: dropping one clears the flag.
        taken.then(|| Self(flag))
    }

    /// Waits until the flag is free. The thread that holds it makes only calls that do not block. Not for
    /// launches.
    pub(super) fn wait_for(flag: &'a AtomicBool) -> Self {
        loop {
            if let Some(held) = Self::take(flag) {
                return held;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_it_held_leaves_it_held() {
        let flag = AtomicBool::new(false);
        let held = Held::take(&flag);
        assert!(held.is_some());
        assert!(Held::take(&flag).is_none() && Held::take(&flag).is_none());
        drop(held);
        assert!(Held::take(&flag).is_some());
    }
}
