//! File descriptors of gpushare in an application's process.
//!
//! gpushare's descriptors have high numbers, but within the present size of the process's descriptor table.
//! Growing a table that threads share makes the kernel wait for all processors (`synchronize_rcu`). This
//! delays all threads that open a file by 6 to 17 ms (machine with an H200). A process has threads from
//! `cuInit` on.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;

/// Lowest number above the descriptors that programs choose themselves (shells, daemons that close 3 to 255).
const HIGH: i32 = 500;
/// Largest number of gpushare's descriptors in a process: two connections, the second handle of each, and a
/// question.
const OURS: i32 = 8;

/// Moves a descriptor to a high number and marks it close-on-exec. Returns it unchanged if the process's
/// limit forbids that.
#[must_use]
pub fn move_high(descriptor: OwnedFd) -> OwnedFd {
    let lowest = room().map_or(HIGH, |room| HIGH.min(room - OURS));
    fcntl_dupfd_cloexec(&descriptor, lowest).unwrap_or(descriptor)
}

/// Returns the number of descriptors that the process's table holds before it grows; `None` without `/proc`.
fn room() -> Option<i32> {
    // The line is among the first ten, and the whole file takes the kernel much longer than these bytes.
    let mut beginning = [0; 512];
    let length = File::open("/proc/thread-self/status").ok()?.read(&mut beginning).ok()?;
    room_in(&String::from_utf8_lossy(&beginning[..length]))
}

fn room_in(status: &str) -> Option<i32> {
    let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"))?;
    line.trim().parse().ok().filter(|&room| room > OURS)
}

/// Marks every descriptor from `first` on close-on-exec, so that a daemon started from here keeps no pipe of
/// a caller open.
///
/// # Errors
/// The kernel is older than Linux 5.11. Then no descriptor is marked.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: only a flag of the descriptors changes; no descriptor is closed and no memory is touched.
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

    fn alone(test: impl FnOnce() + Send) {
        let run = || {
            // SAFETY: the calling thread gets its own table without the others' descriptors; the other
            // threads keep theirs.
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
