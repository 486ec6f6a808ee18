//! Remapped memory: who gives, who gets, when, and what lies and failures change.

mod belief;
mod lies;
mod giving_up;
mod overflow;
mod shortage;

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::page::{GoalNumber, LimitKind};
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, ClientId, GateState, GpuId, Nanos, RequestId};

use super::world::{GPU, OTHER_GPU, World, gib, ms, plain, resides};
use crate::{Config, Effect, Event, Lack, WaitsFor};

/// A card of 10 GiB, of which sessions may have 8 together, with so much host memory.
fn world_with(host: Bytes) -> World {
    let mut world = World::new(Config { quantum: Some(ms(500)), ..plain() });
    world.set(Knob::Capacity(Some(gib(8))));
    world.send(Event::HostBudget { bytes: host });
    world
}

fn world() -> World {
    world_with(gib(100))
}

/// Sum of what is resident, as the processes know it.
fn resident(world: &World, clients: &[ClientId]) -> Bytes {
    clients.iter().map(|&client| world.resident(client, GPU)).sum()
}

fn goals(world: &mut World) -> Vec<(ClientId, GpuId, Bytes)> {
    world.pick(|effect| match effect {
        Effect::Goal { client, gpu, bytes, .. } => Some((client, gpu, bytes)),
        _ => None,
    })
}

/// Two programs of 6 GiB each; the first has its turn and all its memory, the second waits.
fn two_programs() -> (World, ClientId, ClientId) {
    let mut world = world();
    let (_, a) = world.busy_remapping_program(gib(6));
    world.run_for(ms(100));
    let (_, b) = world.busy_remapping_program(gib(6));
    world.run_for(ms(50));
    assert_eq!(world.open(&[a, b]), [true, false]);
    assert_eq!(world.resident(a, GPU), gib(6));
    (world, a, b)
}

#[test]
fn programs_without_remap_have_no_remapped_memory() {
    let mut world = world();
    world.busy_program(gib(6));
    world.busy_program(gib(6));
    world.run_for(Nanos::from_secs(5));
    assert_eq!(world.card().remapped, None);
}

#[test]
fn a_process_that_did_not_say_that_it_remaps_is_not_heard() {
    let mut world = world();
    let (_, client) = world.busy_program(gib(6));
    let (seen, all) = (GoalNumber(1), gib(6));
    world.send(resides(client, GPU, seen, [all, all, all]));
    world.send(Event::Measured { client, gpu: GPU, bytes: all });
    world.send(Event::Remaps { client });
    world.run_for(Nanos::from_secs(1));
    assert_eq!(goals(&mut world), []);
    assert_eq!(world.card().capacity_bytes, gib(8));
}

#[test]
fn two_programs_that_do_not_fit_together_take_turns_and_only_the_excess_moves() {
    let (mut world, a, b) = two_programs();
    let mut turns = [0, 0];
    for _ in 0..300 {
        world.run_for(ms(50));
        let open = world.open(&[a, b]);
        assert_ne!(open, [true, true]);
        for (turns, (client, open)) in turns.iter_mut().zip([a, b].into_iter().zip(open)) {
            if open {
                *turns += 1;
                assert_eq!(world.resident(client, GPU), gib(6));
            }
        }
        let both = resident(&world, &[a, b]);
        assert!(both >= gib(6) && both <= gib(8) + Bytes::mib(160), "{both}");
    }
    assert!(turns.iter().all(|&turns| turns > 80), "{turns:?}");
    let most = Bytes(gib(4).0 * world.card().handoffs);
    assert!(world.evicted <= most, "{} left the card in {} handoffs", world.evicted, world.card().handoffs);
}

#[test]
fn nothing_leaves_before_the_holder_let_go() {
    let (mut world, a, b) = two_programs();
    world.habits(a).drain = ms(3000);
    world.habits(a).busy = false;
    world.run_for(ms(2000));
    assert_eq!((world.resident(a, GPU), world.gate(a).state()), (gib(6), GateState::Closed));
    world.run_for(ms(2000));
    assert_eq!(world.open(&[a, b]), [false, true]);
    assert_eq!(world.resident(a, GPU), gib(2) + Bytes::mib(160), "the spare chunks are used");
}

#[test]
fn the_entrant_gets_what_the_leaver_says_is_gone_and_no_more() {
    let (mut world, a, b) = two_programs();
    world.habits(a).answers = false;
    world.habits(b).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    let word = world.gate(b);
    assert_eq!(word.state(), GateState::Moving);
    let spare = Bytes::mib(160);
    assert_eq!(world.goal(a, GPU).unwrap().1, gib(2) + spare);
    let credit = |world: &World| world.goal(b, GPU).map(|(_, bytes)| bytes);
    let before = credit(&world).unwrap();
    assert!(before <= gib(2) + spare, "{before}");
    world.step(a, GPU);
    assert_eq!(credit(&world), Some(gib(3) + spare));
    world.step(a, GPU);
    assert_eq!(credit(&world), Some(gib(4) + spare));
    let sums = world.card().remapped.unwrap();
    let placed = world.resident(a, GPU) + world.resident(b, GPU);
    assert_eq!((sums.resident_bytes, sums.hosted_bytes), (placed, gib(2)), "the rest has no memory so far");
    assert_eq!(sums.moving_bytes, gib(2) - spare + gib(4) + spare, "two to leave, what has left to come in");
}

#[test]
fn an_idle_session_gives_way_while_the_others_stay_parallel() {
    let mut world = world();
    let (session, idle) = world.remapping_program(gib(4));
    world.run_for(ms(100));
    assert_eq!(world.resident(idle, GPU), gib(4));
    let working = [(); 2].map(|()| world.busy_remapping_program(gib(3)).1);
    world.run_for(ms(100));
    world.goes_idle(idle);
    world.run_for(Nanos::from_secs(4));
    assert_eq!(world.card().mode, Mode::Parallel, "{}", world.card().reason);
    assert_eq!(world.open(&working), [true, true]);
    assert_eq!(world.gate(idle).state(), GateState::Closed);
    assert_eq!(resident(&world, &working), gib(6));
    assert_eq!(world.resident(idle, GPU), gib(2) + Bytes::mib(160));

    world.take();
    world.gets_busy(idle);
    assert_eq!(world.card().mode, Mode::Serialized);
    world.run_for(Nanos::from_secs(2));
    assert!(world.turns().contains(&session));
}

#[test]
fn idle_remapped_memory_leaves_for_a_session_with_managed_memory() {
    let mut world = world();
    let (_, idle) = world.busy_remapping_program(gib(6));
    world.run_for(ms(100));
    assert_eq!(world.resident(idle, GPU), gib(6));
    let (_, managed) = world.busy_program(gib(5));
    world.goes_idle(idle);
    world.run_for(ms(500));
    assert!(world.passes(managed));
    assert_eq!(world.resident(idle, GPU), gib(3) + Bytes::mib(160));
    world.goes_idle(managed);
    world.gets_busy(idle);
    world.run_for(ms(500));
    assert!(world.passes(idle));
    assert_eq!(world.resident(idle, GPU), gib(6));
}

#[test]
fn the_longest_idle_gives_first_and_the_next_in_line_last() {
    let mut world = world();
    let (_, first) = world.busy_remapping_program(gib(2));
    world.run_for(ms(50));
    let (_, second) = world.busy_remapping_program(gib(2));
    world.run_for(ms(50));
    let (_, large) = world.busy_remapping_program(gib(6));
    world.run_for(ms(50));
    world.goes_idle(first);
    world.run_for(ms(50));
    world.goes_idle(second);
    world.run_for(Nanos::from_secs(4));
    assert!(world.passes(large));
    assert_eq!(world.resident(first, GPU), Bytes::mib(160));
    assert_eq!(world.resident(second, GPU), gib(2));
}

#[test]
fn a_session_grows_only_if_cards_and_host_have_room_for_all() {
    let mut world = world_with(gib(4));
    let (_, a) = world.remapping_program(gib(6));
    let (_, b) = world.remapping_program(gib(5));
    assert_eq!((world.used(a, GPU), world.used(b, GPU)), (gib(6), gib(5)));
    assert!(!world.allocate(b, GPU, gib(1)), "8 of the card and 4 of the host, less the slack");
    let refusal = world.refusals()[0];
    assert_eq!((refusal.by, refusal.limit), (LimitKind::HostMemory, gib(12) - Bytes::mib(384)));
    assert!(world.allocate(b, GPU, Bytes::mib(600)));
    world.send(Event::HostBudget { bytes: gib(5) });
    assert!(world.allocate(b, GPU, Bytes::mib(900)));
}

#[test]
fn fixed_memory_is_leased_only_if_cards_and_host_have_room_for_all() {
    for remaps in [false, true] {
        let mut world = world_with(gib(4));
        let [a, b] = [6, 4].map(|gibs| world.remapping_program(gib(gibs)).1);
        let session = world.session();
        let client = if remaps { world.join_remapping(session) } else { world.join(session) };
        world.attach(client, GPU);
        assert!(!world.allocate_fixed(client, GPU, gib(2)), "what leaves the card has no room");
        assert_eq!(world.refusals()[0].by, LimitKind::HostMemory);
        assert!(world.allocate_fixed(client, GPU, gib(1)));
        assert_eq!((world.used(a, GPU), world.used(b, GPU)), (gib(6), gib(4)));
    }
}

#[test]
fn a_process_whose_blocks_are_rounded_up_gets_room_for_whole_chunks() {
    let mut world = world();
    let (_, a) = world.remapping_program(gib(4));
    world.rounds_up(a, GPU, gib(1));
    world.gets_busy(a);
    world.run_for(ms(200));
    assert_eq!((world.used(a, GPU), world.resident(a, GPU)), (gib(4), gib(5)));
    assert!(world.passes(a));
}

#[test]
fn programs_whose_chunks_do_not_fit_together_take_turns() {
    let mut world = world();
    let clients = [(); 2].map(|()| {
        let (_, client) = world.remapping_program(Bytes::mib(3584));
        world.rounds_up(client, GPU, Bytes::mib(896));
        world.gets_busy(client);
        client
    });
    let mut runs = [0; 2];
    for _ in 0..100 {
        world.run_for(ms(50));
        let open = world.open(&clients);
        assert_ne!(open, [true, true]);
        for (runs, open) in runs.iter_mut().zip(open) {
            *runs += u32::from(open);
        }
    }
    assert!(runs.iter().all(|&runs| runs > 30), "{runs:?}");
}

#[test]
fn rounded_blocks_count_against_the_card_and_not_against_the_quota() {
    let mut world = world();
    let session = world.session_with(Some(gib(7)), false);
    let a = world.join_remapping(session);
    world.attach(a, GPU);
    assert!(world.allocate(a, GPU, gib(6)));
    world.rounds_up(a, GPU, Bytes::mib(1280));
    assert!(!world.allocate(a, GPU, gib(1)), "the card has 8 GiB");
    let refusal = world.refusals()[0];
    assert_eq!((refusal.by, refusal.limit), (LimitKind::Capacity, gib(8) - Bytes::mib(1280)));
    world.rounds_up(a, GPU, gib(1));
    assert!(world.allocate(a, GPU, gib(1)), "it has used 7 of 7 GiB");
}

#[test]
fn a_piece_of_a_block_that_a_process_has_takes_no_more_of_the_card() {
    let mut world = world();
    let session = world.session_with(Some(gib(10)), false);
    let a = world.join_remapping(session);
    world.attach(a, GPU);
    assert!(world.allocate(a, GPU, gib(6)));
    world.rounds_up(a, GPU, Bytes::mib(1536));
    assert!(!world.allocate(a, GPU, gib(1)), "the card has half as much left");
    assert!(world.allocate_piece(a, GPU, gib(1)));
    assert!(!world.allocate_piece(a, GPU, gib(1) + Bytes::mib(1)), "one more than there is");
    assert!(world.allocate_piece(a, GPU, gib(1)));
    assert!(!world.allocate_piece(a, GPU, Bytes::mib(1)));
    assert_eq!(world.used(a, GPU), gib(8));
    let limits: Vec<_> = world.refusals().iter().map(|refusal| (refusal.by, refusal.limit)).collect();
    assert_eq!(limits, [6656, 7680, 8192].map(|limit| (LimitKind::Capacity, Bytes::mib(limit))));
}

#[test]
fn chunks_that_a_process_only_claims_let_it_lease_no_more_than_the_card_has() {
    let mut world = world();
    world.honest = false;
    let (liar, honest) = (world.remapping_program(Bytes::mib(1)).1, world.remapping_program(Bytes::mib(1)).1);
    // It says that it uses nothing of its lease, so that all its chunks are rounding.
    let claims = |world: &mut World, resident| {
        world.send(Event::LeaseSeen { client: liar, gpu: GPU, free: Bytes::MAX });
        let residence = Residence { resident, ..Residence::default() };
        world.send(Event::Resides { client: liar, gpu: GPU, seen: GoalNumber(1), residence });
    };
    let asks = |world: &mut World, number, bytes| {
        world.send(Event::ReservePiece { client: liar, gpu: GPU, request: RequestId(number), bytes });
    };
    let leased = |world: &World| world.core.view.book(liar, GPU).unwrap().leased;
    for number in 1..10 {
        asks(&mut world, number, Bytes::mib(2560));
        claims(&mut world, gib(7 + number));
    }
    assert!(leased(&world) <= gib(8));
    // Fixed memory of which nothing is used leaves less than nothing for remapped memory.
    world.send(Event::Fixed { client: liar, gpu: GPU, bytes: gib(3) });
    for number in 11..20 {
        asks(&mut world, number, gib(1));
        claims(&mut world, gib(number));
    }
    assert!(leased(&world) <= gib(8));
    assert!(world.allocate(honest, GPU, gib(1)), "the host has room for another one");
}

#[test]
fn other_cards_use_the_same_host_memory() {
    let mut world = world_with(gib(4));
    world.second_card();
    let session = world.session_with(None, true);
    let a = world.join_remapping(session);
    world.attach(a, GPU);
    world.attach(a, OTHER_GPU);
    assert!(world.allocate(a, OTHER_GPU, gib(11)));
    assert!(world.allocate(a, GPU, gib(8)));
    assert!(!world.allocate(a, GPU, gib(1)), "the other card needs 3 of 4");
    assert!(world.allocate(a, GPU, Bytes::mib(600)));
}

#[test]
fn moves_go_on_step_by_step_when_host_memory_is_tight() {
    let mut world = world_with(gib(5));
    let clients = [(); 2].map(|()| world.busy_remapping_program(gib(6)).1);
    world.run_for(ms(100));
    let mut opened = [false; 2];
    for _ in 0..200 {
        world.run_for(ms(20));
        let hosted: Bytes = clients.iter().map(|&client| world.hosted(client, GPU)).sum();
        assert!(hosted <= gib(5), "{hosted}");
        for (opened, open) in opened.iter_mut().zip(world.open(&clients)) {
            *opened |= open;
        }
    }
    assert_eq!(opened, [true, true]);
}

/// Holders may allocate from their free lease without a message. On a full card nobody gives room for that, so the
/// holders take turns from then on, and the wait ends with a quantum.
#[test]
fn holders_that_outgrow_the_card_take_turns_with_each_other_and_with_who_waits() {
    let mut world = World::new(Config { quantum: Some(ms(500)), lease_chunk: gib(1), ..plain() });
    world.set(Knob::Capacity(Some(gib(8))));
    world.send(Event::HostBudget { bytes: gib(100) });
    let sizes = [4, 4, 2];
    let clients = sizes.map(|gibs| {
        let (_, client) = world.busy_remapping_program(gib(gibs));
        world.run_for(ms(100));
        client
    });
    let asked = world.history.len();
    for &client in &clients[..2] {
        assert!(world.allocate(client, GPU, gib(1)));
    }
    let asks = |event: &Event| matches!(event, Event::Reserve { .. });
    assert!(!world.history[asked..].iter().any(|(_, event)| asks(event)), "the lease was enough");
    let mut runs = [0; 3];
    for _ in 0..100 {
        world.run_for(ms(50));
        for (runs, &client) in runs.iter_mut().zip(&clients) {
            let whole = world.resident(client, GPU) == world.used(client, GPU);
            *runs += u32::from(world.passes(client) && whole);
        }
    }
    assert!(runs.iter().all(|&runs| runs >= 10), "of 100 looks each ran with all its memory in {runs:?}");
}

#[test]
fn prepared_slots_are_host_memory_that_only_their_process_may_use() {
    let mut world = world_with(gib(6));
    let (_, a) = world.busy_remapping_program(gib(6));
    world.run_for(ms(100));
    let (_, b) = world.busy_remapping_program(gib(6));
    world.run_for(ms(50));
    world.habits(a).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    world.run_for(ms(100));
    let goal = |world: &World| world.goal(a, GPU).unwrap().1;
    // The leaver may still use its credit of one chunk.
    let spare = Bytes::mib(32);
    assert_eq!((world.resident(b, GPU), goal(&world)), (gib(2) + spare, gib(4) - spare));
    // It needs 4 GiB of the host in any case, once its memory has been on the card.
    world.prepares(b, GPU, gib(6) - spare);
    assert_eq!(goal(&world), gib(6) - spare, "2 GiB less of the host are left");
    world.prepares(a, GPU, gib(1));
    assert_eq!(goal(&world), gib(5), "the leaver has a slot of its own");
    world.run_for(ms(10));
    let spare = Bytes::mib(160);
    assert_eq!(goal(&world), gib(4) - spare, "what nobody needs goes back while the host memory is full");
}

#[test]
fn processes_prepare_host_memory_before_memory_must_leave() {
    let mut world = world();
    let (_, a) = world.remapping_program(gib(4));
    world.run_for(ms(100));
    assert_eq!(world.prepared(a, GPU), Bytes::ZERO, "it is alone");
    let (_, b) = world.remapping_program(gib(3));
    world.run_for(ms(100));
    assert_eq!(
        [a, b].map(|client| world.resident(client, GPU) + world.hosted(client, GPU)),
        [gib(4), gib(3)]
    );
    let ready = [a, b].map(|client| world.prepared(client, GPU));
    assert!(ready[0] >= Bytes::mib(500) && ready[0] <= gib(1), "their sum is beyond four fifths: {ready:?}");
    assert_eq!(ready[0], ready[1]);
    world.dies(b);
    world.run_for(ms(1000));
    assert_eq!(world.host_target(a, GPU), Bytes::ZERO);
}

#[test]
fn host_memory_of_one_card_is_not_prepared_for_the_other() {
    let mut world = world_with(gib(16));
    world.second_card();
    let (_, a) = world.remapping_program(gib(5));
    world.run_for(ms(100));
    world.habits(a).answers = false;
    let (_, b) = world.remapping_program(gib(5));
    world.habits(b).answers = false;
    assert_eq!(world.host_target(a, GPU), gib(3), "what the newcomer has not touched yet counts for 5 GiB");
    let (_, other) = world.remapping_program(Bytes::ZERO);
    world.attach(other, OTHER_GPU);
    world.allocate(other, OTHER_GPU, gib(2));
    world.prepares(other, OTHER_GPU, gib(2));
    // The world checks after each event that no target was overlooked.
    assert_eq!(world.host_target(a, GPU), gib(1));
}

#[test]
fn memory_that_was_never_touched_is_no_room_for_slots() {
    let mut world = world_with(gib(8));
    let programs = [gib(5), gib(5)].map(|bytes| world.remapping_program(bytes).1);
    world.run_for(ms(100));
    let ready: Bytes = programs.iter().map(|&client| world.prepared(client, GPU)).sum();
    assert!(ready > Bytes::ZERO && ready <= gib(4), "{ready}");
}

#[test]
fn without_a_host_budget_nothing_leaves_and_nobody_grows_beyond_the_card() {
    let mut world = world_with(Bytes::ZERO);
    let (_, a) = world.busy_remapping_program(gib(6));
    let (_, b) = world.remapping_program(gib(3));
    assert_eq!((world.used(a, GPU), world.used(b, GPU)), (gib(6), Bytes::ZERO));
    assert_eq!(world.refusals()[0].by, LimitKind::HostMemory);
    world.run_for(ms(100));
    assert!(world.passes(a));
}

#[test]
fn a_victim_that_does_not_answer_is_late_after_a_second_and_another_one_gives() {
    let mut world = world();
    let (_, stopped) = world.remapping_program(gib(3));
    let (_, other) = world.remapping_program(gib(3));
    world.run_for(ms(100));
    let (_, entrant) = world.busy_remapping_program(gib(5));
    world.run_for(ms(50));
    world.habits(stopped).answers = false;
    world.goes_idle(stopped);
    world.run_for(ms(1));
    world.goes_idle(other);
    world.run_for(ms(900));
    assert!(!world.passes(entrant));
    assert_eq!(world.resident(other, GPU), gib(3), "only the excess is asked for");
    world.run_for(ms(300));
    assert!(world.passes(entrant), "{:?}", world.core.view.rows(GPU));
    assert_eq!(world.resident(stopped, GPU), gib(3));
    assert!(world.resident(other, GPU) < gib(1));
}

#[test]
fn a_victim_whose_move_failed_is_asked_again_after_a_pause() {
    let (mut world, a, b) = two_programs();
    world.habits(a).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    let (number, bytes) = world.goal(a, GPU).unwrap();
    assert!(bytes < gib(6));
    world.send(Event::MoveFailed { client: a, gpu: GPU, number, refused: Bytes::ZERO });
    assert_eq!(world.core.view.cards[GPU].residents.wait_reason, Some(Lack::Kept));
    world.run_for(ms(900));
    assert_eq!(world.core.view.cards[GPU].residents.wait_reason, Some(Lack::Kept));
    world.habits(a).answers = true;
    world.run_for(ms(200));
    world.step(a, GPU);
    world.run_for(ms(100));
    assert!(world.passes(b));
}

#[test]
fn an_entrant_that_stops_gives_its_credit_to_the_next_one() {
    let mut world = world();
    let clients = [(); 3].map(|()| world.remapping_program(gib(6)).1);
    let [a, b, c] = clients;
    world.run_for(ms(100));
    clients.into_iter().for_each(|client| world.lets_go(client, Nanos::ZERO));
    world.run_for(ms(100));
    world.gets_busy(a);
    world.run_for(ms(200));
    assert!(world.passes(a));
    world.arrives(b);
    world.habits(b).answers = false;
    world.goes_idle(a);
    world.run_for(ms(20));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    world.run_for(ms(1500));
    assert_eq!(world.goal(b, GPU).unwrap().1, world.resident(b, GPU));
    world.gets_busy(c);
    world.reports(b, GPU);
    world.lets_go(b, Nanos::ZERO);
    world.run_for(ms(500));
    assert!(world.passes(c));
}

#[test]
fn a_holder_that_waits_for_its_memory_says_why() {
    let (mut world, a, b) = two_programs();
    let [first, second] = [a, b].map(|client| world.core.view.session_of(client).unwrap());
    let reason =
        |world: &World, session| world.core.waiting(world.now, session).map(|waiting| waiting.reason);
    assert_eq!(reason(&world, first), None);
    assert_eq!(reason(&world, second), Some(WaitsFor::Holders(vec![first])));
    world.habits(a).answers = false;
    world.run_for(ms(500));
    world.lets_go(a, ms(2));
    let missing = gib(6);
    assert_eq!(reason(&world, second), Some(WaitsFor::Memory { missing, lack: Some(Lack::Moves) }));
    world.run_for(ms(500));
    // The leaver may still use its credit of one chunk.
    let missing = gib(4) - Bytes::mib(32);
    let waiting = world.core.waiting(world.now, second).unwrap();
    assert_eq!(waiting.reason, WaitsFor::Memory { missing, lack: Some(Lack::Moves) });
    assert!(waiting.about().is_some_and(|about| !about.is_zero()));
    world.run_for(Nanos::from_secs(1));
    assert_eq!(reason(&world, second), Some(WaitsFor::Memory { missing, lack: Some(Lack::Kept) }));
    world.run_for(Nanos::from_secs(3));
    assert_eq!(reason(&world, second), None, "it maps the rest from the host");
}

#[test]
fn the_cost_of_a_switch_follows_the_rate_of_the_moves() {
    let (mut world, ..) = two_programs();
    world.run_for(Nanos::from_secs(5));
    let card = &world.core.view.cards[GPU];
    // A step of 1 GiB takes 5 ms.
    let rate = card.residents.rates.of_handoff().unwrap();
    assert!(rate >= gib(50) && rate <= gib(300), "{rate} a second");
    assert_eq!(card.expected_move(gib(6)), card.move_time(gib(4)));
}

#[test]
fn memory_of_a_killed_process_counts_until_nvml_sees_it_free() {
    let (mut world, a, b) = two_programs();
    world.dies(a);
    world.run_for(ms(50));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    assert!(world.resident(b, GPU) < gib(3), "{}", world.resident(b, GPU));
    let known = world.resident(b, GPU);
    world.send(Event::CardFree { gpu: GPU, bytes: gib(10) - known - gib(6) });
    world.run_for(ms(20));
    assert_eq!(world.gate(b).state(), GateState::Moving, "NVML still sees it");
    world.send(Event::CardFree { gpu: GPU, bytes: gib(10) - known });
    world.run_for(ms(50));
    assert!(world.passes(b));
}

#[test]
fn memory_of_a_killed_process_is_free_after_a_while_without_nvml() {
    let (mut world, a, b) = two_programs();
    world.dies(a);
    world.run_for(ms(150));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    world.run_for(ms(150));
    assert!(world.passes(b));
}

#[test]
fn orphaned_memory_counts_until_it_is_gone() {
    let (mut world, a, b) = two_programs();
    world.ends(a);
    world.run_for(Nanos::from_secs(3));
    assert_eq!(world.gate(b).state(), GateState::Moving);
    world.send(Event::ClientGone { client: a });
    world.run_for(ms(100));
    assert!(world.passes(b));
}

#[test]
fn pinned_memory_makes_the_card_smaller_for_the_others() {
    let (mut world, a, _) = two_programs();
    world.pins(a, GPU, gib(4));
    assert_eq!(world.card().capacity_bytes, gib(4));
    assert_eq!(world.card().fixed_bytes, gib(4));
}

#[test]
fn after_a_restart_no_goal_is_given_before_all_are_back() {
    let mut world = World::after_restart(plain(), [501, 502]);
    world.send(Event::HostBudget { bytes: gib(100) });
    for client in [501, 502] {
        world.send(Event::ExpectedUses { client: ClientId(client), gpu: GPU, bytes: gib(6) });
    }
    let returns = |world: &mut World, client: ClientId| {
        let session = world.session();
        world.join_as(client);
        world.send(Event::ClientJoined { client, session, holding: None });
        world.remaps(client);
        world.send(Event::Attached { client, gpu: GPU, used: gib(6) });
        world.send(Event::Contexts { client, gpu: GPU, live: 1 });
    };
    returns(&mut world, ClientId(501));
    world.run_for(Nanos::from_secs(2));
    assert_eq!(goals(&mut world), []);
    returns(&mut world, ClientId(502));
    world.run_for(ms(100));
    let (seen, none) = (GoalNumber(77), Bytes::ZERO);
    let client = ClientId(501);
    world.send(resides(client, GPU, seen, [gib(6), none, none]));
    let word = world.gate(client);
    world.send(Event::Wait { client, word });
    let given = goals(&mut world);
    assert!(given.contains(&(client, GPU, gib(6))), "{given:?}");
}

#[test]
fn a_new_page_is_given_the_goal_again() {
    let (mut world, a, _) = two_programs();
    world.take();
    world.comes_back(a);
    let given = goals(&mut world);
    assert!(given.iter().any(|&(client, _, bytes)| client == a && bytes >= gib(6)), "{given:?}");
}
