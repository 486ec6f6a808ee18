//! Way out of managed memory beside the way in of the next program.

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, GateState, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Artifacts, Daemon, Program, Sharing, World};
use simgpu_card::stats::ProcessStats;

const CARD: Bytes = Bytes::mib(256);
/// Size of one of the two blocks of a program.
const BLOCK: Bytes = Bytes::mib(88);
/// Size of the batches on the way out.
const BATCH: Bytes = Bytes::mib(64);
/// Bytes by which goals and pages are rounded.
const SMALL: Bytes = Bytes::mib(8);
/// Longest time for one handoff on a slow bus, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A card on which managed memory comes in and leaves at these rates when it is prefetched, in bytes a second.
fn world(rates: [(&str, Bytes); 2]) -> anyhow::Result<World> {
    let mut flags = vec!["--memory".to_owned(), CARD.0.to_string()];
    rates
        .iter()
        .for_each(|(way, rate)| flags.extend([format!("--prefetch-{way}-rate"), rate.0.to_string()]));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    World::with_card_flags(Artifacts::of_tests()?, &flags)
}

/// Begins a program with two thirds of the card.
fn program(world: &World, name: &str) -> anyhow::Result<Program> {
    let sharing = Sharing::session(name).and(&["--backend", "managed"]);
    let mut program = Program::hold(world, &sharing, name)?;
    program.must(&format!("alloc x {0}; alloc y {0}", BLOCK.0))?;
    Ok(program)
}

/// Figures of a program on the card.
fn stats(world: &World, program: &Program) -> anyhow::Result<ProcessStats> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let own = stats.processes.into_iter().find(|known| known.pid == program.process().pid());
    own.context("the program is on the card")
}

/// Runs lines that need the card, of which each has to find what it expects.
fn run(program: &mut Program, lines: &[String]) -> anyhow::Result<()> {
    for line in lines {
        let ticket = program.tell(line)?;
        let answer = program.answer_within(ticket, PATIENCE)?;
        anyhow::ensure!(answer.error().is_none(), "{line}: {:?}", answer.json());
        anyhow::ensure!(!line.starts_with("check") || answer.flag("matches"), "{line}: {:?}", answer.json());
    }
    Ok(())
}

fn fill(number: u8) -> Vec<String> {
    vec![format!("fill x {number}"), format!("fill y {}", number + 1), "sync".to_owned()]
}

fn check(number: u8) -> Vec<String> {
    vec![format!("check x {number}"), format!("check y {}", number + 1)]
}

/// Bytes that the programs need together beyond the capacity of the card.
fn excess(daemon: &Daemon) -> anyhow::Result<Bytes> {
    let needed = ["a", "b"].map(|name| Ok(daemon.session(name)?.gpus[0].allocated_bytes));
    let needed: Bytes = needed.into_iter().collect::<anyhow::Result<Vec<Bytes>>>()?.into_iter().sum();
    Ok(needed - daemon.status()?.gpus[0].capacity_bytes)
}

/// The way in is slow, so that the way out is over before the card is full.
#[test]
fn what_the_next_program_lacks_has_left_before_it_would_be_evicted() -> anyhow::Result<()> {
    let world = world([("in", Bytes(200_000_000)), ("out", Bytes(1_300_000_000))])?;
    let (world, daemon) = world.with_daemon(&[])?;
    let mut programs = [program(&world, "a")?, program(&world, "b")?];
    run(&mut programs[0], &fill(10))?;
    let all = stats(&world, &programs[0])?.resident_bytes;
    assert!(Bytes(all) >= BLOCK + BLOCK, "{all}");
    let mut lines = [fill(20), check(10), check(20), check(10)].into_iter();
    for round in 0..2 {
        for (leaver, entrant) in [(0, 1), (1, 0)] {
            let of_both = |programs: &[Program; 2]| {
                Ok::<_, anyhow::Error>([
                    stats(&world, &programs[leaver])?,
                    stats(&world, &programs[entrant])?,
                ])
            };
            let [left_before, came_before] = of_both(&programs)?;
            run(&mut programs[entrant], &lines.next().context("four handoffs")?)?;
            let excess = excess(&daemon)?;
            let [left, came] = of_both(&programs)?;
            let said = format!("round {round}, excess {excess}: {left:?} after {left_before:?}; {came:?}");
            let out = Bytes(left.counters.prefetched_out - left_before.counters.prefetched_out);
            assert!(out + SMALL >= excess && out <= excess + SMALL, "{said}");
            // A checksum is written into a small block that is new.
            let evicted = Bytes(left.counters.evicted_bytes - left_before.counters.evicted_bytes);
            let faulted = Bytes(came.counters.fault_bytes - came_before.counters.fault_bytes);
            assert!(evicted <= SMALL && faulted <= SMALL, "{evicted} and {faulted}: {said}");
            let gone = Bytes(left_before.resident_bytes - left.resident_bytes);
            assert!(gone <= excess + SMALL && gone + SMALL >= excess, "{said}");
            assert!(Bytes(came.resident_bytes) >= BLOCK + BLOCK, "{said}");
        }
    }
    Ok(())
}

#[test]
fn a_program_that_wakes_up_abandons_its_way_out_and_finds_its_bytes() -> anyhow::Result<()> {
    let world = world([("in", Bytes(4_800_000_000)), ("out", BATCH)])?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let mut a = Program::hold_with(&world, &Sharing::Preload, "a", names::BACKEND, "managed")?;
    a.must(&format!("alloc x {0}; alloc y {0}", BLOCK.0))?;
    run(&mut a, &fill(7))?;
    daemon.set_goal(Bytes::ZERO);
    run(&mut a, &check(7))?;
    assert_eq!(stats(&world, &a)?.counters.prefetched_out, 0, "the gate is open");
    daemon.take_back()?;
    let leaves = || {
        let out = stats(&world, &a)?.counters.prefetched_out;
        Ok((out > 0).then_some(Bytes(out)))
    };
    let first = until("memory leaves", leaves)?;
    assert!(first < BATCH, "{first} of the first batch");
    // A goal does not bound what comes in.
    daemon.set_gate(GateState::Moving)?;
    assert_eq!(daemon.entered()?, BLOCK + BLOCK);
    run(&mut a, &check(7))?;
    let counters = stats(&world, &a)?.counters;
    assert!(Bytes(counters.prefetched_out) <= BATCH, "one batch at most: {counters:?}");

    // Nothing leaves once the goal is lifted.
    daemon.set_goal(Bytes::MAX);
    daemon.take_back()?;
    daemon.set_gate(GateState::Moving)?;
    assert_eq!(daemon.entered()?, BLOCK + BLOCK);
    run(&mut a, &check(7))?;
    assert_eq!(stats(&world, &a)?.counters.prefetched_out, counters.prefetched_out);
    Ok(())
}

#[test]
fn the_way_out_ends_with_the_daemon() -> anyhow::Result<()> {
    let world = world([("in", Bytes(100_000_000)), ("out", BATCH)])?;
    let (world, mut daemon) = world.with_daemon(&[])?;
    let (mut a, mut b) = (program(&world, "a")?, program(&world, "b")?);
    run(&mut a, &fill(10))?;
    let turn = b.tell("fill x 20")?;
    until("memory leaves", || Ok((stats(&world, &a)?.counters.prefetched_out > 0).then_some(())))?;
    daemon.kill()?;
    b.done_within(turn, PATIENCE)?;
    let out = Bytes(stats(&world, &a)?.counters.prefetched_out);
    assert!(out <= BATCH, "{out} have left, and more than a batch should have");
    daemon.restart()?;
    run(&mut b, &["check x 20".to_owned()])?;
    run(&mut a, &check(10))
}
