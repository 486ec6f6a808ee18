//! The process's side of the tenant socket, against a daemon that the test plays.
#![cfg(not(loom))]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gpushare_client::daemon::MemoryKind;
use gpushare_client::daemon::address::{Address, ConnectError, Requirement};
use gpushare_client::daemon::connection::Connection;
use gpushare_client::daemon::link::{AskError, Link};
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::tenant::{Failure, FailureCode, PROTOCOL, Role, TenantReply, TenantRequest, Welcome};
use gpushare_proto::{Backend, Bytes, ClientId, GateState, GateWord, GpuId, SessionId, Token, codec};
use gpushare_sys::page::{self, SharedPage};
use gpushare_sys::socket;

/// Daemon's end of one connection.
struct Daemon {
    stream: UnixStream,
    page: SharedPage,
}

fn receive(stream: &mut UnixStream) -> TenantRequest {
    let mut header = [0; codec::HEADER];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; codec::body_length::<TenantRequest>(header).unwrap()];
    stream.read_exact(&mut body).unwrap();
    codec::decode(&body).unwrap()
}

impl Daemon {
    /// Accepts a client and welcomes it; returns the role of its hello.
    fn welcome(listener: &UnixListener) -> (Self, Role) {
        let (mut stream, _) = listener.accept().unwrap();
        let TenantRequest::Hello(hello) = receive(&mut stream) else {
            panic!("the first message is a hello")
        };
        let (file, page) = page::create().unwrap();
        let welcome = TenantReply::Welcome(Welcome {
            protocol: PROTOCOL,
            client: ClientId(7),
            session: SessionId(3),
            name: "test".to_owned(),
            gpus: Vec::new(),
        });
        let frame = codec::encode(&welcome).unwrap();
        assert_eq!(socket::send_with_fd(&stream, &frame, Some(file.as_fd())).unwrap(), frame.len());
        (Self { stream, page }, hello.role)
    }

    fn answer(&mut self, reply: &TenantReply) {
        self.stream.write_all(&codec::encode(reply).unwrap()).unwrap();
    }

    /// Receives a request for memory; returns its number.
    fn asked_for(&mut self, bytes: Bytes) -> gpushare_proto::RequestId {
        match receive(&mut self.stream) {
            TenantRequest::Reserve { request, bytes: asked, .. } if asked == bytes => request,
            other => panic!("expected a request for {bytes}, got {other:?}"),
        }
    }
}

fn bind(folder: &Path) -> (UnixListener, Address) {
    let path = folder.join("scheduler.sock");
    let listener = UnixListener::bind(&path).unwrap();
    (
        listener,
        Address::new(
            vec![folder.join("nobody.sock"), path],
            Some(Token([5; 32])),
            Some(Requirement::MachineConfig),
        ),
    )
}

/// Receives messages until the connection ends, and counts memory.
fn listen(link: &Link, mut connection: Connection, counted: &AtomicU64) {
    while let Ok(reply) = connection.receive() {
        let surplus = link.receive(reply, |grant| {
            counted.fetch_add(grant.bytes.0, Ordering::SeqCst);
        });
        assert_eq!(surplus, None);
    }
}

#[test]
fn a_client_says_hello_and_maps_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || {
        let (daemon, role) = Daemon::welcome(&listener);
        daemon.page.gate.store(GateWord::new(1, GateState::Open).0, Ordering::SeqCst);
        (daemon, role)
    });
    let (_connection, welcome, page) = address.connect(Backend::Managed, None).unwrap();
    let (_daemon, role) = daemon.join().unwrap();
    assert_eq!((welcome.client, welcome.session), (ClientId(7), SessionId(3)));
    assert_eq!(role, Role::Client { token: Some(Token([5; 32])), returning: None });
    assert_eq!(GateWord(page.gate.load(Ordering::SeqCst)).state(), GateState::Open);
}

#[test]
fn without_a_daemon_the_error_names_every_socket_that_was_tried() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::new(vec![folder.path().join("a.sock"), folder.path().join("b.sock")], None, None);
    let error = address.connect(Backend::Managed, None).unwrap_err();
    assert!(matches!(error, ConnectError::Absent(_)));
    let text = error.to_string();
    assert!(
        text.contains("a.sock") && text.contains("b.sock") && text.contains("gpushare-ctl run"),
        "{text}"
    );
}

#[test]
fn a_refusal_keeps_the_daemons_words() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        receive(&mut stream);
        let failure = Failure { code: FailureCode::Permission, message: "no such session".to_owned() };
        stream.write_all(&codec::encode(&TenantReply::Error(failure)).unwrap()).unwrap();
    });
    let error = address.connect(Backend::Managed, None).unwrap_err();
    daemon.join().unwrap();
    assert!(matches!(error, ConnectError::Refused(Failure { code: FailureCode::Permission, .. })));
    assert!(error.to_string().contains("no such session"));
}

#[test]
fn memory_counts_before_the_asking_thread_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let refusal =
        MemoryRefusal { requested: Bytes(9), limit: Bytes(5), used: Bytes(1), by: LimitKind::Session };
    let daemon = thread::spawn(move || {
        let (mut daemon, _) = Daemon::welcome(&listener);
        let request = daemon.asked_for(Bytes(100));
        daemon.answer(&TenantReply::Reserved { request, bytes: Bytes(100) });
        let request = daemon.asked_for(Bytes(9));
        daemon.answer(&TenantReply::Refused { request, refusal });
    });
    let (connection, welcome, _) = address.connect(Backend::Managed, None).unwrap();
    let link = Link::new(&connection, &welcome).unwrap();
    let counted = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| listen(&link, connection, &counted));
        link.ask_memory(0, GpuId(0), Bytes(100), MemoryKind::Movable).unwrap();
        assert_eq!(counted.load(Ordering::SeqCst), 100);
        let refused = link.ask_memory(0, GpuId(0), Bytes(9), MemoryKind::Movable).unwrap_err();
        assert!(matches!(refused, AskError::Memory(figures) if figures == refusal));
        assert_eq!(counted.load(Ordering::SeqCst), 100);
        daemon.join().unwrap();
    });
}

#[test]
fn a_daemon_that_knows_no_pieces_is_asked_for_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || {
        let (mut daemon, _) = Daemon::welcome(&listener);
        let request = daemon.asked_for(Bytes(64));
        daemon.answer(&TenantReply::Reserved { request, bytes: Bytes(64) });
    });
    let (connection, welcome, _) = address.connect(Backend::Remap, None).unwrap();
    let link = Link::new(&connection, &welcome).unwrap();
    let counted = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| listen(&link, connection, &counted));
        // The page in force has no features here.
        link.ask_piece(0, GpuId(0), Bytes(64)).unwrap();
        assert_eq!(counted.load(Ordering::SeqCst), 64);
        daemon.join().unwrap();
    });
}

#[test]
fn a_connection_that_takes_no_more_messages_is_shut_down() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || Daemon::welcome(&listener));
    let (mut connection, welcome, _) = address.connect(Backend::Managed, None).unwrap();
    let link = Link::new(&connection, &welcome).unwrap();
    let _stalled = daemon.join().unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(move || connection.receive());
        let wait = TenantRequest::Wait { word: GateWord::new(1, GateState::Closed) };
        // Until its buffer is full, and then the one that is lost.
        while link.send(&wait) {}
        reader.join().unwrap().unwrap_err();
    });
}

#[test]
fn a_message_that_may_be_lost_never_blocks_nor_breaks_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || Daemon::welcome(&listener));
    let (connection, welcome, _) = address.connect(Backend::Managed, None).unwrap();
    let link = Link::new(&connection, &welcome).unwrap();
    let (mut stalled, _) = daemon.join().unwrap();
    let refused = TenantRequest::RefusedLocally { gpu: GpuId(0), bytes: Bytes::gib(80) };
    let mut told = 0;
    while link.try_send(&refused) {
        told += 1;
    }
    for _ in 0..told {
        assert_eq!(receive(&mut stalled.stream), refused);
    }
    assert!(link.try_send(&refused), "there is space again");
    assert_eq!(receive(&mut stalled.stream), refused);
    link.unplug();
    assert!(!link.try_send(&refused), "without a connection");
}

#[test]
fn an_open_question_is_asked_again_of_the_next_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || {
        let (mut first, _) = Daemon::welcome(&listener);
        first.asked_for(Bytes(64));
        drop(first);
        let (mut second, _) = Daemon::welcome(&listener);
        let request = second.asked_for(Bytes(64));
        second.answer(&TenantReply::Reserved { request, bytes: Bytes(64) });
    });
    let (connection, welcome, _) = address.connect(Backend::Managed, None).unwrap();
    let link = Link::new(&connection, &welcome).unwrap();
    let counted = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            listen(&link, connection, &counted);
            link.unplug();
            let (connection, welcome, _) = address.connect(Backend::Managed, None).unwrap();
            link.plug(&connection, &welcome, |_| Some(GpuId(2)), || ()).unwrap();
            listen(&link, connection, &counted);
        });
        link.ask_memory(0, GpuId(0), Bytes(64), MemoryKind::Movable).unwrap();
        daemon.join().unwrap();
    });
    assert_eq!(counted.load(Ordering::SeqCst), 64);
}

#[test]
fn a_daemon_that_accepts_and_never_answers_fails_the_probe() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = bind(folder.path());
    let daemon = thread::spawn(move || {
        // The first one is cut off without a word, the second one is answered.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        let TenantRequest::Hello(hello) = receive(&mut stream) else {
            panic!("the first message is a hello")
        };
        let ready = TenantReply::Ready { protocol: PROTOCOL };
        stream.write_all(&codec::encode(&ready).unwrap()).unwrap();
        hello.role
    });
    assert!(matches!(address.probe(), Err(ConnectError::Broken(..))));
    address.probe().unwrap();
    assert_eq!(daemon.join().unwrap(), Role::Tool, "nothing about the process");
}

#[test]
fn an_unreachable_socket_is_no_absent_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let (nobody, file) = (folder.path().join("nobody.sock"), folder.path().join("file"));
    std::fs::write(&file, "").unwrap();
    let blocked = file.join("scheduler.sock");
    let error = |sockets: &[&std::path::PathBuf]| {
        let sockets = sockets.iter().map(|&socket| socket.clone()).collect();
        Address::new(sockets, None, Some(Requirement::MachineConfig))
            .connect(Backend::Managed, None)
            .err()
            .unwrap()
    };
    assert!(matches!(error(&[&nobody]), ConnectError::Absent(_)));
    let found = error(&[&nobody, &blocked]);
    assert!(matches!(&found, ConnectError::Unreachable { path, .. } if *path == blocked), "{found}");

    // A later socket that answers is used all the same.
    let (listener, _) = bind(folder.path());
    let daemon = thread::spawn(move || Daemon::welcome(&listener));
    let there = folder.path().join("scheduler.sock");
    Address::new(vec![blocked, there], None, Some(Requirement::MachineConfig))
        .connect(Backend::Managed, None)
        .unwrap();
    daemon.join().unwrap();
}
