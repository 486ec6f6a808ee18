//! A daemon in folders of its own, and peers that talk to it.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::admin::{AdminReply, AdminRequest, Status};
use gpushare_proto::codec::{self, Message};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{
    Failure, FailureCode, GpuChoice, GpuInfo, Hello, NewSession, Returning, Role, TenantReply, TenantRequest,
    Welcome,
};
use gpushare_proto::{Bytes, Epoch, GateState, GateWord, GpuId, GpuUuid, Nanos, RequestId, SessionId, Token};
use gpushare_sys::page::{self, SharedPage};
use gpushare_sys::socket::recv_with_fd;
use tempfile::TempDir;

/// Longest time that a test waits for a fact. Only a failing test waits so long.
const LONG: Duration = Duration::from_secs(60);

pub(crate) const CARD: GpuUuid = GpuUuid::gpu([0xca; 16]);

pub(crate) fn card() -> GpuInfo {
    GpuInfo { uuid: CARD, name: "test card".into(), total: Bytes::gib(1) }
}

/// Waits until `found` returns a value.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Folders of a test's daemons. They last over the daemons' restarts.
pub(crate) struct Folders {
    root: TempDir,
}

impl Folders {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("locks")).unwrap();
        Self { root }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn runtime(&self) -> RuntimeDir {
        RuntimeDir::new(self.path("run"))
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log contains these words; the daemon writes it a little later.
    pub(crate) fn logged(&self, words: &str) {
        eventually(words, || self.log().contains(words).then_some(()));
    }

    fn command(&self, runtime: &RuntimeDir, flags: &[&str]) -> Command {
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpushare-scheduler"));
        command
            .env_clear()
            .env("GPUSHARE_LOG", "debug")
            .args(["--ready-fd", "1", "--runtime-dir"])
            .arg(runtime.root())
            .arg("--lock-dir")
            .arg(self.locks())
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        command
    }

    /// Starts a daemon in the folder.
    pub(crate) fn start(&self, flags: &[&str]) -> Daemon {
        self.start_in(self.runtime(), flags)
    }

    /// Starts a system daemon in the folder, without its metrics port.
    pub(crate) fn start_system(&self, flags: &[&str]) -> Daemon {
        self.start(&[&["--system", "--metrics", "off"], flags].concat())
    }

    pub(crate) fn start_in(&self, runtime: RuntimeDir, flags: &[&str]) -> Daemon {
        let command = self.command(&runtime, flags);
        self.started(command, runtime)
    }

    /// Starts a daemon with further variables in its environment.
    pub(crate) fn start_with(&self, variables: &[(&str, &str)]) -> Daemon {
        let runtime = self.runtime();
        let mut command = self.command(&runtime, &[]);
        command.envs(variables.iter().copied());
        self.started(command, runtime)
    }

    /// Starts a daemon with another standard error than the log of the folders.
    pub(crate) fn start_logging_to(&self, stderr: impl Into<Stdio>, flags: &[&str]) -> Daemon {
        let runtime = self.runtime();
        let mut command = self.command(&runtime, flags);
        command.stderr(stderr);
        self.started(command, runtime)
    }

    fn started(&self, mut command: Command, runtime: RuntimeDir) -> Daemon {
        let mut child = command.spawn().unwrap();
        let mut ready = [0];
        let heard = child.stdout.as_mut().unwrap().read(&mut ready).unwrap();
        assert_eq!(heard, 1, "the daemon ended before it was ready:\n{}", self.log());
        Daemon { child, runtime }
    }

    /// Binds both sockets, as systemd does before the daemon starts.
    pub(crate) fn bind(&self) -> Bound {
        let runtime = self.runtime();
        fs::create_dir_all(runtime.tenant_dir()).unwrap();
        for folder in [runtime.root().to_owned(), runtime.tenant_dir()] {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        let bind = |path: PathBuf, mode| {
            let listener = UnixListener::bind(&path).unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            listener
        };
        Bound {
            tenant: bind(runtime.tenant_socket(), 0o666),
            admin: bind(runtime.admin_socket(), 0o600),
        }
    }

    /// Starts a daemon with these sockets as descriptors 3 and 4, as systemd does. A shell moves them there
    /// and becomes the daemon, so that its pid is the one that the sockets are for.
    pub(crate) fn start_on(&self, bound: &Bound) -> Daemon {
        const MOVE: &str = r#"exec 3<&0 4<&1 5>&2 </dev/null >/dev/null 2>>"$1"
            shift; export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=tenant:admin; exec "$@""#;
        let stdio = |listener: &UnixListener| Stdio::from(OwnedFd::from(listener.try_clone().unwrap()));
        let mut child = Command::new("sh")
            .args(["-c", MOVE, "sh"])
            .arg(self.path("log"))
            .arg(env!("CARGO_BIN_EXE_gpushare-scheduler"))
            .env("GPUSHARE_LOG", "debug")
            .args(["--ready-fd", "5", "--runtime-dir"])
            .arg(self.runtime().root())
            .arg("--lock-dir")
            .arg(self.locks())
            .stdin(stdio(&bound.tenant))
            .stdout(stdio(&bound.admin))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0];
        let heard = child.stderr.as_mut().unwrap().read(&mut ready).unwrap();
        assert_eq!(heard, 1, "the daemon ended before it was ready:\n{}", self.log());
        let runtime = self.runtime();
        Daemon { child, runtime }
    }

    /// Starts a daemon that is to fail. Returns its exit status and output.
    pub(crate) fn fail(&self, flags: &[&str]) -> (Option<i32>, String) {
        self.fail_in(&self.runtime(), flags)
    }

    pub(crate) fn fail_in(&self, runtime: &RuntimeDir, flags: &[&str]) -> (Option<i32>, String) {
        let Output { status, stderr, .. } = self
            .command(runtime, flags)
            .env("GPUSHARE_LOG", "off")
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    }
}

/// Sockets that last over the daemons' restarts.
pub(crate) struct Bound {
    tenant: UnixListener,
    admin: UnixListener,
}

/// Running daemon, which is killed on drop.
pub(crate) struct Daemon {
    child: Child,
    runtime: RuntimeDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM, as systemd does.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Connects to the tenant socket, without a message.
    pub(crate) fn connect(&self) -> UnixStream {
        connect(&self.runtime.tenant_socket()).unwrap()
    }

    /// Returns the number of bytes that the daemon sends before it closes a silent connection.
    pub(crate) fn connect_and_hear_the_end(&self) -> usize {
        let mut bytes = Vec::new();
        self.connect().read_to_end(&mut bytes).unwrap();
        bytes.len()
    }

    pub(crate) fn tool(&self) -> Peer<TenantRequest, TenantReply> {
        tool(&self.runtime)
    }

    /// Registers a session from this process.
    pub(crate) fn register(&self, name: &str, memory: Option<Bytes>) -> (SessionId, Token) {
        let (_, session, token) = register(&self.runtime, name, memory);
        (session, token)
    }

    pub(crate) fn join(&self, token: Option<&Token>) -> Client {
        join(&self.runtime, token, None).unwrap()
    }

    pub(crate) fn return_as(&self, returning: Returning) -> Client {
        join(&self.runtime, None, Some(returning)).unwrap()
    }

    pub(crate) fn administrator(&self) -> Peer<AdminRequest, AdminReply> {
        administrator(&self.runtime).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        let mut administrator = self.administrator();
        administrator.say(&AdminRequest::Status);
        match administrator.hear() {
            AdminReply::Status(status) => *status,
            other => panic!("no status: {other:?}"),
        }
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(LONG))?;
    stream.set_write_timeout(Some(LONG))?;
    Ok(stream)
}

/// Connects to the administrator's socket of the daemon in a folder. Returns the refusal of the system
/// or of the daemon as an error.
pub(crate) fn administrator(runtime: &RuntimeDir) -> Result<Peer<AdminRequest, AdminReply>, Failure> {
    let stream = connect(&runtime.admin_socket())
        .map_err(|cause| Failure { code: FailureCode::Permission, message: cause.to_string() })?;
    let mut peer = Peer::over(stream);
    peer.say(&AdminRequest::Hello(Hello::new(Role::Tool)));
    match peer.hear() {
        AdminReply::Ready { .. } => Ok(peer),
        AdminReply::Error(failure) => Err(failure),
        other => panic!("neither ready nor refused: {other:?}"),
    }
}

pub(crate) fn tool(runtime: &RuntimeDir) -> Peer<TenantRequest, TenantReply> {
    tool_at(&runtime.tenant_socket())
}

pub(crate) fn tool_at(socket: &Path) -> Peer<TenantRequest, TenantReply> {
    let mut peer = Peer::over(connect(socket).unwrap());
    peer.say(&TenantRequest::Hello(Hello::new(Role::Tool)));
    assert!(matches!(peer.hear(), TenantReply::Ready { .. }));
    peer
}

/// Registers a session, as `gpushare-ctl run` does. Returns its connection too.
pub(crate) fn register(
    runtime: &RuntimeDir,
    name: &str,
    memory: Option<Bytes>,
) -> (Peer<TenantRequest, TenantReply>, SessionId, Token) {
    let mut tool = tool(runtime);
    tool.say(&TenantRequest::Register(NewSession {
        name: Some(name.into()),
        terms: Terms::with_memory(memory),
        oversubscribe: false,
        gpu: GpuChoice::Auto,
    }));
    match tool.hear() {
        TenantReply::Session { session, token, .. } => (tool, session, token),
        other => panic!("no session: {other:?}"),
    }
}

/// Joins as a client, as the library does.
pub(crate) fn join(
    runtime: &RuntimeDir,
    token: Option<&Token>,
    returning: Option<Returning>,
) -> Result<Client, Failure> {
    join_at(&runtime.tenant_socket(), token, returning)
}

pub(crate) fn join_at(
    socket: &Path,
    token: Option<&Token>,
    returning: Option<Returning>,
) -> Result<Client, Failure> {
    let mut peer: Peer<TenantRequest, TenantReply> = Peer::over(connect(socket).unwrap());
    peer.say(&TenantRequest::Hello(Hello::new(Role::Client { token: token.cloned(), returning })));
    match peer.hear() {
        TenantReply::Welcome(welcome) => {
            let page = page::map(peer.descriptor.take().expect("a welcome comes with a page")).unwrap();
            Ok(Client { peer, welcome, page })
        }
        TenantReply::Error(failure) => Err(failure),
        other => panic!("neither welcome nor refused: {other:?}"),
    }
}

/// Peer's end of a connection.
pub(crate) struct Peer<Request, Reply> {
    pub(crate) stream: UnixStream,
    buffer: Vec<u8>,
    descriptor: Option<OwnedFd>,
    kinds: std::marker::PhantomData<(Request, Reply)>,
}

impl<Request: Message, Reply: Message> Peer<Request, Reply> {
    pub(crate) fn over(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), descriptor: None, kinds: std::marker::PhantomData }
    }

    pub(crate) fn say(&mut self, request: &Request) {
        self.stream.write_all(&codec::encode(request).unwrap()).unwrap();
    }

    /// Sends a message. Returns whether the connection took it.
    pub(crate) fn try_say(&mut self, request: &Request) -> bool {
        self.stream.write_all(&codec::encode(request).unwrap()).is_ok()
    }

    /// Returns the next message; none at the end of the connection.
    pub(crate) fn listen(&mut self) -> Option<Reply> {
        loop {
            if let Some((reply, read)) = codec::split(&self.buffer).unwrap() {
                self.buffer.drain(..read);
                return Some(reply);
            }
            let mut bytes = [0; 4096];
            let (read, descriptor) = match recv_with_fd(&self.stream, &mut bytes) {
                Ok((0, _)) => return None,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                other => other.unwrap(),
            };
            self.buffer.extend(&bytes[..read]);
            self.descriptor = self.descriptor.take().or(descriptor);
        }
    }

    /// Returns the descriptor that came with the messages so far.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptor.take()
    }

    pub(crate) fn hear(&mut self) -> Reply {
        self.listen().expect("the daemon closed the connection")
    }
}

/// Client as the daemon sees it: a connection and a page.
pub(crate) struct Client {
    pub(crate) peer: Peer<TenantRequest, TenantReply>,
    pub(crate) welcome: Welcome,
    pub(crate) page: SharedPage,
}

impl Client {
    pub(crate) fn attach(&mut self) -> GpuId {
        self.attach_to(card())
    }

    pub(crate) fn attach_to(&mut self, card: GpuInfo) -> GpuId {
        self.peer.say(&TenantRequest::Attach(card));
        self.hear_until(|reply| match reply {
            TenantReply::Attached { gpu, .. } => Some(gpu),
            TenantReply::Error(failure) => panic!("not attached: {failure:?}"),
            _ => None,
        })
    }

    /// Requests memory. Returns the daemon's answer.
    pub(crate) fn reserve(&mut self, gpu: GpuId, bytes: Bytes) -> TenantReply {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let request = RequestId(NEXT.fetch_add(1, Ordering::Relaxed));
        self.peer.say(&TenantRequest::Reserve { request, gpu, bytes });
        self.hear_until(|reply| match reply {
            TenantReply::Reserved { .. } | TenantReply::Refused { .. } => Some(reply),
            _ => None,
        })
    }

    /// Requests the lock, as a thread at the gate does.
    pub(crate) fn wait(&mut self) {
        let word = self.gate();
        self.peer.say(&TenantRequest::Wait { word });
    }

    /// Waits until the lock is granted, and moves no memory in.
    pub(crate) fn enter(&mut self) -> Epoch {
        let (word, epoch) = self.hear_until(|reply| match reply {
            TenantReply::Gate { word, epoch } if word.state() != GateState::Closed => Some((word, epoch)),
            _ => None,
        });
        self.peer
            .say(&TenantRequest::Entered { word, moved: Bytes::ZERO, took: Nanos::ZERO });
        epoch
    }

    pub(crate) fn gate(&self) -> GateWord {
        GateWord(self.page.gate.load(Ordering::Acquire))
    }

    pub(crate) fn hear_until<T>(&mut self, mut found: impl FnMut(TenantReply) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(self.peer.hear()) {
                return found;
            }
        }
    }
}
