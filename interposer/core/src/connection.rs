//! One connection to the daemon: find it, say hello, map the page, then whole messages in and out.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpushare_proto::codec;
use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::page::Page;
use gpushare_proto::tenant::{Account, FailureCode, Hello, Returning, Role, TenantReply, TenantRequest, Welcome};
use gpushare_proto::Token;
use gpushare_sys::{fd, page, socket};

use crate::demands::{Demands, DemandsError};
use crate::lifecycle;

/// How long a daemon may take to answer a hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
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
    /// Somebody may listen, but this process does not get there.
    #[error("cannot reach the scheduler at {}: {cause}; {}", path.display(), remedy(cause))]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
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

fn remedy(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`)",
        Some(libc::EACCES | libc::EPERM) => {
            "run as the user that it serves, or name your own daemon's folder in GPUSHARE_RUNTIME_DIR"
        }
        Some(libc::EAGAIN) => "it has more connections waiting than it takes; see its log, and try again",
        _ => "look at what is there, or name another folder in GPUSHARE_RUNTIME_DIR",
    }
}

/// Whether a failed connection says that no daemon is there.
fn is_absence(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
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
        let named = runtime_dir.map(PathBuf::into_os_string).or_else(|| variable(names::RUNTIME_DIR));
        let dirs = RuntimeDir::candidates(named, variable("XDG_RUNTIME_DIR"), uid);
        let token = variable(names::TOKEN_FILE)
            .map(|path| read_token(path.into()))
            .transpose()?;
        let required = required || token.is_some() || variable(names::REQUIRED).is_some_and(|value| value == "1");
        let sockets = dirs.iter().map(RuntimeDir::tenant_socket).collect();
        Ok(Self::new(sockets, token, required))
    }

    /// A process that looks for its daemon at `sockets`, in order.
    #[must_use]
    pub fn new(sockets: Vec<PathBuf>, token: Option<Token>, required: bool) -> Self {
        Self {
            sockets,
            token,
            required,
        }
    }

    /// Connects to the first socket that answers and says hello.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn connect(&self, returning: Option<Returning>) -> Result<(Connection, Welcome, &'static Page), ConnectError> {
        let (path, stream) = self.reach()?;
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
        let (path, stream) = self.reach()?;
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
    pub fn account(&self) -> Result<Option<Account>, ConnectError> {
        let (path, stream) = self.reach()?;
        self.ask_account(stream).map_err(|cause| ConnectError::Broken { path: path.clone(), cause })
    }

    fn ask_account(&self, stream: UnixStream) -> io::Result<Option<Account>> {
        let mut connection = Connection::new(stream)?;
        connection.stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let _guarded = lifecycle::guard_question(connection.descriptor());
        send(&connection.stream, &TenantRequest::Hello(Hello::new(Role::Tool)))?;
        send(&connection.stream, &TenantRequest::Account(self.token.clone()))?;
        loop {
            match connection.receive()? {
                TenantReply::Ready { .. } => {}
                TenantReply::Account(account) => return Ok(account),
                other => return Err(io::Error::other(format!("unexpected answer: {other:?}"))),
            }
        }
    }

    /// The first socket that somebody listens on. One that cannot be reached is an error only if no other is.
    fn reach(&self) -> Result<(&PathBuf, UnixStream), ConnectError> {
        let mut unreachable = None;
        for path in &self.sockets {
            match UnixStream::connect(path) {
                Ok(stream) => return Ok((path, stream)),
                Err(cause) if is_absence(&cause) => {}
                Err(cause) => {
                    unreachable.get_or_insert(ConnectError::Unreachable { path: path.clone(), cause });
                }
            }
        }
        Err(unreachable.unwrap_or_else(|| ConnectError::Absent(self.sockets.clone())))
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
