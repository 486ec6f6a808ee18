//! `session`: all sessions or one, by name or number.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use gpushare_proto::admin::{
    AdminReply, AdminRequest, FrostStage, FrostView, SessionRequest, SessionView, Status,
};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::session::Binding;
use gpushare_proto::tenant::{FailureCode, PROTOCOL, TenantReply, TenantRequest};
use gpushare_proto::{Nanos, SessionId, Token};

use crate::ctl::{ctl, fails, json, succeeds};
use crate::fake::{Fake, failure};
use crate::status::{daemon, two_that_take_turns};

#[test]
fn list_shows_every_session() {
    let daemon = daemon(two_that_take_turns());
    let table = succeeds(&mut ctl(daemon.dir(), &["session", "list"]));
    assert_eq!(table.lines().count(), 3);
    let sessions: Vec<SessionView> = json(daemon.dir(), &["session", "list"]);
    assert_eq!(sessions, two_that_take_turns().sessions);
}

#[test]
fn show_finds_a_session_by_name_and_by_number() {
    let daemon = daemon(two_that_take_turns());
    for which in ["infer", "s4", "4"] {
        let session: SessionView = json(daemon.dir(), &["session", "show", which]);
        assert_eq!(session, two_that_take_turns().sessions[1]);
    }
}

#[test]
fn show_tells_all_of_one_session() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(
        succeeds(&mut ctl(daemon.dir(), &["session", "show", "infer"])),
        "\
session   s4
name      infer
made by   gpushare-ctl run
quota     no limit
lock      waiting, 1 ahead: train holds gpu0
waited    4.2s
held      12s
refusals  0

GPU   ALLOCATED  LEASED  PEAK
gpu0  3GiB       3GiB    3GiB

PROCESS  PID   GATE  SLEEPS AT IT
c14      5000  open  no
"
    );
}

#[test]
fn an_unknown_session_is_not_found() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(
        fails(&mut ctl(daemon.dir(), &["session", "show", "s9"]), 5),
        "there is no session `s9`; `gpushare-ctl session list` names them"
    );
}

#[test]
fn a_name_of_two_sessions_needs_a_number() {
    let mut status = two_that_take_turns();
    status.sessions[1].name = "train".into();
    let daemon = daemon(status);
    assert_eq!(
        fails(&mut ctl(daemon.dir(), &["session", "show", "train"]), 1),
        "2 sessions are named `train`; name one by its number: s3, s4"
    );
}

const TOKEN: Token = Token([0xb7; 32]);

/// A daemon that makes and changes whatever it is asked to.
fn willing(status: Status) -> Fake {
    Fake::for_admins(move |request| match request {
        AdminRequest::Hello(_) => AdminReply::Ready { protocol: PROTOCOL },
        AdminRequest::Status => AdminReply::Status(Box::new(status.clone())),
        AdminRequest::Session(SessionRequest::Create { new, binding }) => AdminReply::Created {
            session: SessionId(9),
            name: new.name.clone().unwrap_or_default(),
            token: (*binding == Binding::Token).then_some(TOKEN),
            gpu: None,
        },
        AdminRequest::Session(SessionRequest::Token { .. }) => {
            AdminReply::Token { session: SessionId(3), name: "train".into(), token: TOKEN }
        }
        _ => AdminReply::Changed { old: "running".into(), new: "changed".into() },
    })
}

/// Requests about sessions that the daemon got.
fn requests(daemon: &Fake) -> Vec<SessionRequest> {
    let asked = daemon.admin.asked().into_iter();
    asked
        .filter_map(|request| match request {
            AdminRequest::Session(request) => Some(request),
            _ => None,
        })
        .collect()
}

/// As two that take turns, the first made by an administrator.
fn a_lasting_one() -> Status {
    let mut status = two_that_take_turns();
    status.sessions[0].state.kept = true;
    status
}

#[test]
fn a_number_is_never_a_name_to_any_command() {
    let mut status = two_that_take_turns();
    status.sessions[0].name = "4".into();
    let daemon = daemon(status.clone());
    for which in ["4", "s4"] {
        let shown: SessionView = json(daemon.dir(), &["session", "show", which]);
        assert_eq!(shown.session, SessionId(4));
    }
}

#[test]
fn the_administrators_session_is_the_one_that_is_meant() {
    let mut status = a_lasting_one();
    status.sessions[1].name = "train".into();
    let daemon = daemon(status);
    let shown: SessionView = json(daemon.dir(), &["session", "show", "train"]);
    assert_eq!(shown.session, SessionId(3));
}

#[test]
fn where_no_token_can_be_written_no_session_is_made() {
    let daemon = willing(two_that_take_turns());
    let nowhere = ["session", "create", "team", "--token-file", "/proc/no/such/file"];
    let said = fails(&mut ctl(daemon.dir(), &nowhere), 1);
    assert!(said.contains("the token file /proc/no/such/file cannot be written"), "{said}");
    assert_eq!(requests(&daemon), []);
}

#[test]
fn a_session_whose_token_gets_lost_on_the_way_is_taken_away_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    // In the way of the file once its session is made.
    let path = file.clone();
    let daemon = Fake::for_admins(move |request| match request {
        AdminRequest::Hello(_) => AdminReply::Ready { protocol: PROTOCOL },
        AdminRequest::Session(SessionRequest::Create { .. }) => {
            fs::create_dir_all(path.join("in the way")).unwrap();
            AdminReply::Created { session: SessionId(9), name: "team".into(), token: Some(TOKEN), gpu: None }
        }
        _ => AdminReply::Error(failure(FailureCode::NotFound, "gone")),
    });
    let create = ["session", "create", "team", "--token-file", file.to_str().unwrap()];
    let said = fails(&mut ctl(daemon.dir(), &create), 1);
    assert!(said.contains("cannot be written"), "{said}");
    let last = requests(&daemon).pop();
    assert_eq!(last, Some(SessionRequest::Delete { which: "s9".into() }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing half done is left");
}

#[test]
fn a_token_is_kept_in_the_state_folder_and_goes_with_its_session() {
    let daemon = willing(a_lasting_one());
    let state = tempfile::tempdir().unwrap();
    symlink(state.path(), RuntimeDir::new(daemon.dir()).state_link()).unwrap();
    let file = state.path().join("tokens/train.token");
    for command in ["revoke", "delete"] {
        let said = succeeds(&mut ctl(daemon.dir(), &["session", "create", "train"]));
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Token::from_hex(&fs::read_to_string(&file).unwrap()), Some(TOKEN));
        succeeds(&mut ctl(daemon.dir(), &["session", command, "s3"]));
        assert!(!file.exists(), "{command}");
    }
    // That of a program is none of ours, whatever its name.
    fs::write(&file, "").unwrap();
    let programs = willing(two_that_take_turns());
    symlink(state.path(), RuntimeDir::new(programs.dir()).state_link()).unwrap();
    succeeds(&mut ctl(programs.dir(), &["session", "revoke", "train"]));
    assert!(file.exists());
}

#[test]
fn another_token_takes_the_place_of_the_first_in_its_file() {
    let daemon = willing(a_lasting_one());
    let file = daemon.dir().join("tokens/train.token");
    fs::create_dir(daemon.dir().join("tokens")).unwrap();
    fs::set_permissions(daemon.dir().join("tokens"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&file, Token([1; 32]).to_hex()).unwrap();
    let said = succeeds(&mut ctl(daemon.dir(), &["session", "token", "train"]));
    assert_eq!(
        said,
        format!("session train (s3) has a new token, in {}; the old token is invalid\n", file.display())
    );
    assert!(!said.contains(&TOKEN.to_hex()));
    assert_eq!(Token::from_hex(&fs::read_to_string(&file).unwrap()), Some(TOKEN));
    assert_eq!(requests(&daemon), [SessionRequest::Token { which: "s3".into() }]);
}

#[test]
fn an_end_is_given_anew_or_taken_away() {
    let daemon = willing(two_that_take_turns());
    for ttl in [&["--ttl", "none"][..], &["--ttl", "2h"], &[]] {
        succeeds(ctl(daemon.dir(), &["session", "renew", "train"]).args(ttl));
    }
    let which = || "train".to_owned();
    let renew = |ttl| SessionRequest::Renew { which: which(), ttl };
    assert_eq!(
        requests(&daemon),
        [SessionRequest::Endless { which: which() }, renew(Some(Nanos::from_secs(7200))), renew(None)]
    );
}

#[test]
fn a_user_who_is_no_administrator_freezes_a_session_of_their_own() {
    let is_frozen = AtomicBool::new(false);
    let tenant = move |request: &TenantRequest| match request {
        TenantRequest::Frost { .. } => {
            let stage = match is_frozen.load(Ordering::SeqCst) {
                true => FrostStage::Frozen,
                false => FrostStage::Warm,
            };
            TenantReply::Frost(FrostView { stage, obstacle: None, freeze_after_ns: None, idle_ns: None })
        }
        TenantRequest::Freeze { which } if which == "mine" => {
            is_frozen.store(true, Ordering::SeqCst);
            TenantReply::FrostChanged { old: "running".into(), new: "freezing".into() }
        }
        TenantRequest::Freeze { .. } => TenantReply::Error(failure(FailureCode::NotFound, "it is not yours")),
        TenantRequest::Thaw { .. } => {
            is_frozen.store(false, Ordering::SeqCst);
            TenantReply::FrostChanged { old: "frozen".into(), new: "thawing".into() }
        }
        _ => TenantReply::Ready { protocol: PROTOCOL },
    };
    let denied = |_: &AdminRequest| AdminReply::Error(failure(FailureCode::Permission, "only root may"));
    let daemon = Fake::new(tenant, denied);
    let freeze = |which: &str| ctl(daemon.dir(), &["session", "freeze", which]);
    assert_eq!(succeeds(&mut freeze("mine")), "session mine: running → frozen\n");
    let thawed = succeeds(&mut ctl(daemon.dir(), &["session", "thaw", "mine"]));
    assert_eq!(thawed, "session mine: frozen → running\n");
    assert!(fails(&mut freeze("other"), 5).contains("it is not yours"));
    assert!(fails(&mut ctl(daemon.dir(), &["session", "pause", "mine"]), 4).contains("only root may"));
}
