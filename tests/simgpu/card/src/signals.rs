//! SIGTERM and SIGINT as something to poll for, so that the card ends in its loop and leaves nothing behind.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A descriptor that becomes readable at SIGTERM or SIGINT, which do nothing else from now on.
pub fn endings() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` fills the set, the others only read or change it; called before any thread starts.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `signalfd` just made it and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
