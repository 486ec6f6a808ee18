//! Sockets that somebody else keeps: a daemon takes them over, and its successor takes them over again.

use std::os::unix::net::UnixStream;
use std::thread;

use gpushare_proto::tenant::{Hello, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState};

use crate::harness::{Peer, Place, administrator, tool};
use crate::restart::{returning, written};

#[test]
fn nobody_is_refused_while_a_daemon_on_passed_sockets_is_killed_and_started_again() {
    let place = Place::new();
    let bound = place.bind();
    let daemon = place.start_on(&bound);
    let (session, token) = daemon.register("durable", Some(Bytes::mib(256)));
    let client = daemon.join(Some(&token));
    written(&place, 1);
    daemon.kill();

    // There is no daemon, and one may connect and speak all the same.
    let mut early: Peer<TenantRequest, TenantReply> =
        Peer::over(UnixStream::connect(place.runtime().tenant_socket()).unwrap());
    early.say(&TenantRequest::Hello(Hello::new(Role::Tool)));
    let daemon = thread::scope(|scope| {
        let runtime = place.runtime();
        let asked = scope.spawn(move || {
            tool(&runtime);
            administrator(&runtime).is_ok()
        });
        let daemon = place.start_on(&bound);
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
    let place = Place::new();
    let bound = place.bind();
    let daemon = place.start_on(&bound);
    assert_eq!(daemon.terminate().code(), Some(0));
    let waiting = UnixStream::connect(place.runtime().admin_socket()).unwrap();
    let daemon = place.start_on(&bound);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
    drop(waiting);
}
