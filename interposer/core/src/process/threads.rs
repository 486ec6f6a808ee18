//! Threads of ours in the host's process.

use std::ptr::null_mut;

use super::stderr;

/// Starts a thread that takes none of the host's signals.
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
