//! One connection to the daemon: whole messages in and out.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gpushare_proto::codec;
use gpushare_proto::tenant::{Hello, Role, TenantReply, TenantRequest};
use gpushare_sys::{fd, peer, socket};

/// Longest time that a daemon may take to answer the first message ("hello").
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for which a full socket may block a thread of the application.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Connection to the daemon, with a buffer for received bytes.
#[derive(Debug)]
pub struct Connection {
    pub(super) stream: UnixStream,
    buffer: Vec<u8>,
    file: Option<OwnedFd>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let stream = UnixStream::from(fd::move_high(stream.into()));
        stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { stream, buffer: Vec::new(), file: None })
    }

    /// Says hello and waits for the answer, which may bring the file of a shared page.
    pub(super) fn hello(&mut self, role: Role) -> io::Result<(TenantReply, Option<OwnedFd>)> {
        send(&self.stream, &TenantRequest::Hello(Hello::new(role)))?;
        let reply = self.receive_in_time()?;
        self.stream.set_read_timeout(None)?;
        Ok((reply, self.file.take()))
    }

    /// Asks a question and waits for the answer that `is_answer` knows, for at most `span`. Returns the file
    /// that came with it, too.
    pub(crate) fn ask(
        &mut self,
        question: &TenantRequest,
        span: Duration,
        is_answer: impl Fn(&TenantReply) -> bool,
    ) -> io::Result<(TenantReply, Option<OwnedFd>)> {
        send(&self.stream, question)?;
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if let Some(reply) = self.receive_within(left)?.filter(|reply| is_answer(reply)) {
                return Ok((reply, self.file.take()));
            }
        }
    }

    /// Sends a message that has no answer, or nothing if sending would block.
    pub(crate) fn tell_at_once(&self, request: &TenantRequest) -> io::Result<()> {
        send_at_once(&self.stream, request)
    }

    /// Returns a second handle on the socket, for sending.
    pub fn sender(&self) -> io::Result<UnixStream> {
        Ok(UnixStream::from(fd::move_high(self.stream.try_clone()?.into())))
    }

    /// Waits for the daemon's next message, for at most `span`; returns `None` if none came.
    pub(crate) fn receive_within(&mut self, span: Duration) -> io::Result<Option<TenantReply>> {
        self.stream.set_read_timeout(Some(span))?;
        let received = self.receive_in_time();
        self.stream.set_read_timeout(None)?;
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    /// Waits for the daemon's next message, however long that takes.
    pub fn receive(&mut self) -> io::Result<TenantReply> {
        self.receive_after(|stream| socket::await_bytes(stream))
    }

    /// Waits for the daemon's next message, for at most the read timeout of the socket.
    pub(super) fn receive_in_time(&mut self) -> io::Result<TenantReply> {
        self.receive_after(|_| ())
    }

    /// Returns the daemon's next message. Calls `wait` before each receive.
    fn receive_after(&mut self, wait: impl Fn(&UnixStream)) -> io::Result<TenantReply> {
        loop {
            if let Some((reply, length)) = codec::split(&self.buffer).map_err(io::Error::other)? {
                self.buffer.drain(..length);
                return Ok(reply);
            }
            wait(&self.stream);
            let mut chunk = [0; 4096];
            let (length, file) = socket::recv_with_fd(&self.stream, &mut chunk)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&chunk[..length]);
            self.file = file.map(fd::move_high).or(self.file.take());
        }
    }

    /// Returns whether the daemon has closed the connection.
    pub(crate) fn has_ended(&self) -> bool {
        peer::has_hung_up(&self.stream)
    }

    /// Returns the socket's descriptor number, so that the child of a fork can close the socket.
    pub fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Sends one whole message, or else shuts the connection down, since a part of a message would garble the
/// next one. The reading side sees the end and connects anew.
pub(super) fn send(stream: &UnixStream, request: &TenantRequest) -> io::Result<()> {
    let frame = codec::encode(request).map_err(io::Error::other)?;
    send_all(stream, &frame).inspect_err(|_| {
        // Fails only where the connection is closed already.
        let _ = stream.shutdown(Shutdown::Both);
    })
}

/// Sends one whole message, or nothing if sending would block.
pub(super) fn send_at_once(stream: &UnixStream, request: &TenantRequest) -> io::Result<()> {
    let frame = codec::encode(request).map_err(io::Error::other)?;
    let sent = socket::send_at_once(stream, &frame)?;
    // If a part was sent, the rest must follow.
    send_all(stream, &frame[sent..])
}

fn send_all(stream: &UnixStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        // Not `write`: a hang-up must not raise SIGPIPE in the host.
        let sent = socket::send_with_fd(stream, rest, None)?;
        rest = &rest[sent..];
    }
    Ok(())
}
