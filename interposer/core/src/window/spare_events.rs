//! Spare events of each context, kept for new launch markers. Threads take and return them without a lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Card;
use crate::driver::types::CUevent;

/// Number of contexts for which spare events are kept.
const CONTEXTS: usize = 16;
/// Largest number of spare events of one context.
const EVENTS: usize = 64;

/// Spare events of all contexts.
#[derive(Debug)]
pub(super) struct SpareEvents {
    pools: Box<[Pool]>,
}

/// Spare events of one context.
#[derive(Debug)]
struct Pool {
    /// Address of the context; 0 while the pool is free.
    context: AtomicUsize,
    events: [AtomicUsize; EVENTS],
}

impl Default for SpareEvents {
    fn default() -> Self {
        let pool = || Pool { context: AtomicUsize::new(0), events: [const { AtomicUsize::new(0) }; EVENTS] };
        Self { pools: (0..CONTEXTS).map(|_| pool()).collect() }
    }
}

impl SpareEvents {
    fn pool(&self, context: usize) -> Option<&Pool> {
        let known = self.pools.iter().find(|pool| pool.context.load(Ordering::Acquire) == context);
        known.or_else(|| {
            self.pools.iter().find(|pool| {
                pool.context
                    .compare_exchange(0, context, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
        })
    }

    /// Returns a spare event of a context, which is then no longer spare.
    pub(super) fn take(&self, context: usize) -> Option<CUevent> {
        let mut spare = self
            .pool(context)?
            .events
            .iter()
            .filter(|event| event.load(Ordering::Relaxed) != 0);
        let event =
            spare.find_map(|event| Some(event.swap(0, Ordering::AcqRel)).filter(|&event| event != 0))?;
        Some(std::ptr::with_exposed_provenance_mut(event))
    }

    /// Keeps an event of a context, or destroys it if there are enough.
    pub(super) fn put(&self, context: usize, event: CUevent, card: &impl Card) {
        let kept = self.pool(context).is_some_and(|pool| {
            pool.events.iter().any(|place| {
                let address = event.expose_provenance();
                place.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        });
        if !kept {
            card.destroy(event);
        }
    }

    /// Forgets the events of a context, which were destroyed with it.
    pub(super) fn forget(&self, context: usize) {
        for pool in self.pools.iter().filter(|pool| pool.context.load(Ordering::Acquire) == context) {
            pool.events.iter().for_each(|event| event.store(0, Ordering::Relaxed));
            pool.context.store(0, Ordering::Release);
        }
    }
}
