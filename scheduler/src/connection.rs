//! One connection, from accept to end: frames in, frames out, and the peer's life, whichever ends first.
//!
//! ```text
//!   socket ──▶ hello (5 s) ──▶ read: header, limit, body, decode ──▶ Input ──▶ shell
//!   socket ◀── write ◀── queue of 64 frames ◀── Outbox ◀──────────────────────── shell
//!   pidfd ──▶ dead
//! ```
//!
//! Nothing here is trusted and nothing here can stall the shell: the way in waits when the shell is busy,
//! and a peer that does not read fills its own queue, is told nothing more, and is closed. The page keeps
//! the truth for it.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{self, CodecError, HEADER, Message};
use gpushare_proto::tenant::{Failure, FailureCode, Hello, MAGIC, PROTOCOL, TenantReply, TenantRequest};
use gpushare_sys::socket::send_with_fd;
use tokio::io::{AsyncReadExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::identity::{self, PeerProcess};
use crate::input::{ConnectionId, Input, Place};

/// How long a peer may take to say who it is, and a last message may take to go out.
const PATIENCE: Duration = Duration::from_secs(5);
/// Frames that wait for a peer that does not read, beyond what the kernel buffers.
const QUEUE: usize = 64;
/// Read at once: most frames are a few bytes, and each system call is a part of what a turn costs.
const AHEAD: usize = 1024;

/// The way in, from which a short frame comes with one system call.
type Reader = BufReader<OwnedReadHalf>;

/// One of the two kinds of connection.
pub(crate) trait Dialect: Send + 'static {
    type Request: Message + Send;
    type Reply: Message + Send;
    const PLACE: Place;

    fn hello(request: Self::Request) -> Option<Hello>;
    fn input(connection: ConnectionId, request: Self::Request) -> Input;
    fn failure(failure: Failure) -> Self::Reply;

    /// Whether a message that means nothing on this socket would mean something to an administrator.
    fn is_administration(_body: &[u8]) -> bool {
        false
    }
}

/// The tenant socket's.
pub(crate) struct Tenant;
/// The administrator's.
pub(crate) struct Admin;

impl Dialect for Tenant {
    type Request = TenantRequest;
    type Reply = TenantReply;
    const PLACE: Place = Place::Tenant;

    fn hello(request: TenantRequest) -> Option<Hello> {
        match request {
            TenantRequest::Hello(hello) => Some(hello),
            _ => None,
        }
    }
    fn input(connection: ConnectionId, request: TenantRequest) -> Input {
        Input::Tenant { connection, request }
    }
    fn failure(failure: Failure) -> TenantReply {
        TenantReply::Error(failure)
    }
    fn is_administration(body: &[u8]) -> bool {
        codec::decode::<AdminRequest>(body).is_ok()
    }
}

impl Dialect for Admin {
    type Request = AdminRequest;
    type Reply = AdminReply;
    const PLACE: Place = Place::Admin;

    fn hello(request: AdminRequest) -> Option<Hello> {
        match request {
            AdminRequest::Hello(hello) => Some(hello),
            _ => None,
        }
    }
    fn input(connection: ConnectionId, request: AdminRequest) -> Input {
        Input::Admin { connection, request }
    }
    fn failure(failure: Failure) -> AdminReply {
        AdminReply::Error(failure)
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("the peer hung up")]
    HangUp,
    #[error("the peer is dead")]
    Dead,
    #[error("it is of no more use")]
    Finished,
    #[error("the peer hung up in the middle of a message")]
    Cut,
    #[error("the peer did not say within {PATIENCE:?} who it is")]
    Silent,
    #[error("the peer does not speak gpushare")]
    Foreign,
    #[error("the peer asks for administration on the tenants' socket, where nobody is an administrator")]
    Administration,
    #[error("the peer speaks protocol {0}, this daemon {PROTOCOL}")]
    Protocol(u16),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("the socket failed: {0}")]
    Socket(io::Error),
}

impl End {
    /// Whether a well-behaved peer would have ended it like this.
    pub(crate) fn is_usual(&self) -> bool {
        matches!(self, Self::HangUp | Self::Dead | Self::Finished)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::HangUp,
            _ => Self::Socket(error),
        }
    }
}

/// A frame on its way out.
#[derive(Debug)]
struct Outgoing {
    frame: Vec<u8>,
    descriptor: Option<OwnedFd>,
    last: bool,
}

impl Outgoing {
    fn of<M: Message>(message: &M) -> Result<Self, Unsent> {
        Ok(Self {
            frame: codec::encode(message).map_err(|_| Unsent::TooLong)?,
            descriptor: None,
            last: false,
        })
    }
}

/// The shell's end of a connection. Dropping it closes the connection at once.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<Outgoing>,
    /// What waits for the store's word about an act, with its number, and what comes after that.
    held: VecDeque<(Option<u64>, Outgoing)>,
    _open: oneshot::Sender<Infallible>,
}

/// Why a message does not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsent {
    #[error("it does not read")]
    Full,
    #[error("what it asked for is longer than a message may be")]
    TooLong,
}

impl Outbox {
    pub(crate) fn send<M: Message>(&mut self, message: &M) -> Result<(), Unsent> {
        self.push(message, None, false)
    }

    pub(crate) fn send_with<M: Message>(&mut self, message: &M, descriptor: OwnedFd) -> Result<(), Unsent> {
        self.push(message, Some(descriptor), false)
    }

    /// The connection ends when this is out.
    pub(crate) fn send_last<M: Message>(&mut self, message: &M) -> Result<(), Unsent> {
        self.push(message, None, true)
    }

    /// Sends once [`Self::release`] names this act, and all that is sent later after that.
    pub(crate) fn send_after<M: Message>(&mut self, act: u64, message: &M) -> Result<(), Unsent> {
        let outgoing = Outgoing::of(message)?;
        self.hold(Some(act), outgoing)
    }

    /// These acts are decided; `instead` is what is said of those that failed.
    pub(crate) fn release<M: Message>(
        &mut self,
        through: u64,
        instead: &BTreeMap<u64, M>,
    ) -> Result<(), Unsent> {
        while let Some((act, outgoing)) = self.held.pop_front() {
            match act {
                Some(act) if act > through => {
                    self.held.push_front((Some(act), outgoing));
                    break;
                }
                Some(act) if instead.contains_key(&act) => {
                    self.queue_up(Outgoing::of(&instead[&act])?)?;
                }
                _ => self.queue_up(outgoing)?,
            }
        }
        Ok(())
    }

    /// Whether the peer lags so much that it is told only what it cannot do without.
    pub(crate) fn is_behind(&self) -> bool {
        self.queue.capacity() < QUEUE / 2
    }

    fn push<M: Message>(
        &mut self,
        message: &M,
        descriptor: Option<OwnedFd>,
        last: bool,
    ) -> Result<(), Unsent> {
        let outgoing = Outgoing { descriptor, last, ..Outgoing::of(message)? };
        match self.held.is_empty() {
            true => self.queue_up(outgoing),
            false => self.hold(None, outgoing),
        }
    }

    fn hold(&mut self, act: Option<u64>, outgoing: Outgoing) -> Result<(), Unsent> {
        if self.held.len() >= QUEUE {
            return Err(Unsent::Full);
        }
        self.held.push_back((act, outgoing));
        Ok(())
    }

    fn queue_up(&self, outgoing: Outgoing) -> Result<(), Unsent> {
        match self.queue.try_send(outgoing) {
            // A connection that has just ended says so itself.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unsent::Full),
        }
    }
}

/// Serves one connection until it ends. The shell hears of it from its hello to its end.
pub(crate) async fn serve<D: Dialect>(
    stream: UnixStream,
    connection: ConnectionId,
    peer: PeerProcess,
    inputs: mpsc::Sender<Input>,
) -> End {
    let (mut reader, writer) = split(stream);
    let role = match timeout(PATIENCE, hello::<D>(&mut reader)).await {
        Ok(Ok(hello)) => hello.role,
        Ok(Err(end)) => return refuse::<D>(&writer, end).await,
        Err(_) => return End::Silent,
    };
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let (open, closed) = oneshot::channel();
    let (pidfd, process) = (peer.pidfd.clone(), (peer.pid, peer.uid));
    let opened = Input::Opened {
        connection,
        place: D::PLACE,
        peer,
        role,
        outbox: Outbox { queue, held: VecDeque::new(), _open: open },
    };
    if inputs.send(opened).await.is_err() {
        return End::Finished;
    }
    let end = tokio::select! {
        end = read::<D>(&mut reader, connection, &inputs) => end,
        end = write(&writer, outgoing) => end,
        () = identity::death(pidfd) => End::Dead,
        _ = closed => End::Finished,
    };
    // Nobody listens only when the daemon ends.
    if matches!(end, End::Administration) {
        let why = end.to_string();
        let _ = inputs.send(Input::Trespassed { process, why }).await;
    }
    let _ = inputs.send(Input::Closed { connection }).await;
    end
}

fn split(stream: UnixStream) -> (Reader, OwnedWriteHalf) {
    let (reader, writer) = stream.into_split();
    (BufReader::with_capacity(AHEAD, reader), writer)
}

/// Answers whatever a peer says first with why it is not served.
pub(crate) async fn turn_away<D: Dialect>(stream: UnixStream, failure: Failure) {
    let (mut reader, writer) = split(stream);
    let _ = timeout(PATIENCE, hello::<D>(&mut reader)).await;
    say::<D>(&writer, failure).await;
}

/// The first message.
async fn hello<D: Dialect>(reader: &mut Reader) -> Result<Hello, End> {
    let body = frame::<D::Request>(reader).await?;
    match codec::claimed_protocol(&body) {
        None => return Err(End::Foreign),
        Some(PROTOCOL) => {}
        Some(other) => return Err(End::Protocol(other)),
    }
    D::hello(codec::decode(&body)?)
        .filter(|hello| hello.magic == MAGIC)
        .ok_or(End::Foreign)
}

async fn refuse<D: Dialect>(writer: &OwnedWriteHalf, end: End) -> End {
    let failure = match &end {
        End::Protocol(theirs) => Some((FailureCode::Protocol, codec::protocol_mismatch(*theirs))),
        End::Codec(cause) => Some((FailureCode::BadRequest, cause.to_string())),
        End::Foreign => {
            Some((FailureCode::BadRequest, "the first message must be a hello of gpushare".to_owned()))
        }
        _ => None,
    };
    if let Some((code, message)) = failure {
        say::<D>(writer, Failure { code, message }).await;
    }
    end
}

async fn say<D: Dialect>(writer: &OwnedWriteHalf, failure: Failure) {
    if let Ok(frame) = codec::encode(&D::failure(failure)) {
        // It was of no use anyway: whether the peer still reads it is its own affair.
        let _ = timeout(PATIENCE, send(writer, &frame, None)).await;
    }
}

async fn read<D: Dialect>(
    reader: &mut Reader,
    connection: ConnectionId,
    inputs: &mpsc::Sender<Input>,
) -> End {
    loop {
        let body = match frame::<D::Request>(reader).await {
            Ok(body) => body,
            Err(end) => return end,
        };
        match codec::decode(&body) {
            Ok(request) => {
                if inputs.send(D::input(connection, request)).await.is_err() {
                    return End::Finished;
                }
            }
            Err(_) if D::is_administration(&body) => return End::Administration,
            Err(error) => return error.into(),
        }
    }
}

/// The next frame's body. Its length is checked before anything is allocated for it.
async fn frame<M: Message>(reader: &mut Reader) -> Result<Vec<u8>, End> {
    let mut header = [0; HEADER];
    let first = reader.read(&mut header).await?;
    if first == 0 {
        return Err(End::HangUp);
    }
    fill(reader, &mut header[first..]).await?;
    let mut body = vec![0; codec::body_length::<M>(header)?];
    fill(reader, &mut body).await?;
    Ok(body)
}

async fn fill(reader: &mut Reader, rest: &mut [u8]) -> Result<(), End> {
    match reader.read_exact(rest).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(End::Cut),
        Err(error) => Err(error.into()),
    }
}

async fn write(writer: &OwnedWriteHalf, mut queue: mpsc::Receiver<Outgoing>) -> End {
    while let Some(next) = queue.recv().await {
        let sent = send(writer, &next.frame, next.descriptor);
        if next.last {
            let _ = timeout(PATIENCE, sent).await;
            return End::Finished;
        }
        if let Err(error) = sent.await {
            return error.into();
        }
    }
    End::Finished
}

async fn send(writer: &OwnedWriteHalf, mut frame: &[u8], mut descriptor: Option<OwnedFd>) -> io::Result<()> {
    let socket: &UnixStream = writer.as_ref();
    while !frame.is_empty() {
        let with = descriptor.as_ref().map(AsFd::as_fd);
        let sent = socket
            .async_io(Interest::WRITABLE, || send_with_fd(socket, frame, with))
            .await?;
        descriptor = None;
        frame = &frame[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpushare_proto::tenant::GpuInfo;
    use gpushare_proto::{Bytes, GpuUuid};

    use super::*;

    fn outbox() -> (Outbox, mpsc::Receiver<Outgoing>) {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        let (_open, _) = oneshot::channel();
        let held = VecDeque::new();
        (Outbox { queue, held, _open }, outgoing)
    }

    #[test]
    fn what_waits_for_the_store_goes_out_in_order_and_what_failed_is_replaced() {
        let (mut outbox, mut outgoing) = outbox();
        let said = |protocol| TenantReply::Ready { protocol };
        assert_eq!(outbox.send_after(1, &said(1)), Ok(()));
        assert_eq!(outbox.send(&said(2)), Ok(()));
        assert_eq!(outbox.send_after(2, &said(3)), Ok(()));
        assert_eq!(outbox.send(&said(4)), Ok(()));
        assert!(outgoing.try_recv().is_err());
        let mut heard = || {
            let frame = outgoing.try_recv().ok()?.frame;
            codec::decode::<TenantReply>(&frame[HEADER..]).ok()
        };
        assert_eq!(outbox.release::<TenantReply>(1, &BTreeMap::new()), Ok(()));
        assert_eq!((heard(), heard(), heard()), (Some(said(1)), Some(said(2)), None));
        assert_eq!(outbox.release(2, &BTreeMap::from([(2, said(9))])), Ok(()));
        assert_eq!((heard(), heard(), heard()), (Some(said(9)), Some(said(4)), None));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_blamed_on_the_peers_reading() {
        let (mut outbox, _outgoing) = outbox();
        let long = TenantRequest::Attach(GpuInfo {
            uuid: GpuUuid::gpu([1; 16]),
            name: "x".repeat(32 << 20),
            total: Bytes::gib(1),
        });
        assert_eq!(outbox.send(&long), Err(Unsent::TooLong));
        let ready = TenantReply::Ready { protocol: PROTOCOL };
        for _ in 0..QUEUE {
            assert_eq!(outbox.send(&ready), Ok(()));
        }
        assert_eq!(outbox.send(&ready), Err(Unsent::Full));
    }
}
