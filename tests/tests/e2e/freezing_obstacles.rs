//! Facts that keep a session from being frozen: the refusal and `explain` name them beforehand, and the program runs on.

use std::fs;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, bail, ensure};
use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest};
use gpushare_proto::{Bytes, names};
use gpushare_tests::patience::until;
use gpushare_tests::{Administrator, Artifacts, Daemon, Dialogue, Program, World, foreign};
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::control_groups::Group;
use super::doctor::{findings, of};
use super::freezing::{CARD, freeze, program, session, world};

/// A session is not frozen, and both the refusal and `explain` say why.
pub(crate) fn is_kept_warm_by(daemon: &Daemon, name: &str, why: &str) -> anyhow::Result<()> {
    let mut said = String::new();
    until("explain says why", || {
        said = daemon.ctl(&["explain", name])?;
        let says_why = |line: &str| line.starts_with("it cannot be frozen: ") && line.ends_with(why);
        Ok(said.lines().any(says_why).then_some(()))
    })
    .with_context(|| format!("{why}, and not:\n{said}"))?;
    let error = daemon.ctl(&["session", "freeze", name]).unwrap_err().to_string();
    ensure!(error.contains(why), "{error}");
    Ok(())
}

#[test]
fn processes_that_share_memory_are_not_frozen() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let (mut exporter, mut importer) = (program(&world, "one", "remap")?, program(&world, "other", "remap")?);
    let handle = exporter.must("ipc x")?.text("handle").to_owned();
    importer.must(&format!("import y {handle} 32MiB"))?;
    for name in ["one", "other"] {
        is_kept_warm_by(
            &daemon,
            name,
            "it shares memory of a card with another process or a graphics interface",
        )?;
    }
    exporter.must("check x 7")?;
    importer.must("check y 7; check x 7").map(drop)
}

#[test]
fn a_process_that_has_taken_memory_of_a_graphics_interface_is_not_frozen() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let source = foreign::program(&world, "graphics")?;
    for function in [
        "cuGraphicsGLRegisterBuffer",
        "cuGraphicsGLRegisterImage",
        "cuGraphicsVDPAURegisterOutputSurface",
        "cuGraphicsVDPAURegisterVideoSurface",
        "cuGraphicsEGLRegisterImage",
        "cuGLRegisterBufferObject",
        "cuEGLStreamConsumerConnect",
        "cuEGLStreamConsumerConnectWithFlags",
        "cuEGLStreamProducerConnect",
        "cuEventCreateFromEGLSync",
    ] {
        let command = world.sharing(&session(function, "remap"), &source);
        let mut program = Dialogue::start(&world, command, function)?;
        ensure!(program.answer()? == "ready");
        let refused = program.ask(&format!("{function} 0"))?;
        ensure!(refused == format!("{function} 1"), "{refused}");
        freeze(&world, &daemon, function, program.process.pid())?;
        let done = program.ask(&format!("{function} 5"))?;
        ensure!(done == format!("{function} 0"), "{done}");
        is_kept_warm_by(
            &daemon,
            function,
            "it shares memory of a card with another process or a graphics interface",
        )?;
        program.end()?;
    }
    Ok(())
}

#[test]
fn a_process_with_memory_of_the_host_on_its_addresses_is_not_frozen() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&["--host-budget", "2GiB"])?;
    let sharing = session("a", "remap").and(&["--oversubscribe"]);
    let mut program = Program::hold(&world, &sharing, "a")?;
    program.must("alloc x 160MiB; fill x 7; alloc y 96MiB; fill y 3; sync")?;
    is_kept_warm_by(&daemon, "a", "it has a handle of host memory, with which no process comes back")?;
    program.must("check x 7; check y 3").map(drop)
}

/// The driver would not bring the process back although the program has released the handle.
#[test]
fn a_process_that_ever_made_memory_of_the_host_by_handle_is_not_frozen() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    for backend in ["remap", "native"] {
        let mut program = program(&world, backend, backend)?;
        program.must("alloc n 2MiB --door host-handle")?;
        let why = "it has a handle of host memory, with which no process comes back";
        is_kept_warm_by(&daemon, backend, why)?;
        program.must("free n; check x 7")?;
        is_kept_warm_by(&daemon, backend, why)?;
        program.must("check x 7")?;
    }
    Ok(())
}

#[test]
fn a_process_whose_control_group_has_no_room_is_frozen_once_it_has() -> anyhow::Result<()> {
    let Some(group) = Group::new("gpushare-freeze-") else { return Ok(()) };
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "native")?;
    group.limit(Bytes::mib(300))?;
    group.add(program.process().pid())?;
    let why = "its control groups have no room for what the driver moves into host memory; raise their limit of memory";
    is_kept_warm_by(&daemon, "a", why)?;
    program.must("check x 7")?;
    group.limit(Bytes::gib(4))?;
    until("it can be frozen", || Ok(daemon.ctl(&["session", "freeze", "a"]).ok()))?;
    program.must("check x 7").map(drop)
}

/// A debugger may come at any time, and no process is told of it.
#[test]
fn a_process_under_a_debugger_is_not_frozen_until_that_lets_it_go() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    let pid = Pid::from_raw(program.process().pid().try_into()?);
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        // The kernel lets a process go when the thread ends that holds it.
        let debugger = scope.spawn(move || {
            let held = ptrace::seize(pid, ptrace::Options::empty());
            let _ = ended.recv();
            held
        });
        let kept = is_kept_warm_by(&daemon, "a", "a debugger holds it");
        drop(end);
        debugger.join().expect("it only waits")?;
        kept
    })?;
    until("it can be frozen", || Ok(daemon.ctl(&["session", "freeze", "a"]).ok()))?;
    program.must("check x 7").map(drop)
}

/// The driver finds a process by its first thread, and takes a process whose first thread has ended for dead.
#[test]
fn a_process_whose_first_thread_has_ended_is_not_frozen() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let source = foreign::compile(&world, "headless.c", "headless", &["-ldl", "-pthread"])?;
    let mut program = Dialogue::start(&world, world.sharing(&session("a", "remap"), &source), "headless")?;
    ensure!(program.answer()? == "ready 0");
    ensure!(program.ask("leave")? == "left 0");
    is_kept_warm_by(&daemon, "a", "its first thread has ended, by which the driver finds a process")?;
    ensure!(program.ask("read")? == "read 7");
    program.end()
}

#[test]
fn a_driver_without_checkpoints_freezes_nothing() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut old = Program::hold_with(&world, &session("a", "remap"), "a", "SIMGPU_DRIVER_VERSION", "12.6")?;
    old.must("alloc x 32MiB; fill x 7; sync")?;
    is_kept_warm_by(&daemon, "a", "this driver is not known to freeze processes")?;
    old.must("check x 7").map(drop)
}

#[test]
fn an_untried_version_of_the_driver_freezes_nothing_and_is_named() -> anyhow::Result<()> {
    if fs::read_to_string("/proc/driver/nvidia/version").is_ok() {
        eprintln!("skipped: this machine has a driver of its own, which may have been tried");
        return Ok(());
    }
    let (world, mut daemon) = world()?;
    daemon.stop()?;
    daemon.restart_under(&["env", "-u", names::FREEZE_UNTRIED])?;
    let mut program = program(&world, "a", "remap")?;
    let why = "this driver is not known to freeze processes (version unknown)";
    is_kept_warm_by(&daemon, "a", why)?;
    let found = findings(&world)?;
    let said = of(&found, "daemon.freeze");
    assert!(matches!(said[..], [(_, finding)] if finding.contains(why)), "{said:?}");
    program.must("check x 7").map(drop)
}

#[test]
fn without_persistence_mode_nothing_is_frozen() -> anyhow::Result<()> {
    let flags = ["--memory", "256MiB", "--no-persistence"];
    let (world, daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let mut program = program(&world, "a", "remap")?;
    let error = daemon.ctl(&["session", "freeze", "a"]).unwrap_err().to_string();
    assert!(error.contains("its cards are not in persistence mode"), "{error}");
    assert!(daemon.ctl(&["explain", "a"])?.contains("it cannot be frozen: "));
    program.must("check x 7").map(drop)
}

/// Asks by the request alone. `explain`, a thaw, and `session freeze` of `gpushare-ctl` would make the daemon ask NVML.
#[test]
fn the_daemon_sees_by_itself_that_a_card_comes_into_persistence_mode() -> anyhow::Result<()> {
    let flags = ["--memory", "256MiB", "--no-persistence"];
    let (world, _daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let mut program = program(&world, "a", "remap")?;
    let mut administrator = Administrator::of(&world.runtime_dir())?;
    let mut is_refused_for = |why: &str| -> anyhow::Result<bool> {
        administrator.say(&AdminRequest::Session(SessionRequest::Freeze { which: "a".to_owned() }))?;
        match administrator.hear()? {
            AdminReply::Changed { .. } => Ok(why.is_empty()),
            AdminReply::Error(failure) => Ok(!why.is_empty() && failure.message.contains(why)),
            other => bail!("the daemon answered {other:?}"),
        }
    };
    until("the daemon knows that it is not", || {
        Ok(is_refused_for("its cards are not in persistence mode")?.then_some(()))
    })?;
    world.card().context("a simulated card")?.set_persistence(true)?;
    until("the daemon knows that it is", || Ok(is_refused_for("")?.then_some(())))?;
    program.must("check x 7").map(drop)
}

#[test]
fn a_daemon_that_does_not_know_the_driver_lets_frozen_programs_come_back() -> anyhow::Result<()> {
    let (world, mut daemon) = world()?;
    let mut program = program(&world, "a", "remap")?;
    freeze(&world, &daemon, "a", program.process().pid())?;
    daemon.kill()?;
    daemon.restart_under(&["env", "-u", names::FREEZE_UNTRIED])?;
    program.must("check x 7")?;
    program.must("alloc y 1MiB; fill y 3; check y 3").map(drop)
}
