//! `dashboard`: the link that it prints, and the daemon's refusal.

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::tenant::{Failure, FailureCode, PROTOCOL};
use gpushare_proto::{Nanos, Token};
use serde_json::{Value, json};

use crate::ctl::{ctl, fails, json, succeeds};
use crate::fake::Fake;
use crate::status::{daemon, two_that_take_turns};

/// Daemon that serves a page at all addresses, or that cannot serve one.
fn other(can_serve: bool) -> Fake {
    Fake::for_admins(move |request| match request {
        AdminRequest::Dashboard { .. } if can_serve => AdminReply::Dashboard {
            address: "0.0.0.0:80".to_owned(),
            link: Token([0xa5; 32]),
            valid_ns: Nanos::from_secs(120),
        },
        AdminRequest::Dashboard { .. } => AdminReply::Error(Failure {
            code: FailureCode::Unavailable,
            message: "cannot serve the page at 127.0.0.1:9403: Address already in use".to_owned(),
        }),
        _ => AdminReply::Ready { protocol: PROTOCOL },
    })
}

#[test]
fn the_link_is_the_first_line_and_the_second_one_says_how_long_it_works() {
    let daemon = daemon(two_that_take_turns());
    let printed = succeeds(&mut ctl(daemon.dir(), &["dashboard"]));
    let url = format!("http://127.0.0.1:9403/#link={}", "a5".repeat(32));
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some(&*url));
    let second = lines.next().unwrap();
    assert!(second.contains("works once, within 120s"), "{second}");
    assert!(second.ends_with("ssh -L 9403:127.0.0.1:9403 HOST"), "{second}");
    assert_eq!(daemon.admin.asked().pop(), Some(AdminRequest::Dashboard { read_only: false }));
}

#[test]
fn json_has_the_link_of_a_daemon_at_all_addresses() {
    let daemon = other(true);
    let view: Value = json(daemon.dir(), &["dashboard", "--read-only"]);
    let url = format!("http://127.0.0.1:80/#link={}", "a5".repeat(32));
    assert_eq!(view, json!({"url": url, "valid_ns": 120_000_000_000_u64, "read_only": true}));
    assert_eq!(daemon.admin.asked().pop(), Some(AdminRequest::Dashboard { read_only: true }));
}

#[test]
fn a_port_in_use_and_a_missing_daemon_are_one_sentence() {
    let sentence = fails(&mut ctl(other(false).dir(), &["dashboard"]), 1);
    assert!(sentence.contains("127.0.0.1:9403: Address already in use"), "{sentence}");
    let sentence = fails(&mut ctl(std::path::Path::new("/nonexistent"), &["dashboard"]), 3);
    assert!(sentence.contains("no gpushare daemon answers"), "{sentence}");
}
