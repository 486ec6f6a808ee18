//! What a user asks and changes about their own session.

use std::fs;

use gpushare_proto::admin::{AdminReply, AdminRequest, Change, SessionRequest};
use gpushare_proto::follow::Increment;
use gpushare_proto::session::{Amount, Quota, Terms};
use gpushare_proto::tenant::{
    FailureCode, GpuChoice, GpuInfo, NewSession, OwnWait, TenantReply, TenantRequest,
};
use gpushare_proto::{Bytes, GpuUuid};

use crate::deaths::holds;
use crate::harness::{Client, Daemon, Folders, eventually};
use crate::names::{ask, made};
use crate::processes::{TURNS, wanting};

fn wish(memory: Option<Bytes>, gpu: GpuChoice) -> TenantRequest {
    TenantRequest::Register(NewSession {
        name: None,
        terms: Terms::with_memory(memory),
        oversubscribe: false,
        gpu,
    })
}

/// Asks on a client's own connection until its session waits behind `ahead` others.
fn waits_behind(client: &mut Client, ahead: u32) -> OwnWait {
    eventually("it to wait in its place", || {
        client.peer.say(&TenantRequest::OwnWait);
        let wait = client.hear_until(|reply| match reply {
            TenantReply::OwnWait(wait) => Some(wait),
            _ => None,
        });
        wait.filter(|wait| wait.ahead == ahead)
    })
}

#[test]
fn a_wait_names_the_sessions_of_the_same_user_only() {
    let folders = Folders::new();
    let daemon = folders.start(&TURNS);
    let boss = made(&daemon, "boss", Terms::default());
    let mut holder = daemon.join(Some(&boss));
    let of_holder = holder.welcome.session;
    wanting(&mut holder);
    holds(&daemon, of_holder);
    let [mut first, mut second] = ["first", "second"].map(|name| {
        let (_, token) = daemon.register(name, None);
        daemon.join(Some(&token))
    });
    wanting(&mut first);
    let wait = waits_behind(&mut first, 0);
    assert_eq!(wait.own, Vec::<String>::new());
    assert!(wait.about_ns.is_some());
    wanting(&mut second);
    assert_eq!(waits_behind(&mut second, 1).own, ["first"]);
}

#[test]
fn a_session_that_its_user_registered_asks_for_another_limit() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let mut tool = daemon.tool();
    let mut resize = |text: &str| {
        tool.say(&TenantRequest::Resize(Quota::of_memory(text).unwrap()));
        tool.hear()
    };
    let TenantReply::Error(failure) = resize("1GiB") else { panic!("there is no session") };
    assert_eq!(failure.code, FailureCode::NotFound);
    daemon.register("mine", Some(Bytes::mib(256)));
    let resized = |old: &str, new: &str| TenantReply::Resized { old: old.into(), new: new.into() };
    assert_eq!(resize("1GiB"), resized("256MiB", "1GiB"));
    assert_eq!(resize("50%"), resized("1GiB", "50%"));
    let TenantReply::Error(failure) = resize("1KiB") else {
        panic!("a limit that is no use")
    };
    assert_eq!(failure.code, FailureCode::BadRequest);
    let mine = &daemon.status().sessions[0];
    assert_eq!(mine.state.terms.memory.to_string(), "50%");
}

#[test]
fn a_user_stays_below_the_limit_that_an_administrator_set_over_a_restart_too() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[self_service]\nmax_memory = '4GiB'").unwrap();
    let arguments = ["--config", config.to_str().unwrap()];
    let resize = |daemon: &Daemon, text: &str| {
        let mut tool = daemon.tool();
        tool.say(&TenantRequest::Resize(Quota::of_memory(text).unwrap()));
        match tool.hear() {
            TenantReply::Resized { new, .. } => Ok(new),
            TenantReply::Error(failure) => Err(failure.code),
            other => panic!("{other:?}"),
        }
    };
    let denied = Err(FailureCode::Permission);

    let daemon = folders.start_system(&arguments);
    let (_, token) = daemon.register("mine", Some(Bytes::mib(512)));
    daemon.join(Some(&token)).attach();
    let change = Change::Memory(Quota::every(Amount::Bytes(Bytes::mib(256))));
    let set = ask(&daemon, SessionRequest::Change { which: "mine".into(), change });
    assert!(matches!(set, AdminReply::Changed { .. }), "{set:?}");
    assert_eq!(resize(&daemon, "512MiB"), denied);
    assert_eq!(resize(&daemon, "50%"), denied, "it is 512 MiB here");
    for less in ["128MiB", "256MiB"] {
        assert_eq!(resize(&daemon, less).as_deref(), Ok(less));
    }
    daemon.terminate();

    let daemon = folders.start_system(&arguments);
    daemon.join(Some(&token)).attach();
    assert_eq!(resize(&daemon, "512MiB"), denied);
}

#[test]
fn displays_show_an_administrators_limit_where_it_is_the_smaller_one() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[self_service]\nmax_memory = '4GiB'").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let (session, token) = daemon.register("mine", None);
    let mut program = daemon.join(Some(&token));
    program.attach();
    let change = Change::Memory(Quota::every(Amount::Bytes(Bytes::mib(600))));
    ask(&daemon, SessionRequest::Change { which: "mine".into(), change });
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Resize(Quota::of_memory("50%").unwrap()));
    let answer = tool.hear();
    assert!(matches!(&answer, TenantReply::Resized { new, .. } if new == "50%"), "{answer:?}");

    // Half of a larger card is more than the administrator gives.
    let uuid = GpuUuid::gpu([0xcb; 16]);
    let gpu = program.attach_to(GpuInfo { uuid, name: "large card".into(), total: Bytes::gib(4) });
    let view = daemon
        .status()
        .sessions
        .into_iter()
        .find(|view| view.session == session)
        .unwrap();
    let on_large = view.gpus.iter().find(|on| on.gpu == gpu).unwrap();
    assert_eq!(on_large.limit_bytes, Some(Bytes::mib(600)));
    assert_eq!(view.state.terms.memory, Quota::of_memory("50%,1=600MiB").unwrap());
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Follow);
    let facts = loop {
        let AdminReply::Increments(news) = administrator.hear() else { panic!("no increments") };
        let of_session = |change| match change {
            Increment::Session(facts) if facts.session == session => Some(facts),
            _ => None,
        };
        if let Some(facts) = news.changes.into_iter().find_map(of_session) {
            break facts;
        }
    };
    assert_eq!(facts.memory, view.state.terms.memory);
    assert!(matches!(program.reserve(gpu, Bytes::mib(601)), TenantReply::Refused { .. }));
}

#[test]
fn the_owner_of_a_daemon_raises_a_limit_that_was_set_before() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("mine", Some(Bytes::mib(64)));
    let mut program = daemon.join(Some(&token));
    let gpu = program.attach();
    let change = Change::Memory(Quota::every(Amount::Bytes(Bytes::mib(32))));
    ask(&daemon, SessionRequest::Change { which: "mine".into(), change });
    assert!(matches!(program.reserve(gpu, Bytes::mib(48)), TenantReply::Refused { .. }));
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Resize(Quota::of_memory("64MiB").unwrap()));
    assert!(matches!(tool.hear(), TenantReply::Resized { .. }));
    assert!(matches!(program.reserve(gpu, Bytes::mib(48)), TenantReply::Reserved { .. }));
}

#[test]
fn an_administrators_session_and_limit_are_not_the_users_to_change() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "[self_service]\nmax_memory = '4GiB'").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let mut tool = daemon.tool();
    tool.say(&wish(Some(Bytes::gib(1)), GpuChoice::Auto));
    let TenantReply::Session { .. } = tool.hear() else { panic!("no session") };
    let mut resize = |text: &str| {
        tool.say(&TenantRequest::Resize(Quota::of_memory(text).unwrap()));
        tool.hear()
    };
    assert!(matches!(resize("4GiB"), TenantReply::Resized { new, .. } if new == "4GiB"));
    let TenantReply::Error(failure) = resize("5GiB") else {
        panic!("more than the administrator gives")
    };
    assert_eq!(failure.code, FailureCode::Permission);
    assert!(failure.message.contains("at most 4GiB together"), "{}", failure.message);
    daemon.terminate();

    let daemon = folders.start(&[]);
    let token = made(&daemon, "team", Terms::default());
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Join(token));
    assert!(matches!(tool.hear(), TenantReply::SessionMemory(Some(_))));
    tool.say(&TenantRequest::Resize(Quota::of_memory("1GiB").unwrap()));
    let TenantReply::Error(failure) = tool.hear() else {
        panic!("it is the administrator's")
    };
    assert_eq!(failure.code, FailureCode::Permission);
    assert!(failure.message.contains("set memory 1GiB --session team"), "{}", failure.message);
}
