//! Sockets that the parent process has opened for this one (socket activation, sd_listen_fds(3)).
//!
//! systemd binds them, keeps them while the process restarts, and passes them as descriptors from 3 on. Their
//! environment variables are removed here. They concern this process only; a child that believed them would
//! take other descriptors for sockets.

use std::env;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// First descriptor that is passed.
const FIRST: RawFd = 3;
/// Variables with the pid that the descriptors are for, their number, and their names.
const VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Returns the passed descriptors in order, each with its name or an empty one. A second call returns none.
///
/// # Errors
/// The environment names descriptors that are not open, or the process has threads already, so that its
/// environment cannot be changed.
pub fn take() -> io::Result<Vec<(String, OwnedFd)>> {
    let [pid, count, names] = VARIABLES.map(|name| env::var(name).ok());
    if VARIABLES.iter().all(|name| env::var_os(name).is_none()) {
        return Ok(Vec::new());
    }
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has threads, and its environment may not change"));
    }
    for name in VARIABLES {
        // SAFETY: this is the only thread, as counted above, so no thread reads the environment meanwhile.
        unsafe { env::remove_var(name) };
    }
    let numbers = numbers(std::process::id(), pid.as_deref(), count.as_deref());
    let names: Vec<&str> = names.as_deref().map_or(Vec::new(), |names| names.split(':').collect());
    numbers
        .enumerate()
        .map(|(nth, number)| Ok((names.get(nth).unwrap_or(&"").to_string(), own(number)?)))
        .collect()
}

/// Returns the numbers of the descriptors that the variables name. Empty if they are for another process or
/// invalid.
fn numbers(own: u32, pid: Option<&str>, count: Option<&str>) -> std::ops::Range<RawFd> {
    let ours = pid.and_then(|pid| pid.parse().ok()) == Some(own);
    let count = count.and_then(|count| count.parse::<u16>().ok()).filter(|_| ours);
    FIRST..FIRST + RawFd::from(count.unwrap_or(0))
}

fn own(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: sets a flag, if the descriptor is open at all.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, as the kernel just answered. The parent passed it to be owned here, and
    // the variables that name it are removed, so it is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_for_the_process_that_is_named() {
        assert_eq!(numbers(7, Some("7"), Some("2")), 3..5);
        assert!(numbers(7, Some("8"), Some("2")).is_empty());
        assert!(numbers(7, None, Some("2")).is_empty());
        assert!(numbers(7, Some("7"), None).is_empty());
        assert!(numbers(7, Some("7"), Some("-1")).is_empty());
        assert!(numbers(7, Some("7"), Some("100000")).is_empty());
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_an_error() {
        let closed = own(RawFd::MAX).unwrap_err();
        assert_eq!(closed.raw_os_error(), Some(libc::EBADF));
    }
}
