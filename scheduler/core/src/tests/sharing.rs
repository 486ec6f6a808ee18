//! Weights, classes, early switches and compute limits, as the sessions that have them see them.

use gpushare_proto::admin::{Knob, Mode, Setting};
use gpushare_proto::session::Priority;
use gpushare_proto::{ClientId, Nanos, Percent, SessionId};

use super::world::{GPU, OTHER_GPU, World, gib, ms, plain};
use crate::config::{StuckPolicy, Tuning};
use crate::{Config, Event, Notice, Standing};

const MINUTE: Nanos = Nanos::from_secs(60);

fn limited(world: &mut World, percent: u32) -> (SessionId, ClientId) {
    let (session, client) = world.busy_program(gib(1));
    limit(world, session, Some(percent));
    (session, client)
}

fn limit(world: &mut World, session: SessionId, percent: Option<u32>) {
    world.send(Event::Compute { session, gpu: GPU, limit: percent.map(|percent| Percent(percent * 100)) });
}

fn share(world: &mut World, session: SessionId, weight: u32, priority: Priority) {
    world.send(Event::Share { session, weight, priority });
}

/// Shares of ten seconds that sessions hold, in hundredths of a percent.
fn rates<const N: usize>(world: &mut World, sessions: [SessionId; N]) -> [u64; N] {
    let before = sessions.map(|session| world.view(session).gpu_time_ns);
    world.run_for(Nanos::from_secs(10));
    let after = sessions.map(|session| world.view(session).gpu_time_ns);
    std::array::from_fn(|i| (after[i] - before[i]).0 / 1_000_000)
}

fn assert_near(rates: &[u64], promised: &[u64]) {
    for (rate, promised) in rates.iter().zip(promised) {
        assert!(rate.abs_diff(promised * 100) <= 200, "{rates:?} are not {promised} percent");
    }
}

#[test]
fn a_limited_session_alone_holds_the_lock_for_its_share_of_the_time() {
    for percent in [25, 50, 75] {
        let mut world = World::new(plain());
        let (session, _) = limited(&mut world, percent);
        world.run_for(Nanos::from_secs(1));
        assert_near(&rates(&mut world, [session]), &[percent.into()]);
        assert_eq!(world.card().mode, Mode::Parallel);
    }
}

#[test]
fn limits_below_the_whole_card_stand_side_by_side_and_not_on_top_of_each_other() {
    let mut world = World::new(plain());
    let (a, first) = limited(&mut world, 30);
    let (b, second) = limited(&mut world, 60);
    world.run_for(Nanos::from_secs(1));
    assert_near(&rates(&mut world, [a, b]), &[30, 60]);
    assert_eq!(world.card().mode, Mode::Parallel);
    for _ in 0..2000 {
        world.run_for(ms(1));
        assert!(!(world.passes(first) && world.passes(second)), "both are open");
    }
}

#[test]
fn limits_of_the_whole_card_together_are_sliced() {
    let mut world = World::new(plain());
    let (a, _) = limited(&mut world, 25);
    let (b, _) = limited(&mut world, 75);
    world.run_for(Nanos::from_secs(1));
    assert_eq!(world.card().mode, Mode::TimeSliced);
    assert_eq!(world.card().reason, "the compute limits add up to the whole card");
    assert_near(&rates(&mut world, [a, b]), &[25, 75]);
}

/// How long each gate was open in ten seconds, in hundredths of a percent, and how long any was.
fn open_times<const N: usize>(world: &mut World, clients: [ClientId; N]) -> ([u64; N], u64) {
    let (mut each, mut any) = ([0; N], 0);
    for _ in 0..10_000 {
        world.run_for(ms(1));
        let open = clients.map(|client| world.passes(client));
        (0..N).for_each(|i| each[i] += u64::from(open[i]));
        any += u64::from(open.contains(&true));
    }
    (each, any)
}

#[test]
fn two_processes_of_a_limited_session_share_one_bucket_and_run_at_once() {
    let mut world = World::new(plain());
    let (session, first) = limited(&mut world, 25);
    let second = world.join(session);
    world.attach(second, GPU);
    world.gets_busy(second);
    world.run_for(Nanos::from_secs(1));
    let before = world.view(session).gpu_time_ns;
    let (each, any) = open_times(&mut world, [first, second]);
    let rate = (world.view(session).gpu_time_ns - before).0 / 1_000_000;
    // Drains count as held and are no open gate.
    assert!(rate.abs_diff(2500) <= 200, "{rate}");
    assert!(any.abs_diff(2500) <= 400, "the gates of both together, not one after the other: {any}");
    assert_eq!(each[0].abs_diff(each[1]), 0, "{each:?}");
}

#[test]
fn beside_an_idle_process_the_other_gets_all_of_the_limit() {
    let mut world = World::new(plain());
    let (session, first) = limited(&mut world, 25);
    let second = world.join(session);
    world.attach(second, GPU);
    world.run_for(Nanos::from_secs(1));
    world.goes_idle(second);
    let (each, _) = open_times(&mut world, [first, second]);
    assert!(each[0].abs_diff(2500) <= 400, "{each:?}");
    assert_near(&rates(&mut world, [session]), &[25]);
}

#[test]
fn sessions_beside_a_limited_one_do_not_notice() {
    let mut world = World::new(plain());
    let (_, _) = limited(&mut world, 25);
    let (_, free) = world.busy_program(gib(1));
    let word = world.gate(free);
    world.run_for(MINUTE);
    assert!(world.passes(free));
    assert_eq!(world.gate(free), word, "its gate never moved");
}

#[test]
fn a_limit_holds_in_serialized_mode_too() {
    let mut world = World::new(plain());
    let (a, _) = world.busy_program(gib(6));
    let (b, _) = world.busy_program(gib(6));
    limit(&mut world, a, Some(20));
    world.run_for(Nanos::from_secs(60));
    let tens = [(); 20].map(|()| rates(&mut world, [a, b]));
    let held = [0, 1].map(|which| tens.iter().map(|ten| ten[which]).sum::<u64>() / 20);
    assert_near(&held[..1], &[20]);
    assert!(held[1] > 7000, "the other has the rest: {held:?}");
}

#[test]
fn to_wait_for_a_long_turn_of_somebody_else_costs_nothing_of_a_limit() {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..plain() });
    let (slow, _) = limited(&mut world, 20);
    let (other, _) = world.busy_program(gib(1));
    share(&mut world, other, 200, Priority::Normal);
    world.run_for(MINUTE);
    let before = world.view(slow).gpu_time_ns;
    world.run_for(MINUTE);
    let held = (world.view(slow).gpu_time_ns - before).0 * 100 / MINUTE.0;
    assert!((19..=21).contains(&held), "20% became {held}%");
}

#[test]
fn a_limit_that_is_lifted_is_felt_at_once() {
    let mut world = World::new(plain());
    let (session, client) = limited(&mut world, 25);
    world.run_for(Nanos::from_secs(5));
    limit(&mut world, session, None);
    assert!(world.passes(client));
    world.run_for(MINUTE);
    assert!(world.passes(client));
}

#[test]
fn who_waits_for_its_own_limit_says_so() {
    let mut world = World::new(plain());
    let (session, client) = limited(&mut world, 25);
    while world.passes(client) {
        world.run_for(ms(1));
    }
    world.run_for(ms(10));
    let reason = world.view(session).waits_for.unwrap().to_string();
    assert_eq!(reason, "its compute limit of 25% is used up for now");
}

#[test]
fn an_idle_limited_session_saves_up_little() {
    let mut world = World::new(plain());
    let (session, client) = world.program(gib(1));
    limit(&mut world, session, Some(40));
    world.run_for(ms(30));
    world.goes_idle(client);
    world.run_for(MINUTE);
    let before = world.view(session).gpu_time_ns;
    world.gets_busy(client);
    world.run_for(Nanos::from_secs(1));
    let held = world.view(session).gpu_time_ns - before;
    assert!(held <= ms(520), "40% of a second and a quarter of that: {held}");
}

#[test]
fn sessions_of_one_weight_that_fit_run_side_by_side() {
    let mut world = World::new(plain());
    let (_, a) = world.busy_program(gib(1));
    let (b, second) = world.busy_program(gib(1));
    world.run_for(ms(50));
    assert_eq!(world.open(&[a, second]), [true, true]);
    share(&mut world, b, 200, Priority::Normal);
    world.run_for(ms(5));
    assert_eq!(world.card().mode, Mode::TimeSliced);
    assert_eq!(world.open(&[a, second]).into_iter().filter(|open| *open).count(), 1, "one at a time");
    share(&mut world, b, 100, Priority::Normal);
    world.run_for(Nanos::from_secs(3));
    assert_eq!(world.open(&[a, second]), [true, true], "equal again, for two seconds");
}

#[test]
fn no_memory_moves_where_everything_fits() {
    let mut world = World::new(plain());
    let (_, _) = world.busy_program(gib(1));
    let (b, _) = world.busy_program(gib(1));
    share(&mut world, b, 200, Priority::Normal);
    world.run_for(Nanos::from_secs(5));
    assert!(world.card().handoffs > 10);
    assert_eq!(world.card().moved_bytes, gib(0));
}

#[test]
fn a_class_gets_its_trickle_beside_the_class_above() {
    for (above, below) in [(Priority::High, Priority::Normal), (Priority::Normal, Priority::Low)] {
        let mut world = World::new(plain());
        let (first, _) = world.busy_program(gib(1));
        let (second, _) = world.busy_program(gib(1));
        share(&mut world, first, 100, above);
        share(&mut world, second, 100, below);
        world.run_for(Nanos::from_secs(5));
        let [first, second] = rates(&mut world, [first, second]);
        assert!((9000..=9800).contains(&first), "{first}");
        assert!((300..=800).contains(&second), "a twentieth, and its drains: {second}");
    }
}

#[test]
fn another_trickle_is_in_force_at_once() {
    let mut world = World::new(plain());
    let (high, _) = world.busy_program(gib(1));
    let (normal, _) = world.busy_program(gib(1));
    share(&mut world, high, 100, Priority::High);
    world.send(Event::Tune(Tuning::Trickle(Percent(2500))));
    world.run_for(Nanos::from_secs(5));
    let [high, normal] = rates(&mut world, [high, normal]);
    assert!((7000..=7800).contains(&high) && (2200..=2900).contains(&normal), "3 : 1 are {high}, {normal}");
}

#[test]
fn a_session_of_a_higher_class_that_wakes_goes_before_all_others() {
    let mut world = with_budget();
    let _ = [(); 3].map(|()| world.busy_program(gib(6)));
    let (burst, b) = world.program(gib(6));
    share(&mut world, burst, 100, Priority::High);
    for _ in 0..5 {
        world.run_for(Nanos::from_secs(20));
        world.arrives(b);
        world.run_for(ms(30));
        assert!(world.passes(b), "2 ms to drain and 20 ms to move");
        world.goes_idle(b);
    }
}

fn with_budget() -> World {
    World::new(Config { budget_max: Nanos::from_secs(2), ..plain() })
}

#[test]
fn a_rare_burst_is_served_as_soon_as_the_holder_has_drained() {
    let mut world = with_budget();
    let (_, _) = world.busy_program(gib(6));
    let (burst, b) = world.program(gib(6));
    for _ in 0..5 {
        world.run_for(Nanos::from_secs(20));
        world.arrives(b);
        world.take();
        world.run_for(ms(30));
        let waited: Vec<Nanos> = world
            .notices()
            .into_iter()
            .filter_map(|notice| match notice {
                Notice::Entered { session, waited, .. } if session == burst => Some(waited),
                _ => None,
            })
            .collect();
        assert_eq!(waited, [ms(22)], "2 ms to drain and 20 ms to move");
        world.goes_idle(b);
    }
}

#[test]
fn a_fixed_quantum_is_not_cut_short() {
    let mut world = with_budget();
    world.set(Knob::Quantum(Some(Nanos::from_secs(5))));
    let (_, a) = world.busy_program(gib(6));
    let (_, b) = world.program(gib(6));
    world.run_for(Nanos::from_secs(1));
    world.arrives(b);
    world.run_for(Nanos::from_secs(3));
    assert!(world.passes(a));
}

#[test]
fn bursts_that_never_end_slow_down_instead_of_starving_the_holder() {
    let mut world = with_budget();
    let (hog, _) = world.busy_program(gib(6));
    let (burst, b) = world.program(gib(6));
    let before = world.view(hog).held_ns;
    for _ in 0..2000 {
        world.arrives(b);
        world.run_for(ms(30));
        if world.passes(b) {
            world.goes_idle(b);
        }
    }
    let held = world.view(hog).held_ns - before;
    assert!(held >= Nanos::from_secs(45), "of a minute: {held}");
    assert!(world.view(burst).held_ns >= Nanos::from_secs(2));
}

#[test]
fn a_program_that_was_made_to_let_go_does_not_come_back_early() {
    let mut world = with_budget();
    let (_, _) = world.busy_program(gib(6));
    let (_, _) = world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(10));
    world.take();
    let before = world.card().handoffs;
    world.run_for(Nanos::from_secs(30));
    let turns = world.card().handoffs - before;
    let quantum = world.card().quantum_ns;
    let most = Nanos::from_secs(30).0 / quantum.0 + 2;
    assert!(turns <= most, "{turns} turns of {quantum}");
}

/// How long a process's gate is open of so much time.
fn open_for(world: &mut World, client: ClientId, span: Nanos) -> Nanos {
    let mut open = Nanos::ZERO;
    let end = world.now + span;
    while world.now < end {
        world.run_for(ms(1));
        if world.passes(client) {
            open += ms(1);
        }
    }
    open
}

#[test]
fn a_limited_session_whose_memory_moves_for_long_runs_all_the_same() {
    let mut world = World::new(plain());
    let (limited, a) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.habits(a).moves = ms(100);
    world.habits(b).moves = ms(100);
    limit(&mut world, limited, Some(10));
    world.run_for(Nanos::from_secs(60));
    let open = open_for(&mut world, a, Nanos::from_secs(100));
    assert!((ms(8000)..=ms(12_000)).contains(&open), "10% of 100 s: {open}");
}

/// Two cards, of which the second is always time-sliced.
fn with_a_sliced_card() -> World {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    world.second_card();
    world.send(Event::Set(Setting { gpu: Some(OTHER_GPU), knob: Knob::Mode(Some(Mode::TimeSliced)) }));
    world
}

#[test]
fn a_gang_that_has_a_card_to_itself_does_not_lag_behind_on_the_other() {
    let mut world = with_a_sliced_card();
    let (_, _) = world.busy_program(gib(6));
    let session = world.session();
    let gang = world.join(session);
    for gpu in [GPU, OTHER_GPU] {
        world.attach(gang, gpu);
        world.allocate(gang, gpu, gib(5));
    }
    world.gets_busy(gang);
    world.run_for(Nanos::from_secs(100));
    let open = open_for(&mut world, gang, Nanos::from_secs(100));
    assert!(open >= Nanos::from_secs(30), "its part is a half, less its moves: {open}");
}

#[test]
fn who_comes_to_a_card_with_the_lock_in_hand_starts_level_there() {
    let mut world = with_a_sliced_card();
    let others = [(), ()].map(|()| {
        let session = world.session();
        let client = world.join(session);
        world.attach(client, OTHER_GPU);
        client
    });
    world.gets_busy(others[0]);
    world.gets_busy(others[1]);
    world.run_for(Nanos::from_secs(120));
    let (_, late) = world.busy_program(gib(1));
    world.attach(late, OTHER_GPU);
    world.run_for(Nanos::from_secs(2));
    let open = open_for(&mut world, others[0], Nanos::from_secs(30));
    assert!(open >= Nanos::from_secs(8), "a third of the time: {open}");
}

#[test]
fn a_pause_earns_no_turns() {
    let mut world = World::new(Config { quantum: Some(ms(100)), ..plain() });
    let (paused, _) = world.busy_program(gib(6));
    let (_, b) = world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(1));
    let stand = |session, standing| Event::Standing { session, standing };
    world.send(stand(paused, Standing::Paused));
    world.run_for(Nanos::from_secs(300));
    world.send(stand(paused, Standing::Good));
    let open = open_for(&mut world, b, Nanos::from_secs(10));
    assert!(open >= Nanos::from_secs(3), "{open} of ten seconds");
}

#[test]
fn another_class_earns_no_turns() {
    let mut world = World::new(plain());
    let (low, _) = world.busy_program(gib(1));
    let (_, b) = world.busy_program(gib(1));
    share(&mut world, low, 100, Priority::Low);
    world.run_for(Nanos::from_secs(300));
    share(&mut world, low, 101, Priority::Normal);
    let open = open_for(&mut world, b, Nanos::from_secs(10));
    assert!(open >= Nanos::from_secs(4), "{open} of ten seconds");
}

#[test]
fn what_a_session_owes_its_limit_outlives_its_process() {
    let mut world = World::new(plain());
    let (session, mut client) = world.program(gib(1));
    limit(&mut world, session, Some(5));
    let before = world.view(session).gpu_time_ns;
    for _ in 0..100 {
        world.habits(client).drain = Nanos::from_secs(3);
        world.gets_busy(client);
        world.run_for(Nanos::from_secs(1));
        world.dies(client);
        client = world.join(session);
        world.attach(client, GPU);
    }
    let held = world.view(session).gpu_time_ns - before;
    assert!(held <= Nanos::from_secs(9), "5% of 100 s, and one drain: {held}");
}

#[test]
fn one_who_does_not_let_go_is_passed_where_memory_does_not_move() {
    let mut world = World::new(Config { stuck_policy: StuckPolicy::RunOthers, ..plain() });
    let (a, stuck) = world.busy_program(gib(1));
    let (_, b) = world.busy_program(gib(1));
    share(&mut world, a, 200, Priority::Normal);
    world.habits(stuck).answers = false;
    world.run_for(Nanos::from_secs(60));
    let open = open_for(&mut world, b, Nanos::from_secs(10));
    assert!(open >= Nanos::from_secs(9), "{open} of ten seconds");
}

#[test]
fn early_switches_do_not_starve_a_class_below() {
    let mut world = with_budget();
    let (high, h) = world.busy_program(gib(1));
    let (burst, b) = world.program(gib(1));
    let (low, l) = world.busy_program(gib(1));
    share(&mut world, high, 100, Priority::High);
    share(&mut world, burst, 100, Priority::High);
    share(&mut world, low, 100, Priority::Normal);
    world.run_for(Nanos::from_secs(5));
    let mut open = Nanos::ZERO;
    let before = world.view(low).held_ns;
    for _ in 0..60_000 {
        world.run_for(ms(1));
        if world.passes(l) {
            open += ms(1);
            world.arrives(b);
        }
        if world.passes(b) {
            world.goes_idle(b);
        }
    }
    let held = world.view(low).held_ns - before;
    assert!(held >= ms(2800) && open >= ms(1000), "a twentieth of a minute is 3 s: {held}, {open}");
    assert!(world.view(high).held_ns >= Nanos::from_secs(45), "{h} has the rest");
}

#[test]
fn one_endless_drain_does_not_make_everybody_wait_for_long() {
    let mut world = World::new(plain());
    let (_, a) = world.busy_program(gib(6));
    let (_, _) = world.busy_program(gib(6));
    world.habits(a).drain = Nanos::from_secs(600);
    world.run_for(Nanos::from_secs(700));
    assert!(world.card().expected_drain_ns <= ms(200), "{}", world.card().expected_drain_ns);
}
