//! Socket of a peer that is not trusted, which never blocks the daemon's task.
//!
//! A peer can attach descriptors to its bytes, and the close of the last copy of a descriptor may block: a
//! TCP socket with unsent data (`SO_LINGER`), or a file of a file system that the peer serves. A plain read
//! closes the descriptors that came with the bytes, and the close of a socket those in its unread bytes.
//!
//! ```text
//!   Linux 6.16        the socket refuses descriptors: the peer's send fails
//!   before, or bytes  read: descriptors ahead? ── the connection ends unread
//!   from before that  end:  unread bytes?      ── closed by a thread that may block
//! ```

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, ready};
use std::thread;

use gpushare_sys::socket::{
    recv_without_fds, refuse_descriptors, send_at_once, send_with_fd, unread_by_peer,
};
use rustix::io::ioctl_fionread;
use rustix::net::{Shutdown as Ends, shutdown};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::limit::Mark;

/// Connected socket of a peer. Dropping it closes the connection at once, and never blocks.
#[derive(Debug)]
pub(super) struct PeerSocket {
    /// The two directions of the socket, until it is dropped.
    halves: Option<(OwnedReadHalf, Arc<PeerWriter>)>,
    /// Place in the count of connections, until the socket is closed.
    mark: Option<Mark>,
    closer: Closer,
}

impl PeerSocket {
    pub(super) fn new(stream: UnixStream, closer: &Closer) -> Self {
        let (reader, writer) = stream.into_split();
        let writer = Arc::new(PeerWriter { stream: writer, busy: AtomicBool::new(false) });
        Self { halves: Some((reader, writer)), mark: None, closer: closer.clone() }
    }

    /// Keeps the connection's place in the count until the socket is closed.
    pub(super) fn count_as(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    pub(super) fn stream(&self) -> io::Result<&UnixStream> {
        let halves = self.halves.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(halves.0.as_ref())
    }

    /// Refuses descriptors from now on where the kernel can, and returns the two directions of the
    /// connection.
    pub(super) fn split(&mut self) -> io::Result<(PeerReader<'_>, &Arc<PeerWriter>)> {
        let (reader, writer) = self.halves.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let stream: &UnixStream = (*reader).as_ref();
        let unrefused = match refuse_descriptors(stream) {
            // Bytes that arrived earlier may have come with descriptors. So may one message that arrives
            // after the count; a look at its first byte shows them.
            Ok(()) => ioctl_fionread(stream)?.saturating_add(1),
            // Kernels before Linux 6.16 cannot.
            Err(_) => u64::MAX,
        };
        Ok((PeerReader { stream: reader, unrefused }, writer))
    }
}

/// Reader of a peer's bytes. Fails with `Unsupported` before bytes with descriptors.
#[derive(Debug)]
pub(super) struct PeerReader<'a> {
    stream: &'a mut OwnedReadHalf,
    /// Number of bytes from now on that may have come with descriptors. `u64::MAX` is never used up.
    unrefused: u64,
}

impl PeerReader<'_> {
    fn poll_read_without_descriptors(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream: &UnixStream = (*self.stream).as_ref();
        loop {
            ready!(stream.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || recv_without_fds(stream, unfilled)) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                Err(cause) => return Poll::Ready(Err(cause)),
            }
        }
    }
}

impl AsyncRead for PeerReader<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unrefused == 0 {
            return Pin::new(&mut *self.stream).poll_read(context, buffer);
        }
        let before = buffer.filled().len();
        ready!(self.poll_read_without_descriptors(context, buffer))?;
        let count = buffer.filled().len() - before;
        self.unrefused = self.unrefused.saturating_sub(count as u64);
        Poll::Ready(Ok(()))
    }
}

/// Descriptor that goes with a message. It is dropped once the message is sent, or the connection has ended.
pub(crate) trait Passed: AsFd + Debug + Send + Sync {}

impl<T: AsFd + Debug + Send + Sync> Passed for T {}

/// Writer of bytes to a peer.
#[derive(Debug)]
pub(super) struct PeerWriter {
    stream: OwnedWriteHalf,
    /// Whether a message is being sent, so that another one would come in its midst.
    busy: AtomicBool,
}

impl PeerWriter {
    /// Sends all bytes, with a descriptor at the first one.
    pub(super) async fn send(&self, mut bytes: &[u8], descriptor: Option<Box<dyn Passed>>) -> io::Result<()> {
        self.busy.store(true, Ordering::Relaxed);
        let mut descriptor = descriptor;
        while !bytes.is_empty() {
            let sent = self.send_some(bytes, descriptor.as_ref().map(|passed| passed.as_fd())).await?;
            descriptor = None;
            bytes = &bytes[sent..];
        }
        self.busy.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Sends as many bytes as fit once some do, with a descriptor at the first byte.
    async fn send_some(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        let stream: &UnixStream = self.stream.as_ref();
        stream
            .async_io(Interest::WRITABLE, || send_with_fd(stream, bytes, descriptor))
            .await
    }

    /// Returns the memory of the messages that the peer has not read, in bytes. An error counts as none.
    pub(super) fn unread(&self) -> usize {
        let stream: &UnixStream = self.stream.as_ref();
        unread_by_peer(stream).unwrap_or(0)
    }

    /// Sends as many bytes as fit now, unless another message is being sent. Returns the number of bytes
    /// sent. An error counts as none: the next [`Self::send`] reports it.
    pub(super) fn send_now(&self, bytes: &[u8]) -> usize {
        let stream: &UnixStream = self.stream.as_ref();
        match self.busy.load(Ordering::Relaxed) {
            true => 0,
            false => send_at_once(stream, bytes).unwrap_or(0),
        }
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some((reader, writer)) = self.halves.take() else { return };
        // An outbox has the writer only while it sends.
        let writer = Arc::into_inner(writer).map(|writer| writer.stream);
        let stream = writer.and_then(|writer| reader.reunite(writer).ok()?.into_std().ok());
        let Some(stream) = stream else { return };
        // No bytes follow from here on. A failure means that the peer closed the connection.
        let _ = shutdown(&stream, Ends::Both);
        if ioctl_fionread(&stream) != Ok(0) {
            // The thread lasts as long as the daemon.
            let _ = self.closer.0.send((stream, self.mark.take()));
        }
    }
}

/// Sender to the thread that closes sockets with unread bytes.
///
/// Only peers that misbehave leave unread bytes, so only such peers wait for one that blocks the thread.
#[derive(Clone, Debug)]
pub(crate) struct Closer(Sender<(BlockingStream, Option<Mark>)>);

impl Closer {
    /// Starts the thread, which ends with the last sender.
    pub(crate) fn start() -> io::Result<Self> {
        let (closer, closing): (_, Receiver<(BlockingStream, Option<Mark>)>) = channel();
        thread::Builder::new()
            .name("closer".to_owned())
            .spawn(move || closing.into_iter().for_each(drop))?;
        Ok(Self(closer))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::set_socket_linger;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Sends bytes with a descriptor whose last close takes a minute. Returns what ends that minute.
    fn send_slow(peer: &BlockingStream) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        slow.set_nonblocking(true).unwrap();
        while slow.write(&[0; 65536]).is_ok() {}
        slow.set_nonblocking(false).unwrap();
        set_socket_linger(&slow, Some(Duration::from_secs(60))).unwrap();
        send_with_fd(peer, b"hello", Some(slow.as_fd())).unwrap();
        reader
    }

    /// Returns a socket that does not refuse descriptors yet, and its peer.
    fn connected(closer: &Closer) -> (PeerSocket, BlockingStream) {
        let (ours, theirs) = BlockingStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = UnixStream::from_std(ours).unwrap();
        (PeerSocket::new(stream, closer), theirs)
    }

    #[tokio::test]
    async fn a_descriptor_that_is_slow_to_close_blocks_neither_read_nor_end() {
        let closer = Closer::start().unwrap();
        let began = Instant::now();
        let (mut read, peer) = connected(&closer);
        let first = send_slow(&peer);
        let error = read.split().unwrap().0.read(&mut [0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        drop(read);
        let (unread, mut other) = connected(&closer);
        let second = send_slow(&other);
        drop(unread);
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!(other.read(&mut [0; 16]).unwrap(), 0, "the peer learns it at once");
        drop((first, second));
    }

    #[tokio::test]
    async fn a_descriptor_behind_bytes_that_arrived_earlier_stays_unread() {
        let (mut socket, mut peer) = connected(&Closer::start().unwrap());
        peer.write_all(b"hello").unwrap();
        let end = send_slow(&peer);
        let (mut reader, _) = socket.split().unwrap();
        let mut read = 0;
        let error = loop {
            match reader.read(&mut [0; 1]).await {
                Ok(count) => read += count,
                Err(error) => break error,
            }
        };
        assert!(read <= 5, "{read}");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        drop(end);
    }

    #[tokio::test]
    async fn bytes_without_descriptors_are_read() {
        let (mut socket, mut peer) = connected(&Closer::start().unwrap());
        let (mut reader, writer) = socket.split().unwrap();
        peer.write_all(b"hello").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(reader.read(&mut buffer).await.unwrap(), 5);
        writer.send(b"welcome", None).await.unwrap();
        assert_eq!(peer.read(&mut buffer).unwrap(), 7);
        peer.write_all(b"again").unwrap();
        assert_eq!(reader.read(&mut buffer).await.unwrap(), 5);
        drop(peer);
        assert_eq!(reader.read(&mut buffer).await.unwrap(), 0);
    }
}
