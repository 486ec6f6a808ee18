//! State over a restart of the machine: what lasts and what does not.

use std::fs;
use std::path::Path;

use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest};
use gpushare_proto::names::REGISTRY;
use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::tenant::{GpuChoice, NewSession};
use gpushare_proto::{Bytes, Nanos};
use redb::{Database, TableDefinition};

use crate::harness::{Daemon, Folders, eventually};
use crate::processes::{TURNS, wanting};
use crate::restart::{returning, usage, written};

fn create(daemon: &Daemon, name: &str) {
    let new = NewSession {
        name: Some(name.to_owned()),
        terms: Terms::with_memory(Some(Bytes::mib(512))),
        oversubscribe: false,
        gpu: GpuChoice::Auto,
    };
    let binding = Binding::Token;
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Session(SessionRequest::Create { new, binding }));
    assert!(matches!(administrator.hear(), AdminReply::Created { .. }));
}

/// Marks a registry as written in an earlier boot.
fn reboot(registry: &Path) {
    const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
    let database = Database::open(registry).unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(META)
        .unwrap()
        .insert("boot", "another run of the machine")
        .unwrap();
    write.commit().unwrap();
}

/// Returns all sessions by name, with their memory limits.
fn sessions(daemon: &Daemon) -> Vec<(String, Option<Bytes>)> {
    let sessions = daemon.status().sessions.into_iter();
    sessions.map(|session| (session.name, session.memory_limit_bytes)).collect()
}

#[test]
fn a_reboot_keeps_lasting_sessions_and_awaits_no_process() {
    let folders = Folders::new();
    let state = folders.path("state");
    let flags = [&TURNS[..], &["--state-dir", state.to_str().unwrap()]].concat();
    let daemon = folders.start(&flags);
    create(&daemon, "lasting");
    let (_, token) = daemon.register("of-a-process", None);
    let mut client = daemon.join(Some(&token));
    wanting(&mut client);
    client.enter();
    eventually("something to be used", || {
        usage(&daemon)
            .iter()
            .any(|used| used.held_ns > Nanos::from_millis(20))
            .then_some(())
    });
    written(&folders, 1);
    daemon.kill();
    assert!(!folders.runtime().registry().exists());

    // After another boot `/run` is new, the state folder is the same, and an old pid is another process's.
    fs::remove_dir_all(folders.runtime().root()).unwrap();
    reboot(&state.join(REGISTRY));
    let daemon = folders.start(&flags);
    assert_eq!(daemon.status().daemon.recovering, 0);
    assert_eq!(sessions(&daemon), [("lasting".to_owned(), Some(Bytes::mib(512)))]);
    let used: Vec<_> = usage(&daemon)
        .into_iter()
        .map(|used| (used.name, used.alive, used.held_ns > Nanos::from_millis(20)))
        .collect();
    assert_eq!(used, [("lasting".to_owned(), true, false), ("of-a-process".to_owned(), false, true)]);
    let back = daemon.return_as(returning(&client, None));
    assert_ne!(back.welcome.client, client.welcome.client);
}

#[test]
fn a_registry_in_the_runtime_folder_is_taken_over() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    create(&daemon, "lasting");
    let client = daemon.join(None);
    written(&folders, 1);
    daemon.kill();
    assert!(folders.runtime().registry().exists());

    let state = folders.path("state");
    let daemon = folders.start(&["--state-dir", state.to_str().unwrap()]);
    assert!(state.join(REGISTRY).exists() && !folders.runtime().registry().exists());
    folders.logged("was taken over");
    assert_eq!(daemon.status().daemon.recovering, 1);
    let back = daemon.return_as(returning(&client, None));
    assert_eq!(back.welcome.client, client.welcome.client);
    assert!(sessions(&daemon).contains(&("lasting".to_owned(), Some(Bytes::mib(512)))));
}

#[test]
fn two_daemons_do_not_keep_their_sessions_in_one_folder() {
    let folders = Folders::new();
    let state = folders.path("state");
    let flags = ["--state-dir", state.to_str().unwrap()];
    let _first = folders.start(&flags);
    let second = gpushare_proto::names::RuntimeDir::new(folders.path("second"));
    let (code, said) = folders.fail_in(&second, &flags);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("another gpushare daemon keeps its sessions in") && said.contains("with --state-dir"),
        "{said}"
    );
}

#[test]
fn a_state_folder_writable_by_others_is_refused() {
    let folders = Folders::new();
    let state = folders.path("state");
    fs::write(&state, "").unwrap();
    let (code, said) = folders.fail(&["--state-dir", state.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("is not a folder") && said.contains("choose another folder with --state-dir"),
        "{said}"
    );
}

#[test]
fn the_runtime_folder_can_be_the_state_folder() {
    let folders = Folders::new();
    let own = folders.runtime().root().to_owned();
    let daemon = folders.start(&["--state-dir", own.to_str().unwrap()]);
    create(&daemon, "here");
    assert!(folders.runtime().registry().exists());
}

#[test]
fn an_idle_daemon_leaves_its_state_folder_and_nothing_else() {
    let folders = Folders::new();
    let state = folders.path("state");
    let flags = ["--idle-exit", "10s", "--state-dir", state.to_str().unwrap()];
    let daemon = folders.start(&flags);
    drop(daemon.join(None));
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(state.join(REGISTRY).exists() && !folders.runtime().root().exists());
}

#[test]
fn the_audit_log_lies_in_the_state_folder() {
    let folders = Folders::new();
    let state = folders.path("state");
    let daemon = folders.start(&["--state-dir", state.to_str().unwrap()]);
    assert_eq!(folders.runtime().state_dir(), state.canonicalize().unwrap());
    create(&daemon, "lasting");
    let line = eventually("its line", || {
        let text = fs::read_to_string(state.join("audit.log")).ok()?;
        text.contains("session.create").then_some(text)
    });
    assert_eq!(folders.runtime().audit(), state.canonicalize().unwrap().join("audit.log"));
    assert!(line.contains(r#""session":"lasting""#), "{line}");
    assert!(!folders.runtime().root().join("audit.log").exists());
    daemon.terminate();

    // Without a state folder of its own the daemon does not touch the file behind the link.
    let daemon = folders.start(&[]);
    assert_eq!(folders.runtime().state_dir(), folders.runtime().root());
    daemon.terminate();
}
