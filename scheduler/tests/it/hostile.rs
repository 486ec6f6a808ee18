//! Hostile peers: each is disconnected, without an effect on others.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gpushare_proto::codec;
use gpushare_proto::tenant::{FailureCode, Hello, MAGIC, PROTOCOL, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GpuId, RequestId};
use gpushare_sys::socket::send_with_fd;
use rustix::net::sockopt::set_socket_linger;

use crate::harness::{Daemon, Folders, Peer, eventually};

fn hello() -> Vec<u8> {
    codec::encode(&TenantRequest::Hello(Hello::new(Role::Tool))).unwrap()
}

/// Returns the daemon's last message on a connection.
fn last_words(stream: UnixStream) -> Option<TenantReply> {
    let mut peer: Peer<TenantRequest, TenantReply> = Peer::over(stream);
    let words = peer.listen();
    assert_eq!(peer.listen(), None, "the connection ends after {words:?}");
    words
}

fn serves(daemon: &Daemon) {
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
}

#[test]
fn a_peer_that_connects_and_resets_changes_nothing() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    for _ in 0..300 {
        let mut stream = daemon.connect();
        stream.write_all(&hello()).unwrap();
    }
    serves(&daemon);
}

#[test]
fn a_descriptor_that_is_slow_to_close_holds_up_nobody() {
    let folders = Folders::new();
    let bound = folders.bind();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let _never_reads = listener.accept().unwrap();
    slow.set_nonblocking(true).unwrap();
    while slow.write(&[0; 65536]).is_ok() {}
    slow.set_nonblocking(false).unwrap();
    set_socket_linger(&slow, Some(Duration::from_secs(60))).unwrap();
    // Sent before the daemon can refuse descriptors.
    let mut peer = UnixStream::connect(folders.runtime().tenant_socket()).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(send_with_fd(&peer, &hello(), Some(slow.as_fd())).unwrap(), hello().len());
    drop(slow);
    let daemon = folders.start_on(&bound);
    // Closed with unread bytes, so it may be a reset.
    let end = peer.read(&mut [0; 64]).or_else(|cause| match cause.kind() {
        ErrorKind::ConnectionReset => Ok(0),
        _ => Err(cause),
    });
    assert_eq!(end.unwrap(), 0);
    serves(&daemon);
    folders.logged("the peer sent descriptors");
}

#[test]
fn garbage_closes_the_connection_with_a_reason() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut stream = daemon.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let Some(TenantReply::Error(failure)) = last_words(stream) else {
        panic!("no reason");
    };
    assert_eq!(failure.code, FailureCode::BadRequest);
    eventually("the reason in the log", || folders.log().contains("larger than the limit").then_some(()));
    serves(&daemon);
}

#[test]
fn nine_bytes_that_claim_a_terabyte_get_nothing() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut peer = daemon.tool();
    peer.stream.write_all(&[0xff; 9]).unwrap();
    assert_eq!(peer.listen(), None);
    serves(&daemon);
}

#[test]
fn a_frame_may_be_cut_at_every_byte() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let hello = hello();
    for cut in 0..hello.len() {
        let mut stream = daemon.connect();
        stream.write_all(&hello[..cut]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "cut at byte {cut}");
    }
    serves(&daemon);
}

#[test]
fn a_frame_may_come_byte_by_byte() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut stream = daemon.connect();
    for byte in hello() {
        stream.write_all(&[byte]).unwrap();
    }
    let mut peer: Peer<TenantRequest, TenantReply> = Peer::over(stream);
    assert_eq!(peer.hear(), TenantReply::Ready { protocol: PROTOCOL });
}

#[test]
fn who_does_not_say_who_it_is_is_closed() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let silent = daemon.connect();
    serves(&daemon);
    assert_eq!(last_words(silent), None);
    eventually("the reason in the log", || folders.log().contains("sent no hello within 5s").then_some(()));
}

#[test]
fn who_never_reads_is_closed() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut peer = daemon.tool();
    let question = codec::encode(&TenantRequest::Gpus).unwrap();
    eventually("the daemon to close the connection", || peer.stream.write_all(&question).err());
    folders.logged("it does not read");
    serves(&daemon);
}

#[test]
fn another_protocol_is_told_both_versions() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut stream = daemon.connect();
    let other = Hello { magic: MAGIC, protocol: 99, role: Role::Tool };
    stream.write_all(&codec::encode(&TenantRequest::Hello(other)).unwrap()).unwrap();
    let Some(TenantReply::Error(failure)) = last_words(stream) else {
        panic!("no reason");
    };
    assert_eq!(failure.code, FailureCode::Protocol);
    assert_eq!(failure.message, codec::protocol_mismatch(99));
}

#[test]
fn only_the_first_message_is_a_hello() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut stream = daemon.connect();
    stream.write_all(&codec::encode(&TenantRequest::OwnSession).unwrap()).unwrap();
    assert!(
        matches!(last_words(stream), Some(TenantReply::Error(failure)) if failure.message.contains("hello"))
    );

    let mut peer = daemon.tool();
    peer.say(&TenantRequest::Hello(Hello::new(Role::Tool)));
    assert!(matches!(peer.hear(), TenantReply::Error(failure) if failure.code == FailureCode::BadRequest));
    assert_eq!(peer.listen(), None);
}

#[test]
fn a_card_that_the_process_is_not_on_ends_the_connection() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut client = daemon.join(None);
    client
        .peer
        .say(&TenantRequest::Reserve { request: RequestId(1), gpu: GpuId(7), bytes: Bytes::gib(1) });
    assert!(matches!(client.peer.hear(), TenantReply::Error(failure) if failure.message.contains("gpu7")));
    assert_eq!(client.peer.listen(), None);
    assert_eq!(daemon.status().sessions, []);
}

#[test]
fn refused_requests_in_a_loop_get_few_log_lines_and_a_count() {
    const REQUESTS: usize = 1000;
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let began = Instant::now();
    for _ in 0..REQUESTS {
        let mut peer = daemon.tool();
        peer.say(&TenantRequest::Hello(Hello::new(Role::Tool)));
        assert!(matches!(peer.hear(), TenantReply::Error(_)));
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    serves(&daemon);
    assert!(daemon.terminate().success());
    let log = folders.log();
    let lines = log.matches("refused pid").count();
    // At most 32 a second, however many seconds the machine needs.
    assert!(lines <= 32 * seconds, "{lines} in {seconds} s");
    assert!(lines < REQUESTS || seconds > REQUESTS / 32);
}

#[test]
fn a_question_is_answered_beside_many_that_are_never_heard() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let question = codec::encode(&TenantRequest::OwnSession).unwrap();
    let deaf: Vec<_> = (0..100)
        .map(|_| {
            let mut peer = daemon.tool();
            peer.stream.write_all(&question.repeat(40)).unwrap();
            peer
        })
        .collect();
    let mut client = daemon.join(None);
    let gpu = client.attach();
    assert!(matches!(client.reserve(gpu, Bytes::mib(1)), TenantReply::Reserved { .. }));
    serves(&daemon);
    drop(deaf);
}

#[test]
fn a_flood_of_connections_gets_a_quarter_of_the_daemons_time() {
    const CONNECTIONS: u32 = 6000;
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let began = Instant::now();
    for _ in 0..CONNECTIONS {
        // The daemon may have closed it already.
        let _ = daemon.connect().write_all(&hello());
    }
    // Accepted after all others, though perhaps closed: too many of its user are unidentified.
    let mut last = daemon.connect();
    let _ = last.write_all(&hello());
    let read = last.read(&mut [0]);
    assert!(!read.is_err_and(|cause| cause.kind() == ErrorKind::WouldBlock), "neither served nor closed");
    // Each costs the daemon 20 µs at least, of which a quarter is theirs. A quarter of 20 ms may be taken at once.
    assert!(began.elapsed() >= Duration::from_micros(20) * 4 * CONNECTIONS - Duration::from_millis(20));
}
