//! What a guest in somebody's process must not do.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_proto::names;
use gpushare_tests::{Program, Sharing, World, patience::until};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// A shell line with the library preloaded: what it printed, on both streams.
fn shell(world: &World, line: &str) -> anyhow::Result<(String, String)> {
    let mut command = world.sharing(&Sharing::Preload, "/bin/sh".as_ref());
    let output = command.args(["-c", line]).stdin(Stdio::null()).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(output.stdout), text(output.stderr)))
}

#[test]
fn a_program_that_never_touches_cuda_pays_nothing_and_prints_nothing() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let looks =
        "ls /proc/self/task | wc -l; ls -l /proc/self/fd | grep -c socket; grep -c '^' /proc/self/stat";
    let (with, said) = shell(&world, looks)?;
    let without = Command::new("/bin/sh").args(["-c", looks]).stdin(Stdio::null()).output()?;
    assert_eq!(with, String::from_utf8_lossy(&without.stdout));
    assert_eq!(said, "");
    Ok(())
}

#[test]
fn exit_status_signals_and_umask_are_the_programs_own() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let run = Sharing::session("shell");
    for umask in ["0022", "0137"] {
        let mut command = world.program("/bin/sh".as_ref());
        let shared = world.sharing(&run, "/bin/sh".as_ref());
        let inner = ["-c", "umask; kill -TERM $$"].map(OsStr::new);
        let words = [shared.get_program()].into_iter().chain(shared.get_args()).chain(inner);
        command.arg("-c").arg(format!("umask {umask}; exec \"$0\" \"$@\"")).args(words);
        command.envs(shared.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.stdin(Stdio::null()).output()?;
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), umask);
        assert_eq!(output.status.signal(), Some(15));
    }
    let mut command = world.sharing(&run, "/bin/sh".as_ref());
    assert_eq!(command.args(["-c", "exit 41"]).stdin(Stdio::null()).status()?.code(), Some(41));
    Ok(())
}

#[test]
fn a_summary_comes_at_the_end_if_it_is_asked_for() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut program = Program::hold_with(&world, &Sharing::session("alice"), "alice", names::SUMMARY, "1")?;
    program.must("alloc x 8MiB")?;
    assert!(program.quit()?.success());
    let said = program.process().stderr();
    assert!(said.contains("session alice: ran") && said.contains("peak 8MiB"), "{said}");
    // What gpushare itself took while the first context was made.
    assert!(said.contains("first context ") && !said.contains("first context 0.00 ms"), "{said}");
    Ok(())
}

#[test]
fn a_child_is_in_the_session_of_its_parent() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    // Children of a session are in it: the token is in a file, and the file is in the environment.
    let mut command = world.sharing(&Sharing::session("family"), "/bin/sh".as_ref());
    command
        .args(["-c", "\"$0\" hold; true"])
        .arg(world.workload(&Sharing::Native).get_program());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut shell = command.spawn()?;
    daemon.until("the child is in its parent's session", |status| {
        let family = status.sessions.iter().find(|session| session.name == "family");
        family.is_some_and(|family| family.clients.len() == 1 && family.clients[0].pid != shell.id())
    })?;
    drop(shell.stdin.take());
    shell.wait()?;
    daemon.until("the session is over with its last process", |status| status.sessions.is_empty())?;
    Ok(())
}

/// Limits the address space of a program to what it has and a MiB more, too little for the stack of a thread. `false`
/// ends the limit.
fn limit(program: &Program, is_limited: bool) -> anyhow::Result<()> {
    const ROOM: u64 = 1 << 20;
    let pid = program.process().pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.strip_suffix("kB"));
    let size: u64 = size.context("a process has a size")?.trim().parse()?;
    let most = Rlimit { current: is_limited.then_some(size * 1024 + ROOM), maximum: None };
    prlimit(Pid::from_raw(pid.try_into()?), Resource::As, most)?;
    Ok(())
}

#[test]
fn threads_for_remapped_memory_that_cannot_start_are_started_by_the_next_allocation() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut a = Program::hold(&world, &Sharing::session("a").and(&["--backend", "remap"]), "a")?;
    a.must("mem-info")?;
    limit(&a, true)?;
    assert_eq!(a.ask("alloc x 40MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    limit(&a, false)?;
    a.must("alloc x 40MiB; fill x 1; check x 1; free x")?;
    Ok(())
}

/// The thread that drains needs room for its stack, which the process may not take for a while.
#[test]
fn a_thread_of_the_library_that_cannot_start_is_started_when_it_can() -> anyhow::Result<()> {
    let (world, _daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
    // Under the managed backend the first grant starts it.
    let managed = |name: &str| Sharing::session(name).and(&["--backend", "managed"]);
    let mut a = Program::hold(&world, &managed("a"), "a")?;
    let mut b = Program::hold(&world, &managed("b"), "b")?;
    a.must("alloc x 40MiB")?;
    b.must("alloc x 40MiB")?;
    limit(&a, true)?;
    let fill = a.tell("fill x 1")?;
    until("the thread could not start", || {
        Ok(a.process()
            .stderr()
            .contains("cannot start the thread gpushare-drain")
            .then_some(()))
    })?;
    limit(&a, false)?;
    a.done(fill)?;
    b.must("fill x 2; check x 2")?;
    a.must("check x 1")?;
    Ok(())
}
