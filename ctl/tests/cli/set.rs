//! `set`: what goes to the daemon, and what comes back.

use gpushare_proto::admin::{AdminRequest, Change, Knob, Mode, SessionRequest, Setting};
use gpushare_proto::session::{Amount, FreezeAfter, Priority, Quota};
use gpushare_proto::{Bytes, GpuId, Nanos, Percent};
use serde_json::json;

use crate::ctl::{ctl, fails, succeeds};
use crate::status::{daemon, two_that_take_turns};

/// The setting that a command line sends, and what it prints.
fn set(arguments: &[&str]) -> (Setting, String) {
    let daemon = daemon(two_that_take_turns());
    let printed = succeeds(ctl(daemon.dir(), &["set"]).args(arguments));
    match daemon.admin.asked().pop() {
        Some(AdminRequest::Set(setting)) => (setting, printed),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_term_of_a_session_is_sent_as_its_own_change() {
    let memory = |amount| Quota::every(Amount::Bytes(amount));
    for (arguments, change) in [
        (["memory", "4GiB"], Change::Memory(memory(Bytes::gib(4)))),
        (["memory", "none"], Change::Memory(Quota::default())),
        (["compute", "25%"], Change::Compute(Quota::every(Amount::Share(Percent(2500))))),
        (["compute", "none"], Change::Compute(Quota::default())),
        (["weight", "200"], Change::Weight(200)),
        (["priority", "low"], Change::Priority(Priority::Low)),
        (["freeze-after", "10min"], Change::FreezeAfter(FreezeAfter::Idle(Nanos::from_secs(600)))),
        (["freeze-after", "off"], Change::FreezeAfter(FreezeAfter::Never)),
        (["freeze-after", "auto"], Change::FreezeAfter(FreezeAfter::Usual)),
    ] {
        let daemon = daemon(two_that_take_turns());
        succeeds(ctl(daemon.dir(), &["set"]).args(arguments).args(["--session", "train"]));
        let sent = daemon.admin.asked().pop();
        let expected = SessionRequest::Change { which: "train".to_owned(), change };
        assert_eq!(sent, Some(AdminRequest::Session(expected)), "{arguments:?}");
    }
}

#[test]
fn the_change_of_one_card_is_echoed() {
    let (setting, printed) = set(&["quantum", "100ms", "--gpu", "0"]);
    let knob = Knob::Quantum(Some(Nanos::from_millis(100)));
    let gpu = Some(GpuId(0));
    assert_eq!(setting, Setting { gpu, knob });
    assert_eq!(printed, "quantum of gpu0: 3s (computed) → 100ms\n");
}

/// JSON object that a changing command prints.
fn object(arguments: &[&str]) -> serde_json::Value {
    crate::ctl::json(daemon(two_that_take_turns()).dir(), arguments)
}

#[test]
fn a_change_is_an_object_with_the_old_value_and_the_new_one() {
    assert_eq!(
        object(&["set", "quantum", "100ms", "--gpu", "0"]),
        json!({ "key": "quantum", "gpu": 0, "old": "3s (computed)", "new": "100ms" })
    );
    assert_eq!(object(&["set", "mode", "auto"])["gpu"], json!(null));
    assert_eq!(
        object(&["set", "weight", "200", "--session", "train"]),
        json!({ "key": "weight", "session": "train", "old": "running", "new": "paused" })
    );
    for command in [&["pause", "train"][..], &["renew", "train", "--ttl", "1h"], &["revoke", "train"]] {
        assert_eq!(
            object(&[&["session"], command].concat()),
            json!({ "key": "state", "session": "train", "old": "running", "new": "paused" })
        );
    }
}

#[test]
fn a_card_is_found_by_its_uuid() {
    let uuid = "GPU-abababab-abab-abab-abab-abababababab";
    assert_eq!(set(&["mode", "auto", "--gpu", uuid]).0.gpu, Some(GpuId(0)));
}

#[test]
fn every_setting_has_its_own_kind_of_value() {
    for (arguments, knob) in [
        (["quantum", "auto"], Knob::Quantum(None)),
        (["mode", "serialized"], Knob::Mode(Some(Mode::Serialized))),
        (["mode", "parallel"], Knob::Mode(Some(Mode::Parallel))),
        (["mode", "auto"], Knob::Mode(None)),
        (["capacity", "4GiB"], Knob::Capacity(Some(Bytes::gib(4)))),
        (["capacity", "auto"], Knob::Capacity(None)),
        (["managed-limit", "10GiB"], Knob::ManagedLimit(Bytes::gib(10))),
        (["epsilon", "2.5%"], Knob::Epsilon(Percent(250))),
        (["context-reserve", "300MiB"], Knob::ContextReserve(Bytes::mib(300))),
        (["window-target", "5ms"], Knob::WindowTarget(Nanos::from_millis(5))),
        (["mode", "time-sliced"], Knob::Mode(Some(Mode::TimeSliced))),
    ] {
        let (setting, printed) = set(&arguments);
        assert_eq!(setting, Setting { gpu: None, knob });
        assert!(printed.starts_with(&format!("{} of all cards: ", arguments[0])), "{printed}");
    }
}

#[test]
fn a_card_that_the_daemon_does_not_know_is_not_found() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(
        fails(&mut ctl(daemon.dir(), &["set", "quantum", "1s", "--gpu", "7"]), 5),
        "there is no card `gpu7`; the daemon knows gpu0"
    );
}

#[test]
fn what_a_reload_changed_is_printed_with_what_needs_a_start() {
    let daemon = daemon(two_that_take_turns());
    let printed = succeeds(&mut ctl(daemon.dir(), &["reload"]));
    assert_eq!(printed, "metrics: none → 127.0.0.1:1 (takes effect at the next start)\n");
}
