//! Sessions of processes: by token, by user, by container, by descent.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use gpushare_proto::admin::{AdminReply, AdminRequest, LockView, SessionRequest, SessionView, UserView};
use gpushare_proto::session::{Binding, Priority, Terms};
use gpushare_proto::tenant::{
    FailureCode, GpuChoice, GpuInfo, NewSession, ProcessMemory, TenantReply, TenantRequest,
};
use gpushare_proto::{Bytes, GpuUuid, Token};

use crate::deaths::holds;
use crate::harness::{CARD, Client, Folders, Peer, card, eventually, join};
use crate::processes::{TURNS, wanting};

fn wish(memory: Option<Bytes>, gpu: GpuChoice) -> TenantRequest {
    TenantRequest::Register(NewSession {
        name: None,
        terms: Terms::with_memory(memory),
        oversubscribe: false,
        gpu,
    })
}

#[test]
fn a_session_without_any_memory_is_refused() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    tool.say(&wish(Some(Bytes::ZERO), GpuChoice::Auto));
    let TenantReply::Error(failure) = tool.hear() else {
        panic!("a session may have no memory");
    };
    assert_eq!(failure.code, FailureCode::BadRequest);
    assert!(failure.message.contains("1MiB"), "{}", failure.message);
}

#[test]
fn a_name_of_other_characters_than_names_have_is_refused() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    for name in ["", "train\u{202e}1", "train\u{200b}", "a\nb", "\u{feff}a", "a b", "学習", "..", "-x"] {
        tool.say(&TenantRequest::Register(NewSession {
            name: Some(name.to_owned()),
            terms: Terms::default(),
            oversubscribe: false,
            gpu: GpuChoice::Auto,
        }));
        let TenantReply::Error(failure) = tool.hear() else {
            panic!("{name:?} is taken");
        };
        assert_eq!(failure.code, FailureCode::BadRequest);
        assert!(failure.message.contains("ASCII letters, digits"), "{}", failure.message);
    }
    daemon.register("kube-system/pod_0.b", None);
}

#[test]
fn a_waiting_process_hears_the_holders_name() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let (first, first_token) = daemon.register("first", None);
    let (second, second_token) = daemon.register("second", None);
    let mut holder = daemon.join(Some(&first_token));
    wanting(&mut holder);
    holder.enter();
    holds(&daemon, first);
    let mut waiter = daemon.join(Some(&second_token));
    wanting(&mut waiter);
    let reason = waiter.hear_until(|reply| match reply {
        TenantReply::Queued { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reason, "held by first");
    let waits = |session: &SessionView| match &session.lock {
        LockView::Waiting { reason, .. } if session.session == second => Some(reason.clone()),
        _ => None,
    };
    assert_eq!(daemon.status().sessions.iter().find_map(waits).as_deref(), Some("held by first"));
}

#[test]
fn a_token_decides_the_session() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (session, token) = daemon.register("train", Some(Bytes::gib(1)));
    let client = daemon.join(Some(&token));
    assert_eq!((client.welcome.session, client.welcome.name.as_str()), (session, "train"));

    let status = daemon.status();
    let view = status.sessions.iter().find(|view| view.session == session).unwrap();
    assert_eq!(view.memory_limit_bytes, Some(Bytes::gib(1)));
    assert_eq!(view.clients[0].pid, std::process::id());
    assert!(!view.implicit);

    let unknown = join(&folders.runtime(), Some(&Token([0; 32])), None).err().unwrap();
    assert_eq!(unknown.code, FailureCode::NotFound);
    assert!(unknown.message.contains("gpushare-ctl run"), "{}", unknown.message);
}

#[test]
fn peers_without_a_token_share_one_session() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (one, two) = (daemon.join(None), daemon.join(None));
    assert_eq!(one.welcome.session, two.welcome.session);
    assert_ne!(one.welcome.client, two.welcome.client);
    assert!(daemon.status().sessions[0].implicit);
    drop((one, two));
    eventually("the session to end with its last client", || {
        daemon.status().sessions.is_empty().then_some(())
    });
}

#[test]
fn a_session_asks_for_itself() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::OwnSession);
    assert_eq!(tool.hear(), TenantReply::OwnSession(None));
    let (session, _) = daemon.register("mine", None);
    tool.say(&TenantRequest::OwnSession);
    assert!(matches!(tool.hear(), TenantReply::OwnSession(Some(view)) if view.session == session));
}

#[test]
fn a_tool_asks_for_the_session_that_its_user_is_bound_to() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let new = NewSession {
        name: Some("bound".to_owned()),
        terms: Terms::default(),
        oversubscribe: false,
        gpu: GpuChoice::Auto,
    };
    let binding = Binding::Uid(rustix::process::geteuid().as_raw());
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Session(SessionRequest::Create { new, binding }));
    administrator.hear();
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::OwnSession);
    assert!(matches!(tool.hear(), TenantReply::OwnSession(Some(view)) if view.name == "bound"));
}

#[test]
fn an_unknown_card_is_refused_and_no_card_is_forced() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    daemon.join(None).attach();
    let mut tool = daemon.tool();
    tool.say(&wish(None, GpuChoice::Auto));
    assert!(matches!(tool.hear(), TenantReply::Session { gpu: None, .. }));
    tool.say(&wish(None, GpuChoice::Index(0)));
    assert!(matches!(tool.hear(), TenantReply::Session { gpu: Some(_), .. }));
    tool.say(&wish(None, GpuChoice::Index(3)));
    assert!(
        matches!(tool.hear(), TenantReply::Error(failure) if failure.code == FailureCode::NotFound && failure.message.contains("there is no GPU 3"))
    );
}

#[test]
fn a_card_is_named_by_the_beginning_of_its_uuid() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    daemon.join(None).attach();
    let mut tool = daemon.tool();
    let whole = CARD.to_string();
    tool.say(&wish(None, GpuChoice::Prefix(whole[..8].to_owned())));
    assert!(matches!(tool.hear(), TenantReply::Session { gpu: Some(card), .. } if card == CARD));
    tool.say(&wish(None, GpuChoice::Prefix("GPU-0".to_owned())));
    assert!(matches!(tool.hear(), TenantReply::Error(failure) if failure.code == FailureCode::NotFound));
}

#[test]
fn a_token_shows_its_sessions_memory_at_any_time() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut stranger = daemon.join(None);
    stranger.attach();
    let (session, token) = daemon.register("mine", Some(Bytes::mib(512)));
    let mut tool = daemon.tool();
    let account = |tool: &mut Peer<TenantRequest, TenantReply>| {
        tool.say(&TenantRequest::SessionMemory(Some(token.clone())));
        match tool.hear() {
            TenantReply::SessionMemory(Some(account)) => account,
            other => panic!("no account: {other:?}"),
        }
    };
    let before = account(&mut tool);
    assert_eq!((before.session, before.limit), (session, Some(Bytes::mib(512))));
    let card = &before.cards[0];
    assert_eq!(card.info.uuid, CARD);
    assert_eq!((card.total, card.used, card.free), (Bytes::mib(512), Bytes::ZERO, Bytes::mib(512)));
    assert_eq!(card.processes, []);

    let mut client = daemon.join(Some(&token));
    client.attach();
    let after = account(&mut tool);
    assert_eq!(after.cards[0].total, before.cards[0].total);
    let pid = std::process::id();
    let own = ProcessMemory { pid, outer_pid: pid, used: Bytes::ZERO };
    assert_eq!(after.cards[0].processes, [own], "and not the stranger's");

    tool.say(&TenantRequest::SessionMemory(Some(Token([1; 32]))));
    assert_eq!(tool.hear(), TenantReply::SessionMemory(None));
}

#[test]
fn names_that_would_spoil_a_table_are_refused() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    for name in ["", "two\nlines", &"x".repeat(65)] {
        tool.say(&TenantRequest::Register(NewSession {
            name: Some(name.to_owned()),
            terms: Terms::default(),
            oversubscribe: false,
            gpu: GpuChoice::Auto,
        }));
        assert!(
            matches!(tool.hear(), TenantReply::Error(failure) if failure.code == FailureCode::BadRequest)
        );
    }
}

#[test]
fn the_system_daemon_serves_by_its_configuration() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    let start = |text: &str| {
        fs::write(&config, text).unwrap();
        folders.start_system(&["--config", config.to_str().unwrap()])
    };
    let daemon = start("");
    let refused = join(&folders.runtime(), None, None).err().unwrap();
    assert_eq!(refused.code, FailureCode::Permission);
    let mut tool = daemon.tool();
    tool.say(&wish(None, GpuChoice::Auto));
    assert!(matches!(tool.hear(), TenantReply::Error(failure) if failure.message.contains("[self_service]")));
    daemon.terminate();

    let daemon = start("implicit_sessions = true\n[self_service]\nmax_memory = '1GiB'\nmax_sessions = 1");
    daemon.join(None);
    let mut tool = daemon.tool();
    tool.say(&wish(Some(Bytes::gib(2)), GpuChoice::Auto));
    assert!(matches!(tool.hear(), TenantReply::Error(failure) if failure.message.contains("--memory 1GiB")));
    tool.say(&wish(None, GpuChoice::Auto));
    let TenantReply::Session { session, .. } = tool.hear() else {
        panic!("no session");
    };
    let status = daemon.status();
    let view = status.sessions.iter().find(|view| view.session == session).unwrap();
    assert_eq!(view.memory_limit_bytes, Some(Bytes::gib(1)));
    tool.say(&wish(None, GpuChoice::Auto));
    assert!(
        matches!(tool.hear(), TenantReply::Error(failure) if failure.message.contains("1 sessions here already"))
    );
    daemon.terminate();

    let daemon = start("[self_service]\nmax_memory = '4GiB'"); // 1 GiB is that of the session before
    let mut tool = daemon.tool();
    let mut ask = |memory| {
        tool.say(&wish(Some(memory), GpuChoice::Auto));
        tool.hear()
    };
    assert!(matches!(ask(Bytes::gib(2)), TenantReply::Session { .. }));
    let TenantReply::Error(failure) = ask(Bytes::gib(2)) else {
        panic!("a user gets more memory by a second session");
    };
    assert!(failure.message.contains("have all but 1GiB"), "{}", failure.message);
    assert!(matches!(ask(Bytes::gib(1)), TenantReply::Session { .. }));
}

#[test]
fn a_user_divides_its_own_time_by_weights_and_gets_no_higher_priority() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[self_service]\nmax_memory = '1GiB'").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let mut tool = daemon.tool();
    let mut ask = |weight, priority| {
        let terms = Terms { weight, priority, ..Terms::with_memory(Some(Bytes::mib(64))) };
        tool.say(&TenantRequest::Register(NewSession {
            name: None,
            terms,
            oversubscribe: false,
            gpu: GpuChoice::Auto,
        }));
        tool.hear()
    };
    let TenantReply::Session { session, .. } = ask(300, Priority::Low) else {
        panic!("no session")
    };
    let status = daemon.status();
    let view = status.sessions.iter().find(|view| view.session == session).unwrap();
    assert_eq!((view.state.terms.weight, view.state.terms.priority), (300, Priority::Low));
    let TenantReply::Error(failure) = ask(100, Priority::High) else {
        panic!("a user gets a higher priority")
    };
    assert_eq!(failure.code, FailureCode::Permission);
    assert!(failure.message.contains("gives the priority high"), "{}", failure.message);
}

#[test]
fn a_control_group_counts_as_one_user() {
    let Some(group) = own_group() else {
        eprintln!("skipped: the tests are in no control group of the machine's own");
        return;
    };
    let folders = Folders::new();
    let config = folders.path("config.toml");
    let name = group.rsplit_once('/').map_or(&*group, |(_, name)| name);
    let pattern = format!("{}*", group.strip_suffix(&name[1..]).unwrap());
    let limits = "[self_service]\nmax_memory = '1GiB'\nmax_sessions = 2";
    fs::write(&config, format!("implicit_sessions = true\nuser_groups = ['{pattern}']\n{limits}")).unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    // A session of its own, since the process has no other.
    let _implicit = daemon.join(None);
    let mut tool = daemon.tool();
    for _ in 0..2 {
        tool.say(&wish(Some(Bytes::mib(1)), GpuChoice::Auto));
        assert!(matches!(tool.hear(), TenantReply::Session { .. }));
    }
    tool.say(&wish(Some(Bytes::mib(1)), GpuChoice::Auto));
    let TenantReply::Error(failure) = tool.hear() else { panic!("a third session") };
    assert!(failure.message.contains(&format!("container {group} has 2 sessions")), "{}", failure.message);

    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Users);
    let AdminReply::Users(users) = administrator.hear() else { panic!("no users") };
    assert_eq!(users, [UserView { user: group, weight: 100, sessions: 3 }]);
}

/// Returns a control group of this process that is neither a container's nor a user's.
fn own_group() -> Option<String> {
    let lines = fs::read_to_string("/proc/self/cgroup").unwrap();
    let mut paths = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let is_of_container =
        |path: &str| ["docker", "pod", "lxc", "nspawn", "cri"].iter().any(|part| path.contains(part));
    if paths.clone().any(is_of_container) {
        return None;
    }
    paths
        .find(|path| path.len() > 2 && !path.starts_with("/user.slice") && !path.contains(".."))
        .map(str::to_owned)
}

#[test]
fn another_user_has_a_limit_of_connections() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "connections_per_user = 2\nimplicit_sessions = true").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    fs::set_permissions(folders.path(""), Permissions::from_mode(0o755)).unwrap();
    as_nobody(|| {
        let held = (daemon.join(None), daemon.join(None));
        assert_eq!(daemon.connect_and_hear_the_end(), 0);
        assert_eq!(held.0.welcome.session, held.1.welcome.session);
    });
    daemon.join(None);
}

#[test]
fn the_systems_daemon_takes_a_card_of_another_user_only_if_it_is_configured() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folders = Folders::new();
    let config = folders.path("config.toml");
    let other = GpuUuid::gpu([0xbb; 16]);
    fs::write(&config, format!("implicit_sessions = true\n[gpus.{CARD}]\nepsilon = '5%'\n")).unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    fs::set_permissions(folders.path(""), Permissions::from_mode(0o755)).unwrap();
    let announced = |client: &mut Client| {
        client.peer.say(&TenantRequest::Attach(GpuInfo { uuid: other, ..card() }));
        client.hear_until(|reply| match reply {
            TenantReply::Attached { .. } => Some(Ok(())),
            TenantReply::Error(failure) => Some(Err(failure)),
            _ => None,
        })
    };
    as_nobody(|| {
        let mut client = daemon.join(None);
        let failure = announced(&mut client).unwrap_err();
        assert_eq!(failure.code, FailureCode::Unavailable, "{}", failure.message);
        assert!(failure.message.contains(&format!("[gpus.{other}]")), "{}", failure.message);
        daemon.join(None).attach();
    });
    announced(&mut daemon.join(None)).unwrap();
    as_nobody(|| announced(&mut daemon.join(None)).unwrap());
}

/// Runs `act` on a thread of the user nobody.
pub(crate) fn as_nobody(act: impl FnOnce() + Send) {
    let nobody = rustix::process::Uid::from_raw(65534);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The system call changes the user of this thread only.
            rustix::thread::set_thread_uid(nobody).unwrap();
            act();
        });
    });
}

#[test]
fn three_hundred_clients_start_at_once() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let clients: Vec<_> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..300)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = daemon.join(None);
                    client.attach();
                    client
                })
            })
            .collect();
        starting.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let numbers: BTreeSet<_> = clients.iter().map(|client| client.welcome.client).collect();
    assert_eq!(numbers.len(), 300);
    assert_eq!(daemon.status().sessions[0].clients.len(), 300);
    // All clients are one process here. It hung up and lives, so it may use the memory of all.
    drop(clients);
    let refused = eventually("a process that hangs up too often to be refused", || {
        join(&folders.runtime(), None, None).err()
    });
    assert_eq!(refused.code, FailureCode::Unavailable);
    assert!(refused.message.contains("hung up 64 times"), "{}", refused.message);
    assert_eq!(daemon.status().sessions[0].clients.len(), 300);
}
