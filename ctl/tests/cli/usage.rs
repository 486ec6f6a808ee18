//! `usage`: a table or JSON of what sessions used, all or one.

use std::time::{SystemTime, UNIX_EPOCH};

use gpushare_proto::admin::{AdminReply, AdminRequest, UsageView, UserUsageView};
use gpushare_proto::audit::Timestamp;
use gpushare_proto::tenant::PROTOCOL;
use gpushare_proto::{Bytes, Nanos, SessionId};

use crate::ctl::{ctl, fails, json, succeeds};
use crate::fake::Fake;

fn used() -> Vec<UserUsageView> {
    let usage = |session, name: &str, alive| UsageView {
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
    let of = |user: Option<&str>, usage| UserUsageView { user: user.map(str::to_owned), usage };
    vec![
        of(Some("0"), usage(3, "train", false)),
        of(Some("/system.slice/hub-ana.service"), usage(4, "infer", true)),
        of(None, usage(9, "train", true)),
    ]
}

fn daemon() -> Fake {
    Fake::for_admins(|request| match request {
        AdminRequest::Hello(_) => AdminReply::Ready { protocol: PROTOCOL },
        AdminRequest::UsageBetween { .. } => AdminReply::UserUsage(used()),
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
SESSION  NAME   USER                           STATE  GPU TIME  WAITED  HELD  MOVED  PEAK
s3       train  root                           ended  5400.2s   61.0s   0.7s  12GiB  7GiB
s4       infer  /system.slice/hub-ana.service  alive  5400.2s   61.0s   0.7s  12GiB  7GiB
s9       train  -                              alive  5400.2s   61.0s   0.7s  12GiB  7GiB"
    );
    assert!(step.ends_with(", in whole hours)"), "{step}");
    let (from, until) = asked(&daemon);
    assert!(from % 3600 == 0 && (1800..=5401).contains(&(until - from)), "{from} to {until}");
}

/// Returns the period for which the daemon was asked last.
fn asked(daemon: &Fake) -> (u64, u64) {
    match daemon.admin.asked().pop() {
        Some(AdminRequest::UsageBetween { from_unix_s, until_unix_s }) => (from_unix_s, until_unix_s),
        other => panic!("asked {other:?}"),
    }
}

#[test]
fn usage_is_filtered_by_user_and_names_it_in_json() {
    let daemon = daemon();
    for (user, session) in [("root", 3), ("0", 3), ("/system.slice/hub-ana.service/", 4)] {
        let found: Vec<serde_json::Value> = json(daemon.dir(), &["usage", "--user", user]);
        assert_eq!(found.len(), 1, "{user}");
        assert_eq!(found[0]["session"], session, "{user}");
    }
    let found: Vec<serde_json::Value> = json(daemon.dir(), &["usage"]);
    assert_eq!((&found[0]["user"], &found[0]["user_name"]), (&"0".into(), &"root".into()));
    assert_eq!((&found[2]["user"], &found[2]["user_name"]), (&().into(), &().into()));
    assert_eq!(found[0]["until_unix_s"], asked(&daemon).1);
    let page = succeeds(&mut ctl(daemon.dir(), &["usage", "--user", "12345"]));
    assert!(page.starts_with("no session used a card\n"), "{page}");
    let failure = fails(&mut ctl(daemon.dir(), &["usage", "--user", "nobody-here"]), 5);
    assert_eq!(failure, "there is no user `nobody-here`; `id -u nobody-here` knows none; give the number");
}

#[test]
fn a_period_has_an_end_and_dates_are_local() {
    let daemon = daemon();
    let day = 86_400;
    let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / day * day;
    let date = |unix: u64| Timestamp(unix * 1_000_000).to_string()[..10].to_owned();
    let between = |zone, since: &str, until: &str| {
        let mut command = ctl(daemon.dir(), &["usage", "--since", since, "--until", until]);
        let page = succeeds(command.env("TZ", zone));
        let (_, step) = page.trim_end().rsplit_once('\n').unwrap();
        (asked(&daemon), step.to_owned())
    };
    let (before, yesterday) = (date(today - 2 * day), date(today - day));
    let period = (today - 2 * day, today - day);
    let step = format!("(from {before} 00:00 to {yesterday} 00:00, in whole hours)");
    assert_eq!(between("UTC0", &before, &yesterday), (period, step.clone()));
    let later = (period.0 - 2 * 3600, period.1 - 2 * 3600);
    assert_eq!(between("EET-2", &before, &yesterday), (later, step), "east of UTC days begin earlier");
    let (start, end) = (format!("{before}T00:00:00Z"), format!("{yesterday}T01:30:00+01:30"));
    assert_eq!(between("EET-2", &start, &end).0, period);
    let ((from, until), _) = between("UTC0", "48h", "24h");
    assert!((day..=day + 3600).contains(&(until - from)), "{from} to {until}");
}

#[test]
fn a_period_that_cannot_be_is_one_sentence() {
    let daemon = daemon();
    for (arguments, least) in [
        (&["--since", "1h", "--until", "2h"][..], "the period ends ("),
        (&["--since", "2000-01-01"], "usage is kept for thirty days; write a --since after 20"),
        (&["--since", "2999-01-01"], "the period begins in the future, at 2999-01-01 00:00; write"),
        (
            &["--until", "soon"],
            "invalid value 'soon' for '--until <TIME>': `soon` is neither an age, like 90m",
        ),
    ] {
        let failure = fails(ctl(daemon.dir(), &["usage"]).args(arguments), 2);
        assert!(failure.starts_with(least) && !failure.contains('\n'), "{failure}");
    }
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
