use gpushare_proto::{Bytes, Nanos, SessionId};

use super::world::{GPU, World, gib, ms, plain};
use crate::{Config, Event, Notice};

fn with_quantum(quantum: Nanos) -> World {
    World::new(Config { quantum: Some(quantum), ..plain() })
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Granted { waited: Nanos },
    Entered { waited: Nanos, handoff: Nanos },
    Dropped { drain: Option<Nanos> },
}

/// Notices about one session since the last call.
fn seen(world: &mut World, of: SessionId) -> Vec<Seen> {
    let notices = world.notices().into_iter();
    notices
        .filter_map(|notice| match notice {
            Notice::Granted { session, gpus, waited, .. } if session == of => {
                assert_eq!(gpus, GPU.into());
                Some(Seen::Granted { waited })
            }
            Notice::Entered { session, gpus, waited, handoff } if session == of => {
                assert_eq!(gpus, GPU.into());
                Some(Seen::Entered { waited, handoff })
            }
            Notice::Dropped { session, gpus, drain, .. } if session == of => {
                assert_eq!(gpus, GPU.into());
                Some(Seen::Dropped { drain })
            }
            _ => None,
        })
        .collect()
}

#[test]
fn a_handoff_lasts_from_the_order_to_let_go_until_the_memory_is_in() {
    let mut world = with_quantum(ms(100));
    let (first, a) = world.busy_program(gib(6));
    let (second, _) = world.busy_program(gib(6));
    world.habits(a).drain = ms(30);
    world.notices();
    world.run_for(ms(151));
    // Its wait began when it had let go itself, 2 ms after the start.
    assert_eq!(
        seen(&mut world, second),
        [
            Seen::Dropped { drain: Some(ms(2)) },
            Seen::Granted { waited: ms(128) },
            Seen::Entered { waited: ms(148), handoff: ms(50) },
        ]
    );
    world.run_for(ms(150));
    assert_eq!(
        seen(&mut world, first),
        [Seen::Granted { waited: ms(122) }, Seen::Entered { waited: ms(142), handoff: ms(22) },]
    );
}

#[test]
fn a_handoff_from_an_idle_holder_is_only_the_move() {
    let mut world = with_quantum(Nanos::from_secs(30));
    let (first, a) = world.program(gib(6));
    let (second, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    world.notices();
    world.goes_idle(a);
    world.run_for(ms(20));
    let notices = world.notices();
    assert!(
        notices.iter().any(
            |notice| matches!(notice, Notice::Dropped { session, drain: None, .. } if *session == first)
        )
    );
    assert!(notices.iter().any(
        |notice| matches!(notice, Notice::Entered { session, handoff, .. } if *session == second && *handoff == ms(20))
    ));
}

#[test]
fn who_finds_the_card_free_waits_for_nothing() {
    let mut world = with_quantum(Nanos::from_secs(30));
    let (_, a) = world.program(gib(6));
    let (second, b) = world.program(gib(6));
    world.run_for(ms(10));
    world.goes_idle(a);
    world.run_for(Nanos::from_secs(60));
    world.notices();
    world.habits(b).moves = Nanos::ZERO;
    world.arrives(b);
    world.run_for(ms(1));
    assert_eq!(
        seen(&mut world, second),
        [Seen::Granted { waited: Nanos::ZERO }, Seen::Entered { waited: Nanos::ZERO, handoff: Nanos::ZERO },]
    );
}

#[test]
fn gpu_time_runs_in_every_mode_but_not_while_idle_or_waiting() {
    let mut world = with_quantum(Nanos::from_secs(30));
    let (first, a) = world.program(gib(6));
    world.run_for(ms(500));
    assert_eq!(world.view(first).gpu_time_ns, ms(500), "in parallel mode");
    let (second, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    assert_eq!(world.view(second).gpu_time_ns, ms(2), "its drain, when the card became too small");
    world.goes_idle(a);
    world.run_for(ms(100));
    assert_eq!(world.view(first).gpu_time_ns, ms(510));
    assert_eq!(world.view(second).gpu_time_ns, ms(102));
}

#[test]
fn moved_bytes_are_those_of_the_session() {
    let mut world = with_quantum(ms(100));
    let (first, _) = world.busy_program(gib(6));
    let (second, _) = world.busy_program(gib(6));
    world.run_for(ms(150));
    assert_eq!(world.view(first).moved_bytes, Bytes::ZERO);
    assert_eq!(world.view(second).moved_bytes, gib(6));
}

#[test]
fn a_session_that_ends_can_be_looked_at_alone() {
    let mut world = with_quantum(ms(100));
    let (session, _) = world.program(gib(6));
    world.run_for(ms(10));
    let alone = world.core.session_snapshot(world.now, session);
    assert_eq!(alone, Some(world.view(session)));
    assert_eq!(world.core.session_snapshot(world.now, SessionId(999)), None);
}

#[test]
fn an_event_about_one_session_changes_few_others() {
    let mut world = with_quantum(ms(100));
    let programs: Vec<_> = (0..50).map(|_| world.program(Bytes::mib(1))).collect();
    world.run_for(ms(10));
    let (session, client) = programs[7];
    world.send(Event::Contexts { client, gpu: GPU, live: 1 });
    let changed = world.core.changed();
    assert!(changed.contains(&session) && changed.len() < 5, "{changed:?}");
}

#[test]
fn a_summary_names_the_first_waiters_and_says_when_the_turn_ends() {
    let mut world = with_quantum(ms(100));
    let (first, _) = world.busy_program(gib(6));
    let summary = |world: &World, most| world.core.card_summaries(most).next().unwrap();
    assert_eq!(summary(&world, 8).turn_ends, None, "alone on the card it takes no turns");
    let (second, _) = world.busy_program(gib(6));
    world.run_for(ms(10));
    let (third, _) = world.busy_program(gib(6));
    world.run_for(ms(141));
    let seen = summary(&world, 1);
    assert_eq!((seen.holders, seen.holding), (vec![second], 1));
    assert_eq!((seen.queue, seen.waiting), (vec![third], 2));
    assert_eq!(seen.turn_ends, Some(world.now + ms(71)), "its quantum began when its memory was in");
    assert_eq!(summary(&world, 8).queue, [third, first]);
}
