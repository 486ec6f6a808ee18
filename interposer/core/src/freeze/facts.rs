//! Facts that keep the process from being frozen for good. The hooks note them.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::types::{CUDA_SUCCESS, CUresult};

/// Facts that hold for good once they were noted.
pub(crate) static NOTED: Facts = Facts(AtomicU32::new(0));

/// Fact that keeps the process from being frozen for good.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Noted {
    /// The process made a handle of host memory.
    HostHandles = 1,
    /// The process gave memory to another one or took some, or took some of a graphics interface.
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

    /// Makes a call of the driver, and notes the fact if it succeeds.
    pub(crate) fn note_if_done(&self, fact: Noted, real: impl FnOnce() -> CUresult) -> CUresult {
        let result = real();
        if result == CUDA_SUCCESS {
            self.note(fact);
        }
        result
    }

    pub(super) fn has(&self, fact: Noted) -> bool {
        self.0.load(Ordering::Relaxed) & fact as u32 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::types::CUDA_ERROR_INVALID_VALUE;

    #[test]
    fn a_fact_is_noted_for_good() {
        let facts = Facts(AtomicU32::new(0));
        facts.note(Noted::Peers);
        assert!(facts.has(Noted::Peers) && !facts.has(Noted::Unseen) && !facts.has(Noted::Shared));
    }

    #[test]
    fn a_call_that_failed_is_no_fact() {
        let facts = Facts(AtomicU32::new(0));
        let has = [CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS].map(|answer| {
            assert_eq!(facts.note_if_done(Noted::Shared, || answer), answer);
            facts.has(Noted::Shared)
        });
        assert_eq!(has, [false, true]);
    }
}
