//! Calls in which the driver looks at addresses of remapped memory while that memory is away from the card.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use anyhow::Context;
use gpushare_proto::{Bytes, GateState, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Process, Program, Sharing, World, foreign};

/// Evicts all memory of the client.
fn evict(daemon: &mut ScriptedDaemon) -> anyhow::Result<()> {
    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    daemon.is_followed()?;
    assert!(daemon.gate().is_evicting(), "something is away");
    Ok(())
}

/// Gives the client its turn, and the card all to itself.
fn give_turn(daemon: &mut ScriptedDaemon) -> anyhow::Result<()> {
    daemon.set_goal(Bytes::mib(256));
    daemon.set_gate(GateState::Moving)
}

#[test]
fn a_call_that_names_memory_waits_until_the_memory_is_back() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let mut command = world.sharing(&Sharing::Preload, &foreign::program(&world, "addresses")?);
    command
        .env(names::BACKEND, "remap")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut program = Process::start(command, world.folder(), "addresses")?;
    let mut stdin = program.take_stdin().context("its stdin is a pipe")?;
    let mut lines = BufReader::new(program.take_stdout().context("its stdout is a pipe")?).lines();
    let mut line = || lines.next().context("the program has ended")?.context("its stdout");
    assert_eq!(line()?, "ready");

    let whole = Bytes::mib(16);
    let size = whole.0.to_string();
    let calls = [
        ("add-memset", "0"),
        ("add-memcpy", "0"),
        ("add-any", "0"),
        ("set-memcpy", "0"),
        ("exec-memset", "0"),
        ("exec-memcpy", "0"),
        // The value of `exec-memset`.
        ("launch", "5"),
        ("update-11", "0"),
        // That of the graph.
        ("launch", "3"),
        ("set-memset", "0"),
        ("update-12", "0"),
        ("launch", "5"),
        ("instantiate-11", "0"),
        ("instantiate-12", "0"),
        ("launch", "5"),
        ("attribute", &size),
        ("attributes", &size),
        ("access", "3"),
        // Its memory does not leave any more.
        ("set-attribute", "0"),
    ];
    for (call, value) in calls {
        evict(&mut daemon)?;
        writeln!(stdin, "{call}")?;
        daemon.is_asked_for_turn().with_context(|| format!("{call} does not wait"))?;
        give_turn(&mut daemon)?;
        assert_eq!(line()?, format!("{call} 0 {value}"));
    }
    until("the client says that the memory stays", || {
        Ok((daemon.residence().1.pinned == whole).then_some(()))
    })?;
    writeln!(stdin, "texture")?;
    assert!(line()?.starts_with("texture 0 "));
    drop(stdin);
    program.succeed()
}

#[test]
fn a_graph_is_instantiated_updated_and_replayed_although_its_memory_was_away() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let mut program = Program::hold_with(&world, &Sharing::Preload, "a", names::BACKEND, "remap")?;
    program.must("alloc x 64MiB; alloc y 64MiB; fill x 1; fill y 1; stream s; sync")?;
    for (template, value) in [("first", 2), ("second", 3)] {
        program.must(&format!(
            "capture s; set x {value} --async --on s; add x 1 --on s; set y {value} --async --on s; \
             end-capture s {template} --template"
        ))?;
    }
    for (line, values) in
        [("instantiate first g", None), ("replay g --on s", Some([3, 2])), ("update g second", None)]
    {
        evict(&mut daemon)?;
        let waiting = program.tell(line)?;
        daemon.is_asked_for_turn().with_context(|| format!("{line} does not wait"))?;
        give_turn(&mut daemon)?;
        program.done(waiting)?;
        let Some([x, y]) = values else { continue };
        program.must(&format!("sync s; check x {x}; check y {y}"))?;
    }
    // Nothing was launched between the update and the next handoff.
    evict(&mut daemon)?;
    give_turn(&mut daemon)?;
    program.must("replay g --on s; sync s; check x 4; check y 3")?;
    Ok(())
}
