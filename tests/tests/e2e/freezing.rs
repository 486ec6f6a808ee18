//! Idle sessions are frozen into host memory, and any call of the driver brings them back.

use std::os::unix::net::UnixDatagram;
use std::process::ExitStatus;
use std::thread;

use anyhow::{Context, ensure};
use gpushare_proto::admin::LockView;
use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{Bytes, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Daemon, Dialogue, Program, Sharing, World, foreign};
use rustix::process::Signal;
use simgpu_card::wire::ProcessState;

use crate::audit::metrics;

pub(crate) const CARD: Bytes = Bytes::mib(256);
/// Most bytes that a frozen process leaves on its card.
const LEFT: Bytes = Bytes::mib(4);

pub(crate) fn world() -> anyhow::Result<(World, Daemon)> {
    World::of(CARD)?.with_daemon(&[])
}

pub(crate) fn session(name: &str, backend: &str) -> Sharing {
    Sharing::session(name).and(&["--backend", backend])
}

/// Starts a program with 32 MiB of sevens.
pub(crate) fn program(world: &World, name: &str, backend: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &session(name, backend), name)?;
    program.must("alloc x 32MiB; fill x 7; stream s; event e; sync; check x 7")?;
    Ok(program)
}

/// State of a process on the simulated card, and its bytes there. A frozen one keeps its place and nothing else.
pub(crate) fn on_card(world: &World, pid: u32) -> anyhow::Result<(ProcessState, Bytes)> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let known = stats.processes.into_iter().find(|known| known.pid == pid);
    let known = known.context("the program is on the card")?;
    Ok((known.state, Bytes(known.device_bytes)))
}

pub(crate) fn freeze(world: &World, daemon: &Daemon, name: &str, pid: u32) -> anyhow::Result<()> {
    let said = daemon.ctl(&["session", "freeze", name])?;
    ensure!(said == format!("session {name}: running → frozen\n"), "{said}");
    let (state, bytes) = on_card(world, pid)?;
    ensure!(state == ProcessState::Checkpointed && bytes <= LEFT, "{state:?} with {bytes}");
    Ok(())
}

pub(crate) fn is_running(world: &World, pid: u32) -> anyhow::Result<bool> {
    Ok(on_card(world, pid)?.0 == ProcessState::Running)
}

#[test]
fn a_frozen_session_is_shown_as_frozen_until_it_runs_again() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&["--metrics", "127.0.0.1:0"])?;
    let mut program = program(&world, "a", "remap")?;
    freeze(&world, &daemon, "a", program.process().pid())?;
    let status = daemon.status()?;
    ensure!(status.sessions[0].lock == LockView::Frozen, "{status:?}");
    for words in [&["status"][..], &["top", "--once"]] {
        let shown = daemon.ctl(words)?;
        ensure!(shown.contains(" frozen"), "{shown}");
    }
    let counts = |number: u32| {
        let line = format!("\ngpushare_frozen_sessions {number}\n");
        until("the metrics count it", || Ok(metrics(&daemon)?.contains(&line).then_some(())))
    };
    counts(1)?;
    program.must("check x 7")?;
    let status = daemon.status()?;
    ensure!(status.sessions[0].lock != LockView::Frozen, "{status:?}");
    counts(0)
}

#[test]
fn functions_by_cu_get_proc_address_thaw_too() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut command = world.workload(&session("a", "remap"));
    command.args(["--resolve", "proc-address"]);
    let mut program = Program::begin(command, &world, "a")?;
    program.ready()?;
    program.must("alloc x 8MiB; fill x 7; event e; sync; stay")?;
    let pid = program.process().pid();
    for call in ["event-query e", "check x 7"] {
        freeze(&world, &daemon, "a", pid)?;
        program.must(call)?;
        program.must("check x 7")?;
    }
    assert!(program.quit()?.success());
    Ok(())
}

#[test]
fn a_frozen_program_thaws_at_its_end_and_in_its_handler_of_a_signal() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    for (backend, signal) in [("remap", false), ("native", false), ("remap", true), ("native", true)] {
        let source = foreign::compile(&world, "frozen.c", "frozen", &["-ldl"])?;
        let command = world.sharing(&session("c", backend), &source);
        let mut program = Dialogue::start(&world, command, "frozen")?;
        assert_eq!(program.answer()?, "ready 0");
        freeze(&world, &daemon, "c", program.process.pid())?;
        match signal {
            true => {
                program.process.signal(Signal::TERM)?;
                assert_eq!(program.answer()?, "handler 0 7");
            }
            false => program.tell("end")?,
        }
        let ended: ExitStatus = program.process.wait()?;
        assert!(ended.success(), "{ended} {}", program.process.stderr());
        daemon.until("its session ends", |status| status.sessions.is_empty())?;
    }
    Ok(())
}

#[test]
fn a_program_that_is_killed_while_it_is_frozen_leaves_nothing() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    freeze(&world, &daemon, "a", program.process().pid())?;
    program.kill()?;
    daemon.until("its session ends", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn thaw_brings_a_session_back_without_a_call() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    let pid = program.process().pid();
    freeze(&world, &daemon, "a", pid)?;
    assert!(daemon.ctl(&["explain", "a"])?.contains("it is frozen"));
    assert_eq!(daemon.ctl(&["session", "thaw", "a"])?, "session a: frozen → running\n");
    assert!(is_running(&world, pid)?);
    program.must("check x 7")?;
    Ok(())
}

#[test]
fn a_session_that_cannot_be_frozen_says_why_and_runs_on() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = Program::hold(&world, &session("a", "managed"), "a")?;
    program.must("alloc x 8MiB; fill x 7; sync")?;
    let error = daemon.ctl(&["session", "freeze", "a"]).unwrap_err().to_string();
    assert!(error.contains("it has managed memory, which the driver cannot freeze"), "{error}");
    let error = daemon.ctl(&["session", "freeze", "b"]).unwrap_err().to_string();
    assert!(error.contains("no session"), "{error}");
    until("explain says so", || {
        let says = daemon.ctl(&["explain", "a"])?.contains("it cannot be frozen: ");
        Ok(says.then_some(()))
    })?;
    program.must("check x 7")?;
    Ok(())
}

#[test]
fn a_freeze_waits_for_work_and_ends_at_the_next_call() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    program.must("latch l; fill x 8")?;
    let waits = program.tell("sync")?;
    thread::scope(|scope| {
        let freezing = scope.spawn(|| daemon.ctl(&["session", "freeze", "a"]));
        until("it is to be frozen", || {
            Ok(daemon.ctl(&["explain", "a"])?.contains("it is being frozen").then_some(()))
        })?;
        program.must("@b open l")?;
        program.done(waits)?;
        program.must("check x 8")?;
        // Frozen for a moment or not at all, as it happens.
        let _ = freezing.join();
        program.must("check x 8").map(drop)
    })
}

#[test]
fn a_killed_daemon_leaves_a_frozen_program_to_the_next_one() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    for backend in ["remap", "native"] {
        let mut program = program(&world, backend, backend)?;
        let pid = program.process().pid();
        freeze(&world, &daemon, backend, pid)?;
        daemon.kill()?;
        // Without a daemon nobody thaws it, so the call waits.
        let call = program.tell("event-query e")?;
        daemon.restart()?;
        program.done(call)?;
        program.must("check x 7")?;
        freeze(&world, &daemon, backend, pid)?;
        program.must("check x 7")?;
        assert!(program.quit()?.success());
    }
    Ok(())
}

#[test]
fn a_daemon_does_not_kill_a_stopped_program_that_the_last_one_had_frozen() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    let mut frozen = program(&world, "frozen", "remap")?;
    let mut other = program(&world, "other", "remap")?;
    freeze(&world, &daemon, "frozen", frozen.process().pid())?;
    frozen.must("check x 7")?;
    // The answer comes once everything is in the registry file.
    daemon.ctl(&["session", "create", "written"])?;
    for program in [&frozen, &other] {
        program.process().signal(Signal::STOP)?;
    }
    daemon.kill()?;
    world.add_setting("stuck_policy = 'kill'\nstuck_after = '300ms'")?;
    daemon.restart()?;
    until("the other program is killed", || Ok(other.ended()?.then_some(())))?;
    until("the frozen one is overdue", || {
        let said = daemon.process().stderr();
        Ok(said
            .contains("it is not ended, because the driver has frozen it before")
            .then_some(()))
    })?;
    frozen.process().signal(Signal::CONT)?;
    frozen.must("check x 7")?;
    assert!(frozen.quit()?.success());
    Ok(())
}

#[test]
fn a_context_that_is_destroyed_without_a_daemon_waits_for_the_next_one() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    for backend in ["remap", "native"] {
        let mut program = program(&world, backend, backend)?;
        let pid = program.process().pid();
        for calls in ["end c", "detach c", "capture s; end-capture s g", "release"] {
            if calls.ends_with('c') {
                program.must("make c")?;
            }
            freeze(&world, &daemon, backend, pid)?;
            daemon.kill()?;
            let tickets: anyhow::Result<Vec<_>> = calls.split("; ").map(|call| program.tell(call)).collect();
            daemon.restart()?;
            for ticket in tickets? {
                program.done(ticket)?;
            }
        }
        program.kill()?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_does_not_know_freezing_hears_nothing_of_it() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    daemon.knows_freezing();
    let mut program = Program::hold_with(&world, &Sharing::Preload, "a", names::BACKEND, "native")?;
    program.must("alloc x 8MiB; fill x 7; event e; sync")?;
    daemon.hold(true);
    daemon.hears(&TenantRequest::Parked { number: 1 })?;
    // The next one is older.
    daemon.die()?;
    daemon.hears(&TenantRequest::Reconciled)?;
    assert!(!daemon.has_heard(&TenantRequest::Held));
    let call = program.tell("event-query e")?;
    daemon.die_for_one_that_freezes()?;
    daemon.hears(&TenantRequest::Held)?;
    daemon.hears(&TenantRequest::Called)?;
    daemon.hold(true);
    daemon.hold(false);
    program.done(call)?;
    Ok(())
}

#[test]
fn a_daemon_that_is_stopped_thaws_everybody_first() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    let mut programs = [program(&world, "a", "remap")?, program(&world, "b", "native")?];
    for (program, name) in programs.iter().zip(["a", "b"]) {
        freeze(&world, &daemon, name, program.process().pid())?;
    }
    daemon.stop()?;
    for program in &programs {
        assert!(is_running(&world, program.process().pid())?);
    }
    daemon.restart()?;
    for program in &mut programs {
        program.must("check x 7")?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_cannot_thaw_feeds_its_watchdog_and_ends_at_a_second_signal() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    let path = world.folder().join("manager");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_nonblocking(true)?;
    daemon.stop()?;
    let socket = format!("NOTIFY_SOCKET={}", path.display());
    daemon.restart_under(&["env", &socket, "WATCHDOG_USEC=100000"])?;
    let mut a = program(&world, "a", "native")?;
    freeze(&world, &daemon, "a", a.process().pid())?;
    let mut b = Program::hold(&world, &session("b", "native"), "b")?;
    b.must("alloc y 224MiB")?;
    daemon.process().signal(Signal::TERM)?;
    until("it has begun to end", || {
        let waits = daemon.ctl(&["explain", "a"])?.contains("it was frozen, and comes back");
        Ok(waits.then_some(()))
    })?;
    let received = || {
        let mut message = [0; 64];
        let length = manager.recv(&mut message).ok()?;
        Some(message[..length].to_vec())
    };
    while received().is_some() {}
    until("it says that it lives", || Ok(received().filter(|said| said == b"WATCHDOG=1")))?;
    assert!(!daemon.ended()?, "it has no room for the program");
    daemon.process().signal(Signal::TERM)?;
    until("it ends", || Ok(daemon.ended()?.then_some(())))?;
    b.kill()?;
    daemon.restart()?;
    a.must("check x 7")?;
    assert!(a.quit()?.success());
    Ok(())
}

#[test]
fn a_paused_session_stays_frozen_until_it_is_resumed() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    let pid = program.process().pid();
    daemon.ctl(&["session", "pause", "a"])?;
    freeze(&world, &daemon, "a", pid)?;
    let call = program.tell("check x 7")?;
    until("the call waits", || {
        Ok(daemon
            .ctl(&["explain", "a"])?
            .contains("a waits until it is resumed")
            .then_some(()))
    })?;
    assert_eq!(on_card(&world, pid)?.0, ProcessState::Checkpointed);
    daemon.ctl(&["session", "resume", "a"])?;
    program.done(call)?;
    assert!(is_running(&world, pid)?);
    Ok(())
}

#[test]
fn a_session_that_is_idle_for_its_time_is_frozen_until_its_next_call() -> anyhow::Result<()> {
    for backend in ["remap", "native"] {
        // A daemon that has never looked at the host's memory for another one.
        let (world, daemon) = world()?;
        let sharing = session(backend, backend).and(&["--freeze-after", "1s"]);
        let mut program = Program::hold(&world, &sharing, backend)?;
        program.must("alloc x 32MiB; fill x 7; sync; check x 7")?;
        let pid = program.process().pid();
        for _ in 0..2 {
            until("it is frozen", || {
                Ok((on_card(&world, pid)?.0 == ProcessState::Checkpointed).then_some(()))
            })?;
            assert!(on_card(&world, pid)?.1 <= LEFT);
            program.must("check x 7")?;
        }
        daemon.ctl(&["set", "freeze-after", "off", "--session", backend])?;
        program.must("check x 7")?;
        assert!(program.quit()?.success());
    }
    Ok(())
}

#[test]
fn explain_says_when_an_idle_session_is_frozen_and_why_one_is_not() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut frozen_soon = program(&world, "a", "remap")?;
    daemon.ctl(&["set", "freeze-after", "10min", "--session", "a"])?;
    until("it is idle", || {
        let says = daemon.ctl(&["explain", "a"])?;
        Ok((says.contains("it is idle for ") && says.contains("and is frozen after 10m00s")).then_some(()))
    })?;
    frozen_soon.must("check x 7")?;
    let sharing = session("b", "managed").and(&["--freeze-after", "1s"]);
    let mut never = Program::hold(&world, &sharing, "b")?;
    never.must("alloc x 8MiB; fill x 7; sync")?;
    until("it cannot be frozen", || {
        let says = daemon.ctl(&["explain", "b"])?;
        Ok(says.contains("it cannot be frozen: ").then_some(()))
    })?;
    never.must("check x 7").map(drop)
}

#[test]
fn a_pause_that_frees_the_memory_lasts_until_the_session_is_resumed() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    let pid = program.process().pid();
    let pause = ["session", "pause", "a", "--free-memory"];
    assert_eq!(daemon.ctl(&pause)?, "session a: running → paused and frozen\n");
    let (state, bytes) = on_card(&world, pid)?;
    assert!(state == ProcessState::Checkpointed && bytes <= LEFT, "{state:?} with {bytes}");
    assert_eq!(daemon.ctl(&["session", "resume", "a"])?, "session a: paused → running\n");
    until("it runs again without a call", || Ok(is_running(&world, pid)?.then_some(())))?;
    program.must("check x 7")?;

    // Also while a thread of it waits for its turn.
    daemon.ctl(&["session", "pause", "a"])?;
    let call = program.tell("check x 7")?;
    until("the call waits", || {
        Ok(daemon
            .ctl(&["explain", "a"])?
            .contains("a waits until it is resumed")
            .then_some(()))
    })?;
    daemon.ctl(&pause)?;
    assert_eq!(on_card(&world, pid)?.0, ProcessState::Checkpointed);
    daemon.ctl(&["session", "resume", "a"])?;
    program.done(call)
}

#[test]
fn a_pause_that_cannot_free_the_memory_says_why_and_holds() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = Program::hold(&world, &session("a", "managed"), "a")?;
    program.must("alloc x 8MiB; fill x 7; sync")?;
    let error = daemon.ctl(&["session", "pause", "a", "--free-memory"]).unwrap_err().to_string();
    assert!(error.contains("it has managed memory, which the driver cannot freeze"), "{error}");
    assert!(daemon.ctl(&["explain", "a"])?.contains("it is paused"));
    daemon.ctl(&["session", "resume", "a"])?;
    program.must("check x 7").map(drop)
}

#[test]
fn a_program_comes_back_once_the_card_has_free_memory_for_it() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = Program::hold(&world, &session("a", "native"), "a")?;
    program.must("alloc x 160MiB; fill x 7; sync; check x 7")?;
    let pid = program.process().pid();
    freeze(&world, &daemon, "a", pid)?;
    // The daemon does not know of it.
    let mut stranger = Program::hold(&world, &Sharing::Native, "stranger")?;
    stranger.must("alloc y 160MiB; fill y 8; sync")?;
    let call = program.tell("check x 7")?;
    until("explain says what it waits for", || {
        let says = daemon.ctl(&["explain", "a"])?;
        Ok(says.contains("NVML shows less free memory on its cards").then_some(()))
    })?;
    stranger.must("check y 8")?;
    assert_eq!(on_card(&world, pid)?.0, ProcessState::Checkpointed);
    stranger.quit()?;
    program.done(call)?;
    assert!(is_running(&world, pid)?);
    Ok(())
}
