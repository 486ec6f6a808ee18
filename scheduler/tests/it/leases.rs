//! Memory leases through the page.

use std::sync::atomic::Ordering;

use gpushare_proto::page::{FEATURE_REFUSALS, LimitKind};
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, Token, UtilizationPart};

use crate::harness::{Client, Folders, eventually};
use crate::processes::Process;

#[test]
fn the_lease_lies_in_the_page_and_the_limit_holds() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("small", Some(Bytes::mib(256)));
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    assert_eq!(client.page.gpus[0].limit.load(Ordering::Acquire), Bytes::mib(256).0);

    let granted = client.reserve(gpu, Bytes::mib(100));
    assert!(matches!(granted, TenantReply::Reserved { bytes, .. } if bytes == Bytes::mib(100)));
    let extra = client.page.gpus[0].free.load(Ordering::Acquire);
    assert!(extra <= Bytes::mib(156).0);

    let TenantReply::Refused { refusal, .. } = client.reserve(gpu, Bytes::mib(157)) else {
        panic!("the limit does not hold");
    };
    assert_eq!(refusal.limit, Bytes::mib(256));
    assert_eq!(refusal.used, Bytes::mib(100));
    assert_eq!(refusal.by, LimitKind::Session);
    let status = daemon.status();
    let session = status.sessions.iter().find(|view| view.name == "small").unwrap();
    assert_eq!(session.gpus[0].allocated_bytes, Bytes::mib(100));
    assert_eq!(session.refusals, 1);
    folders.logged("refused 157MiB to small on gpu0: 100MiB of 256MiB");
}

#[test]
fn a_report_stands_for_all_refusals_that_the_page_counts() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("small", Some(Bytes::mib(256)));
    let mut client = daemon.join(Some(&token));
    let gpu = client.attach();
    assert_eq!(client.page.features.load(Ordering::Acquire) & FEATURE_REFUSALS, FEATURE_REFUSALS);
    client.page.gpus[0].refused.store(100, Ordering::Release);
    client.peer.say(&TenantRequest::RefusedLocally { gpu, bytes: Bytes::mib(257) });
    let refusals = || daemon.status().sessions.iter().map(|view| view.refusals).sum::<u64>();
    eventually("the refusals are counted", || (refusals() == 100).then_some(()));
    assert_eq!(client.page.gpus[0].refused.load(Ordering::Acquire), 0);
    // As a library does that does not count them.
    client.peer.say(&TenantRequest::RefusedLocally { gpu, bytes: Bytes::mib(257) });
    eventually("one more is counted", || (refusals() == 101).then_some(()));
    folders.logged("refused 257MiB to small on gpu0");
}

#[test]
fn a_siblings_free_lease_is_recalled_before_a_refusal() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("two", Some(Bytes::mib(256)));
    let (mut idle, mut busy) = (daemon.join(Some(&token)), daemon.join(Some(&token)));
    let gpu = idle.attach();
    busy.attach();
    idle.reserve(gpu, Bytes::mib(4));
    assert!(idle.page.gpus[0].free.load(Ordering::Acquire) > 0);
    let all_the_rest = busy.reserve(gpu, Bytes::mib(252));
    assert!(matches!(all_the_rest, TenantReply::Reserved { .. }), "{all_the_rest:?}");
    assert_eq!(idle.page.gpus[0].free.load(Ordering::Acquire), 0);
}

#[test]
fn a_forged_page_gains_nothing() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("forger", Some(Bytes::mib(64)));
    let (mut forger, mut honest) = (daemon.join(Some(&token)), daemon.join(Some(&token)));
    let gpu = forger.attach();
    honest.attach();
    forger.reserve(gpu, Bytes::mib(60));
    forger.page.gpus[0].free.store(u64::MAX, Ordering::Release);
    // Its page says that all of its 60 MiB are free, so exactly these are taken back.
    assert!(matches!(honest.reserve(gpu, Bytes::mib(64)), TenantReply::Reserved { .. }));
    assert!(matches!(honest.reserve(gpu, Bytes::mib(1)), TenantReply::Refused { .. }));
}

#[test]
fn what_a_dead_client_had_is_free() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("mortal", Some(Bytes::mib(64)));
    let dying = Process::asking(&folders, Some(&token), Bytes::mib(64), 1);
    let mut living = daemon.join(Some(&token));
    let gpu = living.attach();
    assert!(matches!(living.reserve(gpu, Bytes::mib(1)), TenantReply::Refused { .. }));
    drop(dying);
    eventually("the quota to be free", || {
        let answer = living.reserve(gpu, Bytes::mib(64));
        matches!(answer, TenantReply::Reserved { .. }).then_some(())
    });
}

/// There is no NVML here, or one that does not know the card.
#[test]
fn parts_in_the_utilization_are_equal_without_nvml_and_the_last_session_has_the_whole() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("first", None);
    let (_, other) = daemon.register("other", None);
    let half = UtilizationPart { gpu: UtilizationPart::ONE / 2, memory: UtilizationPart::ONE / 2 };
    let has = |client: &Client, expected: UtilizationPart| {
        let part = || UtilizationPart::from_bits(client.page.gpus[0].part.load(Ordering::Acquire));
        eventually("the part to be told", || (part() == expected).then_some(()));
    };

    let mut first = daemon.join(Some(&token));
    first.attach();
    has(&first, UtilizationPart::WHOLE);
    let process = Process::asking(&folders, Some(&other), Bytes::mib(1), 1);
    has(&first, half);
    let mut sibling = daemon.join(Some(&token));
    sibling.attach();
    has(&sibling, half);
    drop(process);
    has(&first, UtilizationPart::WHOLE);
    has(&sibling, UtilizationPart::WHOLE);
}

#[test]
fn a_tool_is_told_the_parts_of_the_session_of_its_token() {
    let folders = Folders::new();
    let daemon = folders.start(&[]);
    let (_, token) = daemon.register("working", None);
    let (_, elsewhere) = daemon.register("elsewhere", None);
    let mut client = daemon.join(Some(&token));
    client.attach();
    let mut tool = daemon.tool();
    let mut part = |token: &Token| {
        tool.say(&TenantRequest::UtilizationParts(Some(token.clone())));
        match tool.hear() {
            TenantReply::UtilizationParts(parts) => parts.map(|parts| parts[0].part),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(part(&token), Some(UtilizationPart::WHOLE));
    assert_eq!(part(&elsewhere), Some(UtilizationPart::NOTHING), "another session has the card");
    assert_eq!(part(&Token([1; 32])), None);
}
