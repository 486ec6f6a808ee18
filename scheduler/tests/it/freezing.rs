//! Freezes that users ask for: of their own sessions, and of nobody else's.

use std::fs;

use gpushare_proto::Nanos;
use gpushare_proto::admin::{AdminReply, AdminRequest, Change, FrostStage, FrostView, SessionRequest};
use gpushare_proto::names::FREEZE_UNTRIED;
use gpushare_proto::session::FreezeAfter;
use gpushare_proto::tenant::{FailureCode, TenantReply, TenantRequest};

use crate::harness::{Daemon, Folders, eventually};
use crate::names::ask;
use crate::processes::Process;

fn frost(daemon: &Daemon, which: &str) -> Result<FrostView, FailureCode> {
    let mut tool = daemon.tool();
    tool.say(&TenantRequest::Frost { which: which.to_owned() });
    match tool.hear() {
        TenantReply::Frost(view) => Ok(view),
        TenantReply::Error(failure) => Err(failure.code),
        other => panic!("{other:?}"),
    }
}

fn changed(old: &str, new: &str) -> TenantReply {
    TenantReply::FrostChanged { old: old.to_owned(), new: new.to_owned() }
}

#[test]
fn a_user_freezes_and_thaws_a_session_of_their_own() {
    let folders = Folders::new();
    let daemon = folders.start_with(&[(FREEZE_UNTRIED, "1")]);
    let (_, token) = daemon.register("mine", None);
    let mut program = daemon.join(Some(&token));
    program.attach();
    program.peer.say(&TenantRequest::Freezable { obstacle: None });
    eventually("it was examined", || {
        frost(&daemon, "mine").is_ok_and(|view| view.obstacle.is_none()).then_some(())
    });
    let mut tool = daemon.tool();
    let which = || "mine".to_owned();
    tool.say(&TenantRequest::Freeze { which: which() });
    assert_eq!(tool.hear(), changed("running", "freezing"));
    assert_eq!(frost(&daemon, "mine").unwrap().stage, FrostStage::Freezing);
    tool.say(&TenantRequest::Thaw { which: which() });
    assert_eq!(tool.hear(), changed("freezing", "running"));
    ask(&daemon, SessionRequest::Pause { which: which() });
    tool.say(&TenantRequest::Thaw { which: which() });
    let TenantReply::Error(failure) = tool.hear() else {
        panic!("an administrator paused it")
    };
    assert_eq!(failure.code, FailureCode::Permission);
    tool.say(&TenantRequest::Freeze { which: "other".to_owned() });
    let TenantReply::Error(failure) = tool.hear() else { panic!("there is no such session") };
    assert_eq!(failure.code, FailureCode::NotFound);
}

#[test]
fn a_user_cannot_freeze_sessions_of_others() {
    let folders = Folders::new();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start another user's processes");
        return;
    }
    let config = folders.path("config.toml");
    fs::write(&config, "implicit_sessions = true").unwrap();
    let daemon = folders.start_system(&["--config", config.to_str().unwrap()]);
    let mut program = daemon.join(None);
    program.attach();
    let session = program.welcome.session;
    assert_eq!(frost(&daemon, &session.to_string()).unwrap().stage, FrostStage::Warm);
    Process::freezing_as(&folders, session, 12345);
}

#[test]
fn the_idle_time_before_a_freeze_is_the_sessions_or_else_the_daemons() {
    let folders = Folders::new();
    let config = folders.path("config.toml");
    fs::write(&config, "freeze_after = '30min'").unwrap();
    let daemon = folders.start(&["--config", config.to_str().unwrap()]);
    let (_, token) = daemon.register("mine", None);
    daemon.join(Some(&token)).attach();
    let after = || {
        frost(&daemon, "mine")
            .unwrap()
            .freeze_after_ns
            .map(|time| time.0 / 1_000_000_000)
    };
    assert_eq!(after(), Some(1800));
    for (value, seconds) in [
        (FreezeAfter::Idle(Nanos::from_secs(60)), Some(60)),
        (FreezeAfter::Never, None),
        (FreezeAfter::Usual, Some(1800)),
    ] {
        let change = Change::FreezeAfter(value);
        let set = ask(&daemon, SessionRequest::Change { which: "mine".into(), change });
        assert!(matches!(set, AdminReply::Changed { .. }), "{set:?}");
        assert_eq!(after(), seconds);
    }
    fs::write(&config, "").unwrap();
    let mut administrator = daemon.administrator();
    administrator.say(&AdminRequest::Reload);
    let AdminReply::Reloaded(changes) = administrator.hear() else { panic!("no answer") };
    assert_eq!((changes.len(), &*changes[0].key, &*changes[0].new), (1, "freeze_after", "off"));
    assert_eq!(after(), None);
    let change = Change::FreezeAfter(FreezeAfter::Idle(Nanos(1)));
    let set = ask(&daemon, SessionRequest::Change { which: "mine".into(), change });
    assert!(matches!(&set, AdminReply::Error(failure) if failure.message.contains("1s to ")), "{set:?}");
}
