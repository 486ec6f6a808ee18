//! `session`: all sessions or one, by name or number.

use gpushare_proto::admin::SessionView;

use crate::ctl::{ctl, fails, succeeds};
use crate::status::{daemon, two_that_take_turns};

#[test]
fn list_shows_every_session() {
    let daemon = daemon(two_that_take_turns());
    let table = succeeds(&mut ctl(daemon.dir(), &["session", "list"]));
    assert_eq!(table.lines().count(), 3);
    let json = succeeds(&mut ctl(daemon.dir(), &["session", "list", "--json"]));
    let sessions: Vec<SessionView> = serde_json::from_str(&json).unwrap();
    assert_eq!(sessions, two_that_take_turns().sessions);
}

#[test]
fn show_finds_a_session_by_name_and_by_number() {
    let daemon = daemon(two_that_take_turns());
    for which in ["infer", "s4", "4"] {
        let json = succeeds(&mut ctl(daemon.dir(), &["session", "show", which, "--json"]));
        let session: SessionView = serde_json::from_str(&json).unwrap();
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
