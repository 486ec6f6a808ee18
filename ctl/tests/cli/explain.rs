//! `explain`: sentences made of the daemon's facts.

use gpushare_proto::admin::{AdminReply, AdminRequest, ResidenceView};
use gpushare_proto::explain::{
    AheadView, CardLimitsView, Explanation, HolderView, OrphanView, RefusalView, WaitReason, WaitView,
};
use gpushare_proto::handoff::{CardHandoffs, EndedHandoff, Handoff};
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::session::SessionPhase;
use gpushare_proto::tenant::{FailureCode, PROTOCOL};
use gpushare_proto::{Bytes, ClientId, GpuId, GpuUuid, Nanos, SessionId};
use serde_json::Value;

use crate::ctl::{ctl, json, succeeds};
use crate::fake::{Fake, failure};
use crate::status::{daemon, handoff, two_that_take_turns};

/// The daemon's explanation of a session that waits.
pub(crate) fn explanation() -> Explanation {
    let mut session = two_that_take_turns().sessions.remove(1);
    session.refusals = 3;
    Explanation {
        session,
        refusals: vec![RefusalView {
            ago_ns: Nanos::from_secs(12),
            client: ClientId(9),
            pid: 5000,
            gpu: GpuId(0),
            refusal: MemoryRefusal {
                requested: Bytes::mib(64),
                limit: Bytes::gib(8),
                used: Bytes::gib(8),
                by: LimitKind::Session,
            },
        }],
        cards: vec![CardLimitsView {
            gpu: GpuId(0),
            uuid: GpuUuid::gpu([0xab; 16]),
            limit_bytes: Some(Bytes::gib(8)),
            used_bytes: Bytes::gib(8),
            capacity_bytes: Bytes::gib(79),
            managed_limit_bytes: Bytes::MAX,
            all_used_bytes: Bytes::gib(20),
        }],
        wait: Some(WaitView {
            reason: WaitReason::Holders,
            holders: vec![HolderView {
                session: SessionId(3),
                name: "train".into(),
                rest_ns: Nanos::from_secs(1),
            }],
            ahead: vec![AheadView {
                session: SessionId(5),
                name: "eval".into(),
                turn_ns: Nanos::from_secs(3),
            }],
            handoff_ns: Nanos::from_millis(50),
            about_ns: Some(Nanos::from_millis(4100)),
        }),
    }
}

/// A daemon that explains a session with these facts and this reply about its orphaned memory.
fn explaining(facts: Explanation, orphaned: AdminReply) -> Fake {
    let which = facts.session.session.to_string();
    Fake::for_admins(move |request| match request {
        AdminRequest::Explain { .. } => AdminReply::Explained(Box::new(facts.clone())),
        // The session that was explained, whatever it was called.
        AdminRequest::Orphaned { which: asked } if *asked == which => orphaned.clone(),
        AdminRequest::Residences => AdminReply::Residences([3, 4].map(larger_than_the_card).into()),
        _ => AdminReply::Ready { protocol: PROTOCOL },
    })
}

/// Memory of a session of which a part is mapped from the host.
fn larger_than_the_card(session: u64) -> ResidenceView {
    ResidenceView {
        session: SessionId(session),
        gpu: GpuId(0),
        resident_bytes: Bytes::gib(79),
        hosted_bytes: Bytes::gib(16),
        mapped_bytes: Bytes::gib(16),
        moving_bytes: Bytes::ZERO,
    }
}

#[test]
fn a_session_for_which_the_card_has_no_room_is_told_how_much_is_on_the_host() {
    let daemon = explaining(explanation(), AdminReply::Orphaned(Vec::new()));
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    let line = "gpu0 has room for 79GiB of its memory; 16GiB are mapped from the host, and kernels reach them at the \
                speed of the bus\n";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    let json: Value = json(daemon.dir(), &["explain", "infer"]);
    assert_eq!(json["residences"][0]["mapped_bytes"], Bytes::gib(16).0);
    assert_eq!(json["residences"].as_array().map(Vec::len), Some(1), "of this session alone");
}

#[test]
fn a_session_whose_memory_moves_is_told_where_it_is() {
    let moving = |session| ResidenceView {
        resident_bytes: Bytes::gib(3),
        hosted_bytes: Bytes::gib(5),
        mapped_bytes: Bytes::ZERO,
        moving_bytes: Bytes::gib(2),
        ..larger_than_the_card(session)
    };
    let daemon = Fake::for_admins(move |request| match request {
        AdminRequest::Explain { .. } => AdminReply::Explained(Box::new(explanation())),
        AdminRequest::Orphaned { .. } => AdminReply::Orphaned(Vec::new()),
        AdminRequest::Residences => AdminReply::Residences([3, 4].map(moving).into()),
        _ => AdminReply::Ready { protocol: PROTOCOL },
    });
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    let line = "3GiB of its memory are on gpu0, 5GiB in host memory; 2GiB are to move\n";
    assert_eq!(said.matches(line).count(), 1, "{said}");
}

/// Handoffs of a card: 4 GiB of session 3 went out and 3 GiB of session 4 came in, of which the running one has 1 GiB left.
fn handoffs(gpu: u8) -> CardHandoffs {
    let of = |rest| Handoff { gpu: GpuId(gpu), ..handoff(rest) };
    CardHandoffs {
        gpu: GpuId(gpu),
        running: Some(of(Bytes::gib(1))),
        last: Some(EndedHandoff { ago_ns: Nanos::from_secs(3), handoff: of(Bytes::ZERO) }),
    }
}

/// A daemon that explains session 4, which has memory on the first card, with these handoffs.
fn handing_off(handoffs: Vec<CardHandoffs>) -> Fake {
    Fake::for_admins(move |request| match request {
        AdminRequest::Explain { .. } => AdminReply::Explained(Box::new(explanation())),
        AdminRequest::Orphaned { .. } => AdminReply::Orphaned(Vec::new()),
        AdminRequest::Residences => AdminReply::Residences([3, 4].map(larger_than_the_card).into()),
        AdminRequest::HandoffsOf { .. } => AdminReply::Handoffs(handoffs.clone()),
        _ => AdminReply::Ready { protocol: PROTOCOL },
    })
}

#[test]
fn a_session_is_told_how_the_handoffs_of_its_memory_went() {
    let daemon = handing_off(vec![handoffs(0)]);
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    let lines = "\
a handoff on gpu0 is under way: 4GiB at 40GiB/s out, 3GiB of 4GiB at 30GiB/s in, 125ms, 80% of it both ways at once; \
                 0B out and 3GiB in of it are its own
its last handoff on gpu0 ended 3s ago: 4GiB at 40GiB/s out, 3GiB at 30GiB/s in, 125ms, 80% of it both ways at once; \
                 0B out and 3GiB in of it are its own
";
    assert!(said.contains(lines), "{said}");
    let json: Value = json(daemon.dir(), &["explain", "infer"]);
    assert_eq!(json["handoffs"][0]["running"]["in"]["rest_bytes"], Bytes::gib(1).0);
    assert_eq!(json["handoffs"][0]["last"]["handoff"]["overlap"], 8000);
}

#[test]
fn handoffs_of_the_memory_of_others_are_not_told() {
    let mut others = [handoffs(0), handoffs(1)];
    for card in &mut others {
        let ended = card.last.iter_mut().map(|last| &mut last.handoff);
        let moved = card.running.iter_mut().chain(ended);
        moved.for_each(|handoff| handoff.into.sessions.clear());
    }
    let daemon = handing_off(others.into());
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    assert!(!said.contains("under way") && !said.contains("last handoff"), "{said}");
    let json: Value = json(daemon.dir(), &["explain", "infer"]);
    assert_eq!(json["handoffs"], serde_json::json!([]));
}

#[test]
fn a_waiting_session_is_told_who_is_ahead_and_what_it_was_refused() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(
        succeeds(&mut ctl(daemon.dir(), &["explain", "infer"])),
        "\
session infer (s4)

infer waits for its turn
  now    train (s3): about 1s of its turn left
  ahead  1. eval (s5): a turn of about 3s
its turn comes in about 4.1s: the rest of the holder's turn, 1 session ahead with a whole turn each, and 50ms for each \
handoff; sooner if a session becomes idle or two fit beside each other

it was refused memory 3 times; the last 1:
  12s ago, pid 5000 on gpu0: asked for 64MiB; 8GiB of its quota of 8GiB are in use
to get more: free memory in the session, or `gpushare-ctl set memory 8GiB --session infer`

GPU   USED  QUOTA  CAPACITY  ALL USE  MANAGED LIMIT
gpu0  8GiB  8GiB   79GiB     20GiB    none
"
    );
}

#[test]
fn the_json_is_what_the_daemon_said() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(json::<Explanation>(daemon.dir(), &["explain", "infer"]), explanation());
}

#[test]
fn a_refusal_after_the_end_is_no_matter_of_quotas() {
    let mut facts = explanation();
    facts.refusals[0].refusal.limit = Bytes::ZERO;
    facts.session.state.standing = SessionPhase::Expired;
    let daemon = explaining(facts, AdminReply::Orphaned(Vec::new()));
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    assert!(said.contains("`gpushare-ctl session renew infer --ttl 2h` renews it"), "{said}");
    assert!(said.contains("asked for 64MiB, but the session was expired or revoked; it used 8GiB"), "{said}");
    assert!(!said.contains("set memory"), "{said}");
}

#[test]
fn memory_that_a_dead_process_left_is_said_with_how_to_find_who_keeps_it() {
    let orphan = OrphanView { pid: 4242, gpu: GpuId(0), bytes: Bytes::gib(3), ago_ns: Nanos::from_secs(300) };
    let daemon = explaining(explanation(), AdminReply::Orphaned(vec![orphan]));
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    let line = "3GiB on gpu0 belong to pid 4242, which ended 5m00s ago, and are still on the card\n";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("`fuser -v /dev/nvidia*` lists them\n"), "{said}");
    let json: Value = json(daemon.dir(), &["explain", "infer"]);
    assert_eq!(json["orphaned"][0]["pid"], 4242);
    assert_eq!(json["session"]["name"], "infer");
}

#[test]
fn a_session_that_ends_while_it_is_explained_is_explained_all_the_same() {
    let gone = failure(FailureCode::NotFound, "there is no session s4");
    let daemon = explaining(explanation(), AdminReply::Error(gone));
    let json: Value = json(daemon.dir(), &["explain", "infer"]);
    assert_eq!(json["session"]["name"], "infer");
    assert_eq!(json["orphaned"], serde_json::json!([]));
}

#[test]
fn a_session_that_waits_for_its_memory_is_told_how_much_and_how_long() {
    let mut facts = explanation();
    let reason = "it has the card and waits for 2GiB of its own memory: it is moving in".to_owned();
    facts.wait = Some(WaitView {
        reason: WaitReason::Memory { missing_bytes: Bytes::gib(2), reason },
        holders: Vec::new(),
        ahead: Vec::new(),
        handoff_ns: Nanos::from_millis(50),
        about_ns: Some(Nanos::from_millis(50)),
    });
    let said = |facts: &Explanation| {
        let daemon = explaining(facts.clone(), AdminReply::Orphaned(Vec::new()));
        succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]))
    };
    let moving = said(&facts);
    let line = "2GiB are missing on its cards; they come in at about 40GiB/s and are there in about 50ms\n";
    assert!(moving.contains(line) && !moving.contains("its turn comes"), "{moving}");
    facts.wait.as_mut().unwrap().about_ns = None;
    let stopped = said(&facts);
    let line = "2GiB are missing on its cards; the daemon cannot tell how long that takes\n";
    assert!(stopped.contains(line), "{stopped}");
}

#[test]
fn a_session_that_waits_right_after_a_restart_is_told_that_the_daemon_waits_too() {
    let mut facts = explanation();
    facts.wait.as_mut().unwrap().reason = WaitReason::Recovering { processes: 0 };
    let daemon = explaining(facts, AdminReply::Orphaned(Vec::new()));
    let said = succeeds(&mut ctl(daemon.dir(), &["explain", "infer"]));
    assert!(said.contains("waits for the processes that use cards to come back"), "{said}");
}
