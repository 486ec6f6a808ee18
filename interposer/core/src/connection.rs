//! One connection to the daemon: find it, say hello, map the page, then whole messages in and out.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpushare_proto::Token;
use gpushare_proto::codec;
use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::page::Page;
use gpushare_proto::tenant::{
    FailureCode, Hello, Returning, Role, SessionMemory, TenantReply, TenantRequest, Welcome,
};
use gpushare_sys::{fd, page, socket};

use crate::demands::{Demands, DemandsError};
use crate::lifecycle;

/// How long a daemon may take to answer a hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long descriptors are waited for that others may close, and how long between two tries.
const SHORTAGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(20));
/// How long it may take to answer a question of a process that is no client: somebody waits for a figure.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a full socket may hold up a thread of the application.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens.
    #[error("no scheduler answers at {}; start one with `gpushare-scheduler`, or run the program with `gpushare-ctl run`", list(.0))]
    Absent(Vec<PathBuf>),
    /// This process does not get to where a scheduler may listen.
    #[error("cannot reach the scheduler at {}: {cause}; {}", path.display(), remedy(cause))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
        /// Whether one may be there that would serve this process, or does not want to.
        may_be_there: bool,
    },
    /// What the machine's administrator demands is not understood.
    #[error(transparent)]
    Demands(#[from] DemandsError),
    /// The token file is unusable.
    #[error("the token file {} is not usable: {reason}; start the program with `gpushare-ctl run`", path.display())]
    Token {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The daemon does not want us.
    #[error("the scheduler refused this process: {message}")]
    Refused {
        /// The kind.
        code: FailureCode,
        /// Its words.
        message: String,
    },
    /// The conversation broke.
    #[error("the scheduler at {} did not answer as it should: {cause}", path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        cause: io::Error,
    },
}

impl ConnectError {
    /// Whether the process may go on as if there was no scheduler at all: beside one that is there, it would break the limits of
    /// all whom that serves.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Absent(_) => true,
            Self::Unreachable { may_be_there, .. } => !may_be_there,
            Self::Demands(_) | Self::Token { .. } | Self::Refused { .. } | Self::Broken { .. } => false,
        }
    }
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`)",
        Some(libc::EACCES | libc::EPERM) => {
            "it is not open to this user: ask its administrator, or name your own daemon's folder in GPUSHARE_RUNTIME_DIR"
        }
        Some(libc::EAGAIN) => "it has more connections waiting than it takes; see its log, and try again",
        _ => "look at what is there, or name another folder in GPUSHARE_RUNTIME_DIR",
    }
}

/// Whether a failed connection says that no daemon is there.
fn is_nobody(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether it says that this user may not go there.
fn is_denial(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::PermissionDenied
}

/// Whether it says that the process or the machine has no descriptors or memory for it at the moment.
fn is_shortage(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn list(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(" or ")
}

/// What a process knows about where its daemon is and who it is itself; read once from the environment.
#[derive(Clone, Debug)]
pub struct Address {
    sockets: Vec<PathBuf>,
    token: Option<Token>,
    /// Whether the process must not run without a daemon.
    pub required: bool,
}

impl Address {
    /// From the environment, under what the machine's administrator demands.
    ///
    /// # Errors
    /// [`ConnectError::Token`] if a token file is named that holds no token, [`ConnectError::Demands`] if nobody knows what is
    /// demanded.
    pub fn from_environment() -> Result<Self, ConnectError> {
        let Demands { required, runtime_dir } = Demands::read(Path::new(names::SYSTEM_CLIENT))?;
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        // SAFETY: has no preconditions.
        let uid = unsafe { libc::getuid() };
        // Where the administrator says where it is, the environment says nothing.
        let named = runtime_dir
            .map(PathBuf::into_os_string)
            .or_else(|| variable(names::RUNTIME_DIR));
        let dirs = RuntimeDir::candidates(named, variable("XDG_RUNTIME_DIR"), uid);
        let token = variable(names::TOKEN_FILE).map(|path| read_token(path.into())).transpose()?;
        let required =
            required || token.is_some() || variable(names::REQUIRED).is_some_and(|value| value == "1");
        let sockets = dirs.iter().map(RuntimeDir::tenant_socket).collect();
        Ok(Self::new(sockets, token, required))
    }

    /// A process that looks for its daemon at `sockets`, in order.
    #[must_use]
    pub fn new(sockets: Vec<PathBuf>, token: Option<Token>, required: bool) -> Self {
        Self { sockets, token, required }
    }

    /// Connects to the first socket that answers and says hello.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn connect(
        &self,
        returning: Option<Returning>,
    ) -> Result<(Connection, Welcome, &'static Page), ConnectError> {
        let (path, stream) = self.reach(HELLO_TIMEOUT)?;
        let broken = |cause| ConnectError::Broken { path: path.clone(), cause };
        let role = Role::Client { token: self.token.clone(), returning };
        let mut connection = Connection::new(stream).map_err(broken)?;
        match connection.hello(role).map_err(broken)? {
            (TenantReply::Welcome(welcome), Some(file)) => {
                let page = page::map(file).map_err(|cause| broken(io::Error::other(cause)))?;
                // Threads may sleep on a page for as long as the process lives.
                let page: &'static page::SharedPage = Box::leak(Box::new(page));
                Ok((connection, welcome, page))
            }
            (TenantReply::Error(failure), _) => {
                Err(ConnectError::Refused { code: failure.code, message: failure.message })
            }
            (other, _) => Err(broken(io::Error::other(format!("unexpected answer to hello: {other:?}")))),
        }
    }

    /// Whether a daemon answers, so that nothing is held up for the hello of a process that returns to one that
    /// accepts and says no word.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn knock(&self) -> Result<(), ConnectError> {
        let (path, stream) = self.reach(HELLO_TIMEOUT)?;
        ready(stream).map_err(|cause| ConnectError::Broken { path: path.clone(), cause })
    }

    /// Whether the process was given a session's token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks what the process's session may use and uses, on a connection for this one question.
    ///
    /// # Errors
    /// Why there is no answer.
    pub fn account(&self) -> Result<Option<SessionMemory>, ConnectError> {
        let (path, stream) = self.reach(ANSWER_TIMEOUT)?;
        self.ask_account(stream)
            .map_err(|cause| ConnectError::Broken { path: path.clone(), cause })
    }

    fn ask_account(&self, stream: UnixStream) -> io::Result<Option<SessionMemory>> {
        let mut connection = Connection::new(stream)?;
        connection.stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let _guarded = lifecycle::guard_question(connection.descriptor());
        send(&connection.stream, &TenantRequest::Hello(Hello::new(Role::Tool)))?;
        send(&connection.stream, &TenantRequest::SessionMemory(self.token.clone()))?;
        loop {
            match connection.receive()? {
                TenantReply::Ready { .. } => {}
                TenantReply::SessionMemory(account) => return Ok(account),
                other => return Err(io::Error::other(format!("unexpected answer: {other:?}"))),
            }
        }
    }

    /// The first socket that somebody listens on. A daemon that is there and busy is not passed over, since it has the cards. One
    /// that is closed to this user is, for the user's own: which gets no card that the other one has.
    fn reach(&self, patience: Duration) -> Result<(&PathBuf, UnixStream), ConnectError> {
        let mut unreachable: Option<ConnectError> = None;
        for (nth, path) in self.sockets.iter().enumerate() {
            let cause = match connect(path, patience) {
                Ok(stream) => return Ok((path, stream)),
                Err(cause) if is_nobody(&cause) => continue,
                Err(cause) => cause,
            };
            let denied = is_denial(&cause);
            let may_be_there = match denied {
                // What comes behind the first is the user's own by its name only: who may not go there has none there.
                true => nth == 0,
                false => is_something(path),
            };
            let error = ConnectError::Unreachable { path: path.clone(), cause, may_be_there };
            if may_be_there && !denied {
                return Err(error);
            }
            if unreachable.as_ref().is_none_or(|known| may_be_there && known.is_absence()) {
                unreachable = Some(error);
            }
        }
        Err(unreachable.unwrap_or_else(|| ConnectError::Absent(self.sockets.clone())))
    }
}

/// Whether there is anything at a path, as far as we may look.
fn is_something(path: &Path) -> bool {
    path.symlink_metadata().map_or_else(|cause| is_denial(&cause), |_| true)
}

/// Connects; waits for a place in a daemon's queue, and a little for descriptors where there is a socket to connect to.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let end = Instant::now() + SHORTAGE.0;
    loop {
        match socket::connect(path, patience) {
            Err(cause) if is_shortage(&cause) => {
                // Where there is none, nothing is waited for.
                path.symlink_metadata()?;
                if Instant::now() >= end {
                    return Err(cause);
                }
                std::thread::sleep(SHORTAGE.1);
            }
            result => return result,
        }
    }
}

/// Asks for nothing, and hears whether anybody answers.
fn ready(stream: UnixStream) -> io::Result<()> {
    let mut connection = Connection::new(stream)?;
    connection.hello(Role::Tool).map(drop)
}

fn read_token(path: PathBuf) -> Result<Token, ConnectError> {
    let text = std::fs::read_to_string(&path)
        .map_err(|cause| ConnectError::Token { path: path.clone(), reason: cause.to_string() })?;
    Token::from_hex(&text).ok_or(ConnectError::Token { path, reason: "it does not hold a token".to_owned() })
}

/// A connection that said hello.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    file: Option<OwnedFd>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        let stream = UnixStream::from(fd::move_high(stream.into()));
        stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
        stream.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Self { stream, buffer: Vec::new(), file: None })
    }

    fn hello(&mut self, role: Role) -> io::Result<(TenantReply, Option<OwnedFd>)> {
        send(&self.stream, &TenantRequest::Hello(Hello::new(role)))?;
        let reply = self.receive()?;
        self.stream.set_read_timeout(None)?;
        Ok((reply, self.file.take()))
    }

    /// A second handle on the socket, for sending.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn sender(&self) -> io::Result<UnixStream> {
        Ok(UnixStream::from(fd::move_high(self.stream.try_clone()?.into())))
    }

    /// The next message; waits for it.
    ///
    /// # Errors
    /// The connection is gone, or what came is no message.
    pub fn receive(&mut self) -> io::Result<TenantReply> {
        loop {
            if let Some((reply, length)) = codec::split(&self.buffer).map_err(io::Error::other)? {
                self.buffer.drain(..length);
                return Ok(reply);
            }
            let mut chunk = [0; 4096];
            let (length, file) = socket::recv_with_fd(&self.stream, &mut chunk)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&chunk[..length]);
            self.file = file.map(fd::move_high).or(self.file.take());
        }
    }

    /// The socket's number, which the child of a fork must close.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Sends one message whole. A connection that does not take one is over: what was cut short would garble
/// the next message, and what was lost may be waited for. The reading side sees the end and starts anew.
///
/// # Errors
/// The connection is gone or stalled for a second.
pub fn send(stream: &UnixStream, request: &TenantRequest) -> io::Result<()> {
    let frame = codec::encode(request).map_err(io::Error::other)?;
    send_all(stream, &frame).inspect_err(|_| {
        // Fails only where there is nothing left to end.
        let _ = stream.shutdown(Shutdown::Both);
    })
}

/// Sends one message whole, or, where that would have to wait, none of it.
///
/// # Errors
/// The connection is gone or full.
pub fn send_at_once(stream: &UnixStream, request: &TenantRequest) -> io::Result<()> {
    let frame = codec::encode(request).map_err(io::Error::other)?;
    let sent = socket::send_at_once(stream, &frame)?;
    if sent < frame.len() {
        // The rest of it must not be missing in front of the next message.
        return send_all(stream, &frame[sent..]);
    }
    Ok(())
}

fn send_all(stream: &UnixStream, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        // Not `write`: a hang-up must not raise SIGPIPE in somebody else's process.
        let sent = socket::send_with_fd(stream, rest, None)?;
        rest = &rest[sent..];
    }
    Ok(())
}
