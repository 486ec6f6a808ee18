//! Facts that keep the process from being frozen for good. The hooks note them.

use std::sync::atomic::{AtomicU32, Ordering};

/// Facts that hold for good once they were noted.
pub(crate) static NOTED: Facts = Facts(AtomicU32::new(0));

/// Fact that keeps the process from being frozen for good.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noted {
    /// The process made a handle of host memory.
    HostHandles = 1,
    /// The process gave memory to another one, or took some.
    Shared = 2,
    /// The process reaches memory of another card.
    Peers = 4,
    /// Functions of the driver were found past gpushare.
    Unseen = 8,
}

/// Set of [`Noted`].
#[derive(Debug)]
pub(crate) struct Facts(AtomicU32);

impl Facts {
    pub(crate) fn note(&self, fact: Noted) {
        self.0.fetch_or(fact as u32, Ordering::Relaxed);
    }

    pub(super) fn has(&self, fact: Noted) -> bool {
        self.0.load(Ordering::Relaxed) & fact as u32 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_noted_for_good() {
        let facts = Facts(AtomicU32::new(0));
        facts.note(Noted::Peers);
        assert!(facts.has(Noted::Peers) && !facts.has(Noted::Unseen) && !facts.has(Noted::Shared));
    }
}
