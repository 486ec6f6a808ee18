//! Values inside the samples: sessions, cards, events and failures.

use gpushare_proto::admin::{
    Activity, AdminReply, ClientView, DaemonView, FrostStage, FrostView, GpuView, LockView, Mode,
    SessionGpuView, SessionState, SessionView, Status, WatchEvent, WatchEventKind,
};
use gpushare_proto::explain::{
    AheadView, CardLimitsView, Explanation, HolderView, RefusalView, WaitReason, WaitView,
};
use gpushare_proto::handoff::{Direction, Handoff, SessionMove};
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::session::{
    Amount, Binding, CardQuota, FreezeAfter, Priority, Quota, SessionPhase, Terms,
};
use gpushare_proto::tenant::{
    CardMemory, Failure, FailureCode, GpuChoice, GpuInfo, ProcessMemory, Residence, Returning, ReturningGpu,
    SessionMemory,
};
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, GpuUuid, Nanos, Percent, SessionId};

use super::{EPOCH, UUID};

pub(super) fn explained(wait: Option<WaitView>) -> AdminReply {
    let lock = LockView::Waiting { ahead: 1, reason: "infer holds gpu0".into() };
    AdminReply::Explained(Box::new(Explanation {
        session: session(lock),
        refusals: vec![RefusalView {
            ago_ns: Nanos::from_secs(12),
            client: ClientId(12),
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
            uuid: UUID,
            limit_bytes: Some(Bytes::gib(8)),
            used_bytes: Bytes::gib(8),
            capacity_bytes: Bytes::gib(79),
            managed_limit_bytes: Bytes::gib(160),
            all_used_bytes: Bytes::gib(20),
        }],
        wait,
    }))
}

pub(super) fn wait(reason: WaitReason, about_ns: Option<Nanos>) -> WaitView {
    WaitView {
        reason,
        holders: vec![HolderView {
            session: SessionId(4),
            name: "infer".into(),
            rest_ns: Nanos::from_secs(1),
        }],
        ahead: vec![AheadView { session: SessionId(5), name: "eval".into(), turn_ns: Nanos::from_secs(3) }],
        handoff_ns: Nanos::from_millis(50),
        about_ns,
    }
}

pub(super) fn frost_view(stage: FrostStage, obstacle: Option<&str>) -> FrostView {
    let freeze_after_ns = Some(Nanos::from_secs(600));
    let idle_ns = (stage == FrostStage::Warm).then_some(Nanos::from_secs(12));
    FrostView { stage, obstacle: obstacle.map(str::to_owned), freeze_after_ns, idle_ns }
}

/// With everything in it.
pub(super) fn terms() -> Terms {
    Terms {
        memory: Quota {
            every: Some(Amount::Bytes(Bytes::gib(8))),
            cards: vec![CardQuota { card: GpuChoice::Index(1), amount: Amount::Share(Percent(5000)) }],
        },
        compute: Quota::every(Amount::Share(Percent(2500))),
        weight: 200,
        priority: Priority::Normal,
        ttl: Some(Nanos::from_secs(3600)),
        labels: [("team".to_owned(), "vision".to_owned())].into(),
        freeze_after: FreezeAfter::Idle(Nanos::from_secs(600)),
    }
}

/// One of each that there was at first.
pub(super) fn happenings() -> Vec<WatchEvent> {
    let (gpu, session, client) = (GpuId(0), SessionId(3), ClientId(12));
    let turned = |to| WatchEventKind::Turned { session, to };
    let reason = || "train holds gpu0".to_owned();
    let all = [
        WatchEventKind::Watching { version: "0.1.0".into(), pid: 4242 },
        WatchEventKind::CardFound {
            gpu,
            uuid: UUID,
            name: "NVIDIA H100 80GB HBM3".into(),
            total_bytes: Bytes::gib(80),
        },
        WatchEventKind::ModeChanged { gpu, mode: Mode::Serialized, reason: "6GiB do not fit 4GiB".into() },
        WatchEventKind::SessionBegan { session, name: "train".into() },
        WatchEventKind::ProcessJoined { session, client, pid: 5000 },
        turned(Activity::Idle),
        turned(Activity::Waiting { reason: reason() }),
        turned(Activity::Moving),
        turned(Activity::Holding),
        turned(Activity::Dropping),
        WatchEventKind::Allocated { session, gpu, bytes: Bytes::gib(3) },
        WatchEventKind::Granted {
            session,
            quantum_ns: Nanos::from_secs(3),
            waited_ns: Nanos::from_millis(4200),
        },
        WatchEventKind::Entered { session, handoff_ns: Nanos::from_millis(160) },
        WatchEventKind::Dropped { session, drain_ns: Some(Nanos(1_800_000)) },
        WatchEventKind::DropReopened { session, tries: 2 },
        WatchEventKind::Stuck { session, reason: reason() },
        WatchEventKind::Refused {
            session,
            client,
            gpu,
            refusal: MemoryRefusal {
                requested: Bytes::mib(64),
                limit: Bytes::mib(512),
                used: Bytes::mib(500),
                by: LimitKind::Session,
            },
        },
        WatchEventKind::Recovered { after_ns: Nanos::from_secs(1) },
        WatchEventKind::ProcessLeft { session, client },
        WatchEventKind::SessionEnded { session },
    ];
    all.into_iter()
        .zip(1..)
        .map(|(what, n)| WatchEvent { at_ns: Nanos::from_millis(n), what })
        .collect()
}

/// Handoff of 4 GiB each way, of which `rest` has to come in yet.
pub(super) fn handoff(rest: Bytes) -> Handoff {
    let way = |session, rest_bytes| Direction {
        sessions: vec![SessionMove { session: SessionId(session), bytes: Bytes::gib(4) }],
        bytes: Bytes::gib(4),
        rest_bytes,
        took_ns: Nanos::from_millis(80),
        bytes_per_second: Bytes::gib(50),
    };
    Handoff {
        gpu: GpuId(1),
        took_ns: Nanos::from_millis(100),
        out: way(3, Bytes::ZERO),
        copied_out_bytes: Bytes::gib(3),
        into: way(4, rest),
        both_ns: Nanos::from_millis(75),
        overlap: Percent(7500),
    }
}

/// The two events about handoffs.
pub(super) fn handoffs() -> Vec<WatchEvent> {
    let kinds = [
        WatchEventKind::HandingOver(handoff(Bytes::gib(2))),
        WatchEventKind::HandedOver(handoff(Bytes::ZERO)),
    ];
    kinds
        .into_iter()
        .zip(1..)
        .map(|(what, n)| WatchEvent { at_ns: Nanos::from_secs(n), what })
        .collect()
}

pub(super) fn card() -> GpuInfo {
    GpuInfo { uuid: UUID, name: "NVIDIA H100 80GB HBM3".into(), total: Bytes::gib(80) }
}

pub(super) fn instance() -> GpuInfo {
    GpuInfo {
        uuid: GpuUuid::mig(UUID.bytes()),
        name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".into(),
        total: Bytes::gib(10),
    }
}

pub(super) fn account() -> SessionMemory {
    SessionMemory {
        session: SessionId(3),
        name: "train".into(),
        limit: Some(Bytes::gib(8)),
        cards: vec![CardMemory {
            info: card(),
            total: Bytes::gib(8),
            used: Bytes::gib(3),
            free: Bytes::gib(5),
            processes: vec![ProcessMemory { pid: 7, outer_pid: 5000, used: Bytes::gib(3) }],
        }],
    }
}

pub(super) fn residence() -> Residence {
    Residence {
        resident: Bytes::gib(6),
        hosted: Bytes::gib(2),
        unbacked: Bytes::mib(32),
        pinned: Bytes::mib(64),
        prepared: Bytes::mib(128),
        mapped: Bytes::mib(256),
        copied_out: Bytes::gib(5),
    }
}

pub(super) fn returning() -> Returning {
    Returning {
        client: ClientId(12),
        session: SessionId(3),
        holding: Some(EPOCH),
        gpus: vec![ReturningGpu { info: card(), used: Bytes::gib(6), contexts: 1 }],
        waiting: true,
    }
}

pub(super) fn failure(code: FailureCode) -> Failure {
    Failure { code, message: "no; ask the administrator".into() }
}

/// A status in which every enum of the views appears in every variant.
pub(crate) fn status() -> Status {
    Status {
        daemon: DaemonView {
            version: "0.1.0".into(),
            pid: 4242,
            uptime_ns: Nanos::from_secs(600),
            recovering: 1,
        },
        gpus: vec![gpu(0, Mode::Serialized), gpu(1, Mode::Parallel)],
        sessions: vec![
            session(LockView::Idle),
            session(LockView::Holding { epoch: EPOCH }),
            session(LockView::Dropping { tries: 2, stuck: true, reason: "work in flight".into() }),
            session(LockView::Waiting { ahead: 1, reason: "train holds gpu0".into() }),
        ],
    }
}

fn gpu(number: u8, mode: Mode) -> GpuView {
    GpuView {
        gpu: GpuId(number),
        uuid: UUID,
        name: "NVIDIA H100 80GB HBM3".into(),
        total_bytes: Bytes::gib(80),
        capacity_bytes: Bytes::gib(4),
        allocated_bytes: Bytes::gib(6),
        managed_limit_bytes: Bytes::gib(10),
        mode,
        reason: "6GiB do not fit 4GiB".into(),
        mode_changes: 3,
        holders: vec![SessionId(3)],
        queue: vec![SessionId(4), SessionId(5)],
        quantum_ns: Nanos::from_secs(3),
        handoffs: 17,
        aborted_drops: 1,
        drains_ns: vec![Nanos(1_800_000), Nanos(2_000_000)],
        expected_drain_ns: Nanos(1_900_000),
        moved_bytes: Bytes::gib(34),
    }
}

pub(super) fn session(lock: LockView) -> SessionView {
    let client = |number, gate| ClientView {
        client: ClientId(number),
        pid: 5000,
        gate,
        waiting: gate == GateState::Closed,
        evictable: gate != GateState::Idle,
        unknown_functions: match gate {
            GateState::Idle => vec!["cuConjure".into(), "cuLaunchKernel (14.0)".into()],
            _ => Vec::new(),
        },
    };
    SessionView {
        session: SessionId(3),
        name: "train".into(),
        implicit: false,
        memory_limit_bytes: Some(Bytes::gib(8)),
        state: SessionState {
            terms: terms(),
            standing: SessionPhase::Paused,
            expires_in_ns: Some(Nanos::from_secs(90)),
            binding: Binding::Uid(1000),
            kept: true,
        },
        gpus: vec![SessionGpuView {
            gpu: GpuId(0),
            allocated_bytes: Bytes::gib(3),
            limit_bytes: Some(Bytes::gib(8)),
            leased_bytes: Bytes::mib(3136),
            peak_bytes: Bytes::gib(4),
        }],
        clients: vec![
            client(12, GateState::Closed),
            client(13, GateState::Moving),
            client(14, GateState::Open),
            client(15, GateState::Idle),
        ],
        lock,
        waited_ns: Nanos::from_millis(4200),
        held_ns: Nanos::from_secs(12),
        refusals: 2,
    }
}
