//! `status`: one model in one screen, as tables and as JSON.

use std::process::Stdio;

use gpushare_proto::admin::{
    AdminReply, AdminRequest, CapacityView, ClientView, ConfigChange, CopiesView, DaemonView, FreezingView,
    FrostStage, FrostView, GpuView, LockView, Mode, ResidenceView, SessionGpuView, SessionState, SessionView,
    Status, UserView,
};
use gpushare_proto::codec::encode;
use gpushare_proto::handoff::{CardHandoffs, Direction, EndedHandoff, Handoff, SessionMove};
use gpushare_proto::session::{SessionPhase, Terms};
use gpushare_proto::tenant::{Hello, PROTOCOL, Role};
use gpushare_proto::{Bytes, ClientId, Epoch, GateState, GpuId, GpuUuid, Nanos, Percent, SessionId, Token};

use crate::ctl::{ctl, json, succeeds};
use crate::explain::explanation;
use crate::fake::Fake;

/// A daemon with this status.
pub(crate) fn daemon(status: Status) -> Fake {
    Fake::for_admins(move |request| match request {
        AdminRequest::Hello(_) => AdminReply::Ready { protocol: PROTOCOL },
        AdminRequest::Status => AdminReply::Status(Box::new(status.clone())),
        AdminRequest::Set(_) => AdminReply::Changed { old: "3s (computed)".into(), new: "100ms".into() },
        AdminRequest::UserWeight { .. } => AdminReply::Changed { old: "100".into(), new: "300".into() },
        AdminRequest::Usage { .. } => AdminReply::Usage(Vec::new()),
        AdminRequest::UsageBetween { .. } => AdminReply::UserUsage(Vec::new()),
        AdminRequest::Reload => AdminReply::Reloaded(vec![ConfigChange {
            key: "metrics".into(),
            old: "none".into(),
            new: "127.0.0.1:1".into(),
            live: false,
        }]),
        AdminRequest::Watch => AdminReply::Events(Vec::new()),
        AdminRequest::Follow => AdminReply::Increments(Box::default()),
        AdminRequest::Explain { .. } => AdminReply::Explained(Box::new(explanation())),
        AdminRequest::Orphaned { .. } => AdminReply::Orphaned(Vec::new()),
        AdminRequest::Capacities => AdminReply::Capacities(capacities(&status)),
        AdminRequest::Users => AdminReply::Users(users(&status)),
        AdminRequest::Residences => AdminReply::Residences(Vec::new()),
        AdminRequest::Handoffs | AdminRequest::HandoffsOf { .. } => AdminReply::Handoffs(Vec::new()),
        AdminRequest::Copies => AdminReply::Copies(CopiesView::default()),
        AdminRequest::Frost { .. } => AdminReply::Frost(FrostView {
            stage: FrostStage::Warm,
            obstacle: None,
            freeze_after_ns: None,
            idle_ns: None,
        }),
        AdminRequest::Dashboard { .. } => AdminReply::Dashboard {
            address: "127.0.0.1:9403".into(),
            link: Token([0xa5; 32]),
            valid_ns: Nanos::from_secs(120),
        },
        AdminRequest::Session(_) => AdminReply::Changed { old: "running".into(), new: "paused".into() },
        AdminRequest::Freezing => {
            AdminReply::Freezing(FreezingView { obstacles: Vec::new(), freeze_after_ns: None })
        }
    })
}

/// Cards whose capacity is their memory less one context.
fn capacities(status: &Status) -> Vec<CapacityView> {
    let view = |card: &GpuView| CapacityView {
        gpu: card.gpu,
        total_bytes: card.total_bytes,
        set_bytes: None,
        contexts_bytes: card.total_bytes - card.capacity_bytes,
        fixed_bytes: Bytes::ZERO,
        next_context_bytes: Bytes::mib(512),
        usable_bytes: card.capacity_bytes - Bytes::mib(512),
    };
    status.gpus.iter().map(view).collect()
}

/// Root with all sessions, and a container without; nobody where there are no sessions.
fn users(status: &Status) -> Vec<UserView> {
    let sessions = u32::try_from(status.sessions.len()).unwrap();
    let user = |user: &str, weight, sessions| UserView { user: user.into(), weight, sessions };
    let all = [user("0", 300, sessions), user("/kubepods/pod1", 100, 0)];
    all.into_iter().filter(|_| sessions > 0).collect()
}

/// Two sessions that take turns on one card.
pub(crate) fn two_that_take_turns() -> Status {
    let holding = LockView::Holding { epoch: Epoch { generation: 5, counter: 17 } };
    let waiting = LockView::Waiting { ahead: 1, reason: "train holds gpu0".into() };
    Status {
        daemon: DaemonView {
            version: "0.1.0".into(),
            pid: 4242,
            uptime_ns: Nanos::from_secs(200),
            recovering: 0,
        },
        gpus: vec![GpuView {
            gpu: GpuId(0),
            uuid: GpuUuid::gpu([0xab; 16]),
            name: "NVIDIA H100".into(),
            total_bytes: Bytes::gib(80),
            capacity_bytes: Bytes::gib(4),
            allocated_bytes: Bytes::gib(6),
            managed_limit_bytes: Bytes::gib(10),
            mode: Mode::Serialized,
            reason: "6GiB do not fit 4GiB".into(),
            mode_changes: 1,
            holders: vec![SessionId(3)],
            queue: vec![SessionId(4)],
            quantum_ns: Nanos::from_secs(3),
            handoffs: 17,
            aborted_drops: 0,
            drains_ns: vec![Nanos(1_800_000)],
            expected_drain_ns: Nanos(1_800_000),
            moved_bytes: Bytes::gib(34),
        }],
        sessions: vec![
            session(3, "train", Some(Bytes::gib(8)), holding, 0),
            session(4, "infer", None, waiting, 4_250),
        ],
    }
}

fn session(number: u64, name: &str, limit: Option<Bytes>, lock: LockView, waited_ms: u64) -> SessionView {
    SessionView {
        session: SessionId(number),
        name: name.into(),
        implicit: false,
        memory_limit_bytes: limit,
        state: SessionState { terms: Terms::with_memory(limit), ..SessionState::default() },
        gpus: vec![SessionGpuView {
            gpu: GpuId(0),
            allocated_bytes: Bytes::gib(3),
            limit_bytes: limit,
            leased_bytes: Bytes::mib(3136),
            peak_bytes: Bytes::gib(3),
        }],
        clients: vec![ClientView {
            client: ClientId(number + 10),
            pid: 5000,
            gate: GateState::Open,
            waiting: false,
            evictable: true,
            unknown_functions: Vec::new(),
        }],
        lock,
        waited_ns: Nanos::from_millis(waited_ms),
        held_ns: Nanos::from_secs(12),
        refusals: 0,
    }
}

#[test]
fn one_screen_says_who_holds_the_card_who_waits_and_why() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(
        succeeds(&mut ctl(daemon.dir(), &["status"])),
        "\
gpushare 0.1.0, pid 4242, up 3m20s
gpu0 NVIDIA H100  serialized  6GiB of 4GiB  1 waiting
  train  s3  holding           3GiB of 8GiB  pid 5000
  infer  s4  waiting, 1 ahead  3GiB          pid 5000  train holds gpu0
"
    );
    let hello = AdminRequest::Hello(Hello::new(Role::Tool));
    assert_eq!(daemon.admin.asked(), [hello, AdminRequest::Status, AdminRequest::Residences]);
}

/// Bytes of a handoff of 4 GiB out and 3 GiB in, of which `rest` has to come in yet.
pub(crate) fn handoff(rest: Bytes) -> Handoff {
    let way = |session, gibs, rest_bytes| Direction {
        sessions: vec![SessionMove { session: SessionId(session), bytes: Bytes::gib(gibs) }],
        bytes: Bytes::gib(gibs),
        rest_bytes,
        took_ns: Nanos::from_millis(100),
        bytes_per_second: Bytes::gib(gibs * 10),
    };
    Handoff {
        gpu: GpuId(0),
        took_ns: Nanos::from_millis(125),
        out: way(3, 4, Bytes::ZERO),
        copied_out_bytes: Bytes::gib(4),
        into: way(4, 3, rest),
        both_ns: Nanos::from_millis(100),
        overlap: Percent(8000),
    }
}

/// A daemon whose two sessions have remapped memory, of which some moves.
fn remapping(running: bool) -> Fake {
    let place = |session, resident, hosted, moving| ResidenceView {
        session: SessionId(session),
        gpu: GpuId(0),
        resident_bytes: Bytes::gib(resident),
        hosted_bytes: Bytes::gib(hosted),
        mapped_bytes: Bytes::ZERO,
        moving_bytes: Bytes::mib(moving),
    };
    let handoffs = CardHandoffs {
        gpu: GpuId(0),
        running: running.then(|| handoff(Bytes::gib(1))),
        last: Some(EndedHandoff { ago_ns: Nanos::from_secs(3), handoff: handoff(Bytes::ZERO) }),
    };
    Fake::for_admins(move |request| match request {
        AdminRequest::Hello(_) => AdminReply::Ready { protocol: PROTOCOL },
        AdminRequest::Status => AdminReply::Status(Box::new(two_that_take_turns())),
        AdminRequest::Residences => AdminReply::Residences(vec![place(3, 3, 0, 0), place(4, 1, 2, 128)]),
        AdminRequest::Handoffs => AdminReply::Handoffs(vec![handoffs.clone()]),
        AdminRequest::Copies => {
            AdminReply::Copies(CopiesView { copies: 300, bytes: Bytes::gib(9), users: 2 })
        }
        AdminRequest::Capacities => AdminReply::Capacities(Vec::new()),
        AdminRequest::Users => AdminReply::Users(Vec::new()),
        other => panic!("asked {other:?}"),
    })
}

#[test]
fn a_card_says_where_remapped_memory_is_and_how_its_last_handoff_went() {
    let page = succeeds(&mut ctl(remapping(false).dir(), &["status"]));
    let line = "  remapped memory: 4GiB on the card, 2GiB in host memory, 128MiB moving; last handoff: 4GiB at 40GiB/s out, \
                3GiB at 30GiB/s in, 125ms, 80% of it both ways at once\n";
    assert_eq!(page.lines().nth(2).unwrap().to_owned() + "\n", line);
    let page = succeeds(&mut ctl(remapping(true).dir(), &["status"]));
    let line = "handoff so far: 4GiB at 40GiB/s out, 3GiB of 4GiB at 30GiB/s in, 125ms, 80%";
    assert!(page.contains(line), "{page}");
}

#[test]
fn the_tables_say_where_each_session_is_and_what_moved() {
    let daemon = remapping(true);
    let page = succeeds(&mut ctl(daemon.dir(), &["status", "--verbose"]));
    let tables = "
SESSION  GPU   ON CARD  IN HOST MEMORY  MAPPED FROM HOST  MOVING
s3       gpu0  3GiB     0B              0B                0B
s4       gpu0  1GiB     2GiB            0B                128MiB

HANDOFF OF  ENDED       TOOK   OUT              IN                       BOTH WAYS  SESSIONS
gpu0        is running  125ms  4GiB at 40GiB/s  3GiB of 4GiB at 30GiB/s  80%        s3, s4
gpu0        3s ago      125ms  4GiB at 40GiB/s  3GiB at 30GiB/s          80%        s3, s4
";
    assert!(page.contains(tables), "{page}");
    let json: serde_json::Value = json(daemon.dir(), &["status"]);
    assert_eq!(json["handoffs"][0]["running"]["in"]["rest_bytes"], Bytes::gib(1).0);
    assert_eq!(json["handoffs"][0]["last"]["handoff"]["overlap"], 8000);
    assert_eq!(json["residences"][1]["hosted_bytes"], Bytes::gib(2).0);
}

#[test]
fn shared_host_copies_are_counted() {
    let daemon = remapping(false);
    let line = "host copies that processes share: 300, 9GiB in all, of 2 users\n";
    for arguments in [&["status"][..], &["status", "--verbose"]] {
        let page = succeeds(&mut ctl(daemon.dir(), arguments));
        assert!(page.contains(line), "{page}");
    }
    let json: serde_json::Value = json(daemon.dir(), &["status"]);
    assert_eq!(json["copies"], serde_json::json!({"copies": 300, "bytes": Bytes::gib(9).0, "users": 2}));
}

/// An older daemon closes the connection at a request that it does not know.
#[test]
fn an_older_daemon_is_shown_with_what_it_tells() {
    let daemon = Fake::raw(
        |_| Vec::new(),
        |request| match request {
            AdminRequest::Hello(_) => encode(&AdminReply::Ready { protocol: PROTOCOL }).unwrap(),
            AdminRequest::Status => encode(&AdminReply::Status(Box::new(two_that_take_turns()))).unwrap(),
            AdminRequest::Users => encode(&AdminReply::Users(users(&two_that_take_turns()))).unwrap(),
            _ => Vec::new(),
        },
    );
    assert_eq!(json::<Status>(daemon.dir(), &["status"]), two_that_take_turns());
    let json: serde_json::Value = json(daemon.dir(), &["status"]);
    assert_eq!(
        (&json["capacities"], &json["handoffs"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
    assert_eq!(json["users"][0]["user"], "0");
    let page = succeeds(&mut ctl(daemon.dir(), &["status", "--verbose"]));
    assert!(page.contains("SESSION  NAME") && page.contains("USER            WEIGHT"), "{page}");
    assert!(page.contains("the daemon is older than gpushare-ctl and does not tell everything"), "{page}");
    assert!(succeeds(&mut ctl(daemon.dir(), &["status"])).contains("train holds gpu0"));
}

#[test]
fn sessions_stand_beneath_each_of_their_cards_or_apart() {
    let mut status = two_that_take_turns();
    let mut second = status.gpus[0].clone();
    second.gpu = GpuId(1);
    second.name = "NVIDIA A100".into();
    second.mode = Mode::Parallel;
    (second.holders, second.queue) = (vec![SessionId(4)], Vec::new());
    status.gpus.push(second);
    let on_second = SessionGpuView { gpu: GpuId(1), limit_bytes: None, ..status.sessions[0].gpus[0].clone() };
    status.sessions[1].gpus.push(on_second);
    let mut third = session(5, "later", None, LockView::Idle, 0);
    third.state.standing = SessionPhase::Paused;
    (third.gpus, third.clients) = (Vec::new(), Vec::new());
    status.sessions.push(third);
    let daemon = daemon(status);
    assert_eq!(
        succeeds(&mut ctl(daemon.dir(), &["status"])),
        "\
gpushare 0.1.0, pid 4242, up 3m20s
gpu0 NVIDIA H100  serialized  6GiB of 4GiB  1 waiting
  train  s3  holding           3GiB of 8GiB  pid 5000
  infer  s4  waiting, 1 ahead  3GiB          pid 5000  train holds gpu0
gpu1 NVIDIA A100  parallel    6GiB of 4GiB
  infer  s4  waiting, 1 ahead  3GiB  pid 5000  train holds gpu0
on no card
  later  s5  paused
"
    );
}

#[test]
fn a_crowd_is_cut_so_that_it_fits_one_screen() {
    let mut status = two_that_take_turns();
    let crowd = (10..1_010).map(|number| session(number, "crowd", None, LockView::Idle, 0));
    status.sessions.extend(crowd);
    let daemon = daemon(status);
    let page = succeeds(&mut ctl(daemon.dir(), &["status"]));
    assert_eq!(page.lines().count(), 2 + 20 + 1);
    assert!(page.lines().nth(2).unwrap().starts_with("  train  s3"), "holders come first: {page}");
    assert!(
        page.ends_with("  and 982 more sessions; `gpushare-ctl status --verbose` lists them\n"),
        "{page}"
    );
}

#[test]
fn colours_are_for_terminals_only() {
    let daemon = daemon(two_that_take_turns());
    let mut status = ctl(daemon.dir(), &["status"]);
    assert!(!succeeds(status.env("TERM", "xterm-256color")).contains('\u{1b}'));
}

#[test]
fn the_tables_say_who_holds_the_card_who_waits_and_why() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(
        succeeds(&mut ctl(daemon.dir(), &["status", "--verbose"])),
        "\
gpushare 0.1.0, pid 4242, up 3m20s

GPU   NAME         MODE        CAPACITY  ALLOCATED  HOLDERS  QUEUE  QUANTUM  HANDOFFS  WHY
gpu0  NVIDIA H100  serialized  4GiB      6GiB       s3       s4     3s       17        6GiB do not fit 4GiB
gpu0: capacity 80GiB less 76GiB for contexts less 0B that cannot move; another program can use 3.5GiB beside its context, taken as 512MiB

SESSION  NAME   MEMORY        LOCK              WAITED  PROCESSES  WHY
s3       train  3GiB of 8GiB  holding           0s      5000       -
s4       infer  3GiB          waiting, 1 ahead  4.2s    5000       train holds gpu0

USER            WEIGHT  SESSIONS
root            300     2
/kubepods/pod1  100     0
"
    );
    let hello = AdminRequest::Hello(Hello::new(Role::Tool));
    assert_eq!(
        daemon.admin.asked(),
        [
            hello,
            AdminRequest::Status,
            AdminRequest::Capacities,
            AdminRequest::Users,
            AdminRequest::Residences,
            AdminRequest::Handoffs,
            AdminRequest::Copies
        ]
    );
}

#[test]
fn a_process_is_reported_with_its_unknown_functions() {
    let mut status = two_that_take_turns();
    let client = &mut status.sessions[0].clients[0];
    client.evictable = false;
    client.unknown_functions = vec!["cuConjure".into(), "cuLaunchKernel (14.0)".into()];
    let daemon = daemon(status);
    let line = "\nprocess 5000 of train is reported as not evictable: it uses driver functions that gpushare does not know \
                (cuConjure, cuLaunchKernel (14.0)); update gpushare\n";
    let page = succeeds(&mut ctl(daemon.dir(), &["status"]));
    assert!(page.ends_with(line), "{page}");
    let page = succeeds(&mut ctl(daemon.dir(), &["session", "show", "train"]));
    assert!(page.ends_with(line), "{page}");
}

#[test]
fn the_json_is_the_model_itself() {
    let daemon = daemon(two_that_take_turns());
    assert_eq!(json::<Status>(daemon.dir(), &["status"]), two_that_take_turns());
}

#[test]
fn an_empty_daemon_says_how_to_begin() {
    let mut status = two_that_take_turns();
    status.gpus.clear();
    status.sessions.clear();
    status.daemon.recovering = 2;
    let daemon = daemon(status);
    assert_eq!(
        succeeds(&mut ctl(daemon.dir(), &["status"])),
        "\
gpushare 0.1.0, pid 4242, up 3m20s; grants on their cards wait for 2 processes of the last daemon
no cards yet; without NVML a card appears with its first process
no sessions; start one with `gpushare-ctl run -- CMD`
"
    );
}

#[test]
fn the_flag_counts_more_than_the_environment() {
    let daemon = daemon(two_that_take_turns());
    let mut status = ctl("/nonexistent".as_ref(), &["status", "--runtime-dir"]);
    assert!(succeeds(status.arg(daemon.dir())).starts_with("gpushare 0.1.0"));
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let daemon = daemon(two_that_take_turns());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = ctl(daemon.dir(), &["status"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
}
