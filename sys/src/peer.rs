//! Who is at the other end of a Unix socket, by the kernel's word alone.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// The process that connected, as it was at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its pid in our namespace; 0 if it has none here.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// The peer of a connected socket (`SO_PEERCRED`).
///
/// # Errors
/// If the socket is no Unix socket.
pub fn credentials(socket: impl AsFd) -> io::Result<Peer> {
    // SAFETY: `ucred` is three integers, so whatever the kernel writes is one.
    let ucred: libc::ucred = unsafe { option(&socket, libc::SO_PEERCRED)? };
    Ok(Peer { pid: u32::try_from(ucred.pid).unwrap_or(0), uid: ucred.uid, gid: ucred.gid })
}

/// A pidfd of the peer: `SO_PEERPIDFD` (Linux 6.5), which cannot name another process, else
/// `pidfd_open(pid)`, which can if the peer died and its number was given away already.
///
/// # Errors
/// If the peer is dead, or has no pid in our namespace.
pub fn pidfd(socket: impl AsFd, pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel writes one descriptor number.
    let number: io::Result<RawFd> = unsafe { option(&socket, libc::SO_PEERPIDFD) };
    match number {
        // SAFETY: the kernel has just made this descriptor for us, close-on-exec, and nobody else knows it.
        Ok(number) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => open(pid),
        Err(error) => Err(error),
    }
}

/// A pidfd of a process by its number. Compare its start time afterwards: numbers are given away again.
///
/// # Errors
/// If there is no such process.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether the process behind a pidfd is dead. One that cannot be asked about is not.
#[must_use]
pub fn is_dead(pidfd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&rustix::fs::Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Ends a process for good.
///
/// # Errors
/// If it is dead already, or not ours to end.
pub fn kill(pidfd: impl AsFd) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(pidfd, Signal::KILL)?)
}

/// One option of a socket.
///
/// # Safety
/// Every bit pattern must be a valid `T`, and the option must be of `T`'s size.
unsafe fn option<T>(socket: impl AsFd, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has as many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before and written by the kernel; the caller promises that any bits are a `T`.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

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
