//! Descriptors that a service manager opened for this process (sd_listen_fds(3)).
//!
//! systemd passes descriptors from number 3 on and announces them in the environment. [`take`] removes the
//! announcement, because a child that believed it would take other descriptors for sockets.

use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::{env, fs, io};

/// Number of the first passed descriptor.
const FIRST: RawFd = 3;
/// Variables with the id of the addressed process, the number of descriptors, and their names.
const VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Returns the passed descriptors in order, each with its name or an empty one. A second call returns none.
///
/// # Errors
/// Returns an error if an announced descriptor is not open, or if the process already has a second thread.
pub fn take() -> io::Result<Vec<(String, OwnedFd)>> {
    let [pid, count, names] = VARIABLES.map(|name| env::var(name).ok());
    if VARIABLES.iter().all(|name| env::var_os(name).is_none()) {
        return Ok(Vec::new());
    }
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has threads, and its environment may not change"));
    }
    for name in VARIABLES {
        // SAFETY: this is the only thread, as was just counted. Only a thread can start another one, so nobody
        // reads the environment meanwhile.
        unsafe { env::remove_var(name) };
    }
    let names: Vec<&str> = names.as_deref().map_or(Vec::new(), |names| names.split(':').collect());
    let numbers = numbers(std::process::id(), pid.as_deref(), count.as_deref()).enumerate();
    numbers
        .map(|(at, number)| Ok((names.get(at).unwrap_or(&"").to_string(), own(number)?)))
        .collect()
}

/// Returns the announced descriptors. Values for another process and values without sense announce none.
fn numbers(own: u32, pid: Option<&str>, count: Option<&str>) -> Range<RawFd> {
    let ours = pid.and_then(|pid| pid.parse().ok()) == Some(own);
    let count = count.and_then(|count| count.parse::<u16>().ok()).filter(|_| ours);
    FIRST..FIRST + RawFd::from(count.unwrap_or(0))
}

fn own(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: changes a flag of the descriptor, if it is open at all.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        let cause = io::Error::last_os_error();
        return Err(io::Error::new(cause.kind(), format!("descriptor {number}: {cause}")));
    }
    // SAFETY: the kernel just said that it is open. The service manager passed it to be owned by this process,
    // and `take` removed its announcement, so it has one owner.
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
        assert!(numbers(7, Some("7"), Some("70000")).is_empty());
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_an_error() {
        let closed = own(RawFd::MAX).unwrap_err().to_string();
        assert_eq!(closed, "descriptor 2147483647: Bad file descriptor (os error 9)");
    }
}
