//! Programs that are larger than the card (`--oversubscribe`): what the card has no room for is mapped from the host.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use gpushare_proto::{Bytes, GateState};
use gpushare_tests::patience::until;
use gpushare_tests::{Artifacts, Daemon, Program, Sharing, World};

const CARD: Bytes = Bytes::mib(256);
/// Blocks of a program, in MiB. With the shared block of small requests they are 1.2 times the card.
const BLOCKS: [(&str, u64); 4] = [("v", 96), ("x", 96), ("y", 64), ("z", 48)];
/// Sum of the blocks.
const ALL: Bytes = Bytes::mib(304);
/// Bytes of the card that remapped memory may take: all but the headroom.
const FOR_REMAPPED: Bytes = Bytes::mib(224);
/// Longest time for one line. Most of it is waiting for a turn.
const PATIENCE: Duration = Duration::from_secs(60);

fn world() -> anyhow::Result<(World, Daemon)> {
    World::of(CARD)?.with_daemon(&["--host-budget", "2GiB"])
}

fn program(world: &World, name: &str, fill: u64) -> anyhow::Result<Program> {
    let sharing = Sharing::session(name).and(&["--backend", "remap", "--oversubscribe"]);
    let mut program = Program::hold(world, &sharing, name)?;
    for (number, (block, mib)) in (fill..).zip(BLOCKS) {
        says(&mut program, &format!("alloc {block} {mib}MiB"))?;
        says(&mut program, &format!("fill {block} {number}"))?;
    }
    Ok(program)
}

fn says(program: &mut Program, line: &str) -> anyhow::Result<()> {
    let ticket = program.tell(line)?;
    let answer = program.answer_within(ticket, PATIENCE)?;
    ensure!(answer.flag("ok") && answer.json()["matches"] != false, "{line}: {}", answer.json());
    Ok(())
}

fn check(program: &mut Program, fill: u64) -> anyhow::Result<()> {
    let mut blocks = (fill..).zip(BLOCKS);
    blocks.try_for_each(|(number, (block, _))| says(program, &format!("check {block} {number}")))
}

/// Bytes of device memory of each living process on the card.
fn on_card(world: &World) -> anyhow::Result<BTreeMap<u32, Bytes>> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let living = stats.processes.iter().filter(|process| process.alive);
    Ok(living.map(|process| (process.pid, Bytes(process.device_bytes))).collect())
}

#[test]
fn a_program_larger_than_the_card_has_right_contents() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", 10)?;
    check(&mut program, 10)?;
    says(&mut program, "fill z 77")?;
    says(&mut program, "check z 77")?;
    let on_card: Bytes = on_card(&world)?.values().copied().sum();
    assert!(on_card <= CARD && on_card >= FOR_REMAPPED, "{on_card} on the card");
    let place = daemon.residence("a")?;
    assert_eq!((place.mapped_bytes, place.moving_bytes), (place.hosted_bytes, Bytes::ZERO));
    assert!(place.resident_bytes + place.mapped_bytes >= ALL, "{place:?}");
    let words = format!("{} are mapped from the host", place.mapped_bytes);
    let explained = daemon.ctl(&["explain", "a"])?;
    assert!(explained.contains(&words) && explained.contains("waits for nothing"), "{explained}");
    let explained: serde_json::Value = serde_json::from_str(&daemon.ctl(&["explain", "a", "--json"])?)?;
    assert_eq!(explained["residences"][0]["mapped_bytes"], place.mapped_bytes.0);
    let status = daemon.ctl(&["status", "--verbose"])?;
    assert!(status.contains("MAPPED FROM HOST"), "{status}");
    Ok(())
}

#[test]
fn what_overflows_comes_from_the_hosts_node_next_to_the_card() -> anyhow::Result<()> {
    let flags = ["--memory", "256MiB", "--host-node", "1"];
    let world = World::with_card_flags(Artifacts::of_tests()?, &flags)?;
    let (world, daemon) = world.with_daemon(&["--host-budget", "2GiB"])?;
    let mut program = program(&world, "a", 10)?;
    check(&mut program, 10)?;
    assert!(!daemon.residence("a")?.mapped_bytes.is_zero());
    Ok(())
}

#[test]
fn without_the_option_a_program_is_refused_what_the_card_cannot_hold() -> anyhow::Result<()> {
    let (world, _daemon) = world()?;
    let sharing = Sharing::session("a").and(&["--backend", "remap"]);
    let mut program = Program::hold(&world, &sharing, "a")?;
    program.must("alloc v 96MiB; alloc x 96MiB; fill x 3")?;
    assert_eq!(program.ask("alloc y 64MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    let stderr = program.process().stderr();
    assert!(
        stderr.contains("64MiB refused") && stderr.contains("that the card has for one session"),
        "{stderr}"
    );
    program.must("check x 3")?;
    Ok(())
}

#[test]
fn two_programs_larger_than_the_card_take_turns_with_right_contents() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let (mut a, mut b) = (program(&world, "a", 10)?, program(&world, "b", 20)?);
    for round in 0..3 {
        for (program, name, fill) in [(&mut a, "a", 10), (&mut b, "b", 20)] {
            check(program, fill).with_context(|| format!("round {round}"))?;
            let bytes = on_card(&world)?;
            let all: Bytes = bytes.values().copied().sum();
            assert!(all <= CARD, "{bytes:?}");
            until("it is told where its memory is", || {
                let place = daemon.residence(name)?;
                Ok((place.resident_bytes + place.mapped_bytes >= ALL).then_some(()))
            })?;
        }
    }
    Ok(())
}

#[test]
fn a_program_larger_than_the_card_goes_on_under_a_new_daemon() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    let mut program = program(&world, "a", 10)?;
    let mapped = daemon.residence("a")?.mapped_bytes;
    daemon.kill()?;
    daemon.restart()?;
    check(&mut program, 10)?;
    says(&mut program, "alloc more 32MiB")?;
    says(&mut program, "fill more 9")?;
    says(&mut program, "check more 9")?;
    until("what was allocated is told", || {
        Ok((daemon.residence("a")?.mapped_bytes == mapped + Bytes::mib(32)).then_some(()))
    })
}

#[test]
fn a_program_that_fits_the_card_again_has_all_its_memory_there_after_a_turn_of_another() -> anyhow::Result<()>
{
    let (world, daemon) = world()?;
    let mut large = program(&world, "large", 10)?;
    check(&mut large, 10)?;
    // The block is on the card, so the rest stays where it is while the program runs.
    says(&mut large, "free v")?;
    assert!(!daemon.residence("large")?.mapped_bytes.is_zero());
    let sharing = Sharing::session("small").and(&["--backend", "remap"]);
    let mut small = Program::hold(&world, &sharing, "small")?;
    says(&mut small, "alloc x 64MiB")?;
    says(&mut small, "fill x 5")?;
    says(&mut small, "check x 5")?;
    until("all memory is on the card", || {
        says(&mut large, "check y 12")?;
        Ok(daemon.residence("large")?.mapped_bytes.is_zero().then_some(()))
    })?;
    for line in ["check x 11", "check y 12", "check z 13"] {
        says(&mut large, line)?;
    }
    says(&mut small, "check x 5")
}

/// Time that one `fill` of a block takes on the simulated card. The program has given the card back then.
fn cost_of_fill(
    (world, daemon): (&World, &Daemon),
    program: &mut Program,
    block: &str,
    fill: u64,
) -> anyhow::Result<u64> {
    let spent = || anyhow::Ok(world.card().context("a simulated card")?.stats()?.total.compute_nanos);
    let before = spent()?;
    says(program, &format!("fill {block} {fill}"))?;
    let cost = spent()? - before;
    until("the program has given the card back", || {
        let status = daemon.status()?;
        let mut processes = status.sessions.iter().flat_map(|session| &session.clients);
        Ok(processes.all(|process| process.gate == GateState::Closed).then_some(()))
    })?;
    Ok(cost)
}

#[test]
fn a_block_that_a_program_uses_again_and_again_comes_to_the_card() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", 10)?;
    let card = (&world, &daemon);
    let mut slowest = (0, "", 0);
    for (fill, (block, mib)) in (10..).zip(BLOCKS) {
        let cost = cost_of_fill(card, &mut program, block, fill)? / mib;
        slowest = slowest.max((cost, block, fill));
    }
    let (cost, block, fill) = slowest;
    let (_, mib) = BLOCKS.into_iter().find(|(name, _)| *name == block).context("a block")?;
    until("the slowest block is on the card", || {
        let now = cost_of_fill(card, &mut program, block, fill)? / mib;
        Ok((4 * now < cost).then_some(()))
    })?;
    check(&mut program, 10)
}
