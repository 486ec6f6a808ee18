//! Other processes, for what one process cannot be: killed, stopped, somebody else.
//!
//! Each runs one of the ignored tests below, in this very program.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use gpushare_proto::names::{self, RuntimeDir};
use gpushare_proto::tenant::{FailureCode, Returning, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, ClientId, SessionId, Token};

use crate::harness::{Client, Place, join, join_at, register, tool_at};

/// What the process is to know besides the daemon's folder.
const ARGUMENT: &str = "GPUSHARE_TEST_ARGUMENT";

/// A card for one of two sessions that are [`wanting`], for as long as any test takes.
pub(crate) const TURNS: [&str; 3] = ["--mode=serialized", "--capacity=0=128MiB", "--quantum=30s"];
/// The same, but whoever holds it is asked to let go at once.
pub(crate) const SHORT_TURNS: [&str; 3] = ["--mode=serialized", "--capacity=0=128MiB", "--quantum=20ms"];

/// Uses most of the card and asks for the lock.
pub(crate) fn wanting(client: &mut Client) {
    let gpu = client.attach();
    client.reserve(gpu, Bytes::mib(100));
    client.wait();
}

/// Another process. Killed on drop.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    /// One that holds the lock, or waits for it, and never lets go.
    pub(crate) fn wanting_the_lock(place: &Place, token: &Token) -> Self {
        Self::run("wants_the_lock", place, &token.to_hex())
    }

    /// One that holds the lock, hangs up and lives.
    pub(crate) fn hanging_up(place: &Place, token: &Token) -> Self {
        let mut process = Self::run("hangs_up", place, &token.to_hex());
        process.given();
        process
    }

    /// One of another user's that hangs up as often as it is let, ten times at most, and lives; how often that was.
    pub(crate) fn hanging_up_as(place: &Place, uid: u32) -> (Self, u64) {
        let mut process = Self::run("hangs_up_often", place, &uid.to_string());
        let times = process.given();
        (process, times)
    }

    /// One that says it is another's client; what number it was given.
    pub(crate) fn claiming(place: &Place, client: ClientId) -> ClientId {
        ClientId(Self::run("claims", place, &client.0.to_string()).given())
    }

    /// One that registers a session and outlives the session's only client.
    pub(crate) fn registering(place: &Place) -> (Self, SessionId) {
        let mut process = Self::run("registers", place, "");
        let session = SessionId(process.given());
        (process, session)
    }

    /// One that asks so many times for so much of the card, and keeps what it gets.
    pub(crate) fn asking(place: &Place, token: Option<&Token>, bytes: Bytes, times: u64) -> Self {
        let token = token.map(Token::to_hex).unwrap_or_default();
        let mut process = Self::run("asks", place, &format!("{token}:{}:{times}", bytes.0));
        process.given();
        process
    }

    /// One that entered the session of a token and never uses a card.
    pub(crate) fn entering(place: &Place, token: &Token) -> Self {
        let mut process = Self::run("enters", place, &format!("{}:", token.to_hex()));
        assert_eq!(process.given(), 0);
        process
    }

    /// One of another user's that enters the session of a token; why it may not.
    pub(crate) fn entering_as(place: &Place, token: &Token, uid: u32) -> Result<Self, FailureCode> {
        let mut process = Self::run("enters", place, &format!("{}:{uid}", token.to_hex()));
        match process.given() {
            0 => Ok(process),
            _ => Err(FailureCode::Unavailable),
        }
    }

    /// Has it start a child with a POSIX session of its own and no token; the session that the child is in.
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

    fn run(what: &str, place: &Place, argument: &str) -> Self {
        let test = format!("processes::a_process_that_{what}");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test, "--ignored", "--nocapture"])
            .env(names::RUNTIME_DIR, place.runtime().root())
            .env(ARGUMENT, argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// The number that it says it was given.
    fn given(&mut self) -> u64 {
        // It says the next one when it is asked to only: nothing is lost with the buffer.
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

/// Until the one who started us ends us, or itself.
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

/// In the folder of the socket: its owner, who is root, lets nobody else in.
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
        // The daemon closes its end when it has taken note.
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
fn a_process_that_joins() {
    let client = join(&runtime(), None, None).unwrap();
    println!("given {}", client.welcome.session.0);
}
