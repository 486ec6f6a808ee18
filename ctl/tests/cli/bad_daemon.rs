//! Daemons that are not there, not ours, or not willing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::admin::AdminReply;
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::tenant::{FailureCode, PROTOCOL, TenantReply, TenantRequest};

use crate::ctl::{ctl, fails};
use crate::fake::{Fake, failure};

#[test]
fn a_daemon_that_is_down() {
    let folder = tempfile::tempdir().unwrap();
    let socket = RuntimeDir::new(folder.path()).admin_socket();
    let expected = format!(
        "no gpushare daemon answers at {}; `gpushare-ctl run` starts one, or run `gpushare-scheduler --user`",
        socket.display()
    );
    for command in [
        &["status"][..],
        &["top", "--once"],
        &["top", "--json"],
        &["session", "list"],
        &["session", "show", "train"],
        &["set", "quantum", "auto"],
    ] {
        assert_eq!(fails(&mut ctl(folder.path(), command), 3), expected);
    }
    // The stale socket of a daemon that was killed.
    drop(UnixListener::bind(&socket).unwrap());
    // A program that another test starts has a copy of the listener until it runs.
    let deadline = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(&socket).is_ok() {
        assert!(Instant::now() < deadline, "it listens");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fails(&mut ctl(folder.path(), &["status"]), 3), expected);
}

#[test]
fn a_strangers_daemon_in_the_users_folder() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can listen as another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("gpushare");
    fs::create_dir(&root).unwrap();
    // As in `/tmp`, anybody may make the user's folder.
    for folder in [folder.path(), &root] {
        fs::set_permissions(folder, Permissions::from_mode(0o1777)).unwrap();
    }
    let socket = RuntimeDir::new(&root).admin_socket();
    let listen = || {
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65534)).unwrap();
        UnixListener::bind(&socket).unwrap()
    };
    let _stranger = thread::scope(|scope| scope.spawn(listen).join().unwrap());
    let mut status = ctl(folder.path(), &["status"]);
    let sentence = fails(status.env_remove("GPUSHARE_RUNTIME_DIR"), 4);
    assert!(sentence.contains("user 65534 listens at"), "{sentence}");
}

#[test]
fn a_daemon_that_accepts_and_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let _silent = UnixListener::bind(RuntimeDir::new(folder.path()).admin_socket()).unwrap();
    let sentence = fails(&mut ctl(folder.path(), &["status"]), 3);
    assert!(sentence.contains("does not answer within 5s; see its log"), "{sentence}");
}

#[test]
fn a_daemon_of_another_protocol_version() {
    let daemon = Fake::new(|_| TenantReply::Ready { protocol: 7 }, |_| AdminReply::Ready { protocol: 7 });
    let expected = format!(
        "this gpushare speaks protocol {PROTOCOL}, the other side 7; install the same gpushare version on both \
         sides and restart the older one"
    );
    assert_eq!(fails(&mut ctl(daemon.dir(), &["status"]), 1), expected);
    assert_eq!(fails(&mut ctl(daemon.dir(), &["run", "--", "true"]), 125), expected);
}

#[test]
fn something_else_on_the_socket() {
    let daemon =
        Fake::raw(|_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), |_| b"\x03\0\0\0\xff\xff\xff".to_vec());
    for (command, code) in [(&["status"][..], 1), (&["run", "--", "true"], 125)] {
        let sentence = fails(&mut ctl(daemon.dir(), command), code);
        assert!(sentence.contains("cannot be decoded"), "{sentence}");
        assert!(sentence.ends_with("install the same gpushare version on both sides"), "{sentence}");
    }
}

#[test]
fn a_daemon_that_hangs_up() {
    let daemon = Fake::raw(|_| Vec::new(), |_| Vec::new());
    let sentence = fails(&mut ctl(daemon.dir(), &["status"]), 1);
    assert!(sentence.ends_with("closed the connection without an answer; its log says why"), "{sentence}");
}

#[test]
fn a_daemon_that_answers_another_question() {
    let daemon = Fake::for_admins(|_| AdminReply::Ready { protocol: PROTOCOL });
    let sentence = fails(&mut ctl(daemon.dir(), &["status"]), 1);
    assert!(sentence.contains("sent an unexpected reply"), "{sentence}");
}

#[test]
fn a_daemon_that_refuses_and_says_why() {
    let (sorry, own) = (
        "speak protocol 7; install gpushare 3",
        "user 7 may not administrate this daemon; run the command as user 0 or root",
    );
    for (code, message, exit) in [(FailureCode::Protocol, sorry, 1), (FailureCode::Permission, own, 4)] {
        let daemon = Fake::for_admins(move |_| AdminReply::Error(failure(code, message)));
        assert_eq!(fails(&mut ctl(daemon.dir(), &["status"]), exit), message);
    }
    let message = "this daemon registers no sessions; ask its administrator for [self_service]";
    let daemon = Fake::for_tenants(move |request| match request {
        TenantRequest::Hello(_) => TenantReply::Ready { protocol: PROTOCOL },
        _ => TenantReply::Error(failure(FailureCode::Permission, message)),
    });
    assert_eq!(fails(&mut ctl(daemon.dir(), &["run", "--", "true"]), 125), message);
}

#[test]
fn a_folder_that_cannot_be_made() {
    let sentence = fails(&mut ctl(Path::new("/proc/gpushare"), &["run", "--", "true"]), 125);
    assert!(sentence.starts_with("cannot make the folder /proc/gpushare: "), "{sentence}");
}
