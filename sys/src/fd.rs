//! Descriptors of a guest in somebody else's process.
//!
//! Ours have high numbers, but none beyond what the process's table holds at present. A table that grows while threads
//! share it makes the kernel wait for all its processors (`synchronize_rcu`, 6 to 17 ms on a machine with an H200), and
//! every thread that opens a file with it; a process has threads from `cuInit` on.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;

/// Above what programs use that number their descriptors themselves (shells, daemons that close 3 to 255).
const HIGH: i32 = 500;
/// How many of ours there are at once at most: two connections, the second handle of each, and a question.
const OURS: i32 = 8;

/// The same descriptor under a high number, close-on-exec; unchanged if the process may not have one.
#[must_use]
pub fn move_high(descriptor: OwnedFd) -> OwnedFd {
    let lowest = room().map_or(HIGH, |room| HIGH.min(room - OURS));
    fcntl_dupfd_cloexec(&descriptor, lowest).unwrap_or(descriptor)
}

/// How many descriptors the table of the process holds before it grows; `None` where `/proc` does not tell.
fn room() -> Option<i32> {
    // The line is among the first ten; the whole file takes the kernel much longer than these bytes.
    let mut beginning = [0; 512];
    let length = File::open("/proc/thread-self/status").ok()?.read(&mut beginning).ok()?;
    room_in(&String::from_utf8_lossy(&beginning[..length]))
}

fn room_in(status: &str) -> Option<i32> {
    let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"))?;
    line.trim().parse().ok().filter(|&room| room > OURS)
}

/// Marks every descriptor from `first` on close-on-exec, so that a program started from here to stay, as a
/// daemon, does not keep a pipe of the caller's caller open.
///
/// # Errors
/// If the kernel is older than Linux 5.11: nothing is marked.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: a flag of descriptors changes, no descriptor is closed and no memory is touched.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
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
    use std::thread;

    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    use super::*;

    /// Runs `test` in a thread with a table of descriptors of its own, which no other test changes.
    fn alone(test: impl FnOnce() + Send) {
        let run = || {
            // SAFETY: the calling thread gets a table of its own without the others' descriptors; they keep theirs.
            let unshared = unsafe {
                libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
            };
            assert_eq!(unshared, 0);
            test();
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    #[test]
    fn a_moved_descriptor_is_high_and_alone() {
        alone(|| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let moved = move_high(ours.into());
            assert_eq!(moved.as_raw_fd(), HIGH.min(room().unwrap() - OURS));
            drop(moved);
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        });
    }

    #[test]
    fn a_table_that_is_large_enough_gets_ours_above_what_shells_number() {
        alone(|| {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let _grown = fcntl_dupfd_cloexec(&ours, HIGH + OURS).unwrap();
            assert_eq!(move_high(ours.into()).as_raw_fd(), HIGH);
        });
    }

    #[test]
    fn a_moved_descriptor_does_not_make_the_table_grow() {
        alone(|| {
            let before = room().unwrap();
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let moved: Vec<_> = (0..OURS).map(|_| move_high(ours.try_clone().unwrap().into())).collect();
            assert_eq!(room(), Some(before));
            drop(moved);
        });
    }

    #[test]
    fn the_size_of_the_table_is_read_from_the_kernel() {
        assert_eq!(room_in("Name:\tx\nFDSize:\t64\nGroups:\t\n"), Some(64));
        assert_eq!(room_in("Name:\tx\nFDSize:\t0\n"), None);
        assert_eq!(room_in("Name:\tx\n"), None);
    }

    #[test]
    fn a_program_started_from_here_does_not_inherit_what_was_marked() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let high = move_high(ours.into());
        fcntl_setfd(&high, FdFlags::empty()).unwrap();
        if close_on_exec_from(u32::try_from(high.as_raw_fd()).unwrap()).is_ok() {
            assert_eq!(fcntl_getfd(&high).unwrap(), FdFlags::CLOEXEC);
        }
    }
}
