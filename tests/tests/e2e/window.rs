//! How much a program has in flight: as much as it likes while it is alone, and what a drop can wait for
//! beside others.

use gpushare_proto::{Bytes, Nanos, names};
use gpushare_tests::{Program, Sharing, Ticket, World, patience::until};

/// Where a window begins; nothing has more in flight before anything was measured.
const START: u64 = 64;
/// Launches of known cost that may be in flight in a small window. Five kernels of two milliseconds fill the
/// default target of 10 ms, and more go on when a card that is late should have run dry.
const SETTLED: u64 = 16;

/// A program with a stream, which says at its end what it counted.
fn counting(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold_with(world, &Sharing::session(name), name, names::SUMMARY, "1")?;
    program.must("stream s")?;
    Ok(program)
}

/// Another session with a context, of which the daemon has told the others.
fn beside(world: &World) -> anyhow::Result<Program> {
    let mut other = Program::hold(world, &Sharing::session("b"), "b")?;
    // The daemon answers the first request for memory after it has handled the context.
    other.must("alloc x 1MiB")?;
    Ok(other)
}

/// For how long the first program had computed when the second one did so for the first time.
fn computed_before(world: &World, first: &Program, second: &Program) -> anyhow::Result<Nanos> {
    let [first, second] = [first, second].map(|program| program.process().pid());
    let timeline = world.card().expect("a simulated card").stats()?.timeline;
    let until = timeline.iter().find(|turn| turn.pid == second).expect("it has computed").from;
    let of_first = timeline.iter().filter(|turn| turn.pid == first && turn.from < until);
    Ok(Nanos(of_first.map(|turn| turn.to.min(until) - turn.from).sum()))
}

fn tell_all(program: &mut Program, line: &str, times: usize) -> anyhow::Result<Vec<Ticket>> {
    (0..times).map(|_| program.tell(line)).collect()
}

/// How many of these launches have returned to the program.
fn returned(program: &Program, lines: &[Ticket]) -> u64 {
    lines.iter().take_while(|&&line| program.peek(line).is_some()).count() as u64
}

/// Kernels of a program that the card has done.
fn kernels(world: &World, program: &Program) -> anyhow::Result<u64> {
    let stats = world.card().expect("a simulated card").stats()?;
    let own = stats.processes.iter().find(|known| known.pid == program.process().pid());
    Ok(own.map_or(0, |own| own.counters.kernels))
}

/// The four figures of the window in the line that a program says at its end.
fn summary(program: &mut Program) -> anyhow::Result<[u64; 4]> {
    assert!(program.quit()?.success());
    let said = program.process().stderr();
    let (_, window) = said.split_once("counted ").expect(&said);
    let numbers: Vec<u64> = window
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    Ok([numbers[0], numbers[1], numbers[2], numbers[3]])
}

/// Factor by which a window may have grown because launches went through it while it was full. On a busy machine
/// a kernel can take so long.
fn widened(let_through: u64) -> u64 {
    assert!(let_through <= 8, "{let_through} launches were let through");
    1 + let_through
}

#[test]
fn alone_nothing_is_counted_and_nobody_waits() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut a = counting(&world, "a")?;
    // Nothing of it runs before the program is through with the launches.
    a.must("alloc flag 4KiB; set flag 0; wait-value flag 1 --on s")?;
    let before = kernels(&world, &a)?;
    let lines = tell_all(&mut a, "spin 100us --on s", 200)?;
    a.done(lines[199])?;
    assert_eq!(kernels(&world, &a)?, before, "the launches waited for the kernels");
    a.must("write-value flag 1; sync")?;
    assert_eq!(summary(&mut a)?, [0, 0, 0, 0]);
    Ok(())
}

#[test]
fn beside_another_session_a_program_is_only_so_far_ahead() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut a = counting(&world, "a")?;
    let b = beside(&world)?;
    // On a busy machine too, the program comes to many launches while one kernel runs.
    let lines = tell_all(&mut a, "spin 2ms --on s", 800)?;
    let (mut most, mut settled) = (0, 0);
    until("all launches have returned", || {
        let ahead = returned(&a, &lines).saturating_sub(kernels(&world, &a)?);
        most = most.max(ahead);
        if returned(&a, &lines) > 400 {
            settled = settled.max(ahead);
        }
        Ok((returned(&a, &lines) == 800).then_some(()))
    })?;
    a.must("sync")?;
    let [counted, in_flight, held_back, let_through] = summary(&mut a)?;
    assert_eq!(counted, 800);
    let wider = widened(let_through);
    assert!((2..=START * wider).contains(&in_flight), "{in_flight} in flight");
    assert!(held_back > 0);
    // What the card says agrees with what the program counted.
    assert!(most <= START * wider, "{most} ahead");
    assert!(settled <= SETTLED * wider, "{settled} ahead in the end");
    drop(b);
    Ok(())
}

#[test]
fn a_waiting_session_gets_the_card_from_one_that_launches_ahead() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    // No drop is late, on a busy machine too.
    world.add_setting("late_factor = 100")?;
    let (world, daemon) = world.with_daemon(&["--mode", "serialized", "--quantum", "50ms"])?;
    let mut a = counting(&world, "a")?;
    let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
    b.must("alloc x 4MiB")?;
    // Three seconds of work, whose launches take the program a few milliseconds if nobody holds it back.
    let lines = tell_all(&mut a, "spin 1ms --on s", 3_000)?;
    until("a is at work", || Ok((kernels(&world, &a)? > 0).then_some(())))?;
    b.must("fill x 2; sync")?;
    a.done(lines[2_999])?;
    a.must("sync")?;
    let before = computed_before(&world, &a, &b)?;
    assert!(before < Nanos::from_millis(1_500), "the other program computed {before} first");
    assert_eq!(daemon.status()?.gpus[0].aborted_drops, 0);
    let [counted, in_flight, _, let_through] = summary(&mut a)?;
    assert_eq!(counted, 3_000);
    assert!(in_flight <= START * widened(let_through), "{in_flight} in flight");
    Ok(())
}

/// The stream waits for what the host says only after more launches than any window at the start holds.
#[test]
fn a_program_whose_launches_wait_for_a_later_one_is_delayed_and_not_blocked() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut a = counting(&world, "a")?;
    let b = beside(&world)?;
    a.must(
        "alloc flag 4KiB; set flag 0; wait-value flag 1 --on s; empty 200 --on s; write-value flag 1; sync",
    )?;
    let [counted, in_flight, held_back, let_through] = summary(&mut a)?;
    assert!(counted >= 200 && in_flight >= 200, "{counted} counted, {in_flight} in flight");
    assert!(held_back > 0 && let_through > 0, "{held_back} held back, {let_through} let through");
    drop(b);
    Ok(())
}

#[test]
fn every_kind_of_stream_is_counted_and_a_capture_is_not() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut a = counting(&world, "a")?;
    let b = beside(&world)?;
    for stream in ["s", "legacy", "per-thread"] {
        a.must(&format!("empty 300 --on {stream}"))?;
    }
    a.must("@other empty 300 --on per-thread; sync; capture s; empty 50 --on s; end-capture s g")?;
    // Four graphs of fifty kernels are two hundred in flight, and four launches.
    for _ in 0..4 {
        a.must("replay g --on s")?;
    }
    a.must("sync; graph-destroy g; stream-destroy s")?;
    let [counted, in_flight, ..] = summary(&mut a)?;
    assert_eq!(counted, 1_204);
    assert!(in_flight >= 50, "a graph counts as its kernels: {in_flight}");
    drop(b);
    Ok(())
}
