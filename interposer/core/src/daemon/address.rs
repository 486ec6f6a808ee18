//! Address of the process's daemon: its sockets, the process's token, and the ways to connect.
//!
//! An absent daemon leaves a process to itself. One that is there and cannot be reached does not: beside the
//! sessions that it serves, an unshared program would break their limits.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::page::Page;
use gpushare_proto::tenant::{
    CardPart, Failure, Hello, Returning, Role, SessionMemory, TenantReply, TenantRequest, Welcome,
};
use gpushare_proto::{Backend, Token};
use gpushare_sys::{page, peer, socket};

use super::connection::{Connection, HELLO_TIMEOUT, send};
use super::machine_config::{MachineConfig, MachineConfigError};
use crate::process::fork::{self, DescriptorGuard};

/// Longest time that a daemon may take to answer a question of a process that is no client.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for free descriptors, which other threads may close, and the pause between two tries.
const SHORTAGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(20));

/// Reason why the process has no connection to a daemon.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No daemon listens on any of the listed sockets.
    #[error("no scheduler answers at {}; start one with `gpushare-scheduler`, or run the program with `gpushare-ctl run`", list(.0))]
    Absent(Vec<PathBuf>),
    /// A socket exists, and this process cannot connect to it.
    #[error("cannot reach the scheduler at {}: {cause}; {}", path.display(), remedy(cause))]
    Unreachable {
        /// Path of the socket.
        path: PathBuf,
        /// Error that the system returned when connecting.
        cause: io::Error,
        /// Whether a daemon may listen on the socket.
        may_be_there: bool,
    },
    /// The configuration file of the machine cannot be understood.
    #[error(transparent)]
    MachineConfig(#[from] MachineConfigError),
    /// The token file, at the path, is unusable for the reason given as text.
    #[error("the token file {} is not usable: {reason}; start the program with `gpushare-ctl run`", .0.display(), reason = .1)]
    Token(PathBuf, String),
    /// The daemon refused the process, for the reason given.
    #[error("the scheduler refused this process: {}", .0.message)]
    Refused(Failure),
    /// The daemon at this socket sent no answer, or one that makes no sense.
    #[error("the scheduler at {} did not answer as it should: {cause}", .0.display(), cause = .1)]
    Broken(PathBuf, io::Error),
}

impl ConnectError {
    /// Returns whether no daemon exists, so that the process may run without sharing.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Absent(_) => true,
            Self::Unreachable { may_be_there, .. } => !may_be_there,
            Self::MachineConfig(_) | Self::Token(..) | Self::Refused(_) | Self::Broken(..) => false,
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

fn is_denial(cause: &io::Error) -> bool {
    cause.kind() == ErrorKind::PermissionDenied
}

fn is_shortage(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(" or ")
}

/// Sockets of the daemon and the process's token, read once from the environment.
#[derive(Clone, Debug)]
pub struct Address {
    sockets: Vec<Socket>,
    token: Option<Token>,
    /// Setting that forbids this process to use the GPU without a daemon.
    pub required: Option<Requirement>,
}

/// Socket on which a daemon may listen.
#[derive(Clone, Debug)]
struct Socket {
    path: PathBuf,
    /// Runtime folder of the socket; `None` for a socket that is believed whoever listens there.
    dir: Option<RuntimeDir>,
}

impl Socket {
    /// Connects to the socket. A listener that cannot be this process's daemon is refused.
    fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        let stream = connect(&self.path, patience)?;
        let listener = peer::credentials(&stream)?.uid;
        match &self.dir {
            Some(dir) if !dir.may_hold_daemon_of(listener) => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!("user {listener} listens there, who is neither root nor this user"),
            )),
            _ => Ok(stream),
        }
    }
}

/// Setting because of which a process must not use the GPU without a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The machine's configuration requires a daemon for every process.
    MachineConfig,
    /// The environment variable of this name is set: it requires a daemon, or states what only one enforces.
    Variable(&'static str),
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MachineConfig => write!(f, "{} requires it", names::SYSTEM_CLIENT),
            Self::Variable(name) => write!(f, "{name} is set"),
        }
    }
}

impl Address {
    /// Reads the address from the environment and from the machine's configuration, which has precedence.
    pub fn from_environment() -> Result<Self, ConnectError> {
        let MachineConfig { required, runtime_dir } = MachineConfig::read(Path::new(names::SYSTEM_CLIENT))?;
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        // SAFETY: has no preconditions.
        let uid = unsafe { libc::getuid() };
        let named = runtime_dir.map(PathBuf::into_os_string);
        let named = named.or_else(|| variable(names::RUNTIME_DIR));
        let dirs = RuntimeDir::candidates(named, variable("XDG_RUNTIME_DIR"), uid);
        let token = variable(names::TOKEN_FILE).map(|path| read_token(path.into())).transpose()?;
        let required = match required {
            true => Some(Requirement::MachineConfig),
            false => names::requirement(variable).map(Requirement::Variable),
        };
        Ok(Self::in_dirs(dirs, token, required))
    }

    /// Creates the address of a daemon in one of the folders `dirs`, tried in order.
    pub fn in_dirs(dirs: Vec<RuntimeDir>, token: Option<Token>, required: Option<Requirement>) -> Self {
        let socket = |dir: RuntimeDir| Socket { path: dir.tenant_socket(), dir: Some(dir) };
        Self { sockets: dirs.into_iter().map(socket).collect(), token, required }
    }

    /// Creates the address of a daemon at one of the sockets `paths`, tried in order.
    pub fn new(paths: Vec<PathBuf>, token: Option<Token>, required: Option<Requirement>) -> Self {
        let sockets = paths.into_iter().map(|path| Socket { path, dir: None }).collect();
        Self { sockets, token, required }
    }

    /// Connects as a client to the first socket that answers. The memory of a client with [`Backend::Remap`]
    /// moves by goals.
    pub fn connect(
        &self,
        backend: Backend,
        returning: Option<Returning>,
    ) -> Result<(Connection, Welcome, &'static Page), ConnectError> {
        let (path, stream) = self.connect_any(HELLO_TIMEOUT)?;
        let broken = |cause| ConnectError::Broken(path.clone(), cause);
        let token = self.token.clone();
        let role = if backend == Backend::Remap {
            Role::Remapping { token, returning }
        } else {
            Role::Client { token, returning }
        };
        let mut connection = Connection::new(stream).map_err(broken)?;
        match connection.hello(role).map_err(broken)? {
            (TenantReply::Welcome(welcome), Some(file)) => {
                let page = page::map(file).map_err(|cause| broken(io::Error::other(cause)))?;
                // Threads may sleep on a page for as long as the process lives.
                let page: &'static page::SharedPage = Box::leak(Box::new(page));
                Ok((connection, welcome, page))
            }
            (TenantReply::Error(failure), _) => Err(ConnectError::Refused(failure)),
            (other, _) => Err(broken(io::Error::other(format!("unexpected answer to hello: {other:?}")))),
        }
    }

    /// Checks that a daemon answers. A process that reconnects does so before it locks its lease of memory.
    pub fn probe(&self) -> Result<(), ConnectError> {
        let (path, stream) = self.connect_any(HELLO_TIMEOUT)?;
        let hello = Connection::new(stream).and_then(|mut connection| connection.hello(Role::Tool));
        hello.map(drop).map_err(|cause| ConnectError::Broken(path.clone(), cause))
    }

    /// Connects to the daemon on a connection of its own, for questions about copies. The child of a fork
    /// closes it.
    pub(crate) fn connect_to_ask(&self) -> Result<(DescriptorGuard, Connection), ConnectError> {
        let (path, stream) = self.connect_any(HELLO_TIMEOUT)?;
        let broken = |cause| ConnectError::Broken(path.clone(), cause);
        let mut connection = Connection::new(stream).map_err(broken)?;
        let guard = fork::guard_copies(connection.descriptor());
        connection.hello(Role::Tool).map_err(broken)?;
        Ok((guard, connection))
    }

    /// Returns whether the process has a session's token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks the daemon for memory limit and use of the process's session, on a connection of its own. Returns
    /// `None` without a session.
    pub fn session_memory(&self) -> Result<Option<SessionMemory>, ConnectError> {
        self.ask(&TenantRequest::SessionMemory(self.token.clone()), |reply| match reply {
            TenantReply::SessionMemory(memory) => Ok(memory),
            other => Err(other),
        })
    }

    /// Asks the daemon for the part of the process's session in the utilization of each card, on a connection
    /// of its own. Returns `None` without a session.
    pub fn utilization_parts(&self) -> Result<Option<Vec<CardPart>>, ConnectError> {
        self.ask(&TenantRequest::UtilizationParts(self.token.clone()), |reply| match reply {
            TenantReply::UtilizationParts(parts) => Ok(parts),
            other => Err(other),
        })
    }

    fn ask<T>(
        &self,
        question: &TenantRequest,
        answer: impl Fn(TenantReply) -> Result<T, TenantReply>,
    ) -> Result<T, ConnectError> {
        let (path, stream) = self.connect_any(ANSWER_TIMEOUT)?;
        ask(stream, question, answer).map_err(|cause| ConnectError::Broken(path.clone(), cause))
    }

    /// Connects to the first socket with a listener. A daemon that is busy is waited for, since it manages
    /// the cards. A daemon that refuses this user is skipped: the next one manages none of its cards.
    fn connect_any(&self, patience: Duration) -> Result<(&PathBuf, UnixStream), ConnectError> {
        let mut unreachable: Option<ConnectError> = None;
        for (nth, socket) in self.sockets.iter().enumerate() {
            let path = &socket.path;
            let cause = match socket.connect(patience) {
                Ok(stream) => return Ok((path, stream)),
                Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                    continue;
                }
                Err(cause) => cause,
            };
            let denied = is_denial(&cause);
            // A later socket is the user's own. Without permission there, the user has no daemon there.
            let may_be_there = if denied { nth == 0 } else { exists(path) };
            let error = ConnectError::Unreachable { path: path.clone(), cause, may_be_there };
            if may_be_there && !denied {
                return Err(error);
            }
            if unreachable.as_ref().is_none_or(|known| may_be_there && known.is_absence()) {
                unreachable = Some(error);
            }
        }
        let paths = || self.sockets.iter().map(|socket| socket.path.clone()).collect();
        Err(unreachable.unwrap_or_else(|| ConnectError::Absent(paths())))
    }
}

fn ask<T>(
    stream: UnixStream,
    question: &TenantRequest,
    answer: impl Fn(TenantReply) -> Result<T, TenantReply>,
) -> io::Result<T> {
    let mut connection = Connection::new(stream)?;
    connection.stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let _guarded = fork::guard_inquiry(connection.descriptor());
    send(&connection.stream, &TenantRequest::Hello(Hello::new(Role::Tool)))?;
    send(&connection.stream, question)?;
    loop {
        match answer(connection.receive_in_time()?) {
            Ok(answer) => return Ok(answer),
            Err(TenantReply::Ready { .. }) => {}
            Err(other) => return Err(io::Error::other(format!("unexpected answer: {other:?}"))),
        }
    }
}

/// Returns whether a path exists, or may exist where we have no permission to look.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().map_or_else(|cause| is_denial(&cause), |_| true)
}

/// Connects to a socket. Waits for a place in the daemon's queue, and for free file descriptors.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let end = Instant::now() + SHORTAGE.0;
    loop {
        match socket::connect(path, patience) {
            Err(cause) if is_shortage(&cause) => {
                // Fails at once where there is no socket.
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

fn read_token(path: PathBuf) -> Result<Token, ConnectError> {
    let text = std::fs::read_to_string(&path)
        .map_err(|cause| ConnectError::Token(path.clone(), cause.to_string()))?;
    Token::from_hex(&text).ok_or(ConnectError::Token(path, "it does not hold a token".to_owned()))
}
