//! Work in flight on the card: an event at the end of each context's work, polled until the work is done.
//!
//! Drivers before CUDA 12.5 have no event that covers a whole context. There the context is synchronised
//! instead.

use crate::driver::types::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUevent};
use crate::driver::{Driver, contexts::Contexts};

use super::captures::Captures;

/// Events at the end of each context's work, with the addresses of the contexts.
#[derive(Debug)]
pub(super) struct InFlight(Vec<(usize, CUevent)>);

impl InFlight {
    /// Records an event at the end of each context's work. Returns `None` while a capture runs, which the
    /// event would break.
    pub(super) fn mark(driver: &Driver, contexts: &Contexts, captures: &Captures) -> Option<Self> {
        let mut marks = Vec::new();
        let mut contexts = contexts.visit();
        // Captures begin under the same lock, so none begins from here on.
        if captures.any() {
            return None;
        }
        for live in contexts.iter_mut() {
            let context = live.context();
            let event = live.enter(driver, |live| match (driver.ctx_record_event, live.event(driver)) {
                // SAFETY: both are alive and belong together.
                (Some(record), Some(event)) if unsafe { record(context, event) } == CUDA_SUCCESS => {
                    Some(event)
                }
                _ => {
                    // SAFETY: waits; has no arguments. An error means that nothing more will run there.
                    unsafe { (driver.ctx_synchronize)() };
                    None
                }
            });
            marks.extend(event.flatten().map(|event| (context.addr(), event)));
        }
        Some(Self(marks))
    }

    pub(super) fn is_done(&mut self, driver: &Driver, contexts: &Contexts) -> bool {
        let live = contexts.visit();
        self.0.retain(|&(context, event)| {
            // A context that was destroyed meanwhile took its work and its event along.
            let alive = live.iter().any(|known| known.context().addr() == context);
            // SAFETY: the event lives as long as its context, which the lock keeps. Anything but "not ready"
            // ends the wait: a context with a sticky error runs nothing more.
            alive && unsafe { (driver.event_query)(event) } == CUDA_ERROR_NOT_READY
        });
        self.0.is_empty()
    }
}
