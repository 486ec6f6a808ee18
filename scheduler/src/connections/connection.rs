//! One connection to a process or tool, from its hello to its end.
//!
//! ```text
//!   socket ─▶ hello (5 s) ─▶ read: header, limit, body, decode ─▶ inbox, fair ─▶ engine
//!   socket ◀─ write ◀─ queue of 64 frames ◀─ Outbox ◀─────────────────────────────── engine
//!          ◀──── urgent ones at once ──────────┘
//!   pidfd ──▶ dead
//! ```
//!
//! A peer is not trusted and cannot stall the engine. Its next message is read when the last one is
//! handled. A peer that does not read fills its own queue, and its connection is closed. Its shared page
//! has the gate word.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{self, CodecError, HEADER, Message};
use gpushare_proto::tenant::{
    Failure, FailureCode, Hello, MAGIC, PROTOCOL, Role, TenantReply, TenantRequest,
};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::inbox::{Inbox, Newcomer, Sender};
use super::outbox::{Outbox, Outgoing};
use super::socket::{PeerReader, PeerSocket, PeerWriter};
use super::{ConnectionEvent, ConnectionId, Socket};
use crate::identity::{self, Genealogist, PeerProcess};

/// Longest wait for a peer's hello, and for the sending of the last message.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of bytes read ahead by one system call. Most frames have only a few bytes.
const READ_AHEAD: usize = 1024;

type Reader<'a> = BufReader<PeerReader<'a>>;

/// Set of messages of one of the two sockets (tenant's or administrator's).
pub(crate) trait Dialect: Send + 'static {
    type Request: Message + Send;
    type Reply: Message + Send;
    const SOCKET: Socket;

    fn hello(request: Self::Request) -> Option<Hello>;
    /// Returns whether the answer to a request depends on the lineage of the peer's process.
    fn needs_lineage(request: &Self::Request) -> bool;
    fn event(connection: ConnectionId, request: Self::Request) -> ConnectionEvent;
    fn failure(failure: Failure) -> Self::Reply;

    /// Returns whether bytes that this socket does not understand are a request of an administrator.
    fn is_administration(body: &[u8]) -> bool {
        Self::SOCKET == Socket::Tenant && codec::decode::<AdminRequest>(body).is_ok()
    }
}

/// Defines the set of messages of one socket.
macro_rules! dialect {
    ($name:ident: $request:ident, $reply:ident $(, $lineage:pat)?) => {
        pub(crate) struct $name;

        impl Dialect for $name {
            type Request = $request;
            type Reply = $reply;
            const SOCKET: Socket = Socket::$name;

            fn hello(request: $request) -> Option<Hello> {
                match request {
                    $request::Hello(hello) => Some(hello),
                    _ => None,
                }
            }

            fn needs_lineage(request: &$request) -> bool {
                match request {
                    $($lineage => true,)?
                    _ => false,
                }
            }

            fn event(connection: ConnectionId, request: $request) -> ConnectionEvent {
                ConnectionEvent::$name { connection, request }
            }

            fn failure(failure: Failure) -> $reply {
                $reply::Error(failure)
            }
        }
    };
}

dialect!(
    Tenant: TenantRequest, TenantReply,
    TenantRequest::OwnSession
        | TenantRequest::OwnWait
        | TenantRequest::Resize(_)
        | TenantRequest::SessionMemory(None)
        | TenantRequest::UtilizationParts(None)
);
dialect!(Admin: AdminRequest, AdminReply);

#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("the peer hung up")]
    HangUp,
    #[error("the peer is dead")]
    Dead,
    #[error("the daemon closed it")]
    Finished,
    #[error("the peer hung up in the middle of a message")]
    Cut,
    #[error("the peer sent no hello within {PATIENCE:?}")]
    Silent,
    #[error("the peer sent descriptors, and the daemon takes none")]
    Descriptors,
    #[error("the peer does not speak gpushare")]
    Foreign,
    #[error("the peer asks for administration on the tenants' socket, which serves no administrator")]
    Administration,
    #[error("the peer speaks protocol {0}, this daemon {PROTOCOL}")]
    Protocol(u16),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("the socket failed: {0}")]
    Socket(io::Error),
}

impl End {
    /// Returns whether a well-behaved peer may end a connection in this way.
    pub(crate) fn is_usual(&self) -> bool {
        matches!(self, Self::HangUp | Self::Dead | Self::Finished)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::HangUp,
            io::ErrorKind::Unsupported => Self::Descriptors,
            _ => Self::Socket(error),
        }
    }
}

/// Serves one connection until its end. Reports the hello, the messages and the end as events to the engine.
pub(super) async fn serve<D: Dialect>(
    mut socket: PeerSocket,
    (connection, newcomer): (ConnectionId, Newcomer),
    peer: PeerProcess,
    inbox: &Arc<Inbox>,
    genealogist: &Genealogist,
) -> End {
    let (mut reader, writer) = match split(&mut socket) {
        Ok(halves) => halves,
        Err(cause) => return cause.into(),
    };
    let hello = match timeout(PATIENCE, hello::<D>(&mut reader)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(end)) => return refuse::<D>(writer, end).await,
        Err(_) => return End::Silent,
    };
    let role = hello.role;
    let has_no_token = matches!(role, Role::Client { token: None, .. } | Role::Remapping { token: None, .. });
    if D::SOCKET == Socket::Tenant && has_no_token {
        genealogist.learn(connection.0, &peer).await;
    }
    let (outbox, outgoing, closed) = Outbox::of(writer);
    let (pidfd, process) = (peer.pidfd.clone(), (peer.pid, peer.uid));
    let events = inbox.sender(peer.principal.clone(), connection);
    let known = peer.clone();
    events
        .send(ConnectionEvent::Opened { connection, socket: D::SOCKET, peer, role, outbox })
        .await;
    drop(newcomer);
    let end = tokio::select! {
        end = read::<D>(&mut reader, (connection, &known), &events, genealogist) => end,
        end = write(writer, outgoing) => end,
        () = identity::death(pidfd) => End::Dead,
        _ = closed => End::Finished,
    };
    if matches!(end, End::Administration) {
        let why = end.to_string();
        events.add(ConnectionEvent::Trespassed { process, why });
    }
    events.add(ConnectionEvent::Closed { connection });
    end
}

fn split(socket: &mut PeerSocket) -> io::Result<(Reader<'_>, &Arc<PeerWriter>)> {
    let (reader, writer) = socket.split()?;
    Ok((BufReader::with_capacity(READ_AHEAD, reader), writer))
}

/// Reads the first message of a peer, whatever it is, and answers with a failure.
pub(super) async fn turn_away<D: Dialect>(mut socket: PeerSocket, failure: Failure) {
    let Ok((mut reader, writer)) = split(&mut socket) else {
        return;
    };
    let _ = timeout(PATIENCE, hello::<D>(&mut reader)).await;
    send_failure::<D>(writer, failure).await;
}

/// Reads the first message of a connection, which must be a hello of this protocol version.
async fn hello<D: Dialect>(reader: &mut Reader<'_>) -> Result<Hello, End> {
    let body = frame::<D::Request>(reader).await?;
    match codec::claimed_protocol(&body) {
        None => return Err(End::Foreign),
        Some(PROTOCOL) => {}
        Some(other) => return Err(End::Protocol(other)),
    }
    let hello = D::hello(codec::decode(&body)?);
    hello.filter(|hello| hello.magic == MAGIC).ok_or(End::Foreign)
}

async fn refuse<D: Dialect>(writer: &PeerWriter, end: End) -> End {
    let (code, message) = match &end {
        End::Protocol(theirs) => (FailureCode::Protocol, codec::protocol_mismatch(*theirs)),
        End::Codec(cause) => (FailureCode::BadRequest, cause.to_string()),
        End::Foreign => (FailureCode::BadRequest, "the first message must be a hello of gpushare".to_owned()),
        _ => return end,
    };
    send_failure::<D>(writer, Failure { code, message }).await;
    end
}

async fn send_failure<D: Dialect>(writer: &PeerWriter, failure: Failure) {
    if let Ok(frame) = codec::encode(&D::failure(failure)) {
        // Best effort: the connection ends in any case.
        let _ = timeout(PATIENCE, writer.send(&frame, None)).await;
    }
}

async fn read<D: Dialect>(
    reader: &mut Reader<'_>,
    (connection, peer): (ConnectionId, &PeerProcess),
    events: &Sender,
    genealogist: &Genealogist,
) -> End {
    loop {
        let body = match frame::<D::Request>(reader).await {
            Ok(body) => body,
            Err(end) => return end,
        };
        match codec::decode(&body) {
            Ok(request) => {
                if D::needs_lineage(&request) {
                    genealogist.learn(connection.0, peer).await;
                }
                events.send(D::event(connection, request)).await;
            }
            Err(_) if D::is_administration(&body) => return End::Administration,
            Err(error) => return error.into(),
        }
    }
}

/// Reads the next frame and returns its body. Checks the length before allocating the body.
async fn frame<M: Message>(reader: &mut Reader<'_>) -> Result<Vec<u8>, End> {
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

async fn fill(reader: &mut Reader<'_>, rest: &mut [u8]) -> Result<(), End> {
    match reader.read_exact(rest).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(End::Cut),
        Err(error) => Err(error.into()),
    }
}

async fn write(writer: &PeerWriter, mut queue: mpsc::Receiver<Outgoing>) -> End {
    while let Some(next) = queue.recv().await {
        let sent = writer.send(&next.frame, next.descriptor);
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
