//! Contexts beside a restore: the driver would lose the frozen process if it found too little memory, and a context
//! takes some past all accounts. So neither begins while the other one is under way.

use anyhow::{Context, ensure};
use gpushare_tests::patience::until;
use gpushare_tests::{Daemon, Program, Sharing, Ticket, World};
use simgpu_card::wire::ProcessState;

use super::freezing::{freeze, is_running, on_card, program, session, world};

/// Starts a program that has a context and makes its next one slowly.
fn creator(world: &World, faults: &str) -> anyhow::Result<Program> {
    Program::hold_with(world, &session("creator", "native"), "creator", "SIMGPU_FAULTS", faults)
}

/// Starts a daemon whose driver takes a second more for each restore, after it has taken the memory.
fn slow_world() -> anyhow::Result<(World, Daemon)> {
    let (world, mut daemon) = world()?;
    daemon.stop()?;
    daemon.restart_under(&["env", "SIMGPU_FAULTS=cuCheckpointProcessRestore=slow:1s"])?;
    Ok((world, daemon))
}

#[test]
fn a_context_waits_for_the_end_of_a_restore() -> anyhow::Result<()> {
    let (world, daemon) = slow_world()?;
    let mut creator = creator(&world, "")?;
    let mut frozen = program(&world, "frozen", "native")?;
    let pid = frozen.process().pid();
    for line in ["make c", "green g"] {
        freeze(&world, &daemon, "frozen", pid)?;
        let call = frozen.tell("check x 7")?;
        until("its restore is under way", || {
            Ok((on_card(&world, pid)?.0 == ProcessState::Locked).then_some(()))
        })?;
        creator.must(line)?;
        ensure!(is_running(&world, pid)?, "{line} did not wait");
        frozen.done(call)?;
    }
    Ok(())
}

#[test]
fn the_first_context_of_a_new_program_waits_for_the_end_of_a_restore() -> anyhow::Result<()> {
    let (world, daemon) = slow_world()?;
    let mut frozen = program(&world, "frozen", "native")?;
    let pid = frozen.process().pid();
    freeze(&world, &daemon, "frozen", pid)?;
    let call = frozen.tell("check x 7")?;
    until(
        "its restore is under way",
        || Ok((on_card(&world, pid)?.0 == ProcessState::Locked).then_some(())),
    )?;
    let _creator = creator(&world, "")?;
    ensure!(is_running(&world, pid)?, "its context did not wait");
    frozen.done(call)
}

/// Bytes of a process's contexts on the simulated card.
fn contexts(world: &World, pid: u32) -> anyhow::Result<u64> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let known = stats.processes.into_iter().find(|known| known.pid == pid);
    Ok(known.context("the program is on the card")?.context_bytes)
}

/// Tells a program to make its second context, which takes long, and waits until the driver makes it.
fn make(world: &World, creator: &mut Program) -> anyhow::Result<Ticket> {
    let pid = creator.process().pid();
    let before = contexts(world, pid)?;
    let made = creator.tell("make c")?;
    until("the driver makes a context", || Ok((contexts(world, pid)? > before).then_some(())))?;
    Ok(made)
}

#[test]
fn a_restore_waits_for_a_context_that_is_being_created() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut creator = creator(&world, "cuCtxCreate@1=slow:1s")?;
    let mut frozen = program(&world, "frozen", "native")?;
    freeze(&world, &daemon, "frozen", frozen.process().pid())?;
    let made = make(&world, &mut creator)?;
    frozen.must("check x 7")?;
    ensure!(creator.peek(made).is_some(), "it came back before the context was made");
    Ok(())
}

/// Its announcement stands for ever.
#[test]
fn a_program_that_hangs_while_it_creates_a_context_delays_a_restore_and_stops_none() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut creator = creator(&world, "cuCtxCreate@1=hangs")?;
    let mut frozen = program(&world, "frozen", "native")?;
    freeze(&world, &daemon, "frozen", frozen.process().pid())?;
    make(&world, &mut creator)?;
    frozen.must("check x 7").map(drop)
}

#[test]
fn a_restore_leaves_room_for_a_context_that_is_announced_for_too_long() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let free = || Ok::<u64, anyhow::Error>(world.card().context("a simulated card")?.stats()?.gpus[0].free);
    let mut creator = creator(&world, "cuCtxCreate@1=hangs")?;
    let context = contexts(&world, creator.process().pid())?;
    let mut frozen = program(&world, "frozen", "native")?;
    let before = free()?;
    freeze(&world, &daemon, "frozen", frozen.process().pid())?;
    let needed = free()? - before;
    make(&world, &mut creator)?;
    // The daemon does not know of it. It leaves too little for another context.
    let mut stranger = Program::hold(&world, &Sharing::Native, "stranger")?;
    stranger.must(&format!("alloc y {}", free()? - needed - context / 2))?;
    let call = frozen.tell("check x 7")?;
    until("explain says what it waits for", || {
        let says = daemon.ctl(&["explain", "frozen"])?;
        Ok(says.contains("NVML shows less free memory on its cards").then_some(()))
    })?;
    creator.kill()?;
    frozen.done(call)
}
