//! What returns at once without gpushare returns at once with it.

use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, World};

/// Fills, copies and frees whose stream does not come to them before `open l`. The thread that opens it is
/// the one that makes the calls, so a call that waited would wait for itself.
const BEHIND: &str = "latch l; set x 2; copy x y; set x 3; free-async z; open l; sync";

fn returns_at_once(sharing: &Sharing, is_beside_another: bool) -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut other = Program::hold(&world, &Sharing::session("other"), "other")?;
    if is_beside_another {
        other.must("alloc x 4MiB; fill x 1; sync")?;
    } else {
        other.quit()?;
        daemon.until("the other one is gone", |status| status.sessions.is_empty())?;
    }
    let mut program = Program::hold(&world, sharing, "a")?;
    program.must("alloc x 4MiB; alloc y 4MiB; alloc z 4MiB --door async; set x 1; set y 1; sync")?;
    program.must(BEHIND)?;
    for (buffer, value) in [("x", 3), ("y", 2)] {
        assert_eq!(program.must(&format!("get {buffer}"))?.number("first"), value, "{sharing:?}");
    }
    Ok(())
}

#[test]
fn fills_and_copies_of_device_memory_return_before_they_are_done() -> anyhow::Result<()> {
    let native = Sharing::session("a").and(&["--backend", "native"]);
    for sharing in [Sharing::Native, Sharing::session("a"), native] {
        for is_beside_another in [false, true] {
            returns_at_once(&sharing, is_beside_another)?;
        }
    }
    Ok(())
}

#[test]
fn small_copies_between_host_and_card_wait_for_the_work_before_them() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    for sharing in [Sharing::Native, Sharing::session("a")] {
        let mut program = Program::hold(&world, &sharing, "a")?;
        program.must("alloc x 4KiB; set x 1; latch l; set x 2")?;
        let read = program.tell("@other get x")?;
        program.must("open l")?;
        assert_eq!(program.answer(read)?.number("first"), 2, "{sharing:?}");
        program.must("latch m; set x 3")?;
        let written = program.tell("@other put x 4")?;
        program.must("open m")?;
        assert_eq!(program.answer(written)?.error(), None);
        assert_eq!(program.must("get x")?.number("first"), 4, "{sharing:?}");
        program.quit()?;
    }
    Ok(())
}

#[test]
fn memory_freed_in_stream_order_is_free_when_the_stream_comes_to_it() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    let used = || -> anyhow::Result<Bytes> { Ok(daemon.session("a")?.gpus[0].allocated_bytes) };
    program
        .must("alloc x 24MiB; alloc y 4MiB; stream s; fill x 1 --on s; latch l --on s; fill x 2 --on s")?;
    let address = program.must("attributes x")?.number("range_start");
    program.must("free-async x --on s")?;
    assert_eq!(program.must("mem-info")?.number("free_bytes"), Bytes::mib(4).0, "it is not reached");
    let again = program.ask(&format!("free-address {address}"))?;
    assert_eq!(again.error(), Some("CUDA_ERROR_INVALID_VALUE"), "it is freed already");
    assert_eq!(used()?, Bytes::mib(28));
    // A request that needs the memory waits for it.
    let large = program.tell("@other alloc z 24MiB")?;
    program.must("open l")?;
    assert_eq!(program.answer(large)?.error(), None);
    program.must("free-async z; free-async y; sync")?;
    assert_eq!(program.must("mem-info")?.number("free_bytes"), Bytes::mib(32).0);
    assert_eq!(used()?, Bytes::ZERO);
    Ok(())
}

#[test]
fn memory_freed_in_stream_order_is_free_though_the_program_does_nothing_more() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 24MiB; stream s; fill x 1 --on s; latch l --on s; free-async x --on s; open l")?;
    daemon.until("it is free", |status| status.gpus[0].allocated_bytes.is_zero())?;
    program.must("alloc y 24MiB; fill y 1; check y 1")?;
    Ok(())
}

#[test]
fn a_context_takes_what_was_freed_in_its_streams_along() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 24MiB; free-async x; reset")?;
    daemon.until("nothing is allocated", |status| status.gpus[0].allocated_bytes.is_zero())?;
    Ok(())
}
