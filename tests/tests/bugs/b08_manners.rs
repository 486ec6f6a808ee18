//! Bug 8: umask, signals, exit status and stdout are the program's own.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use gpushare_tests::{Program, Sharing, World};
use rustix::process::Signal;

use crate::tenants::{SHORT_TURNS, tenant, tenants, world};

/// Traits of a process or thread in its `/proc` status that are the same in each run.
fn traits(status: &Path) -> anyhow::Result<Vec<String>> {
    const TRAITS: [&str; 6] = ["Umask:", "SigIgn:", "SigCgt:", "SigBlk:", "SigPnd:", "ShdPnd:"];
    let status = fs::read_to_string(status)?;
    let lines = status.lines().filter(|line| TRAITS.iter().any(|name| line.starts_with(name)));
    Ok(lines.map(str::to_owned).collect())
}

/// A program that has a context and memory and has computed.
fn working(world: &World, sharing: &Sharing, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, sharing, name)?;
    program.must("alloc x 8MiB; fill x 4; sync")?;
    Ok(program)
}

#[test]
fn umask_and_signal_dispositions_are_untouched() -> anyhow::Result<()> {
    let (world, _daemon) = world()?.with_daemon(&[])?;
    let native = working(&world, &Sharing::Native, "native")?;
    let shared = working(&world, &Sharing::Preload, "shared")?;
    let of = |program: &Program| {
        traits(&Path::new("/proc").join(program.process().pid().to_string()).join("status"))
    };
    let (native, shared) = (of(&native)?, of(&shared)?);
    assert_eq!(native.len(), 6, "{native:?}");
    assert_eq!(shared, native);
    Ok(())
}

#[test]
fn our_threads_take_none_of_the_programs_signals() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    // A handoff or two, so that link and mover are both there.
    a.must("fill x 1")?;
    b.must("fill x 1")?;
    a.must("fill x 1")?;
    drop(daemon);
    let mut ours = 0;
    for task in fs::read_dir(format!("/proc/{}/task", a.process().pid()))? {
        let task = task?.path();
        let name = fs::read_to_string(task.join("comm"))?;
        if ["gpushare-link", "gpushare-drain"].contains(&name.trim()) {
            ours += 1;
            let blocked = traits(&task.join("status"))?
                .into_iter()
                .find(|line| line.starts_with("SigBlk:"));
            let blocked = blocked.unwrap_or_default();
            let mask = u64::from_str_radix(blocked.trim_start_matches("SigBlk:").trim(), 16)?;
            // SIGKILL and SIGSTOP cannot be blocked, and the C library keeps 32 and 33 for itself.
            let cannot = (1 << 8) | (1 << 18) | (1 << 31) | (1 << 32);
            assert_eq!(mask | cannot, u64::MAX, "{}: {blocked}", task.display());
        }
    }
    assert_eq!(ours, 2, "a link and a mover");
    Ok(())
}

#[test]
fn stdout_is_the_programs_own_to_the_byte() -> anyhow::Result<()> {
    let (world, _daemon) = world()?.with_daemon(&[])?;
    let probe = |sharing: &Sharing| -> anyhow::Result<_> {
        let mut command = world.workload(sharing);
        let output = command.arg("probe").stdin(Stdio::null()).output()?;
        Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    };
    let native = probe(&Sharing::Native)?;
    assert_eq!(native.0, Some(0));
    assert_eq!(probe(&Sharing::Preload)?, native);
    assert_eq!(probe(&Sharing::session("probe"))?, native);
    Ok(())
}

#[test]
fn the_exit_status_is_the_programs_own_while_it_holds_the_card() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut a = tenant(&world, "a")?;
    a.must("fill x 1")?;
    assert_eq!(a.quit()?.code(), Some(0));
    // SIGINT is not among them, because the jobs that a shell starts in the background ignore it.
    for signal in [Signal::TERM, Signal::USR1, Signal::ABORT] {
        let mut program = working(&world, &Sharing::Preload, "signalled")?;
        program.process().signal(signal)?;
        assert_eq!(program.quit()?.signal(), Some(signal.as_raw()));
    }
    // `exit` in the middle of everything, with a thread that sleeps at its gate.
    let [mut holder, mut sleeper] = tenants(&world, ["holder", "sleeper"])?;
    holder.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
    sleeper.tell("@other fill x 2")?;
    daemon.until("it sleeps at its gate", |status| !status.gpus[0].queue.is_empty())?;
    sleeper.tell("exit")?;
    assert_eq!(sleeper.quit()?.code(), Some(0));
    Ok(())
}
