//! Process at the other end of a Unix socket, as the kernel reports that process.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// Process that connected to a socket, with its ids at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id in this process's PID namespace; 0 if the peer is outside of it.
    pub pid: u32,
    /// Effective user id of the peer.
    pub uid: u32,
    /// Effective group id of the peer.
    pub gid: u32,
}

/// Returns the process at the other end of a connected socket (`SO_PEERCRED`).
///
/// # Errors
/// Error of the system, if the socket is no Unix socket.
pub fn credentials(socket: impl AsFd) -> io::Result<Peer> {
    // SAFETY: `ucred` is three integers, so all bit patterns are valid.
    let ucred: libc::ucred = unsafe { option(&socket, libc::SO_PEERCRED)? };
    Ok(Peer { pid: u32::try_from(ucred.pid).unwrap_or(0), uid: ucred.uid, gid: ucred.gid })
}

/// Returns a pidfd of the peer, by `SO_PEERPIDFD` (Linux 6.5) or else by `pidfd_open(pid)`. The latter finds
/// another process if the peer died and its pid was reused.
///
/// # Errors
/// The peer is dead, or has no pid in this PID namespace.
pub fn pidfd(socket: impl AsFd, pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel writes one descriptor number.
    let number: io::Result<RawFd> = unsafe { option(&socket, libc::SO_PEERPIDFD) };
    match number {
        // SAFETY: the kernel has just made this descriptor for this process, close-on-exec, and no other code
        // knows it.
        Ok(number) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => open(pid),
        Err(error) => Err(error),
    }
}

/// Returns a pidfd of the process with this pid. Pids are reused, so the caller compares the start time
/// afterwards.
///
/// # Errors
/// Error of the system, if there is no such process.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns whether the process behind a pidfd is dead. The result is `false` if the kernel cannot be asked.
pub fn is_dead(pidfd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&rustix::fs::Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Returns whether the peer of a connected socket has closed its end.
pub fn has_hung_up(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let ready = poll(&mut polled, Some(&rustix::fs::Timespec::default()));
    ready.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Kills the process behind a pidfd with SIGKILL.
///
/// # Errors
/// The process is dead, or this process lacks the permission.
pub fn kill(pidfd: impl AsFd) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(pidfd, Signal::KILL)?)
}

/// Reads an option of a socket.
///
/// # Safety
/// Every bit pattern must be a valid `T`, and the option must be of `T`'s size.
unsafe fn option<T>(socket: impl AsFd, name: libc::c_int) -> io::Result<T> {
    let (socket, mut value) = (socket.as_fd().as_raw_fd(), MaybeUninit::<T>::zeroed());
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has as many.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut length)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, then written by the kernel; the caller promises that all bit patterns are a valid `T`.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_peer_of_our_own_socket_is_us() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = credentials(&a).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        let pidfd = pidfd(&a, peer.pid).unwrap();
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        assert_eq!(poll(&mut polled, Some(&rustix::fs::Timespec::default())), Ok(0));
    }

    #[test]
    fn a_peer_that_closed_its_end_has_hung_up() {
        let (a, b) = UnixStream::pair().unwrap();
        b.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!has_hung_up(&a), "it may still listen");
        drop(b);
        // A program that another test starts has a copy of the socket until it runs.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !has_hung_up(&a) {
            assert!(Instant::now() < deadline, "it has not hung up");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_pidfd_tells_of_a_death_and_ends_a_process() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let pidfd = open(child.id()).unwrap();
        kill(&pidfd).unwrap();
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        assert_eq!(poll(&mut polled, None), Ok(1));
        child.wait().unwrap();
        assert!(kill(&pidfd).is_err());
    }

    #[test]
    fn what_is_no_process_has_no_pidfd() {
        assert!(open(0).is_err());
        assert!(open(u32::MAX).is_err());
    }
}
