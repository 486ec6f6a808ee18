//! Starts with obstacles, and ends that leave nothing behind.

use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::time::Duration;
use std::{fs, thread};

use gpushare_proto::admin::AdminReply;
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::tenant::{FailureCode, Hello, Role, TenantReply, TenantRequest};
use gpushare_proto::{Bytes, codec};

use crate::harness::{CARD, Folders, Peer, card};
use crate::processes::Process;
use crate::reloading;

#[test]
fn the_second_daemon_in_a_folder_names_the_first() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (code, said) = folders.fail(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("(pid {})", daemon.pid())), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_second_daemon_of_a_card_names_the_first() {
    let folders = Folders::new();
    let first = folders.start(&[]);
    first.join(None).attach();
    let second = folders.start_in(RuntimeDir::new(folders.path("second")), &[]);
    let mut client = second.join(None);
    client.peer.say(&TenantRequest::Attach(card()));
    let TenantReply::Error(failure) = client.peer.hear() else {
        panic!("two daemons have one card");
    };
    assert_eq!(failure.code, FailureCode::Unavailable);
    assert!(failure.message.contains(&format!("(pid {})", first.pid())), "{}", failure.message);

    // The first daemon's death frees the card. Then the second one's client only has to ask again.
    first.kill();
    client.attach();
}

#[test]
fn a_stale_socket_is_replaced() {
    let folders = Folders::new();
    folders.start(&[]).kill();
    assert!(folders.runtime().admin_socket().exists());
    let daemon = folders.start(&[]);
    assert_eq!(daemon.status().daemon.pid, daemon.pid());
}

#[test]
fn a_socket_that_somebody_answers_on_is_not_replaced() {
    let folders = Folders::new();
    folders.start(&[]).kill();
    fs::remove_file(folders.runtime().admin_socket()).unwrap();
    let _somebody = UnixListener::bind(folders.runtime().admin_socket()).unwrap();
    let (code, said) = folders.fail(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("(pid {})", std::process::id())), "{said}");
}

#[test]
fn a_folder_where_the_socket_belongs_is_named() {
    let folders = Folders::new();
    folders.start(&[]).terminate();
    fs::create_dir_all(folders.runtime().tenant_socket()).unwrap();
    let (code, said) = folders.fail(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("scheduler.sock is not a socket; remove it"), "{said}");
}

#[test]
fn a_path_that_is_no_folder_or_too_long_is_named() {
    let folders = Folders::new();
    fs::write(folders.path("run"), "").unwrap();
    let (code, said) = folders.fail(&[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is not a folder"), "{said}");

    let long = RuntimeDir::new(folders.path(&"x".repeat(100)));
    let (code, said) = folders.fail_in(&long, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("choose a shorter --runtime-dir"), "{said}");
}

#[test]
fn another_users_folder_is_refused_for_lack_of_permission() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folders = Folders::new();
    fs::create_dir(folders.runtime().root()).unwrap();
    chown(folders.runtime().root(), Some(65534), None).unwrap();
    let (code, said) = folders.fail(&[]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("belongs to user 65534"), "{said}");
}

#[test]
fn the_log_can_be_json() {
    let folders = Folders::new();
    folders.start(&["--log-format", "json"]).terminate();
    for line in folders.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["message"].is_string(), "{line}");
    }
}

#[test]
fn a_wrong_key_is_named_with_its_file() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[scheduling]\nquantm = '2s'\n").unwrap();
    let config = config.to_str().unwrap();
    let (code, said) = folders.fail(&["--config", config]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(config) && said.contains("`quantm`"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!folders.runtime().root().exists());
}

#[test]
fn a_wrong_flag_is_a_usage_error() {
    let folders = Folders::new();
    for flags in [["--capacity", "0=lots"], ["--quantum", "fast"], ["--nonsense", "1"]] {
        let (code, said) = folders.fail(&flags);
        assert_eq!(code, Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(flags[0]) && said.contains("--help"), "{said}");
    }
}

#[test]
fn a_daemon_ends_when_its_folder_is_removed_or_replaced() {
    for replaced in [false, true] {
        let folders = Folders::new();
        let daemon = folders.start(&[]);
        let _client = daemon.join(None);
        fs::rename(folders.runtime().root(), folders.path("gone")).unwrap();
        let next = replaced.then(|| folders.start(&[]));
        assert_eq!(daemon.wait().code(), Some(1));
        let log = folders.log();
        assert!(log.contains("was moved or replaced, so no process finds this daemon"), "{log}");
        if let Some(next) = next {
            assert_eq!(next.status().daemon.recovering, 0);
            assert!(folders.runtime().tenant_socket().exists());
        }
    }
}

#[test]
fn an_idle_daemon_that_nobody_used_leaves_nothing_behind() {
    let folders = Folders::new();
    // Longer than a busy machine takes to connect.
    let daemon = folders.start(&["--idle-exit", "10s"]);
    drop(daemon.join(None));
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!folders.runtime().root().exists());
}

#[test]
fn an_idle_daemon_waits_for_a_connection_that_has_said_nothing_yet() {
    let folders = Folders::new();
    let daemon = reloading::start(&folders, "");
    let mut slow = daemon.connect();
    reloading::write(&folders, "idle_exit = '500ms'");
    assert!(matches!(reloading::reload(&daemon), AdminReply::Reloaded(_)));
    // The daemon waits 5 s for a hello.
    thread::sleep(Duration::from_millis(1500));
    slow.write_all(&codec::encode(&TenantRequest::Hello(Hello::new(Role::Tool))).unwrap())
        .unwrap();
    let mut tool: Peer<TenantRequest, TenantReply> = Peer::over(slow);
    assert!(matches!(tool.hear(), TenantReply::Ready { .. }));
    drop(tool);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn an_idle_daemon_leaves_nothing_behind_but_what_was_used() {
    let folders = Folders::new();
    // Longer than a process takes to start beside many others.
    let daemon = folders.start(&["--idle-exit", "15s"]);
    let client = Process::asking(&folders, None, Bytes::ZERO, 0);
    assert!(folders.locks().join(format!("gpushare-{CARD}")).exists());
    fs::create_dir(folders.runtime().tokens_dir()).unwrap();
    drop(client);
    assert_eq!(daemon.wait().code(), Some(0));
    let left = fs::read_dir(folders.runtime().root()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["registry.redb"]);
    assert_eq!(fs::read_dir(folders.locks()).unwrap().count(), 0);
}

#[test]
fn a_terminated_daemon_leaves_the_files_of_its_clients() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let _client = daemon.join(None);
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(folders.runtime().registry().exists());
    assert!(!folders.runtime().tenant_socket().exists() && !folders.runtime().admin_socket().exists());

    let daemon = folders.start(&[]);
    assert_eq!(daemon.status().daemon.recovering, 1);
}
