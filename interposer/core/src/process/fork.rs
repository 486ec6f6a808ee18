//! The child of a fork: it closes gpushare's sockets and forgets the parent's values. This module also
//! registers the handlers of fork and exit.
//!
//! The numbers of the sockets are plain atomics, because a lock that a thread of the parent held would stay
//! locked in the child for ever.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// Descriptors of the connection to the daemon; −1 for none.
static CONNECTION: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// Descriptor of the short connection for a question (`state/inquiry.rs`), at most one at a time; −1 for
/// none.
static INQUIRY: AtomicI32 = AtomicI32::new(-1);
/// Descriptor of the connection by which host copies are shared; −1 for none.
static COPIES: AtomicI32 = AtomicI32::new(-1);

/// Registers handlers for the child of a fork and for the end of the process, once. A process that never uses
/// CUDA has no handler, since this is called before the first connection.
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

/// Sets the descriptors of the connection to the daemon, which the child of a fork closes; −1 for none.
pub fn guard_connection(sockets: [i32; 2]) {
    for (guarded, socket) in CONNECTION.iter().zip(sockets) {
        guarded.store(socket, Ordering::Relaxed);
    }
}

/// Sets the descriptor of a short connection, which the child of a fork closes during the guard's lifetime.
pub fn guard_inquiry(socket: i32) -> DescriptorGuard {
    DescriptorGuard::of(&INQUIRY, socket)
}

/// Sets the descriptor of the connection by which host copies are shared, which the child of a fork closes
/// during the guard's lifetime.
pub fn guard_copies(socket: i32) -> DescriptorGuard {
    DescriptorGuard::of(&COPIES, socket)
}

/// Guard of the descriptor of a connection. It is dropped before the socket is closed.
#[derive(Debug)]
#[must_use]
pub struct DescriptorGuard(&'static AtomicI32);

impl DescriptorGuard {
    fn of(place: &'static AtomicI32, socket: i32) -> Self {
        place.store(socket, Ordering::Relaxed);
        Self(place)
    }
}

impl Drop for DescriptorGuard {
    fn drop(&mut self) {
        self.0.store(-1, Ordering::Relaxed);
    }
}

/// Closes the inherited sockets in the child of a fork, where only atomics and system calls are safe.
pub(crate) fn close_sockets() {
    for socket in CONNECTION.iter().chain([&INQUIRY, &COPIES]) {
        let socket = socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: ours, inherited; the parent keeps its own.
            unsafe { libc::close(socket) };
        }
    }
}

/// Value that is created once and never dropped, and that the child of a fork forgets by one store. So the
/// child also forgets locks in the value that threads of the parent held.
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

    /// Sets the value unless another thread has set one; returns the value in the cell.
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
