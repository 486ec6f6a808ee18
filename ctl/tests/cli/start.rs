//! `run` without a daemon: it starts one, detached, and only one however many start at once.
//!
//! The scheduler is a shell script here. The sockets that it should open are bound by a fake daemon
//! elsewhere; the script moves their folder into place and says that it is ready.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpushare_proto::names::RuntimeDir;
use gpushare_tests::process::write_executable;
use tempfile::TempDir;

use crate::ctl::{ctl, fails, succeeds};
use crate::fake::Fake;
use crate::run::register;

struct Stage {
    folder: TempDir,
    daemon: Fake,
}

impl Stage {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scheduler = folder.path().join("scheduler");
        write_executable(&scheduler, &format!("#!/bin/sh\n{script}\n")).unwrap();
        Self { folder, daemon: Fake::for_tenants(|request| register(request, None)) }
    }

    /// Where there is no daemon yet. The folder above it exists.
    fn runtime(&self) -> PathBuf {
        self.folder.path().join("gpushare")
    }

    fn run(&self, program: &[&str]) -> Command {
        let mut command = ctl(&self.runtime(), &["run", "--"]);
        command
            .args(program)
            .env("GPUSHARE_SCHEDULER", self.folder.path().join("scheduler"))
            .env("STAGED", RuntimeDir::new(self.daemon.dir()).tenant_dir());
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(RuntimeDir::new(self.runtime()).log()).unwrap()
    }

    /// Tells the fake daemon where its socket went.
    fn moved(&mut self) {
        self.daemon.tenant.moved_to(RuntimeDir::new(self.runtime()).tenant_socket());
    }
}

/// Notes what it was started with, takes its place, and is ready.
const GOOD: &str = r#"
echo "started $@; session $(cut -d' ' -f6 /proc/self/stat); folder $PWD; preload $LD_PRELOAD; fds" /proc/$$/fd/* >&2
mv "$STAGED" "$GPUSHARE_RUNTIME_DIR/tenant"
for last; do :; done
printf . > "/proc/self/fd/$last"
"#;

#[test]
fn two_runs_that_race_share_the_one_daemon_that_is_started() {
    let mut stage = Stage::new(GOOD);
    let spawn = || stage.run(&["echo", "ran"]).stdout(Stdio::piped()).spawn().unwrap();
    let outputs = [spawn(), spawn()].map(|child| child.wait_with_output().unwrap());
    stage.moved();
    for output in outputs {
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "ran\n");
    }
    assert_eq!(stage.log().matches("started ").count(), 1, "{}", stage.log());
    assert_eq!(stage.daemon.tenant.asked().len(), 4);
}

#[test]
fn a_start_leaves_its_log_and_no_lock() {
    let mut stage = Stage::new(GOOD);
    succeeds(&mut stage.run(&["true"]));
    stage.moved();
    assert!(!stage.runtime().join("start.lock").exists());
    assert!(RuntimeDir::new(stage.runtime()).log().exists());
}

#[test]
fn the_daemon_is_detached_from_whoever_started_it() {
    let mut stage = Stage::new(GOOD);
    let children = succeeds(&mut stage.run(&["sh", "-c", "cat /proc/$$/task/$$/children"]));
    stage.moved();
    assert_eq!(children.split_whitespace().count(), 1, "only cat itself");
    let log = stage.log();
    assert!(log.starts_with("started --user --idle-exit 10min --log-file "), "{log}");
    assert!(log.contains("; folder /; preload ; fds"), "{log}");
    // As the kernel writes it: 0 where the leader is outside our PID namespace, which rustix takes for a bug.
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let own = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert!(!log.contains(&format!("; session {own};")), "{log}");
}

/// Least number of a descriptor that programs inherit for a test.
pub(crate) const INHERITED: i32 = 500;

#[test]
fn the_daemon_keeps_no_pipe_of_whoever_started_it() {
    let mut stage = Stage::new(GOOD);
    let (reader, writer) = std::io::pipe().unwrap();
    // A number that the shell of the script does not use itself.
    let writer = rustix::io::fcntl_dupfd_cloexec(&writer, INHERITED).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&writer);
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).unwrap();
    succeeds(&mut stage.run(&["true"]));
    stage.moved();
    drop((reader, writer));
    let kept = format!("/fd/{number} ");
    assert!(!stage.log().replace('\n', " ").contains(&kept), "{}", stage.log());
}

#[test]
fn a_daemon_that_ends_at_once_leaves_its_reason() {
    let stage =
        Stage::new("echo 'gpushare-scheduler: gpu0 belongs to another daemon; stop it first' >&2; exit 1");
    assert_eq!(
        fails(&mut stage.run(&["true"]), 125),
        format!(
            "the scheduler ended before it was ready (gpushare-scheduler: gpu0 belongs to another daemon; stop it \
             first); see its log {}, or run `gpushare-ctl doctor`",
            RuntimeDir::new(stage.runtime()).log().display()
        )
    );
}

#[test]
fn a_scheduler_that_is_not_there() {
    let stage = Stage::new("");
    let sentence = fails(stage.run(&["true"]).env("GPUSHARE_SCHEDULER", "/no/scheduler"), 125);
    assert_eq!(
        sentence,
        "no daemon answers and there is no gpushare-scheduler to start at /no/scheduler; set \
         GPUSHARE_SCHEDULER to its path"
    );
}

#[test]
fn a_scheduler_that_cannot_be_executed() {
    let stage = Stage::new("");
    let plain = fs::Permissions::from_mode(0o644);
    fs::set_permissions(stage.folder.path().join("scheduler"), plain).unwrap();
    let sentence = fails(&mut stage.run(&["true"]), 125);
    assert!(sentence.contains("scheduler cannot be started: Permission denied"), "{sentence}");
}

#[test]
fn the_stage_in_between_is_not_for_people() {
    assert_eq!(
        fails(ctl(Path::new("/nonexistent"), &["start-daemon"]).env_remove("GPUSHARE_RUNTIME_DIR"), 125),
        "this command is internal to `gpushare-ctl run`; use that"
    );
}
