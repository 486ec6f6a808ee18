//! A driver newer than the list of its functions: what nobody knows passes through, and everybody is told
//! that the memory of a process that was handed it stays where it is. And one that lacks what sharing
//! needs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::Context;
use gpushare_proto::admin::{ClientView, Status};
use gpushare_proto::{Bytes, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Daemon, Part, Process, Sharing, World, foreign};

/// A world, and a driver of CUDA 14.0 in it.
struct Newer {
    world: World,
    program: PathBuf,
}

/// A program that has printed all it has to, and lives until this goes.
struct Looking {
    child: Child,
    said: Vec<String>,
}

impl Newer {
    fn new() -> anyhow::Result<Self> {
        let world = World::of(Bytes::mib(64))?;
        fs::create_dir(world.folder().join("newer"))?;
        let driver = world.path(Part::SimulatedCuda).display().to_string();
        let flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1,--no-as-needed", &driver, "-ldl"];
        foreign::compile(&world, "newer_driver.c", "newer/libcuda.so.1", &flags)?;
        let program = foreign::program(&world, "looks_ahead")?;
        Ok(Self { world, program })
    }

    fn look(&self, sharing: &Sharing, ways: &str) -> anyhow::Result<Looking> {
        let mut command = self.world.sharing(sharing, &self.program);
        let mut child = command
            .args(ways.split(' '))
            .env("LD_LIBRARY_PATH", self.world.folder().join("newer"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = BufReader::new(child.stdout.take().context("it has no stdout")?);
        let mut said = Vec::new();
        for line in stdout.lines() {
            match line? {
                line if line == "ready" => break,
                line => said.push(line),
            }
        }
        Ok(Looking { child, said })
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        // Its stdin closes as it is taken.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn client(status: &Status) -> Option<&ClientView> {
    status.sessions.first()?.clients.first()
}

/// Waits until the only process is known to have been handed these functions.
fn until_handed(daemon: &Daemon, functions: &[&str]) -> anyhow::Result<()> {
    daemon.until("the process has told all", |status| {
        client(status).is_some_and(|client| client.unknown_functions == functions && !client.evictable)
    })?;
    Ok(())
}

#[test]
fn a_process_with_unknown_functions_stays_on_its_card_and_is_named() -> anyhow::Result<()> {
    let newer = Newer::new()?;
    let mut daemon = Daemon::start(&newer.world, &[])?;
    let ways = "dlsym cuConjure proc cuMemAlloc 14000 context proc cuLaunchKernel 14000";
    let looking = newer.look(&Sharing::session("ahead"), ways)?;
    assert_eq!(
        looking.said,
        ["cuConjure: libcuda.so.1", "cuMemAlloc: libgpushare.so", "cuLaunchKernel: libcuda.so.1"]
    );
    let functions = ["cuConjure", "cuLaunchKernel (14.0)"];
    until_handed(&daemon, &functions)?;
    // The next daemon hears of it as well.
    daemon.kill()?;
    daemon.restart()?;
    until_handed(&daemon, &functions)?;
    drop(looking);
    Ok(())
}

#[test]
fn remapped_memory_of_a_process_with_unknown_functions_stays_on_its_card() -> anyhow::Result<()> {
    let newer = Newer::new()?;
    let mut daemon = ScriptedDaemon::listen(&newer.world)?;
    let mut command = newer
        .world
        .sharing(&Sharing::Preload, &foreign::program(&newer.world, "unseen")?);
    command
        .args(["unknown", "16"])
        .env("LD_LIBRARY_PATH", newer.world.folder().join("newer"))
        .env(names::BACKEND, "remap")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut program = Process::start(command, newer.world.folder(), "unseen")?;
    let mut line = String::new();
    BufReader::new(program.take_stdout().context("its stdout is a pipe")?).read_line(&mut line)?;
    assert!(line.contains("ready"), "{line}{}", program.stderr());
    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    until("all of its memory is said to stay", || {
        let residence = daemon.residence().1;
        let stays = residence.pinned >= Bytes::mib(16) && residence.pinned == residence.resident;
        Ok((stays && residence.hosted.is_zero()).then_some(()))
    })?;
    drop(program.take_stdin());
    program.succeed()
}

#[test]
fn names_of_other_libraries_and_variants_that_are_known_change_nothing() -> anyhow::Result<()> {
    let newer = Newer::new()?;
    let daemon = Daemon::start(&newer.world, &[])?;
    let ways = "dlsym cuBelieve proc cuBelieve 14000 proc cuLaunchKernel 13050 proc cuMemcpyHtoD 14000 dlsym \
                cuDeviceGetName context";
    let looking = newer.look(&Sharing::session("ahead"), ways)?;
    assert_eq!(
        looking.said,
        [
            "cuBelieve: nothing",
            "cuBelieve: nothing",
            "cuLaunchKernel: libgpushare.so",
            "cuMemcpyHtoD: libgpushare.so",
            // An entry point, which leads to the driver's function.
            "cuDeviceGetName: libgpushare.so"
        ]
    );
    let status = daemon.until("the process is there", |status| client(status).is_some())?;
    let client = client(&status).context("it is there")?;
    assert!(client.evictable && client.unknown_functions.is_empty(), "{client:?}");
    Ok(())
}

/// Answer to a program that retains a context of a driver which cannot be shared, and its stderr.
fn with_a_poor_driver(required: &str) -> anyhow::Result<(String, String)> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    fs::create_dir(world.folder().join("poor"))?;
    foreign::compile(&world, "poor_driver.c", "poor/libcuda.so.1", &["-shared", "-fPIC"])?;
    let program = foreign::program(&world, "retains")?;
    let mut command = world.sharing(&Sharing::Preload, &program);
    command
        .env("LD_LIBRARY_PATH", world.folder().join("poor"))
        .env(names::REQUIRED, required);
    let done = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    Ok((text(&done.stdout), text(&done.stderr)))
}

#[test]
fn a_process_that_must_share_is_refused_on_an_unsharable_driver() -> anyhow::Result<()> {
    let (answer, said) = with_a_poor_driver("1")?;
    assert_eq!(answer, "802");
    assert!(said.contains("must not use the GPU without sharing it (update the driver)"), "{said}");
    let (answer, said) = with_a_poor_driver("0")?;
    assert_eq!(answer, "0");
    assert!(said.contains("runs without sharing"), "{said}");
    Ok(())
}
