//! The process's gate and the page that holds its word.
//!
//! A process without a daemon has a page of its own whose gate is open. A daemon's page replaces it, and the
//! page of a daemon that returns replaces that one. Pages are never unmapped, since a thread may sleep on
//! one.

use std::sync::atomic::{AtomicPtr, Ordering};

use gpushare_proto::GateState;
use gpushare_proto::page::Page;
use gpushare_sys::futex;

use super::Gate;

/// The gate of this process.
pub static GATE: Gate = Gate::new();

/// The page of a process that shares with no other: always open.
static UNSHARED: Page = Page::new(GateState::Open);
static PAGE: AtomicPtr<Page> = AtomicPtr::new((&raw const UNSHARED).cast_mut());

/// Returns the page whose gate and flags are in force.
#[inline]
pub fn page() -> &'static Page {
    // SAFETY: points to UNSHARED or to a leaked page, both of which live for ever.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

pub(crate) fn set_page(page: &'static Page) {
    PAGE.store(std::ptr::from_ref(page).cast_mut(), Ordering::Release);
}

/// Wakes all threads that sleep at the gate, so that they look at it again.
pub(crate) fn wake_sleepers() {
    futex::wake_all(&page().gate);
}

pub(crate) fn reset() {
    set_page(&UNSHARED);
    GATE.reset();
}
