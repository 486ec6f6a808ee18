//! Memory of the backend `remap`: plain device memory that leaves the card at a handoff and comes back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, GateState, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Artifacts, Dialogue, Process, Program, Sharing, World, foreign, output_of};

/// A program whose memory is remapped, and the daemon that the test plays for it.
fn program() -> anyhow::Result<(World, ScriptedDaemon, Program)> {
    let world = World::of(Bytes::mib(256))?;
    let daemon = ScriptedDaemon::listen(&world)?;
    let program = Program::hold_with(&world, &Sharing::Preload, "a", names::BACKEND, "remap")?;
    Ok((world, daemon, program))
}

/// Bytes of the program on the simulated card: device memory and managed memory.
fn on_card(world: &World, program: &Program) -> anyhow::Result<(Bytes, u64)> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let own = stats.processes.iter().find(|known| known.pid == program.process().pid());
    let own = own.context("the program is on the card")?;
    Ok((Bytes(own.device_bytes), own.managed_bytes))
}

fn resident(daemon: &ScriptedDaemon) -> Bytes {
    daemon.residence().1.resident
}

fn hosted(daemon: &ScriptedDaemon) -> Bytes {
    daemon.residence().1.hosted
}

/// Waits until the client has said that the memory of [`unseen`] is on the card.
fn is_resident(daemon: &ScriptedDaemon) -> anyhow::Result<Bytes> {
    let whole = Bytes::mib(64);
    until("the client says where its memory is", || Ok((resident(daemon) == whole).then_some(whole)))
}

#[test]
fn memory_leaves_the_card_at_a_handoff_and_comes_back_with_its_bytes() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    let address = program.must("alloc x 64MiB")?.number("address");
    program.must("alloc y 1MiB; alloc z 48MiB --door pitch; fill x 7; fill y 3; fill z 5; sync")?;
    let (whole, managed) = on_card(&world, &program)?;
    assert!(whole >= Bytes::mib(113) && managed == 0, "{whole} of device memory, {managed} managed");

    // All of it leaves once the program is drained, and not before.
    daemon.set_goal(Bytes::ZERO);
    program.must("check x 7")?;
    assert_eq!(on_card(&world, &program)?, (whole, 0), "the gate is open");
    daemon.take_back()?;
    daemon.is_followed()?;
    assert_eq!(on_card(&world, &program)?, (Bytes::ZERO, 0));
    assert_eq!((resident(&daemon), hosted(&daemon)), (Bytes::ZERO, whole));
    assert!(daemon.gate().is_evicting());

    // The driver knows nothing of the address now, and the program's questions are answered as before.
    let range = program.must("range x 1MiB")?;
    assert_eq!((range.number("address"), range.number("bytes")), (address, 64 << 20));
    let attributes = program.must("attributes x")?;
    assert_eq!((attributes.number("memory_type"), attributes.flag("managed")), (2, false));

    // Nobody opens the gate onto a hole, not even a daemon that knows nothing of the eviction.
    daemon.set_gate(GateState::Open)?;
    let waiting = program.tell("check x 7")?;
    assert!(program.answer_within(waiting, Duration::from_millis(300)).is_err());
    assert_eq!(daemon.gate().state(), GateState::Moving);
    daemon.set_goal(Bytes::mib(256));
    assert!(program.answer(waiting)?.flag("matches"));
    program.must("check y 3; check z 5")?;
    assert!(!daemon.gate().is_evicting());
    assert_eq!((resident(&daemon), hosted(&daemon)), (whole, Bytes::ZERO));

    // What is written after the way back leaves with the next handoff, and only as much as the goal says.
    program.must("fill x 9; sync")?;
    daemon.take_back()?;
    daemon.set_goal(Bytes::mib(64));
    daemon.is_followed()?;
    let left = resident(&daemon);
    assert!(left > Bytes::mib(32) && left + hosted(&daemon) == whole, "{left} left");
    assert_eq!(on_card(&world, &program)?.0, left);
    daemon.set_goal(Bytes::mib(256));
    daemon.set_gate(GateState::Moving)?;
    assert_eq!(daemon.entered()?, whole - left);
    program.must("check x 9; check y 3; check z 5")?;
    Ok(())
}

#[test]
fn pools_events_and_per_thread_streams_go_on_over_handoffs() -> anyhow::Result<()> {
    let (_world, mut daemon, mut program) = program()?;
    program.must(
        "stream s; event first; event second; alloc x 64MiB; fill x 7 --on per-thread; \
         alloc pooled 8MiB --door pool; record first --on s; fill pooled 3 --on s; record second --on s; sync",
    )?;
    for round in 0..3 {
        daemon.set_goal(Bytes::ZERO);
        daemon.take_back()?;
        daemon.is_followed()?;
        assert_eq!(resident(&daemon), Bytes::ZERO, "all that can leave is away");
        assert!(program.must("event-query second")?.flag("finished"), "no event is lost");
        assert!(program.must("elapsed first second")?.json()["elapsed_ms"].is_number());
        // Each of them waits for the turn, in its own thread.
        let steps = [
            "@own add x 1 --on per-thread",
            "@own wait-event second --on per-thread",
            "@pool alloc more 8MiB --door pool",
            "@pool free-async more --on s",
            "@pool add pooled 1 --on s",
        ];
        let steps = steps.map(|step| program.tell(step));
        daemon.is_asked_for_turn()?;
        daemon.set_goal(Bytes::mib(256));
        daemon.set_gate(GateState::Moving)?;
        for step in steps {
            program.done(step?)?;
        }
        program.must(&format!("sync; check x {}; check pooled {}", 8 + round, 4 + round))?;
        program.must("record first --on s; record second --on per-thread; sync")?;
    }
    Ok(())
}

#[test]
fn memory_that_is_away_is_freed_and_new_memory_waits_for_the_card() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("alloc x 64MiB; alloc y 32MiB; fill x 7; fill y 3; sync")?;
    daemon.take_back()?;
    daemon.set_goal(Bytes::ZERO);
    daemon.is_followed()?;
    assert_eq!(hosted(&daemon), Bytes::mib(96));
    program.must("free x; alloc z 64MiB")?;
    until("the client says where its memory is", || {
        let residence = daemon.residence().1;
        Ok(((residence.hosted, residence.unbacked) == (Bytes::mib(32), Bytes::mib(64))).then_some(()))
    })?;
    assert_eq!(on_card(&world, &program)?.0, Bytes::ZERO);
    daemon.set_goal(Bytes::mib(256));
    daemon.set_gate(GateState::Moving)?;
    program.must("fill z 4; check y 3; check z 4; free y; free z")?;
    // A check counts in a few bytes of a shared block, and the last of those is kept.
    assert_eq!(on_card(&world, &program)?.0, Bytes::mib(2), "large blocks are given back at once");
    Ok(())
}

#[test]
fn without_a_goal_nothing_leaves_and_nothing_comes_in() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("alloc x 64MiB; fill x 7; check x 7; sync")?;
    let whole = on_card(&world, &program)?.0;
    daemon.give_goals();
    daemon.take_back()?;
    daemon.set_gate(GateState::Moving)?;
    assert_eq!(daemon.entered()?, Bytes::ZERO);
    assert_eq!(on_card(&world, &program)?.0, whole);
    program.must("check x 7")?;
    let waiting = program.tell("alloc y 64MiB")?;
    assert!(program.answer_within(waiting, Duration::from_millis(300)).is_err());
    assert_eq!(on_card(&world, &program)?.0, whole);
    daemon.set_goal(Bytes::mib(256));
    program.done(waiting)?;
    Ok(())
}

/// The daemon has started again, and waits for the reports of all processes.
#[test]
fn an_allocation_waits_longer_for_the_first_goal_than_for_room() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("alloc x 64MiB; fill x 7; sync")?;
    daemon.give_goals();
    let waiting = program.tell("alloc y 64MiB")?;
    // Longer than an allocation waits for room under a goal.
    assert!(program.answer_within(waiting, Duration::from_secs(12)).is_err());
    daemon.set_goal(Bytes::mib(256));
    program.done(waiting)?;
    program.must("fill y 3; check x 7; check y 3")?;
    assert_eq!(on_card(&world, &program)?.0, Bytes::mib(130));
    Ok(())
}

#[test]
fn a_thread_that_is_cancelled_while_its_allocation_waits_wants_nothing_any_more() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let program = foreign::compile(&world, "cancelled.c", "cancelled", &["-ldl", "-pthread"])?;
    let mut command = world.sharing(&Sharing::Preload, &program);
    command.arg("room").env(names::BACKEND, "remap");
    let mut program = Dialogue::start(&world, command, "cancelled")?;
    assert_eq!(program.answer()?, "word 1");
    let whole = Bytes::mib(40);
    until("the client says where its memory is", || Ok((resident(&daemon) == whole).then_some(())))?;

    // There is no room for a block more, and the thread waits for it.
    daemon.set_goal(whole);
    assert_eq!(program.ask("cancel")?, "arrived");
    let wanted = |daemon: &ScriptedDaemon| daemon.residence().1.unbacked;
    until("the client wants room", || Ok((!wanted(&daemon).is_zero()).then_some(())))?;
    daemon.set_gate(GateState::Closed)?;
    daemon.is_asked_for_turn()?;
    assert_eq!(program.ask("now")?, "cancelled");
    until("the client wants nothing", || Ok(wanted(&daemon).is_zero().then_some(())))?;
    assert_eq!(program.ask("open")?, "open");
    daemon.set_goal(Bytes::ZERO);
    daemon.is_followed()?;
    daemon.set_goal(Bytes::mib(256));
    daemon.set_gate(GateState::Moving)?;
    assert_eq!(program.ask("5")?, "word 5");
    program.end()
}

/// A program of 64 MiB that gives work to the card past every hook, or is idle, and its further lines.
fn unseen(world: &World, what: &str, paranoid: &str) -> anyhow::Result<(Process, BufReader<ChildStdout>)> {
    let mut command = world.sharing(&Sharing::Preload, &foreign::program(world, "unseen")?);
    command
        .args([what, "64"])
        .env(names::BACKEND, "remap")
        .env(names::PARANOID, paranoid)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut program = Process::start(command, world.folder(), "unseen")?;
    let mut stdout = BufReader::new(program.take_stdout().context("its stdout is a pipe")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    assert!(line.contains("ready"), "{line}{}", program.stderr());
    Ok((program, stdout))
}

#[test]
fn a_paranoid_program_whose_work_was_missed_keeps_its_memory_on_the_card_and_says_so() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let (mut program, _lines) = unseen(&world, "busy", "1")?;
    let whole = is_resident(&daemon)?;
    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    until("the missed work is found", || {
        let is_told = program
            .stderr()
            .contains("gpushare: paranoid: the program wrote to its memory at 0x");
        Ok((is_told && daemon.residence().1.pinned == whole).then_some(()))
    })?;
    assert_eq!((resident(&daemon), hosted(&daemon)), (whole, Bytes::ZERO));
    let races = world.card().context("a simulated card")?.stats()?.total.raced_copies;
    assert!(races > 0, "the card saw no race, so the test planted nothing");
    drop(program.take_stdin());
    program.succeed()
}

#[test]
fn a_paranoid_program_that_is_idle_moves_as_any_other() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let (mut program, _lines) = unseen(&world, "idle", "1")?;
    let whole = is_resident(&daemon)?;
    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    daemon.is_followed()?;
    assert_eq!((resident(&daemon), hosted(&daemon)), (Bytes::ZERO, whole));
    assert_eq!(program.stderr(), "");
    daemon.set_goal(whole);
    daemon.set_gate(GateState::Moving)?;
    assert_eq!(daemon.entered()?, whole);
    drop(program.take_stdin());
    program.succeed()
}

#[test]
fn a_free_waits_for_the_work_of_its_own_context_whichever_is_current() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let program = foreign::program(&world, "frees_elsewhere")?;
    let remapped = Sharing::session("a").and(&["--backend", "remap"]);
    for sharing in [Sharing::Native, remapped] {
        assert_eq!(output_of(world.sharing(&sharing, &program))?, "ended 1\n", "{sharing:?}");
    }
    Ok(())
}

#[test]
fn memory_freed_in_stream_order_is_gone_with_its_context() -> anyhow::Result<()> {
    let (world, _daemon, mut program) = program()?;
    program.must("alloc x 64MiB; stream s; latch l --on s; free-async x --on s; open l; reset")?;
    until("the card has it back", || Ok(on_card(&world, &program)?.0.is_zero().then_some(())))?;
    Ok(())
}

#[test]
fn memory_freed_in_stream_order_leaves_while_other_memory_moves() -> anyhow::Result<()> {
    // On a slow bus each move takes a while, in which the drainer comes to the free.
    let mut flags = vec!["--memory".to_owned(), Bytes::mib(512).0.to_string()];
    for rate in ["--pinned-in-rate", "--pinned-out-rate", "--pinned-both-rate"] {
        flags.extend([rate.to_owned(), Bytes::mib(400).0.to_string()]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let world = World::with_card_flags(Artifacts::of_tests()?, &flags)?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let mut command = world.workload(&Sharing::Preload);
    command.env(names::BACKEND, "remap").env(names::PARANOID, "1");
    let mut program = Program::begin(command, &world, "a")?;
    program.ready()?;
    program
        .must("alloc x 128MiB; alloc y 128MiB; fill x 7; fill y 3; sync; stream s; free-async x --on s")?;
    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    daemon.is_followed()?;
    until("what was freed is nowhere", || {
        Ok((hosted(&daemon) < Bytes::mib(192) && !program.process().stderr().contains("paranoid"))
            .then_some(()))
    })?;
    daemon.set_goal(Bytes::mib(512));
    daemon.set_gate(GateState::Moving)?;
    program.must("check y 3")?;
    Ok(())
}

/// A drained program whose context fails while half of its memory is away, and what it says then.
fn failing() -> anyhow::Result<(World, ScriptedDaemon, Process, BufReader<ChildStdout>)> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let (mut program, mut lines) = unseen(&world, "faults", "0")?;
    let left = Bytes(is_resident(&daemon)?.0 / 2);
    daemon.set_goal(left);
    daemon.take_back()?;
    daemon.is_followed()?;
    assert_eq!((resident(&daemon), daemon.gate().is_evicting()), (left, true));
    let mut stdin = program.take_stdin().context("its stdin is a pipe")?;
    writeln!(stdin)?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    assert_eq!(line, "{\"unseen\": 700}\n", "work on a hole");
    Ok((world, daemon, program, lines))
}

/// The program gets the error of its context by its next call, once it has its turn.
fn hears_of_it(
    daemon: &mut ScriptedDaemon,
    program: &mut Process,
    lines: &mut BufReader<ChildStdout>,
) -> anyhow::Result<()> {
    daemon.set_gate(GateState::Open)?;
    let gate = || Ok((daemon.gate().state() == GateState::Open).then_some(()));
    until("the gate is open, although memory is away", gate)?;
    let mut line = String::new();
    lines.read_line(&mut line)?;
    assert_eq!(line, "{\"answer\": 700}\n");
    program.succeed()
}

#[test]
fn a_program_whose_context_fails_while_its_memory_is_away_gets_the_error() -> anyhow::Result<()> {
    let (_world, mut daemon, mut program, mut lines) = failing()?;
    daemon.set_goal(Bytes::mib(256));
    hears_of_it(&mut daemon, &mut program, &mut lines)
}

#[test]
fn a_program_whose_context_fails_on_the_way_out_gets_the_error() -> anyhow::Result<()> {
    let (_world, mut daemon, mut program, mut lines) = failing()?;
    daemon.set_goal(Bytes::ZERO);
    let mark = || Ok((!daemon.gate().is_evicting()).then_some(()));
    until("the failed copy has shown that the context is lost", mark)?;
    hears_of_it(&mut daemon, &mut program, &mut lines)
}
