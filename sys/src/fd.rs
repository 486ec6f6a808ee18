//! Descriptors of a guest in somebody else's process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;

/// Above what programs use that number their descriptors themselves (shells, daemons that close 3 to 255).
const HIGH: i32 = 500;

/// The same descriptor under a high number, close-on-exec; unchanged if the process may not have one.
#[must_use]
pub fn move_high(descriptor: OwnedFd) -> OwnedFd {
    fcntl_dupfd_cloexec(&descriptor, HIGH).unwrap_or(descriptor)
}

/// Marks every descriptor from `first` on close-on-exec, so that a program started from here to stay, as a
/// daemon, does not keep a pipe of the caller's caller open.
///
/// # Errors
/// If the kernel is older than Linux 5.11: nothing is marked.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: a flag of descriptors changes, no descriptor is closed and no memory is touched.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    use super::*;

    #[test]
    fn a_moved_descriptor_is_high_and_alone() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let moved = move_high(ours.into());
        assert!(moved.as_raw_fd() >= HIGH);
        drop(moved);
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
    }
    #[test]
    fn a_program_started_from_here_does_not_inherit_what_was_marked() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let high = move_high(ours.into());
        fcntl_setfd(&high, FdFlags::empty()).unwrap();
        if close_on_exec_from(u32::try_from(HIGH).unwrap()).is_ok() {
            assert_eq!(fcntl_getfd(&high).unwrap(), FdFlags::CLOEXEC);
        }
    }
}
