//! What the audit log keeps of tenants that would rather fill it.

use std::fs;

use gpushare_proto::Bytes;
use gpushare_proto::audit::{Entry, Line};
use gpushare_proto::page::LimitKind;
use gpushare_proto::tenant::TenantReply;

use crate::harness::{Place, eventually};

#[test]
fn a_tenant_that_is_refused_in_a_loop_gets_a_few_lines_and_all_are_counted() {
    const REFUSALS: u64 = 500;
    let place = Place::new();
    let daemon = place.start(&[]);
    let mut client = daemon.join(None);
    let gpu = client.attach();
    for _ in 0..REFUSALS {
        assert!(matches!(
            client.reserve(gpu, Bytes::gib(2)),
            TenantReply::Refused { .. }
        ));
    }
    let pid = daemon.status().sessions[0].clients[0].pid;
    drop(client);
    let (lines, more) = eventually("every refusal is in the audit log", || {
        let text = fs::read_to_string(place.runtime().audit()).unwrap_or_default();
        let (mut lines, mut more) = (0, 0);
        for line in text
            .lines()
            .filter_map(|line| serde_json::from_str::<Line>(line).ok())
        {
            match line.entry {
                Entry::Refusal(refusal) => {
                    assert_eq!((refusal.pid, refusal.by), (pid, LimitKind::Capacity));
                    assert_eq!(refusal.requested, Bytes::gib(2));
                    lines += 1;
                }
                Entry::More {
                    session_id, count, ..
                } => {
                    assert!(session_id.is_some());
                    more += count;
                }
                other => panic!("{other:?}"),
            }
        }
        (lines + more == REFUSALS).then_some((lines, more))
    });
    assert!(lines >= 32 && more > 0, "{lines} {more}");
    let log = place.log();
    assert!(
        log.matches("refused 2GiB").count() < 32,
        "the log is no more patient"
    );
}
