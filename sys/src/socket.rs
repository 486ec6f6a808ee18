//! Unix sockets: connecting, accepting, and sending bytes with at most one file descriptor.
//!
//! Sending raises no SIGPIPE, and every descriptor is close-on-exec. Unexpected descriptors are closed at
//! once, so that a peer cannot fill this process's descriptor table.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_oobinline, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, send, sendmsg,
    socket_with,
};

/// Connects to the socket at `path`. Waits up to `patience` if the socket's queue of connections is full.
/// Later sends have the same limit.
///
/// # Errors
/// The system's error; `WouldBlock` after `patience`.
pub fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    connect_to(&SocketAddrUnix::new(path)?, patience)
}

/// Connects to the socket with a name in the abstract namespace, as [`connect`] does.
///
/// # Errors
/// The system's error; `WouldBlock` after `patience`.
pub fn connect_abstract(name: &[u8], patience: Duration) -> io::Result<UnixStream> {
    connect_to(&SocketAddrUnix::new_abstract_name(name)?, patience)
}

fn connect_to(address: &SocketAddrUnix, patience: Duration) -> io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let end = Instant::now() + patience;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    loop {
        match rustix::net::connect(&socket, address) {
            Ok(()) => break,
            // A timer's signals must not prolong the wait. Zero would mean no limit.
            Err(Errno::INTR) => {
                let left = end.saturating_duration_since(Instant::now());
                if left < Duration::from_micros(1) {
                    return Err(Errno::AGAIN.into());
                }
                set_socket_timeout(&socket, Timeout::Send, Some(left))?;
            }
            Err(cause) => return Err(cause.into()),
        }
    }
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    Ok(UnixStream::from(socket))
}

/// Waits for the next connection, up to `patience`.
///
/// # Errors
/// The system's error; `WouldBlock` after `patience`.
pub fn accept_within(listener: &UnixListener, patience: Duration) -> io::Result<UnixStream> {
    let end = Instant::now() + patience;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(cause) => return Err(cause),
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        await_any(&[listener.as_fd()], Some(left));
    }
}

/// Waits up to `patience`, or for good, until one of the sockets has bytes, a connection or a hang-up. Says
/// of each whether it has. A signal may end the wait earlier.
pub fn await_any(sockets: &[BorrowedFd<'_>], patience: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
    let patience = patience.and_then(|patience| patience.try_into().ok());
    match poll(&mut polled, patience.as_ref()) {
        Ok(_) => polled.iter().map(|polled| !polled.revents().is_empty()).collect(),
        Err(_) => vec![false; sockets.len()],
    }
}

/// Sends all of `bytes`, with `descriptor` at the first byte.
///
/// # Errors
/// Error of the socket; `WouldBlock` after the socket's write timeout.
pub fn send_all_with_fd(
    socket: impl AsFd,
    mut bytes: &[u8],
    mut descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = send_with_fd(&socket, bytes, descriptor.take())?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// Receives exactly as many bytes as `buffer` has, with a descriptor that came with one of them.
///
/// # Errors
/// Error of the socket; `UnexpectedEof` at its end; `WouldBlock` after the socket's read timeout.
pub fn recv_all_with_fd(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<OwnedFd>> {
    let (mut filled, mut descriptor) = (0, None);
    while filled < buffer.len() {
        let (received, with) = recv_with_fd(&socket, &mut buffer[filled..])?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += received;
        descriptor = descriptor.or(with);
    }
    Ok(descriptor)
}

/// Sends as many of `bytes` as fit, with `descriptor` at the first byte. Returns the number of bytes sent.
///
/// # Errors
/// Error of the socket; `WouldBlock` if a non-blocking socket is full.
pub fn send_with_fd(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("no space for a descriptor in a message"));
    }
    let sent = retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(sent)
}

/// Sends as many of `bytes` as fit now, without waiting even on a blocking socket. Returns the number of
/// bytes sent.
///
/// Error of the socket; `WouldBlock` if nothing fits.
/// # Errors
/// The socket's error; `WouldBlock` if nothing fits.
pub fn send_at_once(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(retry_on_intr(|| send(&socket, bytes, flags))?)
}

/// Returns the memory that messages of this socket take which its peer has not read, in bytes.
///
/// # Errors
/// Error of the kernel: this is no socket.
pub fn unread_by_peer(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one integer, which is ours.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 {
        usize::try_from(bytes).map_err(io::Error::other)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits until a socket has bytes to read or its peer has hung up. A signal may end the wait earlier.
///
/// A thread that waits in a receive instead is also woken each time the peer reads bytes that it sent, since
/// that makes room for others.
pub fn await_bytes(socket: impl AsFd) {
    // Where this fails, the receive that follows waits.
    let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], None);
}

/// Receives into `buffer`. Returns the number of bytes (0 at the end) and a descriptor that came with them.
///
/// # Errors
/// Error of the socket; `WouldBlock` if a non-blocking socket has no bytes.
pub fn recv_with_fd(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    // The kernel drops descriptors that do not fit here. Alignment leaves room for a second one.
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let first = descriptors.next().and_then(|mut descriptors| descriptors.next());
    Ok((received.bytes, first))
}

/// Receives bytes into `buffer`. Returns their number (0 at the end). Bytes with descriptors stay unread.
///
/// # Errors
/// `Unsupported` before bytes with descriptors; `WouldBlock` if a non-blocking socket has no bytes; error of
/// the socket.
pub fn recv_without_fds(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    // Without space for descriptors the kernel reports them as cut off. A look leaves them where they are.
    let mut control = RecvAncillaryBuffer::default();
    let slices = &mut [IoSliceMut::new(buffer)];
    let ahead = retry_on_intr(|| recvmsg(&socket, slices, &mut control, RecvFlags::PEEK))?;
    if ahead.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    match buffer.get_mut(..ahead.bytes) {
        // Only this process reads, so these are the bytes that it saw.
        Some(seen) if !seen.is_empty() => Ok(retry_on_intr(|| rustix::io::read(&socket, &mut *seen))?),
        _ => Ok(0),
    }
}

/// Refuses descriptors from peers of the socket, and of connections that a listening socket accepts later.
///
/// Urgent bytes are then read in their place, so that [`recv_without_fds`] sees their descriptors. A read
/// ends before them.
///
/// # Errors
/// The kernel is older than Linux 6.16, so peers can send descriptors.
pub fn refuse_descriptors(socket: impl AsFd) -> io::Result<()> {
    /// Option of asm-generic/socket.h.
    const PASSRIGHTS: libc::c_int = 83;
    set_socket_oobinline(&socket, true)?;
    let (socket, no): (_, libc::c_int) = (socket.as_fd().as_raw_fd(), 0);
    let length = libc::socklen_t::try_from(size_of_val(&no)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes of `no`.
    let result =
        unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, PASSRIGHTS, (&raw const no).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use rustix::io::{FdFlags, fcntl_getfd};

    use super::*;
    use crate::page;

    #[test]
    fn a_page_travels_with_its_message() {
        let (daemon, client) = UnixStream::pair().unwrap();
        let (file, _page) = page::create().unwrap();
        assert_eq!(send_with_fd(&daemon, b"welcome", Some(file.as_fd())).unwrap(), 7);
        let mut buffer = [0; 16];
        let (read, descriptor) = recv_with_fd(&client, &mut buffer).unwrap();
        assert_eq!(&buffer[..read], b"welcome");
        let descriptor = descriptor.unwrap();
        assert!(fcntl_getfd(&descriptor).unwrap().contains(FdFlags::CLOEXEC));
        page::map(&descriptor).unwrap();
    }

    fn crowded(folder: &Path) -> (OwnedFd, std::path::PathBuf, UnixStream) {
        let path = folder.join("crowded.sock");
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let waiting = connect(&path, Duration::from_secs(5)).unwrap();
        (socket, path, waiting)
    }

    #[test]
    fn a_full_queue_of_connections_is_waited_for_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let (_socket, path, _waiting) = crowded(folder.path());
        let patience = Duration::from_millis(50);
        let began = Instant::now();
        let error = connect(&path, patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= patience);
    }

    #[test]
    fn a_socket_that_has_room_again_is_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, path, _waiting) = crowded(folder.path());
        let accepting = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let first = rustix::net::accept(&socket).unwrap();
            (first, rustix::net::accept(&socket).unwrap())
        });
        let stream = connect(&path, Duration::from_secs(60)).unwrap();
        assert_eq!(stream.write_timeout().unwrap(), Some(Duration::from_secs(60)));
        accepting.join().unwrap();
    }

    #[test]
    fn each_message_brings_its_own_descriptor() {
        let (a, b) = UnixStream::pair().unwrap();
        for byte in 0..3 {
            let (file, _page) = page::create().unwrap();
            send_all_with_fd(&a, &[byte; 16], Some(file.as_fd())).unwrap();
        }
        drop(a);
        for byte in 0..3 {
            let mut buffer = [9; 16];
            let descriptor = recv_all_with_fd(&b, &mut buffer).unwrap();
            assert_eq!(buffer, [byte; 16]);
            page::map(descriptor.unwrap()).unwrap();
        }
        let end = recv_all_with_fd(&b, &mut [0; 16]).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_connection_that_does_not_come_is_waited_for_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (patience, began) = (Duration::from_millis(30), Instant::now());
        let error = accept_within(&listener, patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= patience);
        let peer = connect(&path, Duration::from_secs(60)).unwrap();
        let accepted = accept_within(&listener, Duration::from_secs(60)).unwrap();
        send_all_with_fd(&peer, b"x", None).unwrap();
        assert_eq!(recv_with_fd(&accepted, &mut [0; 2]).unwrap().0, 1, "it waits for bytes");
    }

    #[test]
    fn a_socket_whose_peer_is_gone_is_told_from_others() {
        let (gone, a) = UnixStream::pair().unwrap();
        let (_quiet, b) = UnixStream::pair().unwrap();
        drop(gone);
        assert_eq!(await_any(&[a.as_fd(), b.as_fd()], None), [true, false]);
        assert_eq!(await_any(&[b.as_fd()], Some(Duration::from_millis(1))), [false]);
    }

    #[test]
    fn plain_bytes_come_without_a_descriptor() {
        let (a, b) = UnixStream::pair().unwrap();
        send_with_fd(&a, b"x", None).unwrap();
        drop(a);
        let mut buffer = [0; 16];
        assert_eq!(recv_with_fd(&b, &mut buffer).unwrap().0, 1);
        let (read, descriptor) = recv_with_fd(&b, &mut buffer).unwrap();
        assert_eq!((read, descriptor.is_none()), (0, true));
    }

    #[test]
    fn a_full_socket_takes_nothing_and_does_not_block() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut sent = 0;
        let error = loop {
            match send_at_once(&a, &[7; 4096]) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(a);
        let mut heard = 0;
        let mut buffer = [0; 4096];
        loop {
            match recv_with_fd(&b, &mut buffer).unwrap().0 {
                0 => break,
                bytes => heard += bytes,
            }
        }
        assert_eq!(heard, sent);
    }

    /// Number of times that this thread has gone to sleep.
    fn sleeps() -> libc::c_long {
        // SAFETY: it consists of integers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes into a structure of ours.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
        usage.ru_nvcsw
    }

    #[test]
    fn a_thread_that_awaits_bytes_sleeps_on_while_its_peer_reads() {
        let (a, b) = UnixStream::pair().unwrap();
        let (said, hears) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            send_at_once(&a, b"question").unwrap();
            // SAFETY: it has no arguments.
            said.send(unsafe { libc::gettid() }).unwrap();
            let before = sleeps();
            await_bytes(&a);
            sleeps() - before
        });
        let stat = format!("/proc/self/task/{}/stat", hears.recv().unwrap());
        let mut buffer = [0; 16];
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        assert_eq!(recv_with_fd(&b, &mut buffer).unwrap().0, 8);
        send_at_once(&b, b"answer").unwrap();
        assert!(waiting.join().unwrap() <= 1);
    }

    #[test]
    fn unexpected_descriptors_are_closed() {
        let (a, b) = UnixStream::pair().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let three = [theirs.as_fd(), theirs.as_fd(), theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&three)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
        let mut buffer = [0; 16];
        let (_, first) = recv_with_fd(&b, &mut buffer).unwrap();
        drop((first.unwrap(), theirs));
        // The other end reads the end of the stream only once every copy is closed.
        assert_eq!(recv_with_fd(&ours, &mut buffer).unwrap().0, 0);
    }

    #[test]
    fn bytes_with_descriptors_stay_unread() {
        let (a, b) = UnixStream::pair().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        set_socket_oobinline(&b, true).unwrap();
        send_with_fd(&a, b"plain", None).unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL | SendFlags::OOB).unwrap();
        drop(theirs);
        let mut buffer = [0; 16];
        let mut plain = 0;
        let error = loop {
            match recv_without_fds(&b, &mut buffer) {
                Ok(count) => plain += count,
                Err(error) => break error,
            }
        };
        assert!(plain <= 5);
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let kept = recv_with_fd(&ours, &mut buffer).unwrap_err();
        assert_eq!(kept.kind(), io::ErrorKind::WouldBlock, "the descriptor was closed");
    }

    #[test]
    fn a_socket_that_refuses_descriptors_makes_their_send_fail() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        if refuse_descriptors(&listener).is_err() {
            return;
        }
        let peer = connect(&path, Duration::from_secs(60)).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let error = send_with_fd(&peer, b"x", Some(peer.as_fd())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        send_with_fd(&peer, b"x", None).unwrap();
        assert_eq!(recv_without_fds(&accepted, &mut [0; 16]).unwrap(), 1);
    }

    #[test]
    fn messages_count_until_their_peer_has_read_them() {
        let (a, b) = UnixStream::pair().unwrap();
        assert_eq!(unread_by_peer(&a).unwrap(), 0);
        let (file, _page) = page::create().unwrap();
        (0..8).for_each(|_| send_all_with_fd(&a, b"x", Some(file.as_fd())).unwrap());
        let unread = unread_by_peer(&a).unwrap();
        assert!((8..=32 << 10).contains(&unread), "{unread}");
        (0..8).for_each(|_| assert_eq!(recv_with_fd(&b, &mut [0; 2]).unwrap().0, 1));
        assert_eq!(unread_by_peer(&a).unwrap(), 0);
        assert!(unread_by_peer(&file).is_err());
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_and_no_signal() {
        let (a, b) = UnixStream::pair().unwrap();
        b.shutdown(std::net::Shutdown::Both).unwrap();
        drop(b);
        let error = send_with_fd(&a, b"x", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
