//! One named message per shape that the wire knows: every variant of the four message enums, and every
//! variant of the enums inside them. The name starts with the variant's own name.
//!
//! Like the variants, samples are append-only: the golden bytes of each release are compared with them.

mod follow;
mod values;

use gpushare_proto::admin::{
    AdminReply, AdminRequest, CapacityView, Change, ConfigChange, CopiesView, FreezingView, FrostStage, Knob,
    LockView, Mode, ResidenceView, SessionRequest, Setting, UsageView, UserUsageView, UserView, WatchEvent,
    WatchEventKind,
};
use gpushare_proto::copies::{CopyAnswer, CopyName};
use gpushare_proto::dry_run::{CardForecast, DryRunSession, Forecast};
use gpushare_proto::explain::{AheadView, OrphanView, WaitReason};
use gpushare_proto::handoff::{CardHandoffs, EndedHandoff};
use gpushare_proto::page::{GoalNumber, LimitKind, MemoryRefusal};
use gpushare_proto::session::{Binding, FreezeAfter, Priority};
use gpushare_proto::sharing::{ExportName, Meeting, Secret};
use gpushare_proto::tenant::{
    CardPart, FailureCode, FreezeObstacle, GpuChoice, Hello, NewSession, OwnWait, Role, TenantReply,
    TenantRequest, Welcome,
};
use gpushare_proto::{
    Bytes, ClientId, Epoch, GateState, GateWord, GpuId, GpuUuid, Nanos, Percent, RequestId, SessionId, Token,
    UtilizationPart,
};

use follow::{card_handoffs, increments, increments_of_frozen, remapped};
pub(crate) use values::status;
use values::{
    account, card, explained, failure, frost_view, handoff, handoffs, happenings, instance, residence,
    returning, session, terms, wait,
};

/// A message with the name that its golden line has.
pub(crate) type Named<M> = (&'static str, M);

const UUID: GpuUuid = GpuUuid::gpu([0x0a, 0x1b, 0x2c, 0x3d, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xfe, 0xff]);
const EPOCH: Epoch = Epoch { generation: 1_234_567_890_123, counter: 300 };

const EXPORT: ExportName = ExportName { exporter: ClientId(12), number: 300, secret: Secret([0xa5; 16]) };
const COPY: CopyName = CopyName([0x3c; 16]);
const MEETING: Meeting =
    Meeting { socket: [7; 16], exporter: Secret([0xb6; 16]), importer: Secret([0xc7; 16]) };

/// From a process to the daemon.
pub(crate) fn tenant_requests() -> Vec<Named<TenantRequest>> {
    let word = GateWord::new(70_000, GateState::Closed);
    let (gpu, request) = (GpuId(1), RequestId(9));
    let register = |gpu| {
        TenantRequest::Register(NewSession {
            name: Some("train".into()),
            terms: terms(),
            oversubscribe: true,
            gpu,
        })
    };
    let obstacle = |obstacle| TenantRequest::Freezable { obstacle: Some(obstacle) };
    let client = |token, returning| TenantRequest::Hello(Hello::new(Role::Client { token, returning }));
    vec![
        ("Hello.tool", TenantRequest::Hello(Hello::new(Role::Tool))),
        ("Hello.client", client(None, None)),
        ("Hello.token", client(Some(Token([0xa5; 32])), None)),
        ("Hello.returning", client(None, Some(returning()))),
        ("Attach", TenantRequest::Attach(card())),
        ("Contexts", TenantRequest::Contexts { gpu, live: 3 }),
        ("Reserve", TenantRequest::Reserve { request, gpu, bytes: Bytes::mib(64) }),
        ("Trim", TenantRequest::Trim { gpu }),
        ("Wait", TenantRequest::Wait { word }),
        ("Entered", TenantRequest::Entered { word, moved: Bytes::gib(2), took: Nanos::from_millis(160) }),
        ("Released", TenantRequest::Released { word, drain: Nanos(1_800_000) }),
        ("Register.auto", register(GpuChoice::Auto)),
        ("Register.index", register(GpuChoice::Index(2))),
        ("Register.uuid", register(GpuChoice::Uuid(UUID))),
        ("OwnSession", TenantRequest::OwnSession),
        ("Gpus", TenantRequest::Gpus),
        ("SessionMemory", TenantRequest::SessionMemory(None)),
        ("SessionMemory.token", TenantRequest::SessionMemory(Some(Token([0xa5; 32])))),
        ("Fixed", TenantRequest::Fixed { gpu, bytes: Bytes::mib(96) }),
        ("ReserveFixed", TenantRequest::ReserveFixed { request: RequestId(12), gpu, bytes: Bytes::mib(32) }),
        ("Headroom", TenantRequest::Headroom { request: RequestId(13), gpu, bytes: Bytes::mib(600) }),
        ("ReturnFixed", TenantRequest::ReturnFixed { gpu, bytes: Bytes::mib(64) }),
        ("Register.prefix", register(GpuChoice::Prefix("GPU-0a1b".into()))),
        ("Attach.instance", TenantRequest::Attach(instance())),
        (
            "UnknownFunction",
            TenantRequest::UnknownFunction { name: "cuLaunchKernel".into(), version: 14_000 },
        ),
        ("Limits", TenantRequest::Limits { memory: terms().memory, compute: terms().compute }),
        ("RefusedLocally", TenantRequest::RefusedLocally { gpu, bytes: Bytes::gib(80) }),
        (
            "DryRun.new",
            TenantRequest::DryRun(DryRunSession::New(NewSession {
                name: None,
                terms: terms(),
                oversubscribe: false,
                gpu: GpuChoice::Auto,
            })),
        ),
        ("DryRun.known", TenantRequest::DryRun(DryRunSession::Existing(Token([0xa5; 32])))),
        ("Join", TenantRequest::Join(Token([0xa5; 32]))),
        ("Reconciled", TenantRequest::Reconciled),
        ("UtilizationParts", TenantRequest::UtilizationParts(None)),
        ("UtilizationParts.token", TenantRequest::UtilizationParts(Some(Token([0xa5; 32])))),
        ("OwnSessions", TenantRequest::OwnSessions),
        ("NearlyDrained", TenantRequest::NearlyDrained { word }),
        ("OwnWait", TenantRequest::OwnWait),
        ("Resize", TenantRequest::Resize(terms().memory)),
        (
            "Hello.remapping",
            TenantRequest::Hello(Hello::new(Role::Remapping { token: None, returning: Some(returning()) })),
        ),
        ("Resides", TenantRequest::Resides { gpu, seen: GoalNumber(7), residence: residence() }),
        ("MoveFailed", TenantRequest::MoveFailed { gpu, number: GoalNumber(300) }),
        ("CardFull", TenantRequest::CardFull { gpu, number: GoalNumber(300), bytes: Bytes::mib(128) }),
        ("Import", TenantRequest::Import { request, export: EXPORT, meeting: MEETING }),
        ("Freezable", TenantRequest::Freezable { obstacle: None }),
        ("Freezable.managed", obstacle(FreezeObstacle::Managed)),
        ("Freezable.host_handles", obstacle(FreezeObstacle::HostHandles)),
        ("Freezable.shared", obstacle(FreezeObstacle::Shared)),
        ("Freezable.peers", obstacle(FreezeObstacle::Peers)),
        ("Freezable.unseen", obstacle(FreezeObstacle::Unseen)),
        ("Freezable.driver", obstacle(FreezeObstacle::Driver)),
        ("Freezable.host_memory", obstacle(FreezeObstacle::HostMemory)),
        ("Parked", TenantRequest::Parked { number: 300 }),
        ("Called", TenantRequest::Called),
        ("Held", TenantRequest::Held),
        ("Freeze", TenantRequest::Freeze { which: "train".into() }),
        ("Thaw", TenantRequest::Thaw { which: "train".into() }),
        ("Frost", TenantRequest::Frost { which: "train".into() }),
        ("Copy", TenantRequest::Copy { request, name: COPY, bytes: Bytes::mib(32), chunks: 300 }),
        ("EndCopy", TenantRequest::EndCopy { name: COPY, bytes: Bytes::mib(32) }),
        ("ReservePiece", TenantRequest::ReservePiece { request: RequestId(13), gpu, bytes: Bytes::mib(6) }),
    ]
}

/// From the daemon to a process.
pub(crate) fn tenant_replies() -> Vec<Named<TenantReply>> {
    let request = RequestId(9);
    let gate = |state| TenantReply::Gate { word: GateWord::new(70_001, state), epoch: EPOCH };
    let refused = |by| TenantReply::Refused {
        request,
        refusal: MemoryRefusal {
            requested: Bytes::mib(64),
            limit: Bytes::mib(512),
            used: Bytes::mib(500),
            by,
        },
    };
    let error = |code| TenantReply::Error(failure(code));
    let copy = |answer| TenantReply::CopyAnswered { request, answer };
    vec![
        (
            "Welcome",
            TenantReply::Welcome(Welcome {
                protocol: 1,
                client: ClientId(12),
                session: SessionId(3),
                name: "train".into(),
                gpus: vec![GpuId(0), GpuId(1)],
            }),
        ),
        ("Ready", TenantReply::Ready { protocol: 1 }),
        ("Attached", TenantReply::Attached { uuid: UUID, gpu: GpuId(1) }),
        ("Gate.open", gate(GateState::Open)),
        ("Gate.closed", gate(GateState::Closed)),
        ("Reserved", TenantReply::Reserved { request, bytes: Bytes::mib(64) }),
        ("Refused.session", refused(LimitKind::Session)),
        ("Refused.capacity", refused(LimitKind::Capacity)),
        ("Refused.managed_limit", refused(LimitKind::ManagedLimit)),
        ("Refused.host_memory", refused(LimitKind::HostMemory)),
        ("Queued", TenantReply::Queued { ahead: 2, reason: "train holds gpu0".into() }),
        (
            "Session",
            TenantReply::Session {
                session: SessionId(3),
                name: "train".into(),
                token: Token([0xa5; 32]),
                gpu: Some(UUID),
            },
        ),
        ("OwnSession", TenantReply::OwnSession(Some(Box::new(session(LockView::Idle))))),
        ("OwnSession.none", TenantReply::OwnSession(None)),
        ("OwnSession.frozen", TenantReply::OwnSession(Some(Box::new(session(LockView::Frozen))))),
        ("Gpus", TenantReply::Gpus(vec![card()])),
        ("Error.protocol", error(FailureCode::Protocol)),
        ("Error.bad_request", error(FailureCode::BadRequest)),
        ("Error.permission", error(FailureCode::Permission)),
        ("Error.not_found", error(FailureCode::NotFound)),
        ("Error.unavailable", error(FailureCode::Unavailable)),
        ("SessionMemory", TenantReply::SessionMemory(Some(account()))),
        ("SessionMemory.none", TenantReply::SessionMemory(None)),
        ("Headroom", TenantReply::Headroom { request: RequestId(13), bytes: Bytes::gib(70) }),
        (
            "DryRun",
            TenantReply::DryRun(Box::new(Forecast {
                session: Some(SessionId(3)),
                name: Some("train".into()),
                placed: Some(UUID),
                cards: vec![card_forecast()],
            })),
        ),
        (
            "UtilizationParts",
            TenantReply::UtilizationParts(Some(vec![CardPart {
                uuid: UUID,
                part: UtilizationPart { gpu: 40_000, memory: 300 },
            }])),
        ),
        ("UtilizationParts.none", TenantReply::UtilizationParts(None)),
        ("OwnSessions", TenantReply::OwnSessions(increments())),
        (
            "OwnWait",
            TenantReply::OwnWait(Some(OwnWait {
                ahead: 2,
                own: vec!["train".into(), "eval".into()],
                about_ns: Some(Nanos::from_secs(13)),
            })),
        ),
        ("OwnWait.none", TenantReply::OwnWait(None)),
        ("Resized", TenantReply::Resized { old: "none".into(), new: "20GiB".into() }),
        ("ImportAnswered", TenantReply::ImportAnswered { request, is_told: true }),
        ("ImportWanted", TenantReply::ImportWanted { export: EXPORT, meeting: MEETING }),
        ("FrostChanged", TenantReply::FrostChanged { old: "running".into(), new: "freezing".into() }),
        ("Frost", TenantReply::Frost(frost_view(FrostStage::Frozen, None))),
        ("CopyAnswered.alone", copy(CopyAnswer::Alone)),
        ("CopyAnswered.fill", copy(CopyAnswer::Fill)),
        ("CopyAnswered.made", copy(CopyAnswer::Made)),
        ("CopyAnswered.busy", copy(CopyAnswer::Busy)),
        ("CopyAnswered.refused", copy(CopyAnswer::Refused)),
    ]
}

fn card_forecast() -> CardForecast {
    CardForecast {
        gpu: GpuId(0),
        uuid: UUID,
        total_bytes: Bytes::gib(80),
        capacity_bytes: Bytes::gib(79),
        promised_bytes: Bytes::gib(60),
        used_bytes: Bytes::gib(50),
        free_bytes: Bytes::gib(29),
        asked_bytes: Some(Bytes::gib(40)),
        fits: false,
        mode: Mode::Parallel,
        mode_then: Mode::Serialized,
        ahead: vec![AheadView { session: SessionId(5), name: "eval".into(), turn_ns: Nanos::from_secs(3) }],
        quantum_ns: Nanos::from_secs(4),
        switch_ns: Nanos::from_millis(220),
        bound_ns: Some(Nanos::from_secs(13)),
    }
}

/// From `gpushare-ctl` to the daemon.
pub(crate) fn admin_requests() -> Vec<Named<AdminRequest>> {
    let set = |gpu, knob| AdminRequest::Set(Setting { gpu, knob });
    let (all, first) = (None, Some(GpuId(0)));
    let which = || "train".to_owned();
    let create = |binding| {
        AdminRequest::Session(SessionRequest::Create {
            new: NewSession {
                name: Some(which()),
                terms: terms(),
                oversubscribe: false,
                gpu: GpuChoice::Auto,
            },
            binding,
        })
    };
    let change = |change| AdminRequest::Session(SessionRequest::Change { which: which(), change });
    vec![
        ("Hello", AdminRequest::Hello(Hello::new(Role::Tool))),
        ("Status", AdminRequest::Status),
        ("Set.quantum", set(first, Knob::Quantum(Some(Nanos::from_millis(100))))),
        ("Set.quantum_auto", set(all, Knob::Quantum(None))),
        ("Set.mode", set(first, Knob::Mode(Some(Mode::Parallel)))),
        ("Set.mode_sliced", set(first, Knob::Mode(Some(Mode::TimeSliced)))),
        ("Set.mode_auto", set(all, Knob::Mode(None))),
        ("Set.capacity", set(first, Knob::Capacity(Some(Bytes::gib(4))))),
        ("Set.managed_limit", set(all, Knob::ManagedLimit(Bytes::gib(10)))),
        ("Set.window_target", set(first, Knob::WindowTarget(Nanos::from_millis(5)))),
        ("Set.epsilon", set(all, Knob::Epsilon(Percent(500)))),
        ("Set.context_reserve", set(first, Knob::ContextReserve(Bytes::mib(300)))),
        ("Watch", AdminRequest::Watch),
        ("Session.create", create(Binding::Token)),
        ("Session.create_uid", create(Binding::Uid(1000))),
        ("Session.create_cgroup", create(Binding::Cgroup("/kubepods/pod7".into()))),
        ("Session.create_pod", create(Binding::Pod("6f1c2a4e-0b9d-4c1f-9a53-2d1d4b7f0c11".into()))),
        ("Session.memory", change(Change::Memory(terms().memory))),
        ("Session.compute", change(Change::Compute(terms().compute))),
        ("Session.weight", change(Change::Weight(200))),
        ("Session.priority", change(Change::Priority(Priority::High))),
        ("Session.freeze_after", change(Change::FreezeAfter(terms().freeze_after))),
        ("Session.freeze_never", change(Change::FreezeAfter(FreezeAfter::Never))),
        ("Session.freeze_usual", change(Change::FreezeAfter(FreezeAfter::Usual))),
        ("Session.low", change(Change::Priority(Priority::Low))),
        (
            "Session.renew",
            AdminRequest::Session(SessionRequest::Renew {
                which: which(),
                ttl: Some(Nanos::from_secs(3600)),
            }),
        ),
        ("Session.revoke", AdminRequest::Session(SessionRequest::Revoke { which: which() })),
        ("Session.delete", AdminRequest::Session(SessionRequest::Delete { which: which() })),
        ("Session.pause", AdminRequest::Session(SessionRequest::Pause { which: which() })),
        ("Session.resume", AdminRequest::Session(SessionRequest::Resume { which: which() })),
        ("Session.freeze", AdminRequest::Session(SessionRequest::Freeze { which: which() })),
        ("Session.thaw", AdminRequest::Session(SessionRequest::Thaw { which: which() })),
        ("Session.endless", AdminRequest::Session(SessionRequest::Endless { which: which() })),
        ("Session.token", AdminRequest::Session(SessionRequest::Token { which: which() })),
        ("Explain", AdminRequest::Explain { which: which() }),
        ("Usage", AdminRequest::Usage { since: Nanos::from_secs(86_400) }),
        ("Reload", AdminRequest::Reload),
        ("Orphaned", AdminRequest::Orphaned { which: which() }),
        ("Capacities", AdminRequest::Capacities),
        ("UserWeight", AdminRequest::UserWeight { user: "1001".to_owned(), weight: 300 }),
        ("Users", AdminRequest::Users),
        ("Follow", AdminRequest::Follow),
        ("Dashboard", AdminRequest::Dashboard { read_only: true }),
        (
            "UsageBetween",
            AdminRequest::UsageBetween { from_unix_s: 1_795_305_600, until_unix_s: 1_795_392_000 },
        ),
        ("Residences", AdminRequest::Residences),
        ("Handoffs", AdminRequest::Handoffs),
        ("Frost", AdminRequest::Frost { which: which() }),
        ("Freezing", AdminRequest::Freezing),
        ("Copies", AdminRequest::Copies),
        ("HandoffsOf", AdminRequest::HandoffsOf { which: which() }),
    ]
}

/// From the daemon to `gpushare-ctl`.
pub(crate) fn admin_replies() -> Vec<Named<AdminReply>> {
    let frost = |stage, obstacle| AdminReply::Frost(frost_view(stage, obstacle));
    vec![
        ("Ready", AdminReply::Ready { protocol: 1 }),
        ("Status", AdminReply::Status(Box::new(status()))),
        ("Changed", AdminReply::Changed { old: "3s (computed)".into(), new: "100ms".into() }),
        ("Error", AdminReply::Error(failure(FailureCode::Permission))),
        ("Events", AdminReply::Events(happenings())),
        (
            "Events.renamed",
            AdminReply::Events(vec![WatchEvent {
                at_ns: Nanos::from_millis(20),
                what: WatchEventKind::SessionRenamed { session: SessionId(3), name: "train-3".into() },
            }]),
        ),
        (
            "Created",
            AdminReply::Created {
                session: SessionId(3),
                name: "train".into(),
                token: Some(Token([0xa5; 32])),
                gpu: None,
            },
        ),
        (
            "Token",
            AdminReply::Token { session: SessionId(3), name: "train".into(), token: Token([0x5a; 32]) },
        ),
        ("Explained", explained(Some(wait(WaitReason::Holders, Some(Nanos::from_millis(4100)))))),
        ("Explained.runs", explained(None)),
        ("Explained.turn", explained(Some(wait(WaitReason::Turn, Some(Nanos::from_millis(20)))))),
        (
            "Explained.stuck",
            explained(Some(wait(
                WaitReason::Stuck {
                    session: SessionId(4),
                    name: "infer".into(),
                    reason: "work in flight".into(),
                },
                None,
            ))),
        ),
        ("Explained.recovering", explained(Some(wait(WaitReason::Recovering { processes: 2 }, None)))),
        ("Explained.standing", explained(Some(wait(WaitReason::Standing, None)))),
        ("Explained.limit", explained(Some(wait(WaitReason::Limit { limit: Percent(2500) }, None)))),
        (
            "Explained.memory",
            explained(Some(wait(
                WaitReason::Memory { missing_bytes: Bytes::gib(2), reason: "it is moving in".into() },
                None,
            ))),
        ),
        ("Explained.thaw", explained(Some(wait(WaitReason::Thaw { reason: "it is frozen".into() }, None)))),
        ("Usage", AdminReply::Usage(vec![usage()])),
        (
            "Reloaded",
            AdminReply::Reloaded(vec![ConfigChange {
                key: "scheduling.quantum_min".into(),
                old: "20ms".into(),
                new: "40ms".into(),
                live: true,
            }]),
        ),
        (
            "Orphaned",
            AdminReply::Orphaned(vec![OrphanView {
                pid: 4711,
                gpu: GpuId(1),
                bytes: Bytes::gib(3),
                ago_ns: Nanos::from_secs(300),
            }]),
        ),
        (
            "Capacities",
            AdminReply::Capacities(vec![CapacityView {
                gpu: GpuId(0),
                total_bytes: Bytes::gib(80),
                set_bytes: None,
                contexts_bytes: Bytes::gib(1),
                fixed_bytes: Bytes::gib(2),
                next_context_bytes: Bytes::mib(700),
                usable_bytes: Bytes::gib(76),
            }]),
        ),
        ("Users", AdminReply::Users(vec![UserView { user: "1001".to_owned(), weight: 300, sessions: 2 }])),
        ("Increments", AdminReply::Increments(increments())),
        ("Increments.frozen", AdminReply::Increments(increments_of_frozen())),
        (
            "Dashboard",
            AdminReply::Dashboard {
                address: "127.0.0.1:9403".into(),
                link: Token([0xa5; 32]),
                valid_ns: Nanos::from_secs(120),
            },
        ),
        (
            "UserUsage",
            AdminReply::UserUsage(vec![UserUsageView { user: Some("1001".to_owned()), usage: usage() }]),
        ),
        (
            "Residences",
            AdminReply::Residences(vec![ResidenceView {
                session: SessionId(3),
                gpu: GpuId(1),
                resident_bytes: Bytes::gib(6),
                hosted_bytes: Bytes::gib(2),
                mapped_bytes: Bytes::gib(1),
                moving_bytes: Bytes::mib(128),
            }]),
        ),
        ("Events.handoffs", AdminReply::Events(handoffs())),
        ("Increments.remapped", AdminReply::Increments(remapped())),
        ("Increments.handoffs", AdminReply::Increments(card_handoffs())),
        ("Frost", frost(FrostStage::Warm, Some("it has managed memory"))),
        ("Frost.freezing", frost(FrostStage::Freezing, None)),
        ("Frost.frozen", frost(FrostStage::Frozen, None)),
        ("Frost.thawing", frost(FrostStage::Thawing, None)),
        ("Frost.unexamined", frost(FrostStage::Unexamined, None)),
        (
            "Freezing",
            AdminReply::Freezing(FreezingView {
                obstacles: vec!["the driver was not tried".into()],
                freeze_after_ns: Some(Nanos::from_secs(600)),
            }),
        ),
        (
            "Handoffs",
            AdminReply::Handoffs(vec![CardHandoffs {
                gpu: GpuId(1),
                running: Some(handoff(Bytes::gib(2))),
                last: Some(EndedHandoff { ago_ns: Nanos::from_secs(3), handoff: handoff(Bytes::ZERO) }),
            }]),
        ),
        ("Copies", AdminReply::Copies(CopiesView { copies: 300, bytes: Bytes::gib(9), users: 2 })),
    ]
}

fn usage() -> UsageView {
    UsageView {
        session: SessionId(3),
        name: "train".into(),
        alive: true,
        from_unix_s: 1_795_305_600,
        gpu_time_ns: Nanos::from_secs(5_400),
        waited_ns: Nanos::from_secs(61),
        held_ns: Nanos::from_secs(700),
        moved_bytes: Bytes::gib(12),
        peak_bytes: Bytes::gib(7),
    }
}
