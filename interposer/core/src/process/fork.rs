//! Inheritance of a fork's child: sockets of ours that it closes, values that it forgets, and the handlers of
//! fork and exit.
//!
//! The numbers of the sockets are plain atomics. A lock that a thread of the parent held stays locked in the
//! child for ever.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// Sockets of the connection to the daemon; −1 for none.
static CONNECTION: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// Socket of the inquiry that is under way (`state/inquiry.rs`); −1 for none. There is one at a time.
static INQUIRY: AtomicI32 = AtomicI32::new(-1);

/// Registers handlers for the child of a fork and for the end of the process, once. Called before the first
/// connection, so that a process which never uses CUDA has no handler.
pub(crate) fn register(in_child: extern "C" fn(), at_exit: extern "C" fn()) {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: both are plain functions that live as long as the library, which is never unloaded.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// Sets the sockets of the connection, which the child of a fork closes; −1 for none.
pub fn guard_connection(sockets: [i32; 2]) {
    for (guarded, socket) in CONNECTION.iter().zip(sockets) {
        guarded.store(socket, Ordering::Relaxed);
    }
}

/// Sets the socket of an inquiry, which the child of a fork closes while the guard lives.
#[must_use]
pub fn guard_inquiry(socket: i32) -> InquiryGuard {
    INQUIRY.store(socket, Ordering::Relaxed);
    InquiryGuard(())
}

/// Guard of an inquiry's socket; dropped before the socket.
#[derive(Debug)]
pub struct InquiryGuard(());

impl Drop for InquiryGuard {
    fn drop(&mut self) {
        INQUIRY.store(-1, Ordering::Relaxed);
    }
}

/// Closes the inherited sockets in the child of a fork, where only atomics and system calls are safe.
pub(crate) fn close_sockets() {
    for socket in CONNECTION.iter().chain([&INQUIRY]) {
        let socket = socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: ours, inherited; the parent keeps its own.
            unsafe { libc::close(socket) };
        }
    }
}

/// A value that is made once and never dropped, and that the child of a fork forgets by one store. Locks
/// inside that a thread of the parent held are forgotten with it.
pub(crate) struct ForkCell<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> ForkCell<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or leaked by `set`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value unless another thread has set one; returns the one that is set.
    pub(crate) fn set(&self, value: T) -> &'static T {
        let fresh = Box::into_raw(Box::new(value));
        match self.0.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now.
            Ok(_) => unsafe { &*fresh },
            // SAFETY: no other thread has seen `fresh`; `theirs` is leaked.
            Err(theirs) => unsafe {
                drop(Box::from_raw(fresh));
                &*theirs
            },
        }
    }

    /// Empties the cell in the child of a fork. The parent's value is leaked.
    pub(crate) fn forget(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }
}
