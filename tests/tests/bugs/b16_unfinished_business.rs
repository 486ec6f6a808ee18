//! Bug 16: what is left in the middle: a freed block that is used again at once, a free during a capture,
//! an exit at a closed gate, a thread that is cancelled inside the gate.

use gpushare_proto::Bytes;
use gpushare_tests::{Dialogue, Program, Sharing, World, foreign};

use crate::tenants::{
    LONG_TURNS, SHORT_TURNS, both_do, holds, managed_tenant, tenant, tenants, waits, world,
};

/// Starts the program whose threads are cancelled, with its memory filled.
fn cancelling(world: &World, sharing: &Sharing, way: &str) -> anyhow::Result<Dialogue> {
    let program = foreign::compile(world, "cancelled.c", "cancelled", &["-ldl", "-pthread"])?;
    let mut command = world.sharing(sharing, &program);
    command.arg(way);
    let mut program = Dialogue::start(world, command, "cancelled")?;
    assert_eq!(program.answer()?, "word 1");
    Ok(program)
}

/// A thread that is cancelled inside a call of the driver leaves the gate on its way: its process launches
/// from another thread, and a drop finds nobody inside.
fn cancelled_in_the_driver(way: &str) -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    for sharing in [Sharing::Native, Sharing::session("a")] {
        let mut a = cancelling(&world, &sharing, way)?;
        assert_eq!(a.ask("cancel")?, "cancelled", "{sharing:?}");
        assert_eq!(a.ask("open")?, "open", "{sharing:?}");
        assert_eq!(a.ask("5")?, "word 5", "{sharing:?}");
        if sharing != Sharing::Native {
            let mut b = tenant(&world, "b")?;
            b.must("fill x 2")?;
            assert_eq!(a.ask("6")?, "word 6");
            b.must("check x 2")?;
            assert!(daemon.status()?.gpus[0].handoffs >= 2, "both had their turns");
        }
        a.end()?;
    }
    Ok(())
}

#[test]
fn a_thread_that_is_cancelled_in_a_copy_or_a_launch_leaves_the_gate() -> anyhow::Result<()> {
    ["copy", "launch"].into_iter().try_for_each(cancelled_in_the_driver)
}

/// While others wait for the card a copy first waits for its stream outside the gate: it may be cancelled
/// there too.
#[test]
fn a_thread_that_is_cancelled_in_a_copy_while_others_wait_holds_up_nobody() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut a = cancelling(&world, &Sharing::session("a"), "copy")?;
    let mut b = tenant(&world, "b")?;
    b.must("fill x 2")?;
    a.ask("4")?;
    let add = b.tell("add x 1")?;
    b.done(add)?;
    assert_eq!(a.ask("cancel")?, "cancelled");
    assert_eq!(a.ask("open")?, "open");
    assert_eq!(a.ask("5")?, "word 5");
    b.must("check x 3")?;
    assert!(daemon.status()?.gpus[0].handoffs >= 2);
    a.end()
}

#[test]
fn a_thread_that_is_cancelled_while_it_sleeps_at_a_closed_gate_ends_there() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut a = cancelling(&world, &Sharing::session("a"), "gate")?;
    let mut b = busy(&world)?;
    assert_eq!(a.ask("cancel")?, "arrived");
    daemon.until("a waits", |status| waits(status, "a"))?;
    assert_eq!(a.ask("now")?, "cancelled");
    assert!(holds(&daemon.status()?, "b"));
    a.tell("7")?;
    b.must("open l; sync")?;
    assert_eq!(a.answer()?, "word 7");
    b.must("check x 2")?;
    a.end()
}

/// The quota of an allocation that never came to its end is the session's again. One of remapped memory always comes to
/// its end.
#[test]
fn a_thread_that_is_cancelled_in_an_allocation_leaves_no_quota_behind() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut a = cancelling(&world, &Sharing::session("a").and(&["--backend", "managed"]), "alloc")?;
    let used = || -> anyhow::Result<Bytes> { Ok(daemon.session("a")?.gpus[0].allocated_bytes) };
    let before = used()?;
    assert_eq!(a.ask("cancel")?, "cancelled");
    assert_eq!(used()?, before);
    assert_eq!(a.ask("5")?, "word 5");
    a.end()
}

/// Neither the thread that sleeps at the gate nor what the program does in its exit handlers holds up its
/// end.
#[test]
fn a_program_exits_at_a_closed_gate_as_it_exits_natively() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&LONG_TURNS)?;
    let mut said = Vec::new();
    // Work of a program that ends while its memory is away gets an error after a while.
    for sharing in [Sharing::Native, Sharing::session("a").and(&["--backend", "managed"])] {
        let mut a = cancelling(&world, &sharing, "gate")?;
        let mut b = managed_tenant(&world, "b")?;
        b.must("fill x 2; latch l")?;
        assert_eq!(a.ask("exit")?, "arrived");
        if !matches!(sharing, Sharing::Native) {
            daemon.until("a waits", |status| waits(status, "a"))?;
        }
        said.push(a.ask("now")?);
        assert_eq!(a.process.wait()?.code(), Some(7), "{sharing:?}");
        // The gate was closed all the while.
        b.must("open l; check x 2")?;
        assert_eq!(b.quit()?.code(), Some(0));
    }
    assert_eq!(said[0], said[1]);
    assert!(said[0].starts_with("at exit "), "{said:?}");
    Ok(())
}

/// A block is freed while work on it runs, and what comes next gets its place: the old work has ended by
/// then.
#[test]
fn a_freed_block_that_is_used_again_at_once_on_another_stream_keeps_its_new_words() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut programs = tenants(&world, ["a", "b"])?;
    for program in &mut programs {
        program.must("stream s; stream t; alloc y 8MiB")?;
    }
    const ROUND: [&str; 7] = [
        "fill y 1 --on s",
        "add y 1 --on s",
        "free y",
        "alloc y 8MiB",
        "fill y 7 --on t",
        "sync t",
        "check y 7",
    ];
    for _ in 0..10 {
        both_do(&mut programs, &ROUND)?;
    }
    assert!(daemon.status()?.gpus[0].handoffs >= 2, "they contended");
    Ok(())
}

/// A capture does not record a free or an allocation, and the driver decides whether it is allowed beside a capture.
/// The bytes of a refused free stay charged.
#[test]
fn a_free_during_a_capture_is_answered_as_natively_and_charged_to_the_byte() -> anyhow::Result<()> {
    const LINES: [&str; 9] = [
        "add x 1 --on s",
        "free y",
        "@other free z",
        "alloc w 4MiB",
        "end-capture s g",
        "replay g --on s",
        "sync",
        "check x 1",
        "get y",
    ];
    for mode in ["global", "thread", "relaxed"] {
        let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
        let mut answers = Vec::new();
        for sharing in [Sharing::Native, Sharing::session("a")] {
            let mut program = Program::hold(&world, &sharing, "a")?;
            program.must("alloc x 40MiB; alloc y 4MiB; alloc z 4MiB; stream s; fill x 0 --on s; sync")?;
            program.must(&format!("capture s --mode {mode}"))?;
            let said = LINES
                .iter()
                .map(|line| Ok(program.ask(line)?.error().map(str::to_owned)))
                .collect::<anyhow::Result<Vec<_>>>()?;
            if sharing != Sharing::Native {
                let freed = said[1..3].iter().filter(|error| error.is_none()).count() as u64;
                let made = u64::from(said[3].is_none());
                let left = Bytes::mib(48 - 4 * freed + 4 * made);
                assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, left, "{mode}");
            }
            answers.push(said);
            program.quit()?;
        }
        assert_eq!(answers[0], answers[1], "{mode}");
        if mode == "relaxed" {
            assert_eq!(answers[0][..5], [const { None }; 5]);
        }
    }
    Ok(())
}

/// A tenant that holds the card until `open l`.
fn busy(world: &World) -> anyhow::Result<Program> {
    let mut b = tenant(world, "b")?;
    b.must("fill x 2; latch l")?;
    Ok(b)
}
