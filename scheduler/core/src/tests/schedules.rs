//! Random schedules: honest and lying processes, time jumps, lost, repeated and forged messages, restarts.
//! The invariants are checked after every event (`view/invariants.rs`), and nothing may panic.

mod forgery;

use gpushare_proto::admin::{Knob, Mode, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, Percent, RequestId, SessionId};
use proptest::prelude::*;

use self::forgery::{Forgery, forge, forgery};
use super::drawn;
use super::world::{GPU, Generation, OTHER_GPU, World, gib, ms};
use crate::config::StuckPolicy;
use crate::{Config, Effect, Event, FreezeEnd, Obstacle, Standing, ThawEnd, UserId};

/// One step of a schedule. Indexes choose among the sessions or processes that exist at that time.
#[derive(Clone, Debug)]
pub(super) enum Step {
    OpenSession {
        limit: Option<u64>,
        oversubscribe: bool,
    },
    CloseSession(usize),
    Quota(usize, GpuId, Option<u64>),
    Stand(usize, Standing),
    Share(usize, u32, Priority),
    Own(usize, u64, u32),
    Compute(usize, GpuId, Option<u32>),
    Join(usize),
    Attach(usize, GpuId),
    Allocate(usize, GpuId, u64),
    Free(usize, GpuId, u64),
    AllocateFixed(usize, GpuId, u64),
    FreeFixed(usize, GpuId, u64),
    Measure(usize, GpuId, Option<u64>),
    AskRoom(usize, GpuId),
    Look(usize, GpuId),
    Trim(usize, GpuId),
    Busy(usize),
    Arrive(usize),
    GoIdle(usize),
    Die(usize),
    End(usize),
    Left(usize, GpuId, u64),
    Bury(usize),
    ComeBack(usize),
    Change(usize, u64, bool),
    Run(u64),
    Jump(u64),
    LoseAnswer,
    Repeat(usize),
    Return(u64, bool, u64),
    ExpectedGone(u64),
    ExpectedUses(u64, GpuId, u64),
    Lead(Option<usize>, GpuId, i64),
    UserLead(u64, Priority, GpuId, i64),
    Set(Option<GpuId>, Knob),
    Remap(usize),
    Budget(u64),
    Pin(usize, GpuId, u64),
    Prepare(usize, GpuId, u64),
    RoundUp(usize, GpuId, u64),
    Scatter(usize, GpuId, u64),
    FailMove(usize, GpuId, u64),
    Weigh(usize, GpuId),
    SeeFree(GpuId, u64),
    Freeze(usize, bool),
    /// The session is frozen after it was idle for so many milliseconds.
    FreezeAfter(usize, Option<u64>),
    /// The first card is in persistence mode, or is not.
    Persist(bool),
    Examine(usize, bool),
    Call(usize),
    EndFrosts(usize, FreezeEnd, ThawEnd),
    FindFrozen(usize),
    FrozenBefore(usize),
    /// The daemon restarts, and perhaps does not know the youngest process. Processes whose bits are set return soon.
    Restart(bool, u8),
    Rejoin(usize),
    Vanish(usize),
    Forge(Forgery),
}

impl Step {
    /// Whether the machine is told something that no process meant.
    fn is_a_lie(&self) -> bool {
        matches!(self, Self::Forge(_) | Self::Repeat(_))
    }
}

pub(super) fn gpu() -> impl Strategy<Value = GpuId> {
    prop_oneof![5 => Just(GPU), 2 => Just(OTHER_GPU)]
}

fn knob() -> impl Strategy<Value = Knob> {
    prop_oneof![
        prop::option::of(0_u64..5_000).prop_map(|quantum| Knob::Quantum(quantum.map(ms))),
        prop::option::of(prop::sample::select(&Mode::ALL)).prop_map(Knob::Mode),
        prop::option::of(0_u64..20).prop_map(|capacity| Knob::Capacity(capacity.map(gib))),
        (0_u64..40).prop_map(|limit| Knob::ManagedLimit(gib(limit))),
        (0_u32..=10_000).prop_map(|epsilon| Knob::Epsilon(Percent(epsilon))),
        (0_u64..5_000).prop_map(|target| Knob::WindowTarget(ms(target))),
        (0_u64..4).prop_map(|reserve| Knob::ContextReserve(gib(reserve))),
    ]
}

pub(super) fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![2 => Just(Standing::Good), 1 => Just(Standing::Paused), 1 => Just(Standing::Over)]
}

pub(super) fn priority() -> impl Strategy<Value = Priority> {
    prop_oneof![1 => Just(Priority::Low), 2 => Just(Priority::Normal), 1 => Just(Priority::High)]
}

/// A session of the first `sessions` that comes to belong to one of three users.
pub(super) fn own(sessions: usize) -> impl Strategy<Value = Step> {
    let weight = prop_oneof![2 => Just(100), 1 => 1_u32..10_001];
    (0..sessions, 0_u64..3, weight).prop_map(|(who, user, weight)| Step::Own(who, user, weight))
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0_usize..8;
    prop_oneof![
        2 => (prop::option::of(1_u64..12), any::<bool>())
            .prop_map(|(limit, oversubscribe)| Step::OpenSession { limit, oversubscribe }),
        1 => (0_usize..4).prop_map(Step::CloseSession),
        1 => (0_usize..4, gpu(), prop::option::of(0_u64..12)).prop_map(|(who, gpu, limit)| Step::Quota(who, gpu, limit)),
        2 => (0_usize..4, standing()).prop_map(|(who, standing)| Step::Stand(who, standing)),
        2 => (0_usize..4, prop_oneof![Just(100), 0_u32..20_000], priority())
            .prop_map(|(who, weight, priority)| Step::Share(who, weight, priority)),
        3 => own(4),
        1 => (0_u64..3, priority(), gpu(), -1_000_000_000..1_000_000_000_000_i64)
            .prop_map(|(user, class, gpu, lead)| Step::UserLead(user, class, gpu, lead)),
        2 => (0_usize..4, gpu(), prop::option::of(0_u32..12_000))
            .prop_map(|(who, gpu, limit)| Step::Compute(who, gpu, limit)),
        4 => (0_usize..4).prop_map(Step::Join),
        6 => (who(), gpu()).prop_map(|(who, gpu)| Step::Attach(who, gpu)),
        8 => (who(), gpu(), 0_u64..8).prop_map(|(who, gpu, gibs)| Step::Allocate(who, gpu, gibs)),
        3 => (who(), gpu(), 0_u64..8).prop_map(|(who, gpu, gibs)| Step::Free(who, gpu, gibs)),
        4 => (who(), gpu(), 0_u64..4).prop_map(|(who, gpu, gibs)| Step::AllocateFixed(who, gpu, gibs)),
        2 => (who(), gpu(), 0_u64..4).prop_map(|(who, gpu, gibs)| Step::FreeFixed(who, gpu, gibs)),
        1 => (who(), gpu(), prop::option::of(0_u64..4)).prop_map(|(who, gpu, gibs)| Step::Measure(who, gpu, gibs)),
        1 => (who(), gpu()).prop_map(|(who, gpu)| Step::AskRoom(who, gpu)),
        2 => (who(), gpu()).prop_map(|(who, gpu)| Step::Look(who, gpu)),
        1 => (who(), gpu()).prop_map(|(who, gpu)| Step::Trim(who, gpu)),
        6 => who().prop_map(Step::Busy),
        3 => who().prop_map(Step::Arrive),
        4 => who().prop_map(Step::GoIdle),
        2 => who().prop_map(Step::Die),
        1 => who().prop_map(Step::End),
        1 => (who(), gpu(), 0_u64..8).prop_map(|(who, gpu, gibs)| Step::Left(who, gpu, gibs)),
        1 => who().prop_map(Step::Bury),
        2 => who().prop_map(Step::ComeBack),
        3 => (who(), 0_u64..3000, any::<bool>()).prop_map(|(who, drain, answers)| Step::Change(who, drain, answers)),
        6 => (0_u64..300).prop_map(Step::Run),
        1 => (0_u64..6000).prop_map(Step::Run),
        1 => prop_oneof![0_u64..100_000, Just(u64::MAX >> 24)].prop_map(Step::Jump),
        2 => Just(Step::LoseAnswer),
        2 => (0_usize..30).prop_map(Step::Repeat),
        2 => (0_u64..3, any::<bool>(), 0_u64..8).prop_map(|(who, holding, gibs)| Step::Return(who, holding, gibs)),
        1 => (0_u64..3).prop_map(Step::ExpectedGone),
        2 => (0_u64..3, gpu(), 0_u64..12).prop_map(|(who, gpu, gibs)| Step::ExpectedUses(who, gpu, gibs)),
        2 => (prop::option::of(0_usize..4), gpu(), prop_oneof![-1_000_000_000..1_000_000_000_000_i64, any::<i64>()])
            .prop_map(|(who, gpu, lead_ns)| Step::Lead(who, gpu, lead_ns)),
        2 => (prop::option::of(gpu()), knob()).prop_map(|(gpu, knob)| Step::Set(gpu, knob)),
        4 => (0_usize..4).prop_map(Step::Remap),
        1 => (0_u64..40).prop_map(Step::Budget),
        1 => (who(), gpu(), 0_u64..4).prop_map(|(who, gpu, gibs)| Step::Pin(who, gpu, gibs)),
        1 => (who(), gpu(), 0_u64..4).prop_map(|(who, gpu, gibs)| Step::Prepare(who, gpu, gibs)),
        1 => (who(), gpu(), 0_u64..3).prop_map(|(who, gpu, gibs)| Step::RoundUp(who, gpu, gibs)),
        1 => (who(), gpu(), 0_u64..8).prop_map(|(who, gpu, gibs)| Step::Scatter(who, gpu, gibs)),
        1 => (who(), gpu(), 0_u64..3).prop_map(|(who, gpu, grains)| Step::FailMove(who, gpu, grains)),
        1 => (who(), gpu()).prop_map(|(who, gpu)| Step::Weigh(who, gpu)),
        1 => (gpu(), 0_u64..12).prop_map(|(gpu, gibs)| Step::SeeFree(gpu, gibs)),
        4 => (0_usize..4, prop::bool::weighted(0.8)).prop_map(|(who, wanted)| Step::Freeze(who, wanted)),
        2 => (0_usize..4, prop::option::weighted(0.8, 1_u64..2000))
            .prop_map(|(who, after)| Step::FreezeAfter(who, after)),
        1 => prop::bool::weighted(0.8).prop_map(Step::Persist),
        4 => (who(), prop::bool::weighted(0.9)).prop_map(|(who, can)| Step::Examine(who, can)),
        2 => who().prop_map(Step::Call),
        1 => (who(), freeze_end(), thaw_end()).prop_map(|(who, freeze, thaw)| Step::EndFrosts(who, freeze, thaw)),
        1 => who().prop_map(Step::FindFrozen),
        1 => who().prop_map(Step::FrozenBefore),
        2 => (prop::bool::weighted(0.2), any::<u8>()).prop_map(|(lacks, soon)| Step::Restart(lacks, soon)),
        4 => who().prop_map(Step::Rejoin),
        1 => who().prop_map(Step::Vanish),
        4 => forgery().prop_map(Step::Forge),
    ]
}

fn freeze_end() -> impl Strategy<Value = FreezeEnd> {
    prop_oneof![
        4 => Just(FreezeEnd::Frozen),
        2 => Just(FreezeEnd::Refused),
        2 => Just(FreezeEnd::BrokeOff),
        2 => Just(FreezeEnd::Busy),
        1 => gpu().prop_map(|gpu| FreezeEnd::TrialFailed { gpu }),
    ]
}

fn thaw_end() -> impl Strategy<Value = ThawEnd> {
    prop_oneof![2 => Just(ThawEnd::Thawed), 1 => Just(ThawEnd::BrokeOff), 1 => Just(ThawEnd::NoRoom), 1 => Just(ThawEnd::Lost)]
}

fn config() -> impl Strategy<Value = Config> {
    let policy = prop_oneof![Just(StuckPolicy::Wait), Just(StuckPolicy::RunOthers), Just(StuckPolicy::Kill)];
    (policy, 0_u64..=1, 0_u64..=2, any::<bool>()).prop_map(|(stuck_policy, reserve, chunks, short)| Config {
        stuck_policy,
        context_reserve: gib(reserve),
        lease_chunk: Bytes::mib(64 * chunks),
        quantum: short.then(|| ms(100)),
        ..Config::default()
    })
}

/// Clients of the last daemon have these numbers.
pub(super) const RETURNING: u64 = 10_000;

pub(super) fn play(world: &mut World, step: Step) {
    world.honest &= !step.is_a_lie();
    if let Some(event) = session_event(world, &step) {
        return world.send(event);
    }
    match step {
        Step::OpenSession { limit, oversubscribe } => {
            world.session_with(limit.map(gib), oversubscribe);
        }
        Step::Join(which) => {
            if let Some(session) = nth(world.sessions(), which) {
                world.join(session);
            }
        }
        Step::Remap(which) => {
            if let Some(session) = nth(world.sessions(), which) {
                world.join_remapping(session);
            }
        }
        Step::Budget(gibs) => world.send(Event::HostBudget { bytes: gib(gibs) }),
        Step::SeeFree(gpu, gibs) => world.send(Event::CardFree { gpu, bytes: gib(gibs) }),
        Step::Jump(millis) => {
            world.now += ms(millis);
            world.send(Event::Tick);
        }
        Step::Run(millis) => world.run_for(ms(millis)),
        Step::LoseAnswer => world.lose_an_answer(),
        Step::Repeat(back) => {
            // The shell reports a return once.
            let repeats = |event| !matches!(event, Event::ClientReturned { .. } | Event::StillUses { .. });
            if let Some(&(_, event)) = world.history.iter().rev().nth(back)
                && repeats(event)
            {
                world.send(event);
            }
        }
        Step::Restart(lacks_youngest, soon) => {
            world.restart(lacks_youngest);
            for (client, bit) in world.away().into_iter().zip((0..8).cycle()) {
                if soon & (1 << bit) != 0 {
                    world.run_for(ms(1));
                    world.rejoins(client);
                }
            }
        }
        Step::Rejoin(which) => {
            if let Some(client) = nth(world.away(), which) {
                world.rejoins(client);
            }
        }
        Step::Vanish(which) => {
            if let Some(client) = nth(world.away(), which) {
                world.vanishes(client);
            }
        }
        Step::Return(who, ..) if world.is_away(ClientId(RETURNING + who)) => {
            world.rejoins(ClientId(RETURNING + who));
        }
        Step::Return(who, holding, gibs) => {
            let (client, session) = (ClientId(RETURNING + who), SessionId(RETURNING));
            world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
            world.join_as(client);
            let holding = holding.then_some(Epoch::default());
            world.send(Event::ClientJoined { client, session, holding });
            world.send(Event::Attached { client, gpu: GPU, used: gib(gibs) });
        }
        Step::Lead(_, gpu, lead_ns) => {
            let session = SessionId(RETURNING);
            world.send(Event::SessionOpened { session, limit: None, oversubscribe: false });
            world.send(Event::Lead { session, gpu, lead_ns });
        }
        Step::ExpectedUses(who, ..) | Step::ExpectedGone(who) if world.is_away(ClientId(RETURNING + who)) => {
        }
        Step::ExpectedUses(who, gpu, gibs) => {
            world.send(Event::ExpectedUses { client: ClientId(RETURNING + who), gpu, bytes: gib(gibs) });
        }
        Step::ExpectedGone(who) => world.send(Event::ExpectedGone { client: ClientId(RETURNING + who) }),
        Step::Set(gpu, knob) => world.send(Event::Set(Setting { gpu, knob })),
        Step::Forge(forgery) => forge(world, &forgery),
        Step::Left(who, gpu, gibs) => {
            if let Some(client) = nth(world.core.view.orphans.keys().copied().collect(), who) {
                world.send(Event::Attached { client, gpu, used: gib(gibs) });
            }
        }
        Step::Bury(who) => {
            if let Some(client) = nth(world.core.view.orphans.keys().copied().collect(), who) {
                world.dies(client);
            }
        }
        _ => act(world, &step),
    }
}

/// Event of a step that is about a session.
fn session_event(world: &World, step: &Step) -> Option<Event> {
    let nth = |which| nth(world.sessions(), which);
    Some(match *step {
        Step::CloseSession(which) => Event::SessionClosed { session: nth(which)? },
        Step::Quota(which, gpu, limit) => Event::Quota { session: nth(which)?, gpu, limit: limit.map(gib) },
        Step::Stand(which, standing) => Event::Standing { session: nth(which)?, standing },
        Step::Own(which, user, weight) => Event::Owner { session: nth(which)?, user: UserId(user), weight },
        Step::UserLead(user, priority, gpu, lead_ns) => {
            Event::UserLead { user: UserId(user), priority, gpu, lead_ns }
        }
        Step::Freeze(which, wanted) => Event::Freeze { session: nth(which)?, wanted },
        Step::FreezeAfter(which, after) => Event::FreezeAfter { session: nth(which)?, idle: after.map(ms) },
        Step::Persist(is_on) => Event::Persistence { gpu: GPU, is_on },
        Step::Share(which, weight, priority) => Event::Share { session: nth(which)?, weight, priority },
        Step::Lead(Some(which), gpu, lead_ns) => Event::Lead { session: nth(which)?, gpu, lead_ns },
        Step::Compute(which, gpu, limit) => {
            Event::Compute { session: nth(which)?, gpu, limit: limit.map(Percent) }
        }
        _ => return None,
    })
}

/// Lets a process do something that processes do.
fn act(world: &mut World, step: &Step) {
    let (Step::Attach(who, _)
    | Step::Allocate(who, ..)
    | Step::Free(who, ..)
    | Step::AllocateFixed(who, ..)
    | Step::FreeFixed(who, ..)
    | Step::Measure(who, ..)
    | Step::AskRoom(who, _)
    | Step::Look(who, _)
    | Step::Trim(who, _)
    | Step::Busy(who)
    | Step::Arrive(who)
    | Step::GoIdle(who)
    | Step::Die(who)
    | Step::End(who)
    | Step::ComeBack(who)
    | Step::Pin(who, ..)
    | Step::Prepare(who, ..)
    | Step::RoundUp(who, ..)
    | Step::Scatter(who, ..)
    | Step::FailMove(who, ..)
    | Step::Weigh(who, _)
    | Step::Examine(who, _)
    | Step::Call(who)
    | Step::EndFrosts(who, ..)
    | Step::FindFrozen(who)
    | Step::FrozenBefore(who)
    | Step::Change(who, ..)) = step
    else {
        return;
    };
    let Some(client) = nth(world.clients(), *who) else {
        return;
    };
    match *step {
        Step::Attach(_, gpu) => world.attach(client, gpu),
        Step::Allocate(_, gpu, gibs) => _ = world.allocate(client, gpu, gib(gibs)),
        Step::Free(_, gpu, gibs) => {
            let movable = world.used(client, gpu) - world.fixed(client, gpu);
            world.free(client, gpu, gib(gibs).min(movable));
        }
        Step::AllocateFixed(_, gpu, gibs) => _ = world.allocate_fixed(client, gpu, gib(gibs)),
        Step::FreeFixed(_, gpu, gibs) => {
            let bytes = gib(gibs).min(world.fixed(client, gpu));
            world.free_fixed(client, gpu, bytes);
        }
        Step::Measure(_, gpu, gibs) => {
            world.send(Event::Overhead { client, gpu, bytes: gibs.map(gib) });
        }
        Step::AskRoom(_, gpu) => {
            world.send(Event::Room { client, gpu, request: RequestId(0), bytes: gib(1) });
        }
        Step::Look(_, gpu) => world.look(client, gpu),
        Step::Trim(_, gpu) => {
            world.look(client, gpu);
            world.send(Event::Trim { client, gpu });
        }
        Step::Examine(_, can) => {
            let obstacle = (!can).then_some(Obstacle::Managed);
            world.send(Event::Freezable { client, obstacle });
        }
        Step::Call(_) => world.send(Event::Called { client }),
        Step::EndFrosts(_, freeze, thaw) => world.habits(client).ends = (freeze, thaw),
        Step::FindFrozen(_) => world.send(Event::FoundFrozen { client }),
        Step::FrozenBefore(_) => world.send(Event::FrozenBefore { client }),
        Step::Busy(_) => world.gets_busy(client),
        Step::Arrive(_) => world.arrives(client),
        Step::GoIdle(_) if world.passes(client) => world.goes_idle(client),
        Step::GoIdle(_) => world.habits(client).busy = false,
        Step::Die(_) => world.dies(client),
        Step::End(_) => world.ends(client),
        Step::ComeBack(_) => world.comes_back(client),
        Step::Pin(_, gpu, gibs) => world.pins(client, gpu, gib(gibs)),
        Step::Prepare(_, gpu, gibs) => world.prepares(client, gpu, gib(gibs)),
        Step::RoundUp(_, gpu, gibs) => world.rounds_up(client, gpu, gib(gibs)),
        Step::Scatter(_, gpu, gibs) => world.scatters(client, gpu, gib(gibs)),
        Step::FailMove(_, gpu, grains) => {
            if let Some((number, _)) = world.goal(client, gpu) {
                let refused = Bytes::mib(16 * grains);
                world.send(Event::MoveFailed { client, gpu, number, refused });
            }
        }
        Step::Weigh(_, gpu) => world.weighs(client, gpu),
        Step::Change(_, drain, answers) => {
            let habits = world.habits(client);
            (habits.drain, habits.answers) = (ms(drain), answers);
        }
        _ => {}
    }
}

fn nth<T>(all: Vec<T>, which: usize) -> Option<T> {
    let n = all.len().max(1);
    all.into_iter().nth(which % n)
}

/// Asserts that the log of each daemon, given to a new machine, leads to the same effects.
fn assert_replays(world: &World) {
    for Generation { start: mut core, history, effects } in world.generations() {
        let mut again = Vec::new();
        for (now, event) in history {
            core.handle(now, event);
            again.extend(std::iter::from_fn(|| core.poll_effect()));
        }
        assert_eq!(effects, again);
    }
}

proptest! {
    #![proptest_config(drawn::cases(drawn::SCHEDULES))]

    #[test]
    fn whatever_happens_the_invariants_hold(
        config in config(),
        lies in any::<bool>(),
        awaited in prop_oneof![3 => Just(0_u64), 1 => 0_u64..3],
        population in prop::collection::vec((0_u64..14, any::<bool>(), any::<bool>(), any::<bool>()), 0..5),
        host in prop::option::of(0_u64..40),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World::after_restart(config, RETURNING..RETURNING + awaited);
        world.second_card();
        if let Some(gibs) = host {
            world.send(Event::HostBudget { bytes: gib(gibs) });
        }
        for (gibs, busy, remaps, oversubscribe) in population {
            let (_, client) = match remaps {
                true => world.remapping_program_with(gib(gibs), oversubscribe),
                false => world.program(gib(gibs)),
            };
            world.habits(client).busy = busy;
            world.arrives(client);
        }
        for step in steps.into_iter().filter(|step| lies || !step.is_a_lie()) {
            play(&mut world, step);
        }
        assert_replays(&world);

        world.away().into_iter().for_each(|client| world.vanishes(client));
        let mut had_any = world.core.view.sessions.clients().map(|(client, _)| client).collect::<Vec<_>>();
        had_any.extend(world.core.view.orphans.keys());
        for client in had_any {
            world.dies(client);
        }
        let end = world.core.snapshot(world.now);
        for gpu in end.gpus {
            prop_assert_eq!((gpu.allocated_bytes, gpu.holders, gpu.queue), (Bytes::ZERO, vec![], vec![]));
        }
        world.run_for(ms(300));
        let remapped = world.core.snapshot(world.now).gpus.into_iter().filter_map(|gpu| gpu.remapped);
        prop_assert_eq!(remapped.count(), 0, "the memory of dead processes is free again");
    }
}

#[test]
fn a_session_that_comes_back_gets_no_turn_in_the_old_mode_of_its_card() {
    let config = Config { context_reserve: Bytes::ZERO, lease_chunk: Bytes::ZERO, ..Config::default() };
    let mut world = World::after_restart(config, Vec::new());
    world.second_card();
    let (_, client) = world.remapping_program_with(gib(0), false);
    world.arrives(client);
    let steps = [
        Step::Examine(0, true),
        Step::Freeze(0, true),
        Step::Compute(0, GPU, Some(0)),
        Step::LoseAnswer,
        Step::Run(179),
        // Another one runs beside it. The first one, which is being frozen, gets more than fits beside that.
        Step::Return(0, false, 3),
        Step::Allocate(6, GPU, 7),
        Step::Arrive(0),
        Step::Run(127),
    ];
    // The world checks that the sessions with work in flight fit the card at each turn.
    steps.into_iter().for_each(|step| play(&mut world, step));
    assert!(world.take().contains(&Effect::Thaw { client }));
}
