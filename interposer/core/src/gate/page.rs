//! The gate of the process and the shared page that contains the gate word.
//!
//! A process without a daemon has a page of its own, with an open gate. The shared page of a daemon replaces
//! it, and each new daemon brings another. Pages are never unmapped, since a thread may sleep on one.

use std::sync::atomic::{AtomicPtr, Ordering};

use gpushare_proto::GateState;
use gpushare_proto::page::Page;
use gpushare_sys::futex;

use super::Gate;

/// The gate that all threads of this process pass.
pub static GATE: Gate = Gate::new();

/// Page of a process that shares with no other; its gate is always open.
static UNSHARED: Page = Page::new(GateState::Open);
static PAGE: AtomicPtr<Page> = AtomicPtr::new((&raw const UNSHARED).cast_mut());

/// Returns the present shared page, or the process's own page if there is no daemon.
#[inline]
pub fn page() -> &'static Page {
    // SAFETY: points to UNSHARED or to a leaked page, both of which live for ever.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

pub(crate) fn set_page(page: &'static Page) {
    PAGE.store(std::ptr::from_ref(page).cast_mut(), Ordering::Release);
}

/// Wakes all threads that sleep at the gate, so that they read the gate word again.
pub(crate) fn wake_sleepers() {
    futex::wake_all(&page().gate);
}

pub(crate) fn reset() {
    set_page(&UNSHARED);
    GATE.reset();
}
