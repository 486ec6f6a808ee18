//! Blocking connection of a tool to the daemon, on the tenant socket or the admin socket.
//!
//! ```text
//!   connect ─▶ Hello(Tool) ─▶ Ready{protocol} ─▶ request ─▶ reply ─▶ request …
//! ```
//!
//! Each step waits at most five seconds. The socket is close-on-exec: a session that was registered over this
//! connection lives as long as the process, not the connection.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{self, CodecError, HEADER, Message};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::tenant::{Failure, Hello, PROTOCOL, Role, TenantReply, TenantRequest};
use gpushare_sys::peer::Peer;
use gpushare_sys::socket;

/// Longest wait for the daemon, per step: to connect, to send a message, or to receive one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Reason why a request to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens at this path.
    #[error(
        "no gpushare daemon answers at {0}; `gpushare-ctl run` starts one, or run `gpushare-scheduler --user`"
    )]
    Absent(PathBuf),
    /// This user may not connect to this path.
    #[error(
        "this user may not connect to {0}; run as its owner (sudo), or name your own daemon with --runtime-dir; \
         `gpushare-ctl top` shows your own sessions"
    )]
    Denied(PathBuf),
    /// Another user than expected listens in a guessed folder.
    #[error(
        "user {uid} listens at {path}, who is neither root nor this user; remove that folder, or name your own \
         daemon with --runtime-dir"
    )]
    Stranger {
        /// Path of the socket.
        path: PathBuf,
        /// User who listens.
        uid: u32,
    },
    /// The path is of another kind of file.
    #[error(
        "{path} is {what}, not the socket of a daemon; remove it, or choose another folder with --runtime-dir"
    )]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
        /// Kind of the file, with its article.
        what: &'static str,
    },
    /// The path is too long for a socket, or has a zero byte.
    #[error("{path} cannot be the path of a socket ({cause}); choose a shorter folder with --runtime-dir")]
    BadPath {
        /// Path that was tried.
        path: PathBuf,
        /// Error of the system.
        cause: io::Error,
    },
    /// The daemon does not answer in time.
    #[error("the daemon at {0} does not answer within {PATIENCE:?}; see its log, and restart it if it hangs")]
    Silent(PathBuf),
    /// The daemon hung up without an answer.
    #[error("the daemon at {0} closed the connection without an answer; its log says why")]
    Closed(PathBuf),
    /// The daemon hung up on a watcher.
    #[error("the daemon at {0} has ended, or this watcher did not keep up; the daemon's log says which")]
    Gone(PathBuf),
    /// The connection failed in another way.
    #[error("the connection to {path} failed: {cause}; try again")]
    Broken {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        cause: io::Error,
    },
    /// The daemon speaks this other version of the protocol.
    #[error("{}", codec::protocol_mismatch(*.0))]
    Protocol(u16),
    /// The reply is no message.
    #[error(
        "the reply at {path} cannot be decoded ({cause}); install the same gpushare version on both sides"
    )]
    Nonsense {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the decoder.
        cause: CodecError,
    },
    /// The reply is a message that does not belong to the request.
    #[error("the daemon at {0} sent an unexpected reply; install the same gpushare version on both sides")]
    Unexpected(PathBuf),
    /// The request does not fit into a message.
    #[error("the request is too long to be sent to the daemon; choose a shorter --name")]
    TooLong,
    /// The daemon refused the request.
    #[error("{}", .0.message)]
    Refused(Failure),
}

/// One of the daemon's two sockets, tenant or admin, with the types of messages.
pub trait Door {
    /// Messages to the daemon on this socket.
    type Request: Message;
    /// Messages of the daemon on this socket.
    type Reply: Message;

    /// Path of the socket in a runtime folder.
    const PATH: fn(&RuntimeDir) -> PathBuf;
    /// First message on the socket.
    const HELLO: fn(Hello) -> Self::Request;

    /// Returns the daemon's protocol version if `reply` answers the connection's first message.
    fn ready(reply: &Self::Reply) -> Option<u16>;
    /// Returns `reply`, or the failure that `reply` reports.
    fn success(reply: Self::Reply) -> Result<Self::Reply, Failure>;
}

/// Tenant socket, for processes that use a card.
#[derive(Debug)]
pub struct Tenant;

/// Admin socket, for administration.
#[derive(Debug)]
pub struct Admin;

macro_rules! door {
    ($door:ident: $request:ident -> $reply:ident at $path:ident) => {
        impl Door for $door {
            type Request = $request;
            type Reply = $reply;

            const PATH: fn(&RuntimeDir) -> PathBuf = RuntimeDir::$path;
            const HELLO: fn(Hello) -> $request = $request::Hello;

            fn ready(reply: &$reply) -> Option<u16> {
                match reply {
                    $reply::Ready { protocol } => Some(*protocol),
                    _ => None,
                }
            }

            fn success(reply: $reply) -> Result<$reply, Failure> {
                match reply {
                    $reply::Error(failure) => Err(failure),
                    other => Ok(other),
                }
            }
        }
    };
}

door!(Tenant: TenantRequest -> TenantReply at tenant_socket);
door!(Admin: AdminRequest -> AdminReply at admin_socket);

/// Connection to the daemon whose first messages have been exchanged.
#[derive(Debug)]
pub struct Client<D: Door> {
    stream: UnixStream,
    path: PathBuf,
    door: std::marker::PhantomData<D>,
}

impl<D: Door> Client<D> {
    /// Connects to the daemon in a runtime folder.
    pub fn connect(dir: &RuntimeDir) -> Result<Self, ClientError> {
        let path = (D::PATH)(dir);
        let mut client = Self { stream: open(&path)?, path, door: std::marker::PhantomData };
        let uid = client.peer().uid;
        if !dir.may_hold_daemon_of(uid) {
            return Err(ClientError::Stranger { path: client.path, uid });
        }
        let reply = client.ask(&(D::HELLO)(Hello::new(Role::Tool)))?;
        match D::ready(&reply) {
            Some(PROTOCOL) => Ok(client),
            Some(other) => Err(ClientError::Protocol(other)),
            None => Err(client.unexpected()),
        }
    }

    /// Sends a request and waits for its reply.
    pub fn ask(&mut self, request: &D::Request) -> Result<D::Reply, ClientError> {
        let frame = codec::encode(request).map_err(|_| ClientError::TooLong)?;
        match self.stream.write_all(&frame) {
            // A daemon that rejects a peer sends the reason and closes the connection before it reads.
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => {}
            result => result.map_err(|cause| self.broken(cause))?,
        }
        self.hear()
    }

    /// Waits for the daemon's next reply to the last request.
    pub fn listen(&mut self) -> Result<D::Reply, ClientError> {
        self.hear().map_err(|error| match error {
            ClientError::Closed(path) => ClientError::Gone(path),
            other => other,
        })
    }

    /// Lets later replies take any time.
    pub fn wait_forever(&mut self) -> Result<(), ClientError> {
        let result = self.stream.set_read_timeout(None);
        result.map_err(|cause| self.broken(cause))
    }

    fn hear(&mut self) -> Result<D::Reply, ClientError> {
        let mut header = [0; HEADER];
        self.read(&mut header)?;
        let length = codec::body_length::<D::Reply>(header).map_err(|cause| self.nonsense(cause))?;
        let mut body = vec![0; length];
        self.read(&mut body)?;
        let reply = codec::decode(&body).map_err(|cause| self.nonsense(cause))?;
        D::success(reply).map_err(ClientError::Refused)
    }

    /// Returns the daemon's process as the kernel reports it; pid 0 for a process outside this PID namespace.
    pub fn peer(&self) -> Peer {
        gpushare_sys::peer::credentials(&self.stream).unwrap_or(Peer { pid: 0, uid: 0, gid: 0 })
    }

    /// Returns the error for a reply that does not belong to the request.
    pub fn unexpected(&self) -> ClientError {
        ClientError::Unexpected(self.path.clone())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), ClientError> {
        let result = self.stream.read_exact(buffer);
        result.map_err(|cause| self.broken(cause))
    }

    fn broken(&self, cause: io::Error) -> ClientError {
        let path = self.path.clone();
        match cause.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Silent(path),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                ClientError::Closed(path)
            }
            _ => ClientError::Broken { path, cause },
        }
    }

    fn nonsense(&self, cause: CodecError) -> ClientError {
        let path = self.path.clone();
        ClientError::Nonsense { path, cause }
    }
}

/// Connects to a socket, and limits the time for connecting, reading and writing.
fn open(path: &Path) -> Result<UnixStream, ClientError> {
    let what = match path.metadata().map(|found| found.file_type()) {
        Ok(found) if found.is_dir() => Some("a directory"),
        Ok(found) if found.is_file() => Some("a file"),
        Ok(found) if !found.is_socket() => Some("a device"),
        _ => None,
    };
    if let Some(what) = what {
        return Err(ClientError::NotASocket { path: path.to_owned(), what });
    }
    let connected = || {
        let stream = socket::connect(path, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    connected().map_err(|cause: io::Error| {
        let path = path.to_owned();
        match cause.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
                ClientError::Absent(path)
            }
            ErrorKind::PermissionDenied => ClientError::Denied(path),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Silent(path),
            ErrorKind::InvalidFilename | ErrorKind::InvalidInput => ClientError::BadPath { path, cause },
            _ => ClientError::Broken { path, cause },
        }
    })
}
