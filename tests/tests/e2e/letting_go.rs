//! The lock goes from hand to hand, and no program waits for what only it can bring about.

use gpushare_proto::admin::{LockView, Status};
use gpushare_proto::{Bytes, names};
use gpushare_tests::{Daemon, Program, Sharing, World};

/// In turns, and nobody is dropped for the time of a test unless the test says so.
const LONG_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "10min"];
/// In turns, and a holder is dropped almost at once.
const SHORT_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "50ms"];

/// A program of its own session with 40 MiB, of which two do not fit.
fn tenant(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name), name)?;
    program.must("alloc x 40MiB")?;
    Ok(program)
}

/// Two programs as of [`tenant`].
fn tenants(world: &World, names: [&str; 2]) -> anyhow::Result<[Program; 2]> {
    Ok([tenant(world, names[0])?, tenant(world, names[1])?])
}

fn holds(status: &Status, name: &str) -> bool {
    status
        .sessions
        .iter()
        .any(|session| session.name == name && matches!(session.lock, LockView::Holding { .. }))
}

fn waits(status: &Status, name: &str) -> bool {
    status
        .sessions
        .iter()
        .any(|session| session.name == name && matches!(session.lock, LockView::Waiting { .. }))
}

#[test]
fn an_idle_holder_lets_go_long_before_its_quantum_ends() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&LONG_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    a.must("fill x 1; sync")?;
    // Were it not for the proof of idleness, this would wait for ten minutes.
    b.must("fill x 2; sync; check x 2")?;
    a.must("check x 1")?;
    let gpu = &daemon.status()?.gpus[0];
    assert!(gpu.handoffs >= 3, "{} handoffs", gpu.handoffs);
    Ok(())
}

/// Who was let in while everything fitted was told nothing since, and must notice by itself that it is
/// wanted.
#[test]
fn an_idle_holder_from_parallel_times_lets_go_too() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&["--quantum", "10min"])?;
    let mut a = tenant(&world, "a")?;
    a.must("fill x 1; sync")?;
    assert!(holds(&daemon.status()?, "a"));
    let mut b = tenant(&world, "b")?;
    b.must("fill x 2; sync")?;
    a.must("check x 1")?;
    b.must("check x 2")?;
    Ok(())
}

#[test]
fn work_in_flight_is_not_idleness() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&LONG_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    // One kernel that runs until it is told to stop: no launches, and not idle.
    a.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
    let fill = b.tell("fill x 2")?;
    daemon.until("b waits", |status| waits(status, "b"))?;
    // The idle grace has long passed when the daemon has been asked ten times.
    for _ in 0..10 {
        let status = daemon.status()?;
        assert!(holds(&status, "a") && waits(&status, "b"));
    }
    assert_eq!(b.peek(fill), None);
    a.must("write-value stop 1")?;
    b.done(fill)?;
    Ok(())
}

#[test]
fn a_quantum_ends_for_a_holder_that_never_rests() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&SHORT_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    a.must("fill x 0")?;
    b.must("fill x 0")?;
    let (mut last_a, mut last_b) = (None, None);
    for _ in 0..40 {
        last_a = Some(a.tell("add x 1")?);
        last_b = Some(b.tell("add x 1")?);
    }
    a.done(last_a.expect("forty lines"))?;
    b.done(last_b.expect("forty lines"))?;
    a.must("check x 40")?;
    b.must("check x 40")?;
    assert!(daemon.status()?.gpus[0].handoffs >= 4);
    Ok(())
}

/// A host function in flight waits for a thread that sleeps at the gate: the drop must be undone.
#[test]
fn a_drop_does_not_deadlock_a_host_function_that_waits_for_a_later_launch() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&SHORT_TURNS)?;
    let mut a = tenant(&world, "a")?;
    a.must("stream s; fill x 1")?;
    let mut b = tenant(&world, "b")?;
    a.must("latch l --on s")?;
    let fill = b.tell("fill x 2")?;
    daemon.until("a is told to let go", |status| !holds(status, "a"))?;
    // The thread that will open the latch launches first, at the closed gate.
    let later = a.tell("@later fill x 3")?;
    let open = a.tell("@later open l")?;
    a.done(later)?;
    a.done(open)?;
    b.done(fill)?;
    b.must("check x 2")?;
    a.must("check x 3")?;
    assert!(daemon.status()?.gpus[0].aborted_drops >= 1);
    Ok(())
}

/// The same with a stream that waits for a value that a thread at the gate would write.
#[test]
fn a_drop_does_not_deadlock_a_wait_value_that_waits_for_a_later_launch() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&SHORT_TURNS)?;
    let mut a = tenant(&world, "a")?;
    a.must("alloc flag 4KiB; set flag 0; stream s; stream t")?;
    let mut b = tenant(&world, "b")?;
    a.must("wait-value flag 1 --on s")?;
    let fill = b.tell("fill x 2")?;
    daemon.until("a is told to let go", |status| !holds(status, "a"))?;
    let write = a.tell("@later fill flag 1 --on t")?;
    a.done(write)?;
    b.done(fill)?;
    a.must("sync")?;
    b.must("check x 2")?;
    assert!(daemon.status()?.gpus[0].aborted_drops >= 1);
    Ok(())
}

/// Two processes of one session, of which one waits for the other: they hold and let go together.
#[test]
fn the_processes_of_a_session_run_together() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&SHORT_TURNS)?;
    let both = |name: &str| Program::hold(&world, &Sharing::Preload, name);
    let mut first = both("first")?;
    let mut second = both("second")?;
    first.must("alloc x 20MiB")?;
    second.must("alloc x 20MiB")?;
    let mut other = tenant(&world, "other")?;
    let lines: Vec<_> = (0..10).map(|_| other.tell("fill x 5")).collect::<Result<_, _>>()?;
    first.must("fill x 1")?;
    second.must("fill x 2")?;
    daemon.until("both processes count as one session", |status| {
        status
            .sessions
            .iter()
            .any(|session| session.implicit && session.clients.len() == 2)
    })?;
    for line in lines {
        other.done(line)?;
    }
    first.must("check x 1")?;
    second.must("check x 2")?;
    Ok(())
}

#[test]
fn a_thread_that_waits_says_after_two_seconds_what_for() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&LONG_TURNS)?;
    let [mut a, mut b] = tenants(&world, ["a", "b"])?;
    a.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
    let fill = b.tell("fill x 2")?;
    gpushare_tests::patience::until("a line on stderr", || {
        Ok(b.process().stderr().contains("waiting for the GPU").then_some(()))
    })?;
    a.must("write-value stop 1")?;
    b.done(fill)?;
    drop(daemon);
    assert_eq!(b.process().stderr().matches("waiting for the GPU").count(), 1);
    Ok(())
}

/// Time after which a drop is late, where no drop is to be late, on a busy machine too.
const NEVER_LATE: &str = "10s";
/// Time after which a drop is late, where it is to be undone.
const SOON_LATE: &str = "3s";

/// Checks that no drop is undone, where one kernel spins until a `second` piece of work that finds the gate closed
/// has run, after the program was told `before`. `kernels` are known to talk to others by their names.
fn comes_in(kernels: &str, before: &[&str], second: &str) -> anyhow::Result<()> {
    assert_eq!(undone_drops(kernels, before, second, NEVER_LATE)?, 0, "{second} after {before:?}");
    Ok(())
}

/// Checks that the same work waits until the drop is undone, since it is late.
fn waits_until_late(kernels: &str, before: &[&str], second: &str) -> anyhow::Result<()> {
    assert!(undone_drops(kernels, before, second, SOON_LATE)? > 0, "{second} after {before:?}");
    Ok(())
}

/// Number of drops that were undone, where a drop is late after the time `late`.
fn undone_drops(kernels: &str, before: &[&str], second: &str, late: &str) -> anyhow::Result<u64> {
    let world = World::of(Bytes::mib(64))?;
    world.add_setting(&format!("drain_target = '{late}'\nlate_factor = 1"))?;
    let daemon = Daemon::start(&world, &SHORT_TURNS)?;
    let mut a =
        Program::hold_with(&world, &Sharing::session("a"), "a", names::COMMUNICATION_KERNELS, kernels)?;
    let usual = ["alloc x 40MiB", "alloc flag 4KiB", "stream s", "stream t", "fill flag 0", "sync"];
    for line in usual.iter().chain(before) {
        a.must(line)?;
    }
    a.must("spin 30s --until flag --on s")?;
    let mut b = tenant(&world, "b")?;
    let turn = b.tell("fill x 2")?;
    daemon.until("a is told to let go", |status| {
        let dropping = |lock: &LockView| matches!(lock, LockView::Dropping { .. });
        status
            .sessions
            .iter()
            .any(|session| session.name == "a" && dropping(&session.lock))
    })?;
    let second = a.tell(&format!("@other {second}"))?;
    a.done(second)?;
    b.done(turn)?;
    b.must("sync; check x 2")?;
    Ok(daemon.status()?.gpus[0].aborted_drops)
}

const OTHERS: &str = "all_gather";
const FILL: &str = "fill flag 1 --on t";
const A_GRAPH: [&str; 3] = ["capture t", FILL, "end-capture t g"];

/// The second half of a collective finds the gate closed while its first half spins.
#[test]
fn a_communication_kernel_passes_the_gate_at_once_during_a_drain() -> anyhow::Result<()> {
    comes_in("all_gather,fill", &[], FILL)?;
    // What nobody knows waits.
    waits_until_late(OTHERS, &[], FILL)
}

#[test]
fn work_of_a_marked_stream_passes_the_gate_at_once_during_a_drain() -> anyhow::Result<()> {
    comes_in(OTHERS, &["mark t"], FILL)?;
    comes_in(OTHERS, &["mark t"], "write-value flag 1 --on t")?;
    comes_in(OTHERS, &[&["mark t"][..], &A_GRAPH].concat(), "replay g --on t")
}

#[test]
fn an_unmarked_stream_waits_at_the_gate() -> anyhow::Result<()> {
    waits_until_late(OTHERS, &["mark t", "unmark t"], FILL)?;
    // Another one has the mark.
    waits_until_late(OTHERS, &["mark s"], FILL)
}

#[test]
fn a_graph_with_a_communication_kernel_passes_the_gate_at_once() -> anyhow::Result<()> {
    comes_in("fill", &A_GRAPH, "replay g --on t")?;
    waits_until_late(OTHERS, &A_GRAPH, "replay g --on t")
}
