//! Before the first freeze on a card, the daemon tries a freeze on a process of its own.

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_tests::patience::until;
use gpushare_tests::{Daemon, Part, Program, Sharing, World};
use simgpu_card::wire::ProcessState;

const SUCCEEDED: &str = "the trial of a freeze on gpu0 succeeded";
const FAILED: &str = "the trial of a freeze on gpu0 failed";
const REPEATED: &str = "the trial of a freeze on gpu0 is repeated";

/// Starts a daemon whose simulated driver has these faults, also in the trial's process and in helpers.
fn world_with(faults: &str) -> anyhow::Result<(World, Daemon)> {
    let (world, mut daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    daemon.stop()?;
    daemon.restart_under(&["env", &format!("SIMGPU_FAULTS={faults}")])?;
    Ok((world, daemon))
}

/// Starts a program with 32 MiB of sevens.
fn program(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name).and(&["--backend", "native"]), name)?;
    program.must("alloc x 32MiB; fill x 7; sync; check x 7")?;
    Ok(program)
}

/// Checks that the daemons of this world have said so that many times. A thread of its own writes the log.
fn has_said(daemon: &Daemon, words: &str, times: usize) -> anyhow::Result<()> {
    let count = || daemon.process().stderr().matches(words).count();
    until("the log has it", || Ok((count() >= times).then_some(())))?;
    assert_eq!(count(), times, "{words}");
    Ok(())
}

fn freeze(daemon: &Daemon, name: &str) -> anyhow::Result<()> {
    daemon.ctl(&["session", "freeze", name]).map(drop)
}

/// Error of a freeze that is to fail.
fn refusal(daemon: &Daemon, name: &str) -> anyhow::Result<String> {
    let error = freeze(daemon, name).err().context("it was frozen")?;
    Ok(error.to_string())
}

fn is_running(world: &World, program: &Program) -> anyhow::Result<bool> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let known = stats.processes.into_iter().find(|known| known.pid == program.process().pid());
    Ok(known.context("the program is on the card")?.state == ProcessState::Running)
}

#[test]
fn the_first_freeze_of_a_daemon_is_preceded_by_one_trial() -> anyhow::Result<()> {
    let (world, mut daemon) = world_with("")?;
    let mut programs = [program(&world, "a")?, program(&world, "b")?];
    has_said(&daemon, SUCCEEDED, 0)?;
    for name in ["a", "b"] {
        freeze(&daemon, name)?;
        has_said(&daemon, SUCCEEDED, 1)?;
    }
    for program in &mut programs {
        program.must("check x 7")?;
    }
    freeze(&daemon, "a")?;
    has_said(&daemon, SUCCEEDED, 1)?;
    // It has ended by itself, and its memory is given back.
    until("only the programs are on the card", || {
        let stats = world.card().context("a simulated card")?.stats()?;
        let living = stats.processes.iter().filter(|process| process.alive).count();
        Ok((living == programs.len()).then_some(()))
    })?;
    daemon.kill()?;
    daemon.restart()?;
    programs[0].must("check x 7")?;
    // A thaw needs no trial.
    has_said(&daemon, SUCCEEDED, 1)?;
    freeze(&daemon, "b")?;
    // A new daemon makes another one.
    has_said(&daemon, SUCCEEDED, 2)?;
    Ok(())
}

#[test]
fn a_driver_that_does_not_restore_the_trial_freezes_no_program() -> anyhow::Result<()> {
    let (world, daemon) = world_with("cuCheckpointProcessRestore=999")?;
    let mut programs = [program(&world, "a")?, program(&world, "b")?];
    let why = "the trial of a freeze failed on a card of it (gpu0: the process is lost to the driver: \
               cuCheckpointProcessRestore answered CUDA_ERROR_UNKNOWN (999))";
    for name in ["a", "b", "a"] {
        let error = refusal(&daemon, name)?;
        assert!(error.contains(why), "{error}");
        let says = daemon.ctl(&["explain", name])?;
        assert!(says.contains("it cannot be frozen: process ") && says.contains(why), "{says}");
    }
    has_said(&daemon, FAILED, 1)?;
    has_said(&daemon, "left its cards", 0)?;
    let mut doctor = world.part(Part::Ctl);
    let output = doctor.args(["doctor", "--json", "--timeout", "10min"]).output()?;
    let says = String::from_utf8(output.stdout)?;
    assert!(
        says.contains("not every session can be frozen: the trial of a freeze on gpu0 failed: "),
        "{says}"
    );
    for program in &mut programs {
        assert!(is_running(&world, program)?);
        program.must("check x 7")?;
    }
    Ok(())
}

#[test]
fn a_trial_whose_memory_cannot_be_read_back_has_failed() -> anyhow::Result<()> {
    let (world, daemon) = world_with("cuMemcpyDtoH=700")?;
    let mut program = program(&world, "a")?;
    let error = refusal(&daemon, "a")?;
    assert!(error.contains("(gpu0: cuMemcpyDtoH_v2 answered CUDA_ERROR_ILLEGAL_ADDRESS (700))"), "{error}");
    assert!(is_running(&world, &program)?);
    program.must("check x 7").map(drop)
}

#[test]
fn a_trial_without_room_is_repeated_before_the_next_freeze() -> anyhow::Result<()> {
    let (world, daemon) = world_with("")?;
    let mut program = program(&world, "a")?;
    // The daemon does not know of it. It leaves the card three mebibytes.
    let mut stranger = Program::hold(&world, &Sharing::Native, "stranger")?;
    stranger.must("alloc y 217MiB; fill y 8; sync")?;
    let error = refusal(&daemon, "a")?;
    assert!(error.contains("its card had no memory for the trial of a freeze"), "{error}");
    assert!(is_running(&world, &program)?);
    has_said(&daemon, REPEATED, 1)?;
    has_said(&daemon, "the card has no memory for it now", 1)?;
    stranger.must("check y 8")?;
    stranger.quit()?;
    freeze(&daemon, "a")?;
    has_said(&daemon, SUCCEEDED, 1)?;
    has_said(&daemon, REPEATED, 1)?;
    program.must("check x 7").map(drop)
}
