//! The gate of the process and the shared page that contains the gate word.
//!
//! A process without a daemon has a page of its own, with an open gate. The shared page of a daemon replaces
//! it, and each new daemon brings another. Pages are never unmapped, since a thread may sleep on one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gpushare_proto::page::Page;
use gpushare_proto::{GateState, GateWord};
use gpushare_sys::bell;

use super::Gate;

/// The gate that all threads of this process pass.
pub static GATE: Gate = Gate::new();

/// Page of a process that shares with no other; its gate is always open.
static UNSHARED: Page = Page::new(GateState::Open);
static PAGE: InForce = InForce::new(&UNSHARED);

/// Page that is in force: the one that threads look at before they give work to a card.
struct InForce(AtomicPtr<Page>);

impl InForce {
    const fn new(page: &'static Page) -> Self {
        Self(AtomicPtr::new(ptr::from_ref(page).cast_mut()))
    }

    #[inline]
    fn get(&self) -> &'static Page {
        // SAFETY: made from a reference that lives for ever.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    fn set(&self, page: &'static Page) {
        self.0.store(ptr::from_ref(page).cast_mut(), Ordering::Release);
    }

    /// Closes the gate of the present page for ever, and puts another page in force.
    fn replace(&self, page: &'static Page) {
        let old = self.get();
        // First, since a thread may still hold the old page when the new gate was closed and drained.
        old.gate.store(GateWord::new(0, GateState::Closed).0, Ordering::SeqCst);
        self.set(page);
        bell::ring(old);
    }

    fn listen(&self) -> (&'static Page, u32) {
        loop {
            let page = self.get();
            let heard = bell::heard(page);
            // A replaced page rings once after the replacement, and never again.
            if ptr::eq(page, self.get()) {
                return (page, heard);
            }
        }
    }
}

/// Returns the present shared page, or the process's own page if there is no daemon.
#[inline]
pub fn page() -> &'static Page {
    PAGE.get()
}

pub(crate) fn set_page(page: &'static Page) {
    PAGE.set(page);
}

/// Puts the shared page of the next daemon in force. The gate of the old one stays closed.
pub(crate) fn replace_page(page: &'static Page) {
    PAGE.replace(page);
}

/// Returns the present shared page and the number of its bell. A thread that then looks at the page, and
/// sleeps while the bell has that number, misses neither a change of the page nor its replacement.
pub(crate) fn listen() -> (&'static Page, u32) {
    PAGE.listen()
}

/// Wakes all threads that sleep on the page, so that they read the gate word again.
pub(crate) fn wake_sleepers() {
    bell::ring(page());
}

pub(crate) fn reset() {
    set_page(&UNSHARED);
    UNSHARED.flags.store(0, Ordering::Relaxed);
    GATE.reset();
}

#[cfg(test)]
mod tests {
    use std::thread;

    use gpushare_sys::futex::Woken;

    use super::*;

    fn leaked() -> &'static Page {
        Box::leak(Box::new(Page::new(GateState::Open)))
    }

    #[test]
    fn a_thread_that_still_has_the_old_page_finds_its_gate_closed() {
        let pages: Vec<_> = (0..1_000).map(|_| leaked()).collect();
        let state = |page: &Page| GateWord(page.gate.load(Ordering::SeqCst)).state();
        for _ in 0..200 {
            for page in &pages {
                page.gate.store(GateWord::new(1, GateState::Open).0, Ordering::SeqCst);
            }
            let in_force = InForce::new(pages[0]);
            thread::scope(|scope| {
                let replacing = scope.spawn(|| pages[1..].iter().for_each(|page| in_force.replace(page)));
                let mut before = pages[0];
                while !replacing.is_finished() {
                    let present = in_force.get();
                    assert!(ptr::eq(present, before) || state(before) == GateState::Closed);
                    before = present;
                }
            });
        }
    }

    #[test]
    fn the_replacement_of_a_page_ends_a_sleep_on_the_old_one() {
        let (old, fresh) = (leaked(), leaked());
        let in_force = InForce::new(old);
        let (page, heard) = in_force.listen();
        in_force.replace(fresh);
        assert_eq!(bell::sleep(page, heard, None).unwrap(), Woken::Changed);
        assert!(ptr::eq(in_force.listen().0, fresh));
    }
}
