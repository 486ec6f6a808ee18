//! Sockets passed by a service manager: each daemon takes them over from the last one.

use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use gpushare_proto::tenant::{Hello, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState};

use crate::harness::{Folders, Peer, administrator, tool};
use crate::restart::{returning, written};

#[test]
fn passed_sockets_accept_peers_over_a_restart() {
    let folders = Folders::new();
    let bound = folders.bind();
    let daemon = folders.start_on(&bound);
    let (session, token) = daemon.register("durable", Some(Bytes::mib(256)));
    let client = daemon.join(Some(&token));
    written(&folders, 1);
    daemon.kill();

    // Without a daemon a peer can connect and send.
    let mut early: Peer<TenantRequest, TenantReply> =
        Peer::over(UnixStream::connect(folders.runtime().tenant_socket()).unwrap());
    early.say(&TenantRequest::Hello(Hello::new(Role::Tool)));
    let daemon = thread::scope(|scope| {
        let runtime = folders.runtime();
        let asked = scope.spawn(move || {
            tool(&runtime);
            administrator(&runtime).is_ok()
        });
        let daemon = folders.start_on(&bound);
        assert!(asked.join().unwrap());
        daemon
    });
    assert!(matches!(early.hear(), TenantReply::Ready { .. }));
    let back = daemon.return_as(returning(&client, None));
    assert_eq!(back.welcome.session, session);
    assert_ne!(back.gate().state(), GateState::Moving);
}

#[test]
fn a_daemon_that_ends_leaves_the_sockets_that_were_passed() {
    let folders = Folders::new();
    let bound = folders.bind();
    let daemon = folders.start_on(&bound);
    assert_eq!(daemon.terminate().code(), Some(0));
    let waiting = UnixStream::connect(folders.runtime().admin_socket()).unwrap();
    let daemon = folders.start_on(&bound);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
    drop(waiting);
}

#[test]
fn a_passed_descriptor_that_is_no_socket_is_named() {
    const PASS: &str = r#"exec 3</dev/null; export LISTEN_PID=$$ LISTEN_FDNAMES=tenant:admin; exec "$@""#;
    let folders = Folders::new();
    let fail = |count: &str| {
        let mut daemon = Command::new("sh");
        daemon.args(["-c", PASS, "sh", env!("CARGO_BIN_EXE_gpushare-scheduler"), "--runtime-dir"]);
        let ended = daemon.arg(folders.runtime().root()).env("LISTEN_FDS", count).output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, said) = fail("1");
    assert_eq!(code, Some(1), "{said}");
    let named = "passed socket `tenant` is not a listening stream socket with a path; see docs/systemd.md";
    assert!(said.contains(named), "{said}");
    let (code, said) = fail("1000");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot take over the passed sockets: descriptor "), "{said}");
}
