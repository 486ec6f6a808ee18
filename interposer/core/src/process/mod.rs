//! Behaviour of the library as a guest in the host's process: lines on stderr, fork and exit, threads, and
//! its own panics. This module knows nothing of the daemon.

pub mod fork;
pub mod panics;
pub mod stderr;

use std::cell::Cell;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lowest priority of a thread ("nice").
const LOWEST_PRIORITY: i32 = 19;

/// Whether the process is ending. If so, no thread may wait for the card any more.
pub(crate) static EXITING: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::SeqCst)
}

/// Locks a mutex, even one that a panicking thread poisoned. Data under gpushare's mutexes is valid between
/// any two statements, and the host must survive the panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws random bytes; `None` if the system gives none.
pub(crate) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: writes at most as many bytes as the array has.
    let written = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    (written == N.cast_signed()).then_some(bytes)
}

thread_local! {
    /// Whether the thread is one of gpushare's, and not of the program.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is one of gpushare's, and not of the program.
pub(crate) fn is_own_thread() -> bool {
    IS_OWN.with(Cell::get)
}

/// Starts a thread that receives none of the host's signals.
///
/// # Errors
/// Error of the kernel, for example because the process's cgroup has as many tasks as it may have.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: the sets are initialised by sigfillset and pthread_sigmask before they are read.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let work = || {
            IS_OWN.with(|is_own| is_own.set(true));
            work();
        };
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        spawned.map(drop)
    }
}

/// Lets the calling thread run only where no other one of the machine wants to.
pub(crate) fn lower_priority() {
    // SAFETY: has no condition. On Linux 0 is the calling thread, whatever the name says. A failure changes
    // nothing.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST_PRIORITY) };
}

/// Thread that the process needs once. An attempt to start it that failed is repeated.
#[derive(Debug, Default)]
pub(crate) struct Starter {
    started: AtomicBool,
    printed: AtomicBool,
}

impl Starter {
    /// Starts the thread by `start`, unless it was started. Returns whether it was; prints the first failure.
    pub(crate) fn ensure(&self, name: &str, start: impl FnOnce() -> io::Result<()>) -> bool {
        if self.started.swap(true, Ordering::AcqRel) {
            return true;
        }
        let started = start();
        if let Err(error) = &started {
            self.started.store(false, Ordering::Release);
            stderr::print_once(
                &self.printed,
                format_args!(
                    "cannot start the thread {name}: {error}; the GPU is not given back until it starts"
                ),
            );
        }
        started.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_could_not_start_is_started_later_and_once() {
        let starter = Starter::default();
        let full = || Err(io::Error::from_raw_os_error(libc::EAGAIN));
        assert!(!starter.ensure("test", full) && !starter.ensure("test", full));
        let mut started = 0;
        for _ in 0..2 {
            assert!(starter.ensure("test", || {
                started += 1;
                Ok(())
            }));
        }
        assert_eq!(started, 1);
    }
}
