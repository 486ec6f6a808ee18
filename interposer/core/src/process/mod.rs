//! Behaviour of the library as a guest in the host's process: lines on stderr, fork and exit, threads, and
//! its own panics. This module knows nothing of the daemon.

pub mod fork;
pub mod panics;
pub mod stderr;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether the process is ending. If so, no thread may wait for the card any more.
pub(crate) static EXITING: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Locks a mutex, even one that a panicking thread poisoned. Data under gpushare's mutexes is valid between
/// any two statements, and the host must survive the panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that receives none of the host's signals.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    // SAFETY: the sets are initialised by sigfillset and pthread_sigmask before they are read.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        if let Err(error) = spawned {
            stderr::print(format_args!("cannot start the thread {name}: {error}"));
        }
    }
}
