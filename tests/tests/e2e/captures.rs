//! Stream captures and graphs while another session contends.

use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, World};

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
        b.answer(fill)?;

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
    let mut a = capturing(&world, "")?;
    a.must("alloc p 1MiB --door async; free-async p; sync")?;
    for (mode, beside) in [("global", "mem-info"), ("thread", "mem-info"), ("global", "@other mem-info")] {
        a.must(&format!("capture s --mode {mode}; add x 1 --on s; {beside}; end-capture s g"))?;
    }
    a.must("replay g --on s; sync s; check x 1")?;
    Ok(())
}

/// A program with 40 MiB of zeros under `x`, a small `y`, streams `s` and `t`, and events `e` and `f`.
fn capturing(world: &World, faults: &str) -> anyhow::Result<Program> {
    let mut command = world.workload(&Sharing::session("a"));
    if !faults.is_empty() {
        command.env("SIMGPU_FAULTS", faults);
    }
    let mut a = Program::begin(command, world, "a")?;
    a.ready()?;
    a.must("alloc x 40MiB; alloc y 4KiB; stream s; stream t; event e; event f; fill x 0 --on s; sync")?;
    Ok(a)
}

/// `a` captures in its stream `s` while `b` waits for the card, and `steps` end that, each with its error
/// or none: then `b` has its turn, whatever became of the capture, and after it `a` does what is left.
fn the_lock_is_returned(
    faults: &str,
    steps: &[(&str, Option<&str>)],
    afterwards: &[(&str, Option<&str>)],
) -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
    let mut a = capturing(&world, faults)?;
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
    the_lock_is_returned("", &[("sync s", FORBIDDEN)], &afterwards)
}

#[test]
fn the_lock_is_returned_after_a_capture_whose_stream_is_to_be_destroyed() -> anyhow::Result<()> {
    let afterwards = [("fill x 3", None), ("sync", FORBIDDEN)];
    the_lock_is_returned("", &[("stream-destroy s", FORBIDDEN)], &afterwards)
}

#[test]
fn the_lock_is_returned_after_a_capture_whose_context_dies() -> anyhow::Result<()> {
    the_lock_is_returned("", &[("reset", None)], &[])
}

#[test]
fn the_lock_is_returned_after_a_capture_whose_graph_cannot_be_instantiated() -> anyhow::Result<()> {
    let out_of_memory = Some("CUDA_ERROR_OUT_OF_MEMORY");
    let afterwards = [("fill x 3", None), ("check x 3", None)];
    the_lock_is_returned("cuGraphInstantiateWithFlags=2", &[("end-capture s g", out_of_memory)], &afterwards)
}

/// An attempt by the wrong thread ends nothing. It spoils the capture though, so that there is nothing left
/// to hold the lock for.
#[test]
fn the_lock_is_returned_after_another_thread_tried_to_end_the_capture() -> anyhow::Result<()> {
    let wrong_thread = Some("CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD");
    let afterwards = [("end-capture s g", INVALIDATED), ("fill x 3", None), ("check x 3", None)];
    the_lock_is_returned("", &[("@other end-capture s g", wrong_thread)], &afterwards)
}

/// A stream that waits for an event of a capturing stream captures too, without a call that says so.
/// Nothing of ours may wait for it, not even on behalf of a copy that blocks while others want the card.
#[test]
fn a_stream_that_joins_a_capture_by_an_event_is_recorded_while_a_drop_is_pending() -> anyhow::Result<()> {
    for mode in ["thread", "relaxed"] {
        let (world, daemon) =
            World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "20ms"])?;
        let mut a = capturing(&world, "")?;
        let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
        b.must("alloc x 40MiB")?;
        a.must(&format!("capture s --mode {mode}; add x 1 --on s; record e --on s; wait-event e --on t"))?;
        let fill = b.tell("fill x 1")?;
        daemon.until("b waits for the card", |status| !status.gpus[0].queue.is_empty())?;
        a.must("add x 2 --on t; @other put y 7; @other get y; record f --on t; wait-event f --on s")?;
        assert_eq!(b.peek(fill), None, "the lock is held while a capture runs ({mode})");
        a.must("end-capture s g")?;
        b.answer(fill)?;
        a.must("replay g --on s; replay g --on s")?;
        assert!(a.ask("check x 6")?.flag("matches"), "{mode}");
        assert!(b.ask("check x 1")?.flag("matches"), "{mode}");
    }
    Ok(())
}
