//! Any message at all, for property tests. Texts hold anything, sequences may be empty.

use gpushare_proto::admin::{
    Activity, AdminReply, AdminRequest, Change, ClientView, ConfigChange, DaemonView, GpuView, Knob,
    LockView, Mode, SessionGpuView, SessionRequest, SessionState, SessionView, Setting, Status, UsageView,
    WatchEvent, WatchEventKind,
};
use gpushare_proto::dry_run::{CardForecast, DryRunSession, Forecast};
use gpushare_proto::explain::{
    AheadView, CardLimitsView, Explanation, HolderView, OrphanView, RefusalView, WaitReason, WaitView,
};
use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::session::{Amount, Binding, CardQuota, Priority, Quota, SessionPhase, Terms};
use gpushare_proto::tenant::{
    CardMemory, Failure, FailureCode, GpuChoice, GpuInfo, Hello, NewSession, ProcessMemory, Returning,
    ReturningGpu, Role, SessionMemory, TenantReply, TenantRequest, Welcome,
};
use gpushare_proto::{
    Bytes, ClientId, Epoch, GateState, GateWord, GpuId, GpuUuid, Nanos, Percent, RequestId, SessionId, Token,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    any::<u64>().prop_map(Bytes)
}

fn nanos() -> impl Strategy<Value = Nanos> {
    any::<u64>().prop_map(Nanos)
}

fn gpu() -> impl Strategy<Value = GpuId> {
    any::<u8>().prop_map(GpuId)
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<u64>().prop_map(SessionId)
}

fn client() -> impl Strategy<Value = ClientId> {
    any::<u64>().prop_map(ClientId)
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn word() -> impl Strategy<Value = GateWord> {
    any::<u32>().prop_map(GateWord)
}

fn uuid() -> impl Strategy<Value = GpuUuid> {
    (any::<[u8; 16]>(), any::<bool>()).prop_map(|(bytes, instance)| match instance {
        true => GpuUuid::mig(bytes),
        false => GpuUuid::gpu(bytes),
    })
}

fn token() -> impl Strategy<Value = Token> {
    any::<[u8; 32]>().prop_map(Token)
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..12).prop_map(String::from_iter)
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Parallel), Just(Mode::TimeSliced), Just(Mode::Serialized)]
}

prop_compose! {
    fn epoch()(generation: u64, counter: u64) -> Epoch {
        Epoch { generation, counter }
    }
}

prop_compose! {
    fn info()(uuid in uuid(), name in text(), total in bytes()) -> GpuInfo {
        GpuInfo { uuid, name, total }
    }
}

prop_compose! {
    fn returning_gpu()(info in info(), used in bytes(), contexts: u32) -> ReturningGpu {
        ReturningGpu { info, used, contexts }
    }
}

prop_compose! {
    fn returning()(
        client in client(), session in session(), holding in of(epoch()),
        gpus in vec(returning_gpu(), 0..4), waiting: bool,
    ) -> Returning {
        Returning { client, session, holding, gpus, waiting }
    }
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        Just(Role::Tool),
        (of(token()), of(returning())).prop_map(|(token, returning)| Role::Client { token, returning }),
    ]
}

prop_compose! {
    fn hello()(magic: [u8; 4], protocol: u16, role in role()) -> Hello {
        Hello { magic, protocol, role }
    }
}

fn gpu_choice() -> impl Strategy<Value = GpuChoice> {
    prop_oneof![
        Just(GpuChoice::Auto),
        any::<u8>().prop_map(GpuChoice::Index),
        uuid().prop_map(GpuChoice::Uuid),
        text().prop_map(GpuChoice::Prefix),
    ]
}

fn percent() -> impl Strategy<Value = Percent> {
    any::<u32>().prop_map(Percent)
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![bytes().prop_map(Amount::Bytes), percent().prop_map(Amount::Share)]
}

fn priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)]
}

prop_compose! {
    fn quota()(
        every in of(amount()),
        cards in vec((gpu_choice(), amount()).prop_map(|(card, amount)| CardQuota { card, amount }), 0..3),
    ) -> Quota {
        Quota { every, cards }
    }
}

prop_compose! {
    fn terms()(
        memory in quota(), compute in quota(), weight: u32, priority in priority(), ttl in of(nanos()),
        labels in proptest::collection::btree_map(text(), text(), 0..3),
    ) -> Terms {
        Terms { memory, compute, weight, priority, ttl, labels }
    }
}

fn binding() -> impl Strategy<Value = Binding> {
    prop_oneof![Just(Binding::Token), any::<u32>().prop_map(Binding::Uid), text().prop_map(Binding::Cgroup)]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        quota().prop_map(Change::Memory),
        quota().prop_map(Change::Compute),
        any::<u32>().prop_map(Change::Weight),
        priority().prop_map(Change::Priority),
    ]
}

fn session_request() -> impl Strategy<Value = SessionRequest> {
    prop_oneof![
        (new_session(), binding()).prop_map(|(new, binding)| SessionRequest::Create { new, binding }),
        (text(), change()).prop_map(|(which, change)| SessionRequest::Change { which, change }),
        (text(), of(nanos())).prop_map(|(which, ttl)| SessionRequest::Renew { which, ttl }),
        text().prop_map(|which| SessionRequest::Revoke { which }),
        text().prop_map(|which| SessionRequest::Delete { which }),
        text().prop_map(|which| SessionRequest::Pause { which }),
        text().prop_map(|which| SessionRequest::Resume { which }),
        text().prop_map(|which| SessionRequest::Endless { which }),
        text().prop_map(|which| SessionRequest::Token { which }),
    ]
}

prop_compose! {
    fn session_state()(
        terms in terms(),
        standing in prop_oneof![
            Just(SessionPhase::Good), Just(SessionPhase::Paused), Just(SessionPhase::Expired), Just(SessionPhase::Revoked),
        ],
        expires_in_ns in of(nanos()), binding in binding(), kept: bool,
    ) -> SessionState {
        SessionState { terms, standing, expires_in_ns, binding, kept }
    }
}

prop_compose! {
    fn new_session()(
        name in of(text()), terms in terms(), oversubscribe: bool, gpu in gpu_choice(),
    ) -> NewSession {
        NewSession { name, terms, oversubscribe, gpu }
    }
}

/// Any request of a process.
pub(crate) fn tenant_request() -> impl Strategy<Value = TenantRequest> {
    prop_oneof![
        hello().prop_map(TenantRequest::Hello),
        info().prop_map(TenantRequest::Attach),
        (gpu(), any::<u32>()).prop_map(|(gpu, live)| TenantRequest::Contexts { gpu, live }),
        (request(), gpu(), bytes()).prop_map(|(request, gpu, bytes)| TenantRequest::Reserve {
            request,
            gpu,
            bytes
        }),
        gpu().prop_map(|gpu| TenantRequest::Trim { gpu }),
        word().prop_map(|word| TenantRequest::Wait { word }),
        (word(), bytes(), nanos()).prop_map(|(word, moved, took)| TenantRequest::Entered {
            word,
            moved,
            took
        }),
        (word(), nanos()).prop_map(|(word, drain)| TenantRequest::Released { word, drain }),
        new_session().prop_map(TenantRequest::Register),
        Just(TenantRequest::OwnSession),
        Just(TenantRequest::Gpus),
        of(token()).prop_map(TenantRequest::SessionMemory),
        (gpu(), bytes()).prop_map(|(gpu, bytes)| TenantRequest::Fixed { gpu, bytes }),
        (request(), gpu(), bytes()).prop_map(|(request, gpu, bytes)| TenantRequest::ReserveFixed {
            request,
            gpu,
            bytes
        }),
        (request(), gpu(), bytes()).prop_map(|(request, gpu, bytes)| TenantRequest::Headroom {
            request,
            gpu,
            bytes
        }),
        (gpu(), bytes()).prop_map(|(gpu, bytes)| TenantRequest::ReturnFixed { gpu, bytes }),
        (text(), any::<u32>()).prop_map(|(name, version)| TenantRequest::UnknownFunction { name, version }),
        (quota(), quota()).prop_map(|(memory, compute)| TenantRequest::Limits { memory, compute }),
        (gpu(), bytes()).prop_map(|(gpu, bytes)| TenantRequest::RefusedLocally { gpu, bytes }),
        new_session().prop_map(|new| TenantRequest::DryRun(DryRunSession::New(new))),
        token().prop_map(|token| TenantRequest::DryRun(DryRunSession::Existing(token))),
        token().prop_map(TenantRequest::Join),
        Just(TenantRequest::Reconciled),
    ]
}

prop_compose! {
    fn welcome()(
        protocol: u16, client in client(), session in session(), name in text(), gpus in vec(gpu(), 0..4),
    ) -> Welcome {
        Welcome { protocol, client, session, name, gpus }
    }
}

fn limit_kind() -> impl Strategy<Value = LimitKind> {
    prop_oneof![Just(LimitKind::Session), Just(LimitKind::Capacity), Just(LimitKind::ManagedLimit),]
}

prop_compose! {
    fn refusal()(
        requested in bytes(), limit in bytes(), used in bytes(), by in limit_kind(),
    ) -> MemoryRefusal {
        MemoryRefusal { requested, limit, used, by }
    }
}

fn failure_code() -> impl Strategy<Value = FailureCode> {
    prop_oneof![
        Just(FailureCode::Protocol),
        Just(FailureCode::BadRequest),
        Just(FailureCode::Permission),
        Just(FailureCode::NotFound),
        Just(FailureCode::Unavailable),
    ]
}

prop_compose! {
    fn failure()(code in failure_code(), message in text()) -> Failure {
        Failure { code, message }
    }
}

/// Any answer to a process.
pub(crate) fn tenant_reply() -> impl Strategy<Value = TenantReply> {
    prop_oneof![
        welcome().prop_map(TenantReply::Welcome),
        any::<u16>().prop_map(|protocol| TenantReply::Ready { protocol }),
        (uuid(), gpu()).prop_map(|(uuid, gpu)| TenantReply::Attached { uuid, gpu }),
        (word(), epoch()).prop_map(|(word, epoch)| TenantReply::Gate { word, epoch }),
        (request(), bytes()).prop_map(|(request, bytes)| TenantReply::Reserved { request, bytes }),
        (request(), refusal()).prop_map(|(request, refusal)| TenantReply::Refused { request, refusal }),
        (any::<u32>(), text()).prop_map(|(ahead, reason)| TenantReply::Queued { ahead, reason }),
        (session(), text(), token(), of(uuid()))
            .prop_map(|(session, name, token, gpu)| { TenantReply::Session { session, name, token, gpu } }),
        of(session_view().prop_map(Box::new)).prop_map(TenantReply::OwnSession),
        vec(info(), 0..4).prop_map(TenantReply::Gpus),
        failure().prop_map(TenantReply::Error),
        of(account()).prop_map(TenantReply::SessionMemory),
        (request(), bytes()).prop_map(|(request, bytes)| TenantReply::Headroom { request, bytes }),
        forecast().prop_map(|forecast| TenantReply::DryRun(Box::new(forecast))),
    ]
}

prop_compose! {
    fn forecast()(
        session in of(session()), name in of(text()), placed in of(uuid()), cards in vec(card_forecast(), 0..3),
    ) -> Forecast {
        Forecast { session, name, placed, cards }
    }
}

prop_compose! {
    fn card_forecast()(
        (gpu, uuid) in (gpu(), uuid()),
        [total_bytes, capacity_bytes, promised_bytes, used_bytes, free_bytes] in [bytes(), bytes(), bytes(), bytes(), bytes()],
        asked_bytes in of(bytes()), fits: bool, mode in mode(), mode_then in mode(),
        ahead in vec((session(), text(), nanos()), 0..3), quantum_ns in nanos(), switch_ns in nanos(), bound_ns in of(nanos()),
    ) -> CardForecast {
        let before = |(session, name, turn_ns)| AheadView { session, name, turn_ns };
        let ahead = ahead.into_iter().map(before).collect();
        CardForecast {
            gpu, uuid, total_bytes, capacity_bytes, promised_bytes, used_bytes, free_bytes, asked_bytes, fits, mode,
            mode_then, ahead, quantum_ns, switch_ns, bound_ns,
        }
    }
}

prop_compose! {
    fn process_account()(pid: u32, outer_pid: u32, used in bytes()) -> ProcessMemory {
        ProcessMemory { pid, outer_pid, used }
    }
}

prop_compose! {
    fn card_account()(
        info in info(), total in bytes(), used in bytes(), free in bytes(), processes in vec(process_account(), 0..4),
    ) -> CardMemory {
        CardMemory { info, total, used, free, processes }
    }
}

prop_compose! {
    fn account()(
        session in session(), name in text(), limit in of(bytes()), cards in vec(card_account(), 0..4),
    ) -> SessionMemory {
        SessionMemory { session, name, limit, cards }
    }
}

fn knob() -> impl Strategy<Value = Knob> {
    prop_oneof![
        of(nanos()).prop_map(Knob::Quantum),
        of(mode()).prop_map(Knob::Mode),
        of(bytes()).prop_map(Knob::Capacity),
        bytes().prop_map(Knob::ManagedLimit),
        any::<u32>().prop_map(|share| Knob::Epsilon(Percent(share))),
        any::<u64>().prop_map(|target| Knob::WindowTarget(Nanos(target))),
    ]
}

/// Any request of an administrator.
pub(crate) fn admin_request() -> impl Strategy<Value = AdminRequest> {
    prop_oneof![
        hello().prop_map(AdminRequest::Hello),
        Just(AdminRequest::Status),
        (of(gpu()), knob()).prop_map(|(gpu, knob)| AdminRequest::Set(Setting { gpu, knob })),
        Just(AdminRequest::Watch),
        session_request().prop_map(AdminRequest::Session),
        text().prop_map(|which| AdminRequest::Explain { which }),
        nanos().prop_map(|since| AdminRequest::Usage { since }),
        Just(AdminRequest::Reload),
        text().prop_map(|which| AdminRequest::Orphaned { which }),
    ]
}

/// Any answer to an administrator.
pub(crate) fn admin_reply() -> impl Strategy<Value = AdminReply> {
    prop_oneof![
        any::<u16>().prop_map(|protocol| AdminReply::Ready { protocol }),
        status().prop_map(|status| AdminReply::Status(Box::new(status))),
        (text(), text()).prop_map(|(old, new)| AdminReply::Changed { old, new }),
        failure().prop_map(AdminReply::Error),
        vec((nanos(), happened()), 0..4).prop_map(|happenings| {
            let happenings = happenings.into_iter();
            AdminReply::Events(happenings.map(|(at_ns, what)| WatchEvent { at_ns, what }).collect())
        }),
        (session(), text(), of(token()), of(uuid()))
            .prop_map(|(session, name, token, gpu)| { AdminReply::Created { session, name, token, gpu } }),
        explanation().prop_map(|explanation| AdminReply::Explained(Box::new(explanation))),
        vec(usage_view(), 0..4).prop_map(AdminReply::Usage),
        (session(), text(), token()).prop_map(|(session, name, token)| AdminReply::Token {
            session,
            name,
            token,
        }),
        vec(reconfigured(), 0..4).prop_map(AdminReply::Reloaded),
        vec(orphan(), 0..4).prop_map(AdminReply::Orphaned),
    ]
}

prop_compose! {
    fn orphan()(pid in any::<u32>(), gpu in gpu(), bytes in bytes(), ago_ns in nanos()) -> OrphanView {
        OrphanView { pid, gpu, bytes, ago_ns }
    }
}

prop_compose! {
    fn reconfigured()(key in text(), old in text(), new in text(), live in any::<bool>()) -> ConfigChange {
        ConfigChange { key, old, new, live }
    }
}

prop_compose! {
    fn explanation()(
        session in session_view(), refusals in vec(refusal_view(), 0..3), cards in vec(card_limits_view(), 0..3),
        wait in of(wait_view()),
    ) -> Explanation {
        Explanation { session, refusals, cards, wait }
    }
}

prop_compose! {
    fn refusal_view()(
        ago_ns in nanos(), client in client(), pid: u32, gpu in gpu(), refusal in refusal(),
    ) -> RefusalView {
        RefusalView { ago_ns, client, pid, gpu, refusal }
    }
}

prop_compose! {
    fn card_limits_view()(
        (gpu, uuid, limit_bytes) in (gpu(), uuid(), of(bytes())),
        (used_bytes, capacity_bytes, managed_limit_bytes, all_used_bytes) in (bytes(), bytes(), bytes(), bytes()),
    ) -> CardLimitsView {
        CardLimitsView { gpu, uuid, limit_bytes, used_bytes, capacity_bytes, managed_limit_bytes, all_used_bytes }
    }
}

prop_compose! {
    fn wait_view()(
        reason in wait_reason(),
        holders in vec((session(), text(), nanos()), 0..3),
        ahead in vec((session(), text(), nanos()), 0..3),
        handoff_ns in nanos(), about_ns in of(nanos()),
    ) -> WaitView {
        let holder = |(session, name, rest_ns)| HolderView { session, name, rest_ns };
        let before = |(session, name, turn_ns)| AheadView { session, name, turn_ns };
        WaitView {
            reason,
            holders: holders.into_iter().map(holder).collect(),
            ahead: ahead.into_iter().map(before).collect(),
            handoff_ns,
            about_ns,
        }
    }
}

fn wait_reason() -> impl Strategy<Value = WaitReason> {
    prop_oneof![
        Just(WaitReason::Turn),
        Just(WaitReason::Holders),
        (session(), text(), text()).prop_map(|(session, name, reason)| WaitReason::Stuck {
            session,
            name,
            reason
        }),
        any::<u32>().prop_map(|processes| WaitReason::Recovering { processes }),
        Just(WaitReason::Standing),
        any::<u32>().prop_map(|limit| WaitReason::Limit { limit: Percent(limit) }),
    ]
}

prop_compose! {
    fn usage_view()(
        session in session(), name in text(), alive: bool, from_unix_s: u64,
        (gpu_time_ns, waited_ns, held_ns) in (nanos(), nanos(), nanos()),
        moved_bytes in bytes(), peak_bytes in bytes(),
    ) -> UsageView {
        UsageView {
            session, name, alive, from_unix_s, gpu_time_ns, waited_ns, held_ns, moved_bytes, peak_bytes,
        }
    }
}

fn happened() -> impl Strategy<Value = WatchEventKind> {
    prop_oneof![
        (text(), any::<u32>()).prop_map(|(version, pid)| WatchEventKind::Watching { version, pid }),
        (gpu(), uuid(), text(), bytes()).prop_map(|(gpu, uuid, name, total_bytes)| {
            WatchEventKind::CardFound { gpu, uuid, name, total_bytes }
        }),
        (gpu(), mode(), text()).prop_map(|(gpu, mode, reason)| WatchEventKind::ModeChanged {
            gpu,
            mode,
            reason
        }),
        (session(), text()).prop_map(|(session, name)| WatchEventKind::SessionBegan { session, name }),
        session().prop_map(|session| WatchEventKind::SessionEnded { session }),
        (session(), client(), any::<u32>())
            .prop_map(|(session, client, pid)| WatchEventKind::ProcessJoined { session, client, pid }),
        (session(), client()).prop_map(|(session, client)| WatchEventKind::ProcessLeft { session, client }),
        (session(), activity()).prop_map(|(session, to)| WatchEventKind::Turned { session, to }),
        (session(), gpu(), bytes()).prop_map(|(session, gpu, bytes)| WatchEventKind::Allocated {
            session,
            gpu,
            bytes
        }),
        (session(), nanos(), nanos()).prop_map(|(session, quantum_ns, waited_ns)| WatchEventKind::Granted {
            session,
            quantum_ns,
            waited_ns
        }),
        (session(), nanos())
            .prop_map(|(session, handoff_ns)| WatchEventKind::Entered { session, handoff_ns }),
        (session(), of(nanos()))
            .prop_map(|(session, drain_ns)| WatchEventKind::Dropped { session, drain_ns }),
        (session(), any::<u32>())
            .prop_map(|(session, tries)| WatchEventKind::DropReopened { session, tries }),
        (session(), text()).prop_map(|(session, reason)| WatchEventKind::Stuck { session, reason }),
        (session(), client(), gpu(), refusal()).prop_map(|(session, client, gpu, refusal)| {
            WatchEventKind::Refused { session, client, gpu, refusal }
        }),
        nanos().prop_map(|after_ns| WatchEventKind::Recovered { after_ns }),
        (session(), text()).prop_map(|(session, name)| WatchEventKind::SessionRenamed { session, name }),
    ]
}

fn activity() -> impl Strategy<Value = Activity> {
    prop_oneof![
        Just(Activity::Idle),
        text().prop_map(|reason| Activity::Waiting { reason }),
        Just(Activity::Moving),
        Just(Activity::Holding),
        Just(Activity::Dropping),
    ]
}

prop_compose! {
    fn daemon_view()(version in text(), pid: u32, uptime_ns in nanos(), recovering: u32) -> DaemonView {
        DaemonView { version, pid, uptime_ns, recovering }
    }
}

prop_compose! {
    fn status()(
        daemon in daemon_view(), gpus in vec(gpu_view(), 0..3), sessions in vec(session_view(), 0..3),
    ) -> Status {
        Status { daemon, gpus, sessions }
    }
}

prop_compose! {
    fn gpu_view()(
        (gpu, uuid, name) in (gpu(), uuid(), text()),
        (total_bytes, capacity_bytes, allocated_bytes) in (bytes(), bytes(), bytes()),
        (managed_limit_bytes, moved_bytes) in (bytes(), bytes()),
        (mode, reason, mode_changes) in (mode(), text(), any::<u64>()),
        (holders, queue) in (vec(session(), 0..3), vec(session(), 0..3)),
        (quantum_ns, drains_ns, expected_drain_ns) in (nanos(), vec(nanos(), 0..5), nanos()),
        (handoffs, aborted_drops) in (any::<u64>(), any::<u64>()),
    ) -> GpuView {
        GpuView {
            gpu, uuid, name, total_bytes, capacity_bytes, allocated_bytes, managed_limit_bytes, mode, reason,
            mode_changes, holders, queue, quantum_ns, handoffs, aborted_drops, drains_ns, expected_drain_ns,
            moved_bytes,
        }
    }
}

prop_compose! {
    fn session_gpu_view()(
        gpu in gpu(), allocated_bytes in bytes(), limit_bytes in of(bytes()), leased_bytes in bytes(), peak_bytes in bytes(),
    ) -> SessionGpuView {
        SessionGpuView { gpu, allocated_bytes, limit_bytes, leased_bytes, peak_bytes }
    }
}

fn gate_state() -> impl Strategy<Value = GateState> {
    word().prop_map(GateWord::state)
}

prop_compose! {
    fn client_view()(
        client in client(), pid: u32, gate in gate_state(), waiting: bool, evictable: bool,
        unknown_functions in vec(text(), 0..3),
    ) -> ClientView {
        ClientView { client, pid, gate, waiting, evictable, unknown_functions }
    }
}

fn lock_view() -> impl Strategy<Value = LockView> {
    prop_oneof![
        Just(LockView::Idle),
        epoch().prop_map(|epoch| LockView::Holding { epoch }),
        (any::<u32>(), any::<bool>(), text()).prop_map(|(tries, stuck, reason)| LockView::Dropping {
            tries,
            stuck,
            reason
        }),
        (any::<u32>(), text()).prop_map(|(ahead, reason)| LockView::Waiting { ahead, reason }),
    ]
}

prop_compose! {
    fn session_view()(
        (session, name, implicit) in (session(), text(), any::<bool>()),
        (memory_limit_bytes, state) in (of(bytes()), session_state()),
        gpus in vec(session_gpu_view(), 0..3),
        clients in vec(client_view(), 0..3),
        lock in lock_view(),
        (waited_ns, held_ns, refusals) in (nanos(), nanos(), any::<u64>()),
    ) -> SessionView {
        SessionView {
            session, name, implicit, memory_limit_bytes, state, gpus, clients, lock, waited_ns, held_ns, refusals,
        }
    }
}
