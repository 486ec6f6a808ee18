//! Sockets passed by a service manager: each daemon takes them over from the last one.

use std::os::unix::net::UnixStream;
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
