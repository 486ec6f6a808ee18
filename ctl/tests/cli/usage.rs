//! `usage`: a table or JSON of what sessions used, all or one.

use gpushare_proto::admin::{AdminReply, AdminRequest, UsageView};
use gpushare_proto::tenant::PROTOCOL;
use gpushare_proto::{Bytes, Nanos, SessionId};

use crate::ctl::{ctl, fails, json, succeeds};
use crate::fake::Fake;

fn used() -> Vec<UsageView> {
    let of = |session, name: &str, alive| UsageView {
        session: SessionId(session),
        name: name.into(),
        alive,
        from_unix_s: 1_795_305_600,
        gpu_time_ns: Nanos::from_millis(5_400_250),
        waited_ns: Nanos::from_secs(61),
        held_ns: Nanos::from_millis(700),
        moved_bytes: Bytes::gib(12),
        peak_bytes: Bytes::gib(7),
    };
    vec![of(3, "train", false), of(4, "infer", true), of(9, "train", true)]
}

fn daemon() -> Fake {
    Fake::for_admins(|request| match request {
        AdminRequest::Hello(_) => AdminReply::Ready { protocol: PROTOCOL },
        AdminRequest::Usage { .. } => AdminReply::Usage(used()),
        other => panic!("asked {other:?}"),
    })
}

#[test]
fn the_table_has_sessions_that_ended_and_says_what_is_counted() {
    let daemon = daemon();
    let page = succeeds(&mut ctl(daemon.dir(), &["usage", "--since", "30m"]));
    let (table, step) = page.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(
        table,
        "\
SESSION  NAME   STATE  GPU TIME  WAITED  HELD  MOVED  PEAK
s3       train  ended  5400.2s   61.0s   0.7s  12GiB  7GiB
s4       infer  alive  5400.2s   61.0s   0.7s  12GiB  7GiB
s9       train  alive  5400.2s   61.0s   0.7s  12GiB  7GiB"
    );
    assert!(step.ends_with(", in whole hours)"), "{step}");
    assert!(
        daemon
            .admin
            .asked()
            .contains(&AdminRequest::Usage { since: Nanos::from_secs(1800) })
    );
}

#[test]
fn one_session_is_named_by_its_name_or_its_number() {
    let daemon = daemon();
    let of = |which| -> Vec<u64> {
        let usages: Vec<UsageView> = json(daemon.dir(), &["usage", "--session", which]);
        usages.into_iter().map(|usage| usage.session.0).collect()
    };
    assert_eq!(of("train"), [3, 9]);
    assert_eq!(of("s4"), [4]);
    assert_eq!(
        fails(&mut ctl(daemon.dir(), &["usage", "--since", "31d"]), 2),
        "invalid value '31d' for '--since <TIME>': usage is kept for thirty days; write 30d or less; see `gpushare-ctl usage --help`"
    );
    let failure = fails(&mut ctl(daemon.dir(), &["usage", "--session", "nobody"]), 5);
    assert!(failure.starts_with("there is no session `nobody`"), "{failure}");
}
