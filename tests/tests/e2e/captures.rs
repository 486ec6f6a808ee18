//! Stream captures and graphs while another session contends.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{LockView, Status};
use gpushare_tests::{Daemon, Program, Sharing, World};

#[test]
fn a_capture_survives_a_drop_and_its_graph_replays_right() -> anyhow::Result<()> {
    for mode in ["global", "thread", "relaxed"] {
        let (world, daemon) =
            World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "50ms"])?;
        let mut a = Program::hold(&world, &Sharing::session("a"), "a")?;
        let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
        a.must("alloc x 40MiB")?;
        b.must("alloc x 40MiB")?;
        a.must("stream s; fill x 0 --on s; sync s")?;

        a.must(&format!("capture s --mode {mode}"))?;
        let fill = b.tell("fill x 1")?;
        daemon.until("b waits for the card", |status| !status.gpus[0].queue.is_empty())?;
        a.must("add x 1 --on s; add x 2 --on s")?;
        assert_eq!(b.peek(fill), None, "the lock is held while a capture runs ({mode})");
        a.must("end-capture s g")?;
        b.done(fill)?;

        for _ in 0..5 {
            a.must("replay g --on s")?;
        }
        a.must("sync s")?;
        assert!(a.ask("check x 15")?.flag("matches"), "{mode}");
        assert!(b.ask("check x 1")?.flag("matches"), "{mode}");
    }
    Ok(())
}

/// The driver ends a capture when it is asked about a pool beside it, so we ask as one whom captures do not
/// concern.
#[test]
fn the_librarys_questions_about_pools_break_no_capture() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let mut a = capturing(&world, &[])?;
    a.must("alloc p 1MiB --door async; free-async p; sync")?;
    for (mode, beside) in [("global", "mem-info"), ("thread", "mem-info"), ("global", "@other mem-info")] {
        a.must(&format!("capture s --mode {mode}; add x 1 --on s; {beside}; end-capture s g"))?;
    }
    a.must("replay g --on s; sync s; check x 1")?;
    Ok(())
}

/// A program with 40 MiB of zeros under `x`, a small `y`, streams `s` and `t`, and events `e` and `f`.
fn capturing(world: &World, environment: &[(&str, &str)]) -> anyhow::Result<Program> {
    let mut command = world.workload(&Sharing::session("a"));
    command.envs(environment.iter().copied());
    let mut a = Program::begin(command, world, "a")?;
    a.ready()?;
    a.must("alloc x 40MiB; alloc y 4KiB; stream s; stream t; event e; event f; fill x 0 --on s; sync")?;
    Ok(a)
}

/// `a` captures in its stream `s` while `b` waits for the card, and `steps` end that, each with its error
/// or none: then `b` has its turn, whatever became of the capture, and after it `a` does what is left.
fn the_lock_is_returned(
    environment: &[(&str, &str)],
    steps: &[(&str, Option<&str>)],
    afterwards: &[(&str, Option<&str>)],
) -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
    let mut a = capturing(&world, environment)?;
    let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
    b.must("alloc x 40MiB")?;
    a.must("capture s; add x 1 --on s")?;
    let fill = b.tell("fill x 1")?;
    daemon.until("b waits for the card", |status| !status.gpus[0].queue.is_empty())?;
    a.must("add x 2 --on s")?;
    assert_eq!(b.peek(fill), None, "the lock is held while a capture runs");
    for (line, error) in steps {
        assert_eq!(a.ask(line)?.error(), *error, "{line}");
    }
    assert_eq!(b.answer(fill)?.error(), None);
    for (line, error) in afterwards {
        assert_eq!(a.ask(line)?.error(), *error, "{line}");
    }
    b.must("check x 1")?;
    Ok(())
}

const INVALIDATED: Option<&str> = Some("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED");
const FORBIDDEN: Option<&str> = Some("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");

#[test]
fn the_lock_is_returned_after_a_capture_that_was_invalidated_and_is_never_ended() -> anyhow::Result<()> {
    let afterwards =
        [("fill x 3", None), ("sync", FORBIDDEN), ("end-capture s g", INVALIDATED), ("check x 3", None)];
    the_lock_is_returned(&[], &[("sync s", FORBIDDEN)], &afterwards)
}

#[test]
fn the_lock_is_returned_after_a_capture_whose_stream_is_to_be_destroyed() -> anyhow::Result<()> {
    let afterwards = [("fill x 3", None), ("sync", FORBIDDEN)];
    the_lock_is_returned(&[], &[("stream-destroy s", FORBIDDEN)], &afterwards)
}

#[test]
fn the_lock_is_returned_after_a_capture_whose_context_dies() -> anyhow::Result<()> {
    the_lock_is_returned(&[], &[("reset", None)], &[])
}

#[test]
fn the_lock_is_returned_after_a_capture_whose_graph_cannot_be_instantiated() -> anyhow::Result<()> {
    let out_of_memory = Some("CUDA_ERROR_OUT_OF_MEMORY");
    let afterwards = [("fill x 3", None), ("check x 3", None)];
    the_lock_is_returned(
        &[("SIMGPU_FAULTS", "cuGraphInstantiateWithFlags=2")],
        &[("end-capture s g", out_of_memory)],
        &afterwards,
    )
}

/// An attempt by the wrong thread ends nothing. It spoils the capture though, so that there is nothing left
/// to hold the lock for.
#[test]
fn the_lock_is_returned_after_another_thread_tried_to_end_the_capture() -> anyhow::Result<()> {
    let wrong_thread = Some("CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD");
    let afterwards = [("end-capture s g", INVALIDATED), ("fill x 3", None), ("check x 3", None)];
    the_lock_is_returned(&[], &[("@other end-capture s g", wrong_thread)], &afterwards)
}

/// A stream that waits for an event of a capturing stream captures too, without a call that says so.
/// Nothing of ours may wait for it, not even on behalf of a copy that blocks while others want the card.
#[test]
fn a_stream_that_joins_a_capture_by_an_event_is_recorded_while_a_drop_is_pending() -> anyhow::Result<()> {
    for mode in ["thread", "relaxed"] {
        let (world, daemon) =
            World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
        let mut a = capturing(&world, &[])?;
        let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
        b.must("alloc x 40MiB")?;
        a.must(&format!("capture s --mode {mode}; add x 1 --on s; record e --on s; wait-event e --on t"))?;
        let fill = b.tell("fill x 1")?;
        daemon.until("b waits for the card", |status| !status.gpus[0].queue.is_empty())?;
        a.must("add x 2 --on t; @other put y 7; @other get y; record f --on t; wait-event f --on s")?;
        assert_eq!(b.peek(fill), None, "the lock is held while a capture runs ({mode})");
        a.must("end-capture s g")?;
        b.done(fill)?;
        a.must("replay g --on s; replay g --on s")?;
        assert!(a.ask("check x 6")?.flag("matches"), "{mode}");
        assert!(b.ask("check x 1")?.flag("matches"), "{mode}");
    }
    Ok(())
}

/// `a` has work in flight behind the latch `l` and a capture that was invalidated and not ended, after
/// `steps`. `b` gets the card only after `end`.
fn nothing_is_released_in_flight(
    environment: &[(&str, &str)],
    steps: &[&str],
    end: &[(&str, Option<&str>)],
) -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    world.add_setting("stuck_after = '300ms'")?;
    let daemon = Daemon::start(&world, &["--mode", "serialized", "--quantum", "20ms"])?;
    let mut a = capturing(&world, environment)?;
    let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
    b.must("alloc x 40MiB")?;
    for step in steps {
        let error = step.starts_with("sync").then_some("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
        assert_eq!(a.ask(step)?.error(), error, "{step}");
    }
    let fill = b.tell("fill x 1")?;
    let is_stuck = |status: &Status| {
        let stuck = |lock: &LockView| matches!(lock, LockView::Dropping { stuck: true, .. });
        status
            .sessions
            .iter()
            .any(|session| session.name == "a" && stuck(&session.lock))
    };
    daemon.until("a is reported as stuck", is_stuck)?;
    assert_eq!(b.peek(fill), None, "{steps:?}");
    for (line, error) in end {
        assert_eq!(b.peek(fill), None, "before {line}");
        assert_eq!(a.ask(line)?.error(), *error, "{line}");
    }
    b.done(fill)?;
    b.must("check x 1")?;
    Ok(())
}

const BROKEN_CAPTURE: [&str; 3] = ["capture s", "add x 1 --on s", "sync s"];

#[test]
fn nothing_is_released_while_work_is_in_flight_beside_a_broken_capture() -> anyhow::Result<()> {
    let [capture, add, sync] = BROKEN_CAPTURE;
    nothing_is_released_in_flight(&[], &[capture, add, sync, "latch l --on t"], &[("open l", None)])?;
    nothing_is_released_in_flight(&[], &[capture, add, sync, "latch l"], &[("open l", None)])?;
    nothing_is_released_in_flight(&[], &["latch l --on s", capture, add, sync], &[("open l", None)])
}

/// Only a thread itself can name its own default stream. While that stream may have work, the end of the
/// capture is waited for.
#[test]
fn nothing_is_released_while_a_stream_without_a_name_may_be_busy_beside_a_broken_capture()
-> anyhow::Result<()> {
    let end = [("@other open l", None), ("end-capture s g", INVALIDATED)];
    for launch in ["latch l --on per-thread", "latch l --on t; fill x 2 --on per-thread"] {
        let launches: Vec<_> = launch.split("; ").map(|line| format!("@other {line}")).collect();
        let steps: Vec<_> = BROKEN_CAPTURE.into_iter().chain(launches.iter().map(String::as_str)).collect();
        nothing_is_released_in_flight(&[], &steps, &end)?;
    }
    Ok(())
}

#[test]
fn nothing_is_released_while_a_destroyed_streams_work_is_in_flight_beside_a_broken_capture()
-> anyhow::Result<()> {
    let [capture, add, sync] = BROKEN_CAPTURE;
    let steps = [capture, add, sync, "latch l --on t", "stream-destroy t"];
    nothing_is_released_in_flight(&[], &steps, &[("open l", None), ("end-capture s g", INVALIDATED)])
}

/// Before CUDA 12.5 nothing marks the work before a capture.
#[test]
fn with_an_old_driver_nothing_is_released_before_the_end_of_a_broken_capture() -> anyhow::Result<()> {
    let end = [("open l", None), ("end-capture s g", INVALIDATED)];
    let [capture, add, sync] = BROKEN_CAPTURE;
    let old = [("SIMGPU_DRIVER_VERSION", "12.4")];
    nothing_is_released_in_flight(&old, &[capture, add, sync, "latch l --on t"], &end)
}
