//! The commands of docs/start.md in their order, with a program of the tests as `python3 train.py`.

use std::fs;
use std::os::unix::fs::symlink;

use gpushare_proto::Bytes;
use gpushare_proto::admin::Status;
use gpushare_tests::process::write_executable;
use gpushare_tests::{Part, Process, World, output_of, patience};
use rustix::process::{Pid, Signal, kill_process};

/// Ends the daemon that `run` has started, also after a failure.
struct Daemon<'a>(&'a World);

impl Daemon<'_> {
    fn status(&self) -> anyhow::Result<Status> {
        let mut status = self.0.part(Part::Ctl);
        status.args(["status", "--json"]);
        Ok(serde_json::from_str(&output_of(status)?)?)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let pid = self
            .status()
            .ok()
            .and_then(|status| Pid::from_raw(status.daemon.pid.try_into().ok()?));
        // Without an answer there is no daemon to end.
        let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
    }
}

#[test]
fn the_five_minute_start_does_what_its_page_says() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let daemon = Daemon(&world);
    let bin = world.folder().join("bin");
    fs::create_dir(&bin)?;
    symlink(world.path(Part::Ctl), bin.join("gpushare-ctl"))?;
    let python = bin.join("python3");
    let train = format!(
        "#!/bin/sh\nexec {} train --memory 64MiB --steps 1000000 --compute 5ms\n",
        world.path(Part::Workload).display()
    );
    write_executable(&python, &train)?;

    let page = include_str!("../../../docs/start.md");
    let mut programs = Vec::new();
    let mut said = Vec::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let mut shell = world.program("sh".as_ref());
        let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);
        shell.env("PATH", path).current_dir(world.folder());
        if let Some(program) = line.strip_suffix(" &") {
            shell.args(["-c", &format!("exec {program}")]);
            programs.push(Process::start(shell, world.folder(), &format!("program-{}", programs.len()))?);
            patience::until("the program has memory", || {
                let ready = |status: Status| status.sessions.iter().filter(|it| !it.gpus.is_empty()).count();
                Ok(daemon
                    .status()
                    .is_ok_and(|status| ready(status) == programs.len())
                    .then_some(()))
            })?;
            continue;
        }
        // The simulated card has no device files, and no terminal is here.
        let line = match line {
            "gpushare-ctl doctor" => "gpushare-ctl doctor || true",
            "gpushare-ctl top" => "gpushare-ctl top --once",
            line => line,
        };
        shell.args(["-euc", line]);
        said.push((line, output_of(shell)?));
    }
    assert_eq!(programs.len(), 2);
    let [doctor, status, top, explain, usage, weight, memory] = &said[..] else {
        panic!("{said:#?}")
    };
    assert!(doctor.1.contains("driver"), "{doctor:?}");
    for (command, said) in [status, top, usage] {
        assert!(said.contains("ana") && said.contains("bob"), "{command}: {said}");
    }
    assert!(explain.1.starts_with("session bob"), "{explain:?}");
    assert!(weight.1.contains("300") && memory.1.contains("50%"), "{weight:?} {memory:?}");
    let sessions = daemon.status()?.sessions;
    let ana = sessions.iter().find(|session| session.name == "ana").unwrap();
    assert_eq!(ana.state.terms.weight, 300);
    Ok(())
}
