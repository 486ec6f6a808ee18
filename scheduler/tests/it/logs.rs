//! Logs that cannot be written: the daemon serves on, and later reports what is missing.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;

use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest};
use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::tenant::{FailureCode, GpuChoice, NewSession, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, GateState, Token};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::harness::{Daemon, Folders, eventually};

/// Lets a new process of a session use memory and the lock, which is all that the daemon is for.
fn serves(daemon: &Daemon, token: &Token) {
    let mut client = daemon.join(Some(token));
    let gpu = client.attach();
    assert!(matches!(client.reserve(gpu, Bytes::mib(8)), TenantReply::Reserved { .. }));
    client.wait();
    eventually("the gate to open", || (client.gate().state() != GateState::Closed).then_some(()));
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
}

/// Makes the daemon write some hundred bytes of log many times.
fn make_noise(daemon: &Daemon, token: &Token, times: usize) {
    for _ in 0..times {
        drop(daemon.join(Some(token)));
    }
}

#[test]
fn a_full_device_as_standard_error_costs_only_lines() {
    let folders = Folders::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let daemon = folders.start_logging_to(full, &["--user"]);
    let (_, token) = daemon.register("a", None);
    serves(&daemon, &token);
    assert!(daemon.terminate().success());
}

#[test]
fn a_reader_of_standard_error_that_stalls_costs_only_lines() {
    let folders = Folders::new();
    let (mut reader, writer) = io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let daemon = folders.start_logging_to(OwnedFd::from(writer), &["--user", "--log-format=json"]);
    let (_, token) = daemon.register("a", None);
    // More than the pipe and the queue of the log take.
    make_noise(&daemon, &token, 3000);
    serves(&daemon, &token);
    let reading = std::thread::spawn(move || {
        let mut log = Vec::new();
        reader.read_to_end(&mut log).unwrap();
        String::from_utf8_lossy(&log).into_owned()
    });
    // A line after the stall, before which the report comes.
    make_noise(&daemon, &token, 1);
    assert!(daemon.terminate().success());
    let log = reading.join().unwrap();
    assert!(log.contains("lines of this log are lost: "), "{} bytes", log.len());
}

/// Limits the size of all files that the daemon writes; a stand-in for a full disk that needs no root.
fn limit_files(daemon: &Daemon, bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let before = prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    assert_eq!(before.maximum, None);
}

#[test]
fn a_full_disk_for_state_log_and_audit_costs_only_what_is_written_there() {
    const LIMIT: u64 = 32 << 10;
    let folders = Folders::new();
    let log: PathBuf = folders.path("own.log");
    let daemon = folders.start(&["--user", "--log-file", log.to_str().unwrap()]);
    let (_, token) = daemon.register("a", None);
    limit_files(&daemon, Some(LIMIT));
    let new =
        || NewSession { name: None, terms: Terms::default(), oversubscribe: false, gpu: GpuChoice::Auto };
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Register(new()));
    let TenantReply::Error(failure) = tool.hear() else {
        panic!("registered on a full disk")
    };
    assert_eq!(failure.code, FailureCode::Unavailable, "{failure:?}");
    // Enough for log and audit log to be full.
    make_noise(&daemon, &token, 300);
    let mut administrator = daemon.administrator();
    for _ in 0..100 {
        administrator
            .say(&AdminRequest::Session(SessionRequest::Create { new: new(), binding: Binding::Token }));
        assert!(matches!(administrator.hear(), AdminReply::Error(_)));
    }
    serves(&daemon, &token);
    for file in [&log, &folders.runtime().audit()] {
        let size = fs::metadata(file).unwrap().len();
        assert!(size <= LIMIT, "{} has {size} bytes", file.display());
    }

    limit_files(&daemon, None);
    eventually("the report of the missing lines", || {
        make_noise(&daemon, &token, 1);
        fs::read_to_string(&log)
            .unwrap()
            .contains("lines of this log are lost: ")
            .then_some(())
    });
    eventually("a session can be registered again", || {
        let mut tool = daemon.tool();
        tool.say(&TenantRequest::Register(new()));
        matches!(tool.hear(), TenantReply::Session { .. }).then_some(())
    });
    serves(&daemon, &token);
}

#[test]
fn a_log_file_is_rotated_and_only_one_full_one_is_kept() {
    let folders = Folders::new();
    let log = folders.path("own.log");
    fs::write(&log, vec![b'x'; 5 << 20]).unwrap();
    let daemon = folders.start(&["--user", "--log-file", log.to_str().unwrap()]);
    let full = folders.path("own.log.1");
    eventually("the full file is set aside", || full.exists().then_some(()));
    eventually("a new file", || (fs::metadata(&log).ok()?.len() < 1 << 20).then_some(()));
    drop(daemon);
    fs::write(&log, vec![b'y'; 5 << 20]).unwrap();
    let _daemon = folders.start(&["--user", "--log-file", log.to_str().unwrap()]);
    eventually("the older full file is gone", || (fs::read(&full).unwrap()[0] == b'y').then_some(()));
    eventually("a new file", || log.exists().then_some(()));
    let names = fs::read_dir(log.parent().unwrap()).unwrap();
    let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut logs: Vec<String> = names.filter(|name| name.starts_with("own.log")).collect();
    logs.sort();
    assert_eq!(logs, ["own.log", "own.log.1"]);
}

#[test]
fn without_a_place_for_its_log_the_daemon_runs() {
    let folders = Folders::new();
    let daemon = folders.start_logging_to(Stdio::null(), &["--user", "--log-file", "/nonexistent/log"]);
    let (_, token) = daemon.register("a", None);
    serves(&daemon, &token);
}
