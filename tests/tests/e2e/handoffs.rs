//! Handoffs of remapped memory under the real scheduler: two programs that do not fit the card together take turns.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_tests::patience::until;
use gpushare_tests::{Daemon, Program, Sharing, World};

const CARD: Bytes = Bytes::gib(1);
/// Memory of one program: three quarters of the card.
const EACH: Bytes = Bytes::mib(768);
/// Longest time for one handoff. The model moves 1 GiB in a fraction of a second, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn world() -> anyhow::Result<(World, Daemon)> {
    World::of(CARD)?.with_daemon(&["--host-budget", "2GiB"])
}

/// Begins a program that has [`EACH`] of remapped memory, in three blocks that are filled with `fill` and more.
fn program(world: &World, name: &str, fill: u8) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name).and(&["--backend", "remap"]), name)?;
    program.must("alloc x 256MiB; alloc y 256MiB; alloc z 240MiB; alloc c 1MiB")?;
    program.must(&format!("fill x {fill}; fill y {}; fill z {}; sync", fill + 1, fill + 2))?;
    Ok(program)
}

/// Checks the contents of all blocks, which needs them on the card.
fn check(program: &mut Program, fill: u8) -> anyhow::Result<()> {
    let lines = format!("check x {fill}; check y {}; check z {}", fill + 1, fill + 2);
    for line in lines.split("; ") {
        let ticket = program.tell(line)?;
        let answer = program.answer_within(ticket, PATIENCE)?;
        anyhow::ensure!(answer.flag("matches"), "{line}: {:?}", answer.json());
    }
    Ok(())
}

/// Bytes of device memory of each process on the card.
fn on_card(world: &World) -> anyhow::Result<BTreeMap<u32, Bytes>> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let living = stats.processes.iter().filter(|process| process.alive);
    Ok(living.map(|process| (process.pid, Bytes(process.device_bytes))).collect())
}

#[test]
fn two_programs_that_need_more_than_the_card_take_turns_with_right_contents() -> anyhow::Result<()> {
    let (world, _daemon) = world()?;
    let a = program(&world, "a", 10);
    if a.is_err() {
        println!("A {} {}", _daemon.ctl(&["status"])?, _daemon.ctl(&["explain", "a"])?);
    }
    let mut a = a?;
    let b = program(&world, "b", 20);
    if b.is_err() {
        println!(
            "B {} {} {}",
            _daemon.ctl(&["status"])?,
            _daemon.ctl(&["explain", "a"])?,
            _daemon.ctl(&["explain", "b"])?
        );
    }
    let mut b = b?;
    for round in 0..3 {
        for (program, fill) in [(&mut a, 10), (&mut b, 20)] {
            let began = Instant::now();
            check(program, fill)?;
            println!("round {round}: {:?}", began.elapsed());
            let bytes = on_card(&world)?;
            let all: Bytes = bytes.values().copied().sum();
            assert!(all <= CARD, "{bytes:?}");
            assert!(bytes[&program.process().pid()] >= EACH - Bytes::mib(16), "{bytes:?}");
        }
    }
    Ok(())
}
