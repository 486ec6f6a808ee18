//! Other processes for tests: to be killed, to be stopped, or to run as another user.
//!
//! Each one runs an ignored test of this file, in the same program.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use gpushare_proto::copies::CopyAnswer;
use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::tenant::{FailureCode, Returning, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, ClientId, RequestId, SessionId, Token};

use crate::copies;
use crate::harness::{Client, Folders, join, join_at, register, tool_at};
use crate::importing::{MEETING, export_of, is_told};

/// Argument of the process, besides the daemon's folder.
const ARGUMENT: &str = "GPUSHARE_TEST_ARGUMENT";

/// Flags for a card with room for one of two [`wanting`] sessions and turns longer than any test.
pub(crate) const TURNS: [&str; 3] = ["--mode=serialized", "--capacity=0=128MiB", "--quantum=30s"];
/// Flags for such a card whose holder is asked to let go at once.
pub(crate) const SHORT_TURNS: [&str; 3] = ["--mode=serialized", "--capacity=0=128MiB", "--quantum=20ms"];

/// Uses most of the card and asks for the lock.
pub(crate) fn wanting(client: &mut Client) {
    let gpu = client.attach();
    client.reserve(gpu, Bytes::mib(100));
    client.wait();
}

/// Other process, which is killed on drop.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    /// Starts a process that holds the lock, or waits for it, and never lets go.
    pub(crate) fn wanting_the_lock(folders: &Folders, token: &Token) -> Self {
        Self::run("wants_the_lock", folders, &token.to_hex())
    }

    /// Starts a process that holds the lock, hangs up and lives.
    pub(crate) fn hanging_up(folders: &Folders, token: &Token) -> Self {
        let mut process = Self::run("hangs_up", folders, &token.to_hex());
        process.given();
        process
    }

    /// Starts a process of another user that hangs up at most ten times and lives. Returns how often it
    /// could.
    pub(crate) fn hanging_up_as(folders: &Folders, uid: u32) -> (Self, u64) {
        let mut process = Self::run("hangs_up_often", folders, &uid.to_string());
        let times = process.given();
        (process, times)
    }

    /// Starts a process that claims to be another's client. Returns the number that it got.
    pub(crate) fn claiming(folders: &Folders, client: ClientId) -> ClientId {
        ClientId(Self::run("claims", folders, &client.0.to_string()).given())
    }

    /// Starts a process that registers a session and outlives its only client.
    pub(crate) fn registering(folders: &Folders) -> (Self, SessionId) {
        let mut process = Self::run("registers", folders, "");
        let session = SessionId(process.given());
        (process, session)
    }

    /// Starts a process that requests `bytes` of the card a number of times and keeps them.
    pub(crate) fn asking(folders: &Folders, token: Option<&Token>, bytes: Bytes, times: u64) -> Self {
        let token = token.map(Token::to_hex).unwrap_or_default();
        let mut process = Self::run("asks", folders, &format!("{token}:{}:{times}", bytes.0));
        process.given();
        process
    }

    /// Starts a process that joins the session of a token and uses no card.
    pub(crate) fn entering(folders: &Folders, token: &Token) -> Self {
        let mut process = Self::run("enters", folders, &format!("{}:", token.to_hex()));
        assert_eq!(process.given(), 0);
        process
    }

    /// Starts a process of another user that joins the session of a token. Returns the reason of its refusal.
    pub(crate) fn entering_as(folders: &Folders, token: &Token, uid: u32) -> Result<Self, FailureCode> {
        let mut process = Self::run("enters", folders, &format!("{}:{uid}", token.to_hex()));
        match process.given() {
            0 => Ok(process),
            _ => Err(FailureCode::Unavailable),
        }
    }

    /// Starts a process of another user that asks for memory of a client. Returns whether that client was
    /// told.
    pub(crate) fn importing_as(folders: &Folders, exporter: ClientId, uid: u32) -> bool {
        Self::run("imports", folders, &format!("{}:{uid}", exporter.0)).given() == 1
    }

    /// Starts a process that asks for memory of a client, and then for memory of no client. Returns once the second
    /// question is answered and the first one is not.
    pub(crate) fn importing_late(folders: &Folders, exporter: ClientId) -> Self {
        let (process, first) = Self::importing_times(folders, exporter, 1);
        assert_eq!(first, 2, "the second question is answered first");
        process
    }

    /// Starts a process that asks for memory of a client a number of times, and then for memory of no client. Returns the
    /// number of the first question that is answered.
    pub(crate) fn importing_times(folders: &Folders, exporter: ClientId, times: u64) -> (Self, u64) {
        let mut process = Self::run("imports_late", folders, &format!("{}:{times}", exporter.0));
        let first = process.given();
        (process, first)
    }

    /// Returns whether the client of [`Self::importing_late`] was told at last.
    pub(crate) fn is_told(&mut self) -> bool {
        self.0.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        self.given() == 1
    }

    /// Starts a process of another user that asks that a session, which is not its own, is frozen and thawed.
    /// It is not found, and a session of its own is.
    pub(crate) fn freezing_as(folders: &Folders, session: SessionId, uid: u32) {
        let answers = Self::run("freezes", folders, &format!("{}:{uid}", session.0)).given();
        assert_eq!(answers, 3, "all three questions about the session of another user are about none");
    }

    /// Starts a process of another user that asks for a copy. Returns the answer.
    pub(crate) fn copying_as(folders: &Folders, uid: u32) -> CopyAnswer {
        match Self::run("copies", folders, &uid.to_string()).given() {
            0 => CopyAnswer::Alone,
            1 => CopyAnswer::Fill,
            2 => CopyAnswer::Made,
            3 => CopyAnswer::Busy,
            _ => CopyAnswer::Refused,
        }
    }

    /// Makes it start a child with its own POSIX session and no token. Returns the child's session.
    pub(crate) fn begets(&mut self) -> SessionId {
        self.0.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        SessionId(self.given())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn run(what: &str, folders: &Folders, argument: &str) -> Self {
        let test = format!("processes::a_process_that_{what}");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--ignored", "--nocapture"])
            .env(names::RUNTIME_DIR, folders.runtime().root())
            .env(ARGUMENT, argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Returns the number that the process reports.
    fn given(&mut self) -> u64 {
        // It reports the next number only when asked, so nothing is lost with the buffer.
        let said = BufReader::new(self.0.stdout.as_mut().unwrap());
        let number = |line: String| line.split_once("given ")?.1.parse().ok();
        said.lines().find_map(|line| number(line.unwrap())).unwrap()
    }
}

fn runtime() -> RuntimeDir {
    RuntimeDir::new(std::env::var_os(names::RUNTIME_DIR).unwrap())
}

fn argument() -> String {
    std::env::var(ARGUMENT).unwrap()
}

/// Waits until the test ends this process or itself.
fn stay() {
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_wants_the_lock() {
    let token = Token::from_hex(&argument()).unwrap();
    let mut client = join(&runtime(), Some(&token), None).unwrap();
    wanting(&mut client);
    client.enter();
    stay();
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_hangs_up() {
    let mut client = join(&runtime(), Token::from_hex(&argument()).as_ref(), None).unwrap();
    wanting(&mut client);
    client.enter();
    client.peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
    println!("given {}", client.welcome.client.0);
    stay();
}

/// Enters the folder of the socket, which only its owner, root, may do.
fn become_user(uid: &str) {
    let folder = std::fs::File::open(runtime().tenant_dir()).unwrap();
    rustix::process::fchdir(folder).unwrap();
    let uid = rustix::process::Uid::from_raw(uid.parse().unwrap());
    rustix::thread::set_thread_uid(uid).unwrap();
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_hangs_up_often() {
    become_user(&argument());
    let mut clients: Vec<Client> = Vec::new();
    while clients.len() < 10
        && let Ok(mut client) = join_at("scheduler.sock".as_ref(), None, None)
    {
        client.attach();
        client.peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The daemon closes its end once it has handled the hang-up.
        while client.peer.listen().is_some() {}
        clients.push(client);
    }
    println!("given {}", clients.len());
    stay();
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_asks() {
    let argument = argument();
    let [token, bytes, times] = argument.split(':').collect::<Vec<_>>()[..] else {
        panic!("{argument}");
    };
    let mut client = join(&runtime(), Token::from_hex(token).as_ref(), None).unwrap();
    let gpu = client.attach();
    for _ in 0..times.parse::<u64>().unwrap() {
        client.reserve(gpu, Bytes(bytes.parse().unwrap()));
    }
    println!("given {}", client.welcome.client.0);
    stay();
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_claims() {
    let returning = Returning {
        client: ClientId(argument().parse().unwrap()),
        session: SessionId(1),
        holding: None,
        gpus: vec![],
        waiting: false,
    };
    let client = join(&runtime(), None, Some(returning)).unwrap();
    println!("given {}", client.welcome.client.0);
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_registers() {
    let (_tool, session, token) = register(&runtime(), "short", None);
    drop(join(&runtime(), Some(&token), None).unwrap());
    println!("given {}", session.0);
    stay();
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_enters() {
    let argument = argument();
    let (token, uid) = argument.split_once(':').unwrap();
    let socket = match uid {
        "" => runtime().tenant_socket(),
        uid => {
            become_user(uid);
            "scheduler.sock".into()
        }
    };
    let mut tool = tool_at(&socket);
    tool.say(&TenantRequest::Join(Token::from_hex(token).unwrap()));
    let refused = match tool.hear() {
        TenantReply::SessionMemory(Some(_)) => 0,
        TenantReply::Error(failure) if failure.code == FailureCode::Unavailable => 1,
        other => panic!("neither in nor refused: {other:?}"),
    };
    drop(tool);
    println!("given {refused}");
    if std::io::stdin().read(&mut [0]).unwrap() == 1 {
        let own = std::env::current_exe().unwrap();
        let mut child = Command::new("setsid");
        child.arg("--wait").arg("--fork").arg(own).args([
            "--exact",
            "processes::a_process_that_joins",
            "--ignored",
            "--nocapture",
        ]);
        assert!(child.status().unwrap().success());
    }
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_imports() {
    let argument = argument();
    let (exporter, uid) = argument.split_once(':').unwrap();
    become_user(uid);
    let mut client = join_at("scheduler.sock".as_ref(), None, None).unwrap();
    let exporter = ClientId(exporter.parse().unwrap());
    println!("given {}", u32::from(is_told(&mut client, exporter)));
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_imports_late() {
    let mut client = join(&runtime(), None, None).unwrap();
    let argument = argument();
    let (late, times) = argument.split_once(':').unwrap();
    let (late, times): (u64, u64) = (late.parse().unwrap(), times.parse().unwrap());
    let questions = (1..=times).map(|request| (request, ClientId(late)));
    for (request, exporter) in questions.chain([(times + 1, ClientId(u64::MAX))]) {
        let (request, export) = (RequestId(request), export_of(exporter));
        client.peer.say(&TenantRequest::Import { request, export, meeting: MEETING });
    }
    let mut answer = || {
        client.hear_until(|reply| match reply {
            TenantReply::ImportAnswered { request, is_told } => Some((request.0, is_told)),
            _ => None,
        })
    };
    println!("given {}", answer().0);
    // Until the test asks for the next number.
    let _ = std::io::stdin().read(&mut [0]);
    println!("given {}", u32::from(answer() == (1, true)));
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_copies() {
    become_user(&argument());
    println!("given {}", copies::ask(&mut tool_at("scheduler.sock".as_ref())) as u32);
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_freezes() {
    let argument = argument();
    let (session, uid) = argument.split_once(':').unwrap();
    become_user(uid);
    let client = join_at("scheduler.sock".as_ref(), None, None).unwrap();
    let mut tool = tool_at("scheduler.sock".as_ref());
    let mut is_found = |request: TenantRequest| {
        tool.say(&request);
        !matches!(tool.hear(), TenantReply::Error(failure) if failure.code == FailureCode::NotFound)
    };
    let own = client.welcome.session.to_string();
    assert!(is_found(TenantRequest::Frost { which: own.clone() }));
    assert!(is_found(TenantRequest::Freeze { which: own }));
    let which = || session.to_owned();
    let others = [
        TenantRequest::Freeze { which: which() },
        TenantRequest::Thaw { which: which() },
        TenantRequest::Frost { which: which() },
    ];
    println!("given {}", others.map(&mut is_found).iter().filter(|found| !**found).count());
    stay();
}

#[test]
#[ignore = "started by other tests"]
fn a_process_that_joins() {
    let client = join(&runtime(), None, None).unwrap();
    println!("given {}", client.welcome.session.0);
}
