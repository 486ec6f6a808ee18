//! Processes that die, and processes that hang.

use std::fs;
use std::time::Instant;

use gpushare_proto::SessionId;
use gpushare_proto::admin::LockView;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Daemon, Folders, eventually};
use crate::processes::{Process, SHORT_TURNS, TURNS, wanting};

pub(crate) fn lock_of(daemon: &Daemon, session: SessionId) -> Option<LockView> {
    let status = daemon.status();
    let view = status.sessions.into_iter().find(|view| view.session == session)?;
    Some(view.lock)
}

pub(crate) fn holds(daemon: &Daemon, session: SessionId) {
    eventually("the lock to be held", || {
        matches!(lock_of(daemon, session), Some(LockView::Holding { .. })).then_some(())
    });
}

#[test]
fn a_killed_holder_gives_the_lock_to_the_next() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (second, second_token) = daemon.register("second", None);
    let mut holder = Process::wanting_the_lock(&folders, &first_token);
    holds(&daemon, first);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    eventually("the second to wait", || {
        matches!(lock_of(&daemon, second), Some(LockView::Waiting { .. })).then_some(())
    });

    let killed = Instant::now();
    holder.kill();
    waiter.enter();
    println!("granted {:?} after the kill", killed.elapsed());
    assert!(matches!(lock_of(&daemon, second), Some(LockView::Holding { .. })));
    // The session goes on without a client, since the process that registered it lives.
    assert_eq!(lock_of(&daemon, first), Some(LockView::Idle));
}

#[test]
fn a_killed_waiter_leaves_the_queue() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (second, second_token) = daemon.register("second", None);
    let mut holder = daemon.join(Some(&first_token));
    wanting(&mut holder);
    holder.enter();
    let mut waiter = Process::wanting_the_lock(&folders, &second_token);
    eventually("the second to wait", || {
        matches!(lock_of(&daemon, second), Some(LockView::Waiting { .. })).then_some(())
    });
    waiter.kill();
    eventually("the queue to be empty", || daemon.status().gpus[0].queue.is_empty().then_some(()));
    holds(&daemon, first);
}

#[test]
fn a_killed_process_leaves_its_session() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token) = daemon.register("mortal", None);
    let mut process = Process::wanting_the_lock(&folders, &token);
    eventually("the process to join", || {
        let status = daemon.status();
        let view = status.sessions.iter().find(|view| view.session == session)?;
        (view.clients.first()?.pid == process.pid()).then_some(())
    });
    process.kill();
    eventually("the client to be gone", || {
        let status = daemon.status();
        let view = status.sessions.iter().find(|view| view.session == session)?;
        view.clients.is_empty().then_some(())
    });
}

#[test]
fn a_session_lasts_as_long_as_its_registrar() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (mut process, session) = Process::registering(&folders);
    // Its client is gone. The process itself is still connected as a tool.
    eventually("the client to be gone", || {
        let status = daemon.status();
        let view = status.sessions.iter().find(|view| view.session == session);
        view.expect("the session lives").clients.is_empty().then_some(())
    });
    process.kill();
    eventually("the session to be over", || daemon.status().sessions.is_empty().then_some(()));
}

#[test]
fn a_stopped_holder_is_named() {
    let folders = Folders::new();
    let daemon = folders.start(&SHORT_TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (_, second_token) = daemon.register("second", None);
    let holder = Process::wanting_the_lock(&folders, &first_token);
    holds(&daemon, first);
    let pid = Pid::from_raw(holder.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    eventually("it is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", holder.pid())).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T').then_some(())
    });
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    let reason = eventually("the first to be asked to let go", || match lock_of(&daemon, first) {
        Some(LockView::Dropping { reason, .. }) => Some(reason),
        _ => None,
    });
    assert!(reason.ends_with(&format!("; pid {} is stopped", holder.pid())), "{reason}");
}

#[test]
fn a_stuck_holder_is_killed_where_that_is_the_policy() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[scheduling]\nstuck_policy = 'kill'\nstuck_after = '50ms'").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let daemon = folders.start(&[&SHORT_TURNS[..], &config].concat());
    let (first, first_token) = daemon.register("first", None);
    let (_, second_token) = daemon.register("second", None);
    // It never reports that it let go.
    let _holder = Process::wanting_the_lock(&folders, &first_token);
    holds(&daemon, first);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    waiter.enter();
    folders.logged("it did not let go of the GPU");
}
