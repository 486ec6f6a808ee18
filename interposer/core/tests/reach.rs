//! Obstacles between a process and its daemon, and which of them mean that there is no daemon.
#![cfg(not(loom))]

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use gpushare_client::daemon::address::{Address, ConnectError};
use gpushare_proto::names::RuntimeDir;

/// Variable with the socket for a process that another test starts.
const SOCKET: &str = "GPUSHARE_TEST_SOCKET";

/// Returns the error of a process that tries `sockets`.
fn error(sockets: &[&Path]) -> ConnectError {
    let sockets = sockets.iter().map(|&socket| socket.to_owned()).collect();
    Address::new(sockets, None, None).session_memory().unwrap_err()
}

fn is_unreachable(error: &ConnectError, at: &Path, errno: i32) -> bool {
    matches!(error, ConnectError::Unreachable { path, cause, .. } if path == at && cause.raw_os_error() == Some(errno))
}

#[test]
fn a_socket_without_a_listener_means_absence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    drop(UnixListener::bind(at("left")).unwrap());
    fs::write(at("file"), "").unwrap();
    let long = at(&"x".repeat(120));
    for socket in [at("nothing"), at("left"), at("file"), at("file/scheduler.sock"), long] {
        let error = error(&[&socket]);
        assert!(error.is_absence(), "{error}");
    }
}

#[test]
fn a_full_queue_is_waited_for_and_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("full.sock"), folder.path().join("other.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: a socket of ours that listens already; it takes one connection from now on.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let _waiting = UnixStream::connect(&path).unwrap();
    let _other = UnixListener::bind(&other).unwrap();
    let error = error(&[&path, &other]);
    assert!(is_unreachable(&error, &path, libc::EAGAIN), "{error}");
    assert!(!error.is_absence());
}

/// Runs `act` without root's rights: as uid 65534 if the test runs as root.
fn without_rights<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let acting = scope.spawn(|| {
            // SAFETY: the system call itself changes this thread's user only, and the thread ends with `act`.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
            // SAFETY: has no preconditions.
            assert!(changed == 0 || unsafe { libc::geteuid() } != 0);
            act()
        });
        acting.join().unwrap()
    })
}

/// Creates an open folder with a closed folder in it, in which a socket has a listener.
fn closed() -> (tempfile::TempDir, PathBuf, UnixListener) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    let inside = folder.path().join("closed");
    fs::create_dir(&inside).unwrap();
    let path = inside.join("scheduler.sock");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&inside, Permissions::from_mode(0o0)).unwrap();
    (folder, path, listener)
}

#[test]
fn a_daemon_that_is_closed_to_the_user_is_not_absent() {
    let (folder, path, _listener) = closed();
    let own = folder.path().join("own.sock");
    let error = without_rights(|| error(&[&path, &own]));
    assert!(is_unreachable(&error, &path, libc::EACCES), "{error}");
    assert!(!error.is_absence());
}

#[test]
fn a_closed_daemon_is_passed_over_for_the_users_own() {
    let (folder, path, _listener) = closed();
    let own = folder.path().join("own.sock");
    let listener = UnixListener::bind(&own).unwrap();
    fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
    thread::spawn(move || listener.incoming().for_each(drop));
    let error = without_rights(|| error(&[&path, &own]));
    assert!(matches!(&error, ConnectError::Broken(path, _) if *path == own), "{error}");
}

#[test]
fn a_later_socket_without_permission_means_absence() {
    let (folder, path, _listener) = closed();
    let nobody = folder.path().join("nobody.sock");
    let error = without_rights(|| error(&[&nobody, &path]));
    assert!(is_unreachable(&error, &path, libc::EACCES), "{error}");
    assert!(error.is_absence());
}

#[test]
fn a_strangers_listener_in_the_users_folder_is_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    // As in `/tmp`, anybody may make the user's folder.
    fs::set_permissions(&folder, Permissions::from_mode(0o1777)).unwrap();
    let listener = without_rights(|| {
        let tenant = folder.path().join("gpushare/tenant");
        fs::create_dir_all(&tenant).unwrap();
        UnixListener::bind(tenant.join("scheduler.sock")).unwrap()
    });
    thread::spawn(move || listener.incoming().for_each(drop));
    let guessed = RuntimeDir::user(Some(folder.path().into()), 70_000);
    let ask = |dir| Address::in_dirs(vec![RuntimeDir::new("/nonexistent"), dir], None, None);
    let error = ask(guessed).session_memory().unwrap_err();
    assert!(error.is_absence() && error.to_string().contains("who is neither root"), "{error}");
    let error = ask(RuntimeDir::new(folder.path().join("gpushare")))
        .session_memory()
        .unwrap_err();
    assert!(matches!(error, ConnectError::Broken(..)), "a folder that a setting names is believed: {error}");
}

#[test]
fn a_lack_of_descriptors_is_no_absence_where_a_socket_exists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scheduler.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_has_no_descriptors", "--ignored", "--nocapture"])
        .env(SOCKET, &path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "started by another test"]
fn a_process_that_has_no_descriptors() {
    let path = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let none = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
    // SAFETY: the limit is ours and whole.
    let limited = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
    assert_eq!(limited, 0);
    let there = error(&[&path]);
    assert!(is_unreachable(&there, &path, libc::EMFILE), "{there}");
    assert!(!there.is_absence());
    let nobody = error(&[&path.with_extension("other")]);
    assert!(matches!(nobody, ConnectError::Absent(_)), "{nobody}");
}

#[test]
fn an_unreachable_daemon_is_reported_with_a_remedy() {
    for (errno, words) in [
        (libc::EMFILE, "ulimit -n"),
        (libc::EACCES, "ask its administrator"),
        (libc::EAGAIN, "more connections waiting"),
    ] {
        let error = ConnectError::Unreachable {
            path: "/run/gpushare/tenant/scheduler.sock".into(),
            cause: io::Error::from_raw_os_error(errno),
            may_be_there: true,
        };
        assert!(error.to_string().contains(words), "{error}");
    }
}
