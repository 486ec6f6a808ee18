//! The library as a guest in the host's process: what it prints, how it inherits and ends, how it starts
//! threads, and what becomes of its own panics. Nothing here knows the daemon.

pub mod exit;
pub mod fork;
pub mod panics;
pub mod stderr;
pub(crate) mod threads;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also one that a panicking thread poisoned. Data under our mutexes is valid between any two
/// statements, and the host must not die of another thread's panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
