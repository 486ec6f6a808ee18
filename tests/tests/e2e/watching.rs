//! What a watcher draws of real programs that take turns.

use std::fs;
use std::process::Stdio;

use gpushare_proto::Bytes;
use gpushare_tests::{Part, Process, Sharing, Training, World, slices};

#[test]
fn a_trace_of_turns_is_whole_also_when_the_daemon_dies() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(Bytes::mib(64))?.with_daemon(&["--quantum", "100ms"])?;
    let (trace, said) = (world.folder().join("trace.json"), world.folder().join("watch.out"));
    let mut command = world.part(Part::Ctl);
    command.args(["watch", "--json", "--trace"]).arg(&trace);
    command.stdin(Stdio::null()).stdout(fs::File::create(&said)?);
    let mut watcher = Process::start(command, world.folder(), "watch")?;
    gpushare_tests::patience::until("the watch begins", || {
        Ok(fs::read_to_string(&said)?.contains("watching").then_some(()))
    })?;

    let load = ["--steps", "1000000", "--compute", "2ms"];
    let mut runs = Vec::new();
    for name in ["a", "b"] {
        let memory = Bytes::mib(48);
        runs.push(Training::start(&world, &Sharing::session(name), name, memory, &load)?);
    }
    daemon.until("they take turns", |status| status.gpus.first().is_some_and(|gpu| gpu.handoffs >= 4))?;
    for run in &mut runs {
        assert_eq!(run.finish()?.corrupted, 0);
    }
    gpushare_tests::patience::until("both ends are told", || {
        let ends = fs::read_to_string(&said)?.matches("{\"session_ended\":").count();
        Ok((ends == 2).then_some(()))
    })?;
    daemon.kill()?;
    assert_eq!(watcher.wait()?.code(), Some(3), "{}", watcher.stderr());

    let told = fs::read_to_string(&said)?;
    for what in ["card_found", "granted", "dropped", "allocated", "session_ended"] {
        assert!(told.contains(&format!("{{\"{what}\":")), "{what}: {told}");
    }
    let done = slices(&fs::read(&trace)?);
    for name in ["serialized", "waiting", "holding", "dropping", "moving"] {
        assert!(done.iter().any(|done| done == name), "{name}: {done:?}");
    }
    Ok(())
}
