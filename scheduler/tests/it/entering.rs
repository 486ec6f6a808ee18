//! Processes that join a session: everything that they start is in it, with or without a token.

use std::fs;

use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest};
use gpushare_proto::session::Terms;
use gpushare_proto::tenant::{FailureCode, TenantReply, TenantRequest};
use gpushare_proto::{SessionId, Token};

use crate::harness::{Folders, eventually};
use crate::names::made;
use crate::processes::Process;

#[test]
fn a_child_without_token_stays_in_its_parents_session() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let token = made(&daemon, "jail", Terms::default());
    let mut parent = Process::entering(&folders, &token);
    assert_eq!(parent.begets(), SessionId(1));
    assert_eq!(daemon.status().sessions.len(), 1, "nobody has a session of its own");
}

#[test]
fn who_entered_is_in_over_a_restart_of_the_daemon() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let token = made(&daemon, "jail", Terms::default());
    let mut parent = Process::entering(&folders, &token);
    daemon.terminate();
    let daemon = folders.start(&[]);
    assert_eq!(parent.begets(), SessionId(1));
    assert_eq!(daemon.status().sessions.len(), 1);
}

#[test]
fn a_process_is_in_the_session_that_it_entered_last() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let [first, second] = ["first", "second"].map(|name| made(&daemon, name, Terms::default()));
    let enter = |token: &Token| {
        let mut tool = daemon.tool();
        tool.say(&TenantRequest::Join(token.clone()));
        match tool.hear() {
            TenantReply::SessionMemory(account) => account.map(|account| account.session),
            other => panic!("no account: {other:?}"),
        }
    };
    let joins = || daemon.join(None).welcome.session;
    assert_eq!((enter(&first), joins()), (Some(SessionId(1)), SessionId(1)));
    assert_eq!((enter(&second), joins()), (Some(SessionId(2)), SessionId(2)));
    assert_eq!(enter(&Token([7; 32])), None);
    assert_eq!(joins(), SessionId(2), "no session has that token");
    let (registered, _token) = daemon.register("third", None);
    assert_eq!(joins(), registered);
}

#[test]
fn who_entered_sessions_that_are_over_costs_no_descriptor() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let mut passes_through = |name: &str| {
        let token = made(&daemon, name, Terms::default());
        tool.say(&TenantRequest::Join(token));
        assert!(matches!(tool.hear(), TenantReply::SessionMemory(Some(_))));
        let mut administrator = daemon.administrator();
        let which = name.to_owned();
        administrator.say(&AdminRequest::Session(SessionRequest::Delete { which }));
        assert!(matches!(administrator.hear(), AdminReply::Changed { .. }));
    };
    passes_through("first");
    // The daemon keeps its audit log open from then on.
    eventually("its line", || folders.runtime().audit().exists().then_some(()));
    let before = descriptors();
    (0..16).for_each(|n| passes_through(&format!("next-{n}")));
    // The administrators' connections close a little later.
    eventually("no more descriptors than before", || (descriptors() <= before).then_some(()));
}

#[test]
fn joined_processes_count_against_the_connection_limit() {
    let folders = Folders::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start another user's processes");
        return;
    }
    let config = folders.path("config.toml");
    fs::write(&config, "connections_per_user = 2").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let token = made(&daemon, "jail", Terms::default());
    let enter = || Process::entering_as(&folders, &token, 12345);
    let (first, _second) = (enter().unwrap(), enter().unwrap());
    assert_eq!(enter().err(), Some(FailureCode::Unavailable));
    drop(first);
    eventually("the place of a dead process", || enter().ok());
}
