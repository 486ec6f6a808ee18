//! Bug 11: a launch that races the release of the lock and runs in somebody else's turn.
//!
//! Two programs with four threads each launch short kernels as fast as they can while the lock changes
//! hands as often as it may. Every launch that slipped through a gate that was being closed would compute
//! in the other's turn: the card's own timeline shows who computed when, and it must not change hands more
//! often than the lock did.

use gpushare_proto::Nanos;
use gpushare_tests::patience::until;
use gpushare_tests::{Artifacts, Daemon, Program, Sharing, World};

const THREADS: usize = 4;
const LAUNCHES: usize = 150;
/// How many launches a thread has in flight at most.
const AHEAD: usize = 3;

/// A program with a buffer and a stream for each of its threads.
fn hammer(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name), name)?;
    // Sixteen MiB: two of these are more than the capacity, so they take turns.
    for thread in 0..THREADS {
        program.must(&format!("alloc x{thread} 4MiB; stream s{thread}; fill x{thread} 0 --on s{thread}"))?;
    }
    program.must("sync")?;
    Ok(program)
}

/// How often the compute engine went from one process to another.
fn changes_of_hands(world: &World, since: u64) -> anyhow::Result<u64> {
    let stats = world.card().expect("a simulated card").stats()?;
    assert_eq!(stats.timeline_dropped, 0);
    let turns: Vec<u32> = stats
        .timeline
        .iter()
        .filter(|turn| turn.from >= since)
        .map(|turn| turn.pid)
        .collect();
    Ok(turns.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64)
}

/// Lets all threads launch, and waits for their work.
fn launch(programs: &mut [Program; 2]) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for launch in 1..=LAUNCHES {
        for (number, program) in programs.iter_mut().enumerate() {
            for thread in 0..THREADS {
                let line = format!("@t{thread} add x{thread} 1 --on s{thread}");
                lines.push((number, program.tell(&line)?));
                if launch % AHEAD == 0 {
                    lines.push((number, program.tell(&format!("@t{thread} sync s{thread}"))?));
                }
            }
        }
    }
    for (number, line) in lines {
        programs[number].done(line)?;
    }
    for program in programs {
        program.must("sync")?;
    }
    Ok(())
}

fn race(quantum: Nanos) -> anyhow::Result<()> {
    // The card has room for both, so that nothing moves between two turns and a late launch meets the other's kernels;
    // its slices are shorter than a kernel, so that both then show in its timeline.
    let card = ["--memory", "128MiB", "--slice-us", "20"];
    let world = World::with_card_flags(Artifacts::of_tests()?, &card)?;
    let flag = quantum.to_string();
    let daemon =
        Daemon::start(&world, &["--mode", "serialized", "--capacity", "0=24MiB", "--quantum", &flag])?;
    let mut programs = [hammer(&world, "a")?, hammer(&world, "b")?];
    let handoffs = daemon.status()?.gpus[0].handoffs;
    let since = world.card().expect("a simulated card").stats()?.now_nanos;

    // One program may be through with its launches before the other one has begun. Then both launch again.
    let mut rounds = 0;
    until("the lock changes hands often", || {
        launch(&mut programs)?;
        rounds += 1;
        Ok((daemon.status()?.gpus[0].handoffs > handoffs + 4).then_some(()))
    })?;
    // Read in this order, the count of handoffs can only be too large.
    let changes = changes_of_hands(&world, since)?;
    let status = daemon.status()?;
    let handoffs = status.gpus[0].handoffs - handoffs;
    assert!(
        changes <= handoffs,
        "in turns of {quantum} the card changed hands {changes} times, the lock {handoffs} times"
    );
    for program in &mut programs {
        for thread in 0..THREADS {
            program.must(&format!("check x{thread} {}", rounds * LAUNCHES))?;
        }
    }
    Ok(())
}

#[test]
fn no_launch_runs_in_anothers_turn_when_turns_are_of_a_millisecond() -> anyhow::Result<()> {
    race(Nanos::from_millis(1))
}

#[test]
fn no_launch_runs_in_anothers_turn_when_turns_are_of_five_milliseconds() -> anyhow::Result<()> {
    race(Nanos::from_millis(5))
}

#[test]
fn no_launch_runs_in_anothers_turn_when_turns_are_of_twenty_milliseconds() -> anyhow::Result<()> {
    race(Nanos::from_millis(20))
}
