//! Clients of the last daemon that do not come back, or that the registry does not name.

use std::fs;

use gpushare_proto::admin::{AdminRequest, LockView, SessionRequest};
use gpushare_proto::audit::{Entry, Line};
use gpushare_proto::names::REGISTRY;
use gpushare_proto::tenant::{FailureCode, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, Epoch, GateState, Nanos, RequestId, SessionId, Token};
use redb::{Database, TableDefinition};
use rustix::process::{Pid, Signal, kill_process};

use crate::deaths::{holds, lock_of};
use crate::harness::{Daemon, Folders, eventually, join};
use crate::processes::{Process, wanting};
use crate::restart::{returning, usage, written};

/// Flags for a card with room for one of two sessions, and a short time before a holder is stuck.
fn impatient(folders: &Folders, policy: &str, capacity: &str) -> Vec<String> {
    stuck_after("1200ms", folders, policy, capacity)
}

fn stuck_after(time: &str, folders: &Folders, policy: &str, capacity: &str) -> Vec<String> {
    let config = folders.path("config.toml");
    let text = format!("[scheduling]\nstuck_policy = '{policy}'\nstuck_after = '{time}'");
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    ["--mode=serialized", "--quantum=30s", "--config", config, capacity]
        .map(str::to_owned)
        .into()
}

fn start(folders: &Folders, flags: &[String]) -> Daemon {
    folders.start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns a stopped holder of 100 MiB, the next daemon, which awaits it, and the token of a second session.
fn awaiting(folders: &Folders, flags: &[String]) -> (Process, Daemon, (SessionId, Token)) {
    let daemon = start(folders, flags);
    let (first, token) = daemon.register("first", None);
    let second = daemon.register("second", None);
    let holder = Process::wanting_the_lock(folders, &token);
    holds(&daemon, first);
    let pid = Pid::from_raw(holder.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    eventually("what it uses to be written", || {
        let status = daemon.status();
        (status.gpus[0].allocated_bytes >= Bytes::mib(100)).then_some(())
    });
    written(folders, 1);
    // The answer comes when what it uses is written.
    usage(&daemon);
    daemon.kill();
    (holder, start(folders, flags), second)
}

fn reason(daemon: &Daemon, session: SessionId) -> String {
    eventually("the session to wait", || match lock_of(daemon, session) {
        Some(LockView::Waiting { reason, .. }) => Some(reason),
        _ => None,
    })
}

#[test]
fn others_run_beside_a_stopped_awaited_process_that_is_named() {
    let folders = Folders::new();
    // Longer than a busy machine takes to see that the second one waits.
    let flags = stuck_after("10s", &folders, "run_others", "--capacity=0=256MiB");
    let (holder, daemon, (second, token)) = awaiting(&folders, &flags);
    let mut waiter = daemon.join(Some(&token));
    wanting(&mut waiter);
    let why = reason(&daemon, second);
    let named = format!("pid {} of first (it is stopped)", holder.pid());
    assert!(why.contains("waits for 1 process to return") && why.contains(&named), "{why}");
    // The card has room for 100 MiB beside its 100 MiB.
    waiter.enter();
    folders.logged(&format!(
        "pid {} of first, a process of the last daemon (it is stopped), is not back after",
        holder.pid()
    ));
    folders.logged("100MiB of GPU-");
    folders.logged("others run that fit beside that");
    assert_eq!(daemon.status().daemon.recovering, 1, "it is still awaited");
}

#[test]
fn a_client_that_used_no_card_keeps_others_from_none_after_a_restart() {
    for policy in ["run_others", "wait"] {
        let folders = Folders::new();
        let flags = impatient(&folders, policy, "--capacity=0=128MiB");
        let daemon = start(&folders, &flags);
        let (_, token) = daemon.register("idle", None);
        let (second, second_token) = daemon.register("second", None);
        let _idle = daemon.join(Some(&token));
        written(&folders, 1);
        daemon.kill();
        let daemon = start(&folders, &flags);
        let _waiter = Process::wanting_the_lock(&folders, &second_token);
        holds(&daemon, second);
        assert_eq!(daemon.status().daemon.recovering, 1, "the client lives and is not back");
        folders.logged("and used no card; others run");
    }
}

#[test]
fn a_session_without_room_waits_for_a_stopped_awaited_process() {
    let folders = Folders::new();
    let flags = impatient(&folders, "run_others", "--capacity=0=128MiB");
    let (mut holder, daemon, (second, token)) = awaiting(&folders, &flags);
    let mut waiter = daemon.join(Some(&token));
    wanting(&mut waiter);
    eventually("the process to be overdue", || folders.log().contains("is not back after").then_some(()));
    let why = reason(&daemon, second);
    assert!(why.contains(&format!("pid {} of first", holder.pid())), "{why}");
    holder.kill();
    waiter.enter();
}

#[test]
fn a_stopped_awaited_process_is_killed_by_policy() {
    let folders = Folders::new();
    let flags = impatient(&folders, "kill", "--capacity=0=128MiB");
    let (holder, daemon, (_, token)) = awaiting(&folders, &flags);
    let mut waiter = daemon.join(Some(&token));
    wanting(&mut waiter);
    waiter.enter();
    let killed = eventually("the kill in the audit log", || {
        let text = fs::read_to_string(folders.runtime().audit()).ok()?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        lines.into_iter().find_map(|line| match line.entry {
            Entry::Action(act) if act.operation == "process.kill" => Some(act),
            _ => None,
        })
    });
    assert_eq!(killed.session.as_deref(), Some("first"));
    assert_eq!(killed.new, Some(format!("pid {} is ended", holder.pid())));
}

/// Removes all clients from the registry, as if the daemon had been killed right after the join.
fn forget_clients(folders: &Folders) {
    const CLIENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("clients");
    let database = Database::open(folders.runtime().root().join(REGISTRY)).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(CLIENTS).unwrap().retain(|_, _| false).unwrap();
    write.commit().unwrap();
}

#[test]
fn an_unwritten_client_returns_to_its_session_and_counts() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token) = daemon.register("racing", Some(Bytes::mib(256)));
    let client = daemon.join(Some(&token));
    let mut sibling = daemon.join(Some(&token));
    let gpu = sibling.attach();
    written(&folders, 2);
    daemon.kill();
    forget_clients(&folders);

    let daemon = folders.start(&[]);
    assert_eq!(daemon.status().daemon.recovering, 0);
    // Another process is faster, and gets nothing in the first second.
    let mut sibling = join(&folders.runtime(), Some(&token), Some(returning(&sibling, None))).unwrap();
    let back = join(&folders.runtime(), Some(&token), Some(returning(&client, None))).unwrap();
    assert_eq!(back.welcome.session, session);
    assert_ne!(back.welcome.client, client.welcome.client);
    let refused = sibling.reserve(gpu, Bytes::mib(100));
    assert!(
        matches!(&refused, TenantReply::Refused { refusal, .. } if refusal.used == Bytes::mib(200)),
        "{refused:?}"
    );
    assert_eq!(daemon.status().gpus[0].allocated_bytes, Bytes::mib(200));
}

#[test]
fn work_of_an_unwritten_lock_holder_ends_before_others_run() {
    let folders = Folders::new();
    let flags = ["--mode=serialized", "--capacity=0=128MiB"];
    let daemon = folders.start(&flags);
    let (session, token) = daemon.register("racing", None);
    let (_, second) = daemon.register("second", None);
    let mut client = daemon.join(Some(&token));
    wanting(&mut client);
    let epoch: Epoch = client.enter();
    written(&folders, 1);
    daemon.kill();
    forget_clients(&folders);

    let daemon = folders.start(&flags);
    let returned = returning(&client, Some(epoch));
    let mut back = join(&folders.runtime(), Some(&token), Some(returned)).unwrap();
    let mut waiter = daemon.join(Some(&second));
    wanting(&mut waiter);
    let closed = eventually("its gate to be closed anew", || {
        Some(back.gate()).filter(|word| word.change() > 0 && word.state() == GateState::Closed)
    });
    assert!(matches!(lock_of(&daemon, session), Some(LockView::Dropping { .. })));
    back.peer
        .say(&TenantRequest::Released { word: closed, drain: Nanos::from_millis(1) });
    waiter.enter();
}

#[test]
fn an_unwritten_client_of_a_revoked_session_counts() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token) = daemon.register("revoked", None);
    let mut client = daemon.join(Some(&token));
    client.attach();
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Session(SessionRequest::Revoke { which: "revoked".to_owned() }));
    administrator.hear();
    written(&folders, 1);
    daemon.kill();
    forget_clients(&folders);

    let daemon = folders.start(&[]);
    let back = join(&folders.runtime(), Some(&token), Some(returning(&client, None))).unwrap();
    assert_eq!(back.welcome.session, session);
    assert_eq!(daemon.status().gpus[0].allocated_bytes, Bytes::mib(100));
    let new = join(&folders.runtime(), Some(&token), None).err().unwrap();
    assert_eq!(new.code, FailureCode::NotFound);
}

#[test]
fn a_flood_of_waiting_requests_closes_the_connection() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("two", Some(Bytes::mib(128)));
    let _sibling = Process::asking(&folders, Some(&token), Bytes::mib(1), 1);
    written(&folders, 1);
    daemon.kill();
    let daemon = folders.start(&[]);
    let mut flood = daemon.join(Some(&token));
    let gpu = flood.attach();
    let mut asks =
        (1..=400).map(|request| TenantRequest::Reserve { request: RequestId(request), gpu, bytes: Bytes(1) });
    // The connection may be closed before the last one.
    let _ = asks.all(|asks| flood.peer.try_say(&asks));
    eventually("the reason in the log", || {
        folders
            .log()
            .contains("256 memory requests of the process wait already")
            .then_some(())
    });
}
