//! Freezing and thawing of a process by the daemon's helper, on the simulated driver.

use std::process::ExitStatus;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use gpushare_checkpoint::{
    FreezeError, Limits, SUBCOMMAND, Target, ThawError, TrialError, freeze, thaw, thaw_in_place, try_freeze,
};
use gpushare_proto::Bytes;
use gpushare_sys::process;
use gpushare_tests::patience::until;
use gpushare_tests::process::write_executable;
use gpushare_tests::{Artifacts, Part, Program, Sharing, World};
use rustix::process::{Pid, Signal, getuid, kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};
use simgpu_card::wire::ProcessState;

/// A helper is the daemon's program with the environment of this world. The operations start it with their own
/// environment, so a script stands between them.
fn helper(world: &World, faults: &str) -> anyhow::Result<std::path::PathBuf> {
    let path = world.folder().join(format!("helper-{}", faults.len()));
    let script = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={} SIMGPU_SOCKET={} SIMGPU_FAULTS='{faults}'\nexec {} \"$@\"\n",
        world.folder().join("lib").display(),
        world.card_socket().display(),
        world.path(Part::Scheduler).display(),
    );
    write_executable(&path, &script)?;
    Ok(path)
}

fn target(program: &Program) -> anyhow::Result<Target> {
    let pid = program.process().pid();
    Ok(Target { pid, start: process::start_time(pid).context("it lives")? })
}

fn state(world: &World, program: &Program) -> anyhow::Result<(ProcessState, Bytes)> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let known = stats.processes.into_iter().find(|known| known.pid == program.process().pid());
    let known = known.context("the program is on the card")?;
    Ok((known.state, Bytes(known.device_bytes)))
}

fn start() -> anyhow::Result<(World, Program)> {
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?;
    let mut program = Program::hold(&world, &Sharing::Native, "a")?;
    program.must("alloc x 16MiB; fill x 7; sync")?;
    Ok((world, program))
}

fn ends_well(mut program: Program) -> anyhow::Result<()> {
    program.must("check x 7")?;
    assert!(ExitStatus::success(&program.quit()?));
    Ok(())
}

#[test]
fn a_process_is_frozen_and_thawed_with_its_bytes() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let (helper, target) = (helper(&world, "")?, target(&program)?);
    freeze(&helper, target, &Limits::default())?;
    assert_eq!(state(&world, &program)?, (ProcessState::Checkpointed, Bytes::ZERO));
    thaw(&helper, target, &Limits::default())?;
    assert_eq!(state(&world, &program)?, (ProcessState::Running, Bytes::mib(16)));
    thaw(&helper, target, &Limits::default())?;
    ends_well(program)
}

#[test]
fn a_process_is_thawed_in_place_unless_it_is_in_its_checkpoint() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let (sound, target) = (helper(&world, "")?, target(&program)?);
    let broken = helper(&world, "cuCheckpointProcessCheckpoint=dies")?;
    assert!(freeze(&broken, target, &Limits::default()).is_err());
    thaw_in_place(&sound, target, &Limits::default())?;
    assert_eq!(state(&world, &program)?, (ProcessState::Running, Bytes::mib(16)));
    freeze(&sound, target, &Limits::default())?;
    let error = thaw_in_place(&sound, target, &Limits::default()).unwrap_err();
    assert!(matches!(error, ThawError::Away), "{error}");
    assert_eq!(state(&world, &program)?.0, ProcessState::Checkpointed);
    thaw(&sound, target, &Limits::default())?;
    ends_well(program)
}

/// Runs `work` in a thread that has no capabilities but these, as far as it may drop any. What it starts has no others.
fn with_only<T: Send>(kept: CapabilitySet, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    let of_thread = || -> anyhow::Result<T> {
        set_no_new_privs(true)?;
        let permitted = capabilities(None)?.permitted & kept;
        let inheritable = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })?;
        Ok(work())
    };
    thread::scope(|scope| scope.spawn(of_thread).join()).expect("no panic")
}

#[test]
fn a_process_with_capabilities_that_the_daemon_lacks_needs_one_of_the_daemon() -> anyhow::Result<()> {
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?;
    // As root in a container, if root runs the tests.
    let theirs = CapabilitySet::KILL | CapabilitySet::CHOWN;
    let mut program = with_only(theirs, || Program::hold(&world, &Sharing::Native, "a"))??;
    program.must("alloc x 16MiB; fill x 7; sync")?;
    let (helper, target) = (helper(&world, "")?, target(&program)?);
    let freeze_with = |kept| with_only(kept, || freeze(&helper, target, &Limits::default()));
    if getuid().is_root() {
        let refused = freeze_with(CapabilitySet::KILL)?;
        assert!(matches!(&refused, Err(FreezeError::Refused(refusal)) if refusal.code == 304), "{refused:?}");
    }
    freeze_with(CapabilitySet::KILL | CapabilitySet::SYS_PTRACE)??;
    assert_eq!(state(&world, &program)?, (ProcessState::Checkpointed, Bytes::ZERO));
    thaw(&helper, target, &Limits::default())?;
    ends_well(program)
}

#[test]
fn a_refusal_of_the_driver_leaves_the_process_running() -> anyhow::Result<()> {
    let (world, mut program) = start()?;
    program.must("alloc y 4MiB --door managed")?;
    let error = freeze(&helper(&world, "")?, target(&program)?, &Limits::default()).unwrap_err();
    assert!(matches!(&error, FreezeError::Refused(refusal) if refusal.code == 801), "{error}");
    assert_eq!(state(&world, &program)?.0, ProcessState::Running);
    ends_well(program)
}

#[test]
fn work_under_way_is_waited_for_and_no_longer_than_allowed() -> anyhow::Result<()> {
    let (world, mut program) = start()?;
    program.spin_for_good()?;
    let limits = Limits { lock: Duration::from_millis(50), ..Limits::default() };
    let error = freeze(&helper(&world, "")?, target(&program)?, &limits).unwrap_err();
    assert!(matches!(error, FreezeError::Busy(_)), "{error}");
    program.kill()
}

#[test]
fn a_helper_that_dies_or_hangs_leaves_a_process_that_can_be_thawed() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let (sound, target) = (helper(&world, "")?, target(&program)?);
    for fault in ["Lock=dies", "Checkpoint=dies", "Checkpoint=hangs"] {
        let broken = helper(&world, &format!("cuCheckpointProcess{fault}"))?;
        let limits = Limits { moving: Duration::from_secs(3), ..Limits::default() };
        let error = freeze(&broken, target, &limits).unwrap_err();
        assert!(matches!(error, FreezeError::Unknown(_)), "{fault}: {error}");
        thaw(&sound, target, &Limits::default())?;
        assert_eq!(state(&world, &program)?.0, ProcessState::Running, "{fault}");
    }
    for fault in ["Restore=dies", "Restore=hangs", "Unlock=dies", "GetState=dies"] {
        freeze(&sound, target, &Limits::default())?;
        let broken = helper(&world, &format!("cuCheckpointProcess{fault}"))?;
        let limits = Limits { moving: Duration::from_secs(3), ..Limits::default() };
        let error = thaw(&broken, target, &limits).unwrap_err();
        assert!(matches!(error, ThawError::Unknown(_)), "{fault}: {error}");
        thaw(&sound, target, &Limits::default())?;
        assert_eq!(state(&world, &program)?.0, ProcessState::Running, "{fault}");
    }
    ends_well(program)
}

/// Kills the helper of a process.
fn kill_helper(of: Target) -> anyhow::Result<()> {
    let arguments = format!("\0{SUBCOMMAND}\0{}\0{}\0", of.pid, of.start);
    let processes = std::fs::read_dir("/proc")?.flatten();
    let mut numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let is_helper = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).ends_with(&arguments)
    };
    let helper = numbers.find(is_helper).and_then(Pid::from_raw).context("no helper runs")?;
    Ok(kill_process(helper, Signal::KILL)?)
}

fn is_stepping(world: &World, program: &Program) -> anyhow::Result<bool> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let known = stats.processes.into_iter().find(|known| known.pid == program.process().pid());
    Ok(known.context("the program is on the card")?.steps)
}

#[test]
fn a_step_that_outlives_its_helper_ends_before_the_thaw() -> anyhow::Result<()> {
    let (world, mut program) = start()?;
    let (helper, target) = (helper(&world, "")?, target(&program)?);
    program.must("latch l")?;
    let limits = Limits {
        lock: Duration::from_secs(60),
        step: Duration::from_secs(60),
        ..Limits::default()
    };
    thread::scope(|scope| {
        let freezing = scope.spawn(|| freeze(&helper, target, &limits));
        until("the driver waits for work", || Ok(is_stepping(&world, &program)?.then_some(())))?;
        kill_helper(target)?;
        let ended = freezing.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
        assert!(matches!(ended, Err(FreezeError::Unknown(_))), "{ended:?}");
        assert!(is_stepping(&world, &program)?, "the lock goes on");
        let thawing = scope.spawn(|| thaw(&helper, target, &limits));
        program.must("@b open l")?;
        thawing.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        assert_eq!(state(&world, &program)?.0, ProcessState::Running);
        assert!(!is_stepping(&world, &program)?);
        anyhow::Ok(())
    })?;
    ends_well(program)
}

#[test]
fn a_restore_that_outlives_its_helper_loses_no_process() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let (helper, target) = (helper(&world, "")?, target(&program)?);
    for _ in 0..3 {
        freeze(&helper, target, &Limits::default())?;
        thread::scope(|scope| {
            let thawing = scope.spawn(|| thaw(&helper, target, &Limits::default()));
            until("the driver moves the memory", || Ok(is_stepping(&world, &program)?.then_some(())))?;
            let _ = kill_helper(target);
            // It may have been done before.
            let _ = thawing.join();
            thaw(&helper, target, &Limits::default())?;
            assert_eq!(state(&world, &program)?, (ProcessState::Running, Bytes::mib(16)));
            anyhow::Ok(())
        })?;
    }
    ends_well(program)
}

#[test]
fn a_restore_that_the_driver_refuses_is_a_lost_process() -> anyhow::Result<()> {
    let (world, mut program) = start()?;
    let (sound, target) = (helper(&world, "")?, target(&program)?);
    freeze(&sound, target, &Limits::default())?;
    let broken = helper(&world, "cuCheckpointProcessRestore=999")?;
    let error = thaw(&broken, target, &Limits::default()).unwrap_err();
    assert!(matches!(&error, ThawError::Lost(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("cuCheckpointProcessRestore answered CUDA_ERROR_UNKNOWN (999)"),
        "{error}"
    );
    program.kill()
}

#[test]
fn a_process_for_which_the_card_has_no_memory_stays_in_its_checkpoint() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let (sound, target) = (helper(&world, "")?, target(&program)?);
    freeze(&sound, target, &Limits::default())?;
    let full = helper(&world, "cuCheckpointProcessRestore=2")?;
    let error = thaw(&full, target, &Limits::default()).unwrap_err();
    assert!(matches!(&error, ThawError::NoRoom(_)), "{error}");
    assert_eq!(state(&world, &program)?.0, ProcessState::Checkpointed);
    thaw(&sound, target, &Limits::default())?;
    ends_well(program)
}

#[test]
fn a_dead_process_and_another_one_of_its_pid_are_left_alone() -> anyhow::Result<()> {
    let (world, mut program) = start()?;
    let (helper, found) = (helper(&world, "")?, target(&program)?);
    let other = Target { start: found.start + 1, ..found };
    assert!(matches!(freeze(&helper, other, &Limits::default()), Err(FreezeError::Gone)));
    assert_eq!(state(&world, &program)?.0, ProcessState::Running);
    freeze(&helper, found, &Limits::default())?;
    program.kill()?;
    assert!(matches!(thaw(&helper, found, &Limits::default()), Err(ThawError::Gone)));
    Ok(())
}

#[test]
fn a_machine_without_a_driver_says_so() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let old = helper(&world, "")?;
    let script = std::fs::read_to_string(&old)?.replace("SIMGPU_FAULTS=''", "SIMGPU_DRIVER_VERSION=12.4");
    std::fs::write(&old, script)?;
    let error = freeze(&old, target(&program)?, &Limits::default()).unwrap_err();
    assert_eq!(error.to_string(), "the driver is for CUDA 12.4, and checkpoints need 12.8");
    ends_well(program)
}

#[test]
fn a_trial_tells_a_driver_that_fails_from_one_that_broke_off() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let of = |faults: &str| -> anyhow::Result<_> {
        Ok(try_freeze(&helper(&world, faults)?, "0", &Limits::default()))
    };
    assert_eq!(of("")?, Ok(()));
    let is_failed = |reason: &str, end| matches!(&end, Err(TrialError::Failed(of)) if of.contains(reason));
    assert!(is_failed("cuCheckpointProcessLock answered", of("cuCheckpointProcessLock=801")?));
    assert!(is_failed("cuCheckpointProcessCheckpoint answered", of("cuCheckpointProcessCheckpoint=801")?));
    assert!(is_failed("cuInit answered CUDA_ERROR_NO_DEVICE (100)", of("cuInit=100")?));
    assert!(matches!(of("cuDevicePrimaryCtxRetain=2")?, Err(TrialError::NoRoom(_))));
    assert!(matches!(of("cuCheckpointProcessCheckpoint=dies")?, Err(TrialError::BrokeOff(_))));
    assert!(matches!(of("cuMemcpyHtoD=dies")?, Err(TrialError::BrokeOff(_))));
    until("each process has ended", || {
        let stats = world.card().context("a simulated card")?.stats()?;
        Ok((stats.processes.iter().filter(|process| process.alive).count() == 1).then_some(()))
    })?;
    ends_well(program)
}

#[test]
fn a_restore_that_has_no_memory_on_the_card_is_no_failed_trial() -> anyhow::Result<()> {
    let (world, program) = start()?;
    let ended = try_freeze(&helper(&world, "cuCheckpointProcessRestore=2")?, "0", &Limits::default());
    assert!(matches!(ended, Err(TrialError::NoRoom(_))), "{ended:?}");
    ends_well(program)
}
