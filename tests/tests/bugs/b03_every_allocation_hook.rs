//! Bug 3: a quota that holds for one allocation function of the driver and not for another. Each function
//! asks for 64 blocks of 64 MiB against a quota of 512 MiB.

use gpushare_proto::{Bytes, names};
use gpushare_tests::{Artifacts, Daemon, Dialogue, Program, Sharing, World, foreign};
use rustix::process::Signal;

const OUT_OF_MEMORY: Option<&str> = Some("CUDA_ERROR_OUT_OF_MEMORY");
const QUOTA: Bytes = Bytes::mib(512);
const BLOCKS: usize = 64;
/// Blocks that the quota has room for.
const FIT: usize = 8;

/// An allocation function of the driver by its name in `hold`, how its blocks are freed, and what then
/// makes the driver give back what it keeps.
struct Function {
    name: &'static str,
    free: &'static str,
    last: Option<&'static str>,
}

const FUNCTIONS: [Function; 10] = [
    Function::freed("mem"),
    Function::freed("pitch"),
    Function::freed("managed"),
    Function::freed("async"),
    Function { name: "async", free: "free-async", last: None },
    Function { name: "pool", free: "free-async", last: None },
    Function { name: "graph", free: "free", last: Some("trim-graphs") },
    Function::freed("handle"),
    Function::freed("array"),
    Function::freed("mipmap"),
];

impl Function {
    const fn freed(name: &'static str) -> Self {
        Self { name, free: "free", last: None }
    }
}

/// Functions whose memory a native backend keeps on the card.
const PLAIN: &[&str] = &["mem", "pitch"];

/// Fills and empties the quota by one function, on a card that has room for all the blocks.
fn quota_holds(world: &World, daemon: &Daemon, function: &Function, sharing: &Sharing) -> anyhow::Result<()> {
    let Function { name, free, last } = function;
    let mut program = Program::hold(world, sharing, "a")?;
    for round in ["once", "and again after all was freed"] {
        for n in 0..BLOCKS {
            let expected = if n < FIT { None } else { OUT_OF_MEMORY };
            let answer = program.ask(&format!("alloc x{n} 64MiB --door {name}"))?;
            assert_eq!(answer.error(), expected, "block {n} by {name}, {round}");
        }
        assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, QUOTA, "{name}, {round}");
        assert_eq!(program.must("mem-info")?.number("free_bytes"), 0, "{name}, {round}");
        for n in 0..FIT {
            program.must(&format!("{free} x{n}"))?;
        }
        program.must("sync")?;
        if let Some(last) = last {
            program.must(last)?;
        }
        assert_eq!(program.must("mem-info")?.number("free_bytes"), QUOTA.0, "{name}, {round}");
    }
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::ZERO, "{name}");
    program.must("alloc all 512MiB")?;
    program.quit()?;
    daemon.until("the session is over", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn a_quota_holds_for_every_allocation_function() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let sharing = Sharing::limited("a", QUOTA);
    FUNCTIONS
        .iter()
        .try_for_each(|function| quota_holds(&world, &daemon, function, &sharing))
}

#[test]
fn a_quota_holds_for_memory_that_stays_on_the_card() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let sharing = Sharing::limited("a", QUOTA).and(&["--backend", "native"]);
    let mut plain = FUNCTIONS.iter().filter(|function| PLAIN.contains(&function.name));
    plain.try_for_each(|function| quota_holds(&world, &daemon, function, &sharing))
}

/// The driver keeps the blocks of a destroyed pool until they are freed.
#[test]
fn a_destroyed_pool_is_charged_until_its_blocks_are_freed() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", QUOTA), "a")?;
    let used = || -> anyhow::Result<Bytes> { Ok(daemon.session("a")?.gpus[0].allocated_bytes) };
    for n in 0..FIT {
        program.must(&format!("alloc x{n} 64MiB --door pool; destroy-pool"))?;
    }
    for door in ["pool", "async", "mem", "handle"] {
        let refused = program.ask(&format!("alloc y 2MiB --door {door}"))?;
        assert_eq!(refused.error(), OUT_OF_MEMORY, "{door}");
    }
    assert_eq!(used()?, QUOTA);
    program.must("fill x0 7")?;
    assert_eq!(program.must("get x0")?.number("last"), 7);
    // Behind work that has not ended, a free gives nothing back yet.
    program.must("stream s; latch l --on s; free-async x0 --on s")?;
    assert_eq!(program.ask("alloc y 64MiB")?.error(), OUT_OF_MEMORY);
    program.must("open l; sync s; alloc y 64MiB; free x1; alloc z 64MiB --door pool")?;
    assert_eq!(used()?, QUOTA);
    program.must("free y; free z; destroy-pool")?;
    for n in 2..FIT {
        program.must(&format!("free-async x{n}"))?;
    }
    program.must("sync")?;
    assert_eq!(program.must("mem-info")?.number("free_bytes"), QUOTA.0);
    assert_eq!(used()?, Bytes::ZERO);
    Ok(())
}

/// A thread that waits for the daemon holds up no other thread that uses the same pool.
#[test]
fn a_pool_serves_other_threads_while_one_asks_the_daemon() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::gib(3)), "a")?;
    program.must("alloc x 512MiB --door pool; free-async x")?;
    daemon.process().signal(Signal::STOP)?;
    let large = program.tell("@other alloc y 2GiB --door pool")?;
    program.must("alloc x 512MiB --door pool; free-async x; alloc x 256MiB --door pool")?;
    assert!(program.peek(large).is_none(), "it waits for the daemon");
    daemon.process().signal(Signal::CONT)?;
    assert_eq!(program.answer(large)?.error(), None);
    Ok(())
}

/// Threads grow one pool at the same time, and together want more than the quota: nothing is charged twice,
/// and nothing is left.
#[test]
fn threads_that_grow_a_pool_at_once_keep_its_charge_right() -> anyhow::Result<()> {
    let limit = Bytes::mib(128);
    let (world, daemon) = World::of(Bytes::gib(1))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", limit), "a")?;
    let mut lines = Vec::new();
    for round in 0..40 {
        for thread in ["a", "b", "c", "d"] {
            let buffer = format!("{thread}{round}");
            let bytes = 10 + 12 * (round % 5);
            lines.push(program.tell(&format!("@{thread} alloc {buffer} {bytes}MiB --door async"))?);
            lines.push(program.tell(&format!("@{thread} free-async {buffer}"))?);
        }
    }
    let mut refused = 0;
    for line in lines {
        // A buffer that was refused has no name to be freed by.
        let error = program.answer(line)?.error().map(str::to_owned);
        assert!(
            error.is_none() || error.as_deref() == OUT_OF_MEMORY || error.as_deref() == Some("unknown name")
        );
        refused += u32::from(error.as_deref() == OUT_OF_MEMORY);
    }
    assert!(refused < 160, "all were refused");
    program.must("sync")?;
    assert_eq!(program.must("mem-info")?.number("free_bytes"), limit.0);
    let session = daemon.session("a")?;
    assert_eq!(session.gpus[0].allocated_bytes, Bytes::ZERO);
    assert!(session.gpus[0].peak_bytes <= limit, "{}", session.gpus[0].peak_bytes);
    program.must("alloc all 128MiB --door async")?;
    Ok(())
}

/// A pool may lie on a card where the program has no context.
#[test]
fn a_pool_of_another_card_is_charged_there() -> anyhow::Result<()> {
    let flags = ["--gpus", "2", "--memory", "1GiB"];
    let (world, daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let mut command = world.sharing(&Sharing::Preload, &foreign::program(&world, "other_pool")?);
    command.env(names::MEMORY_LIMIT, "128MiB");
    let mut program = Dialogue::start(&world, command, "other_pool")?;
    let codes = (0..3).map(|_| program.ask("allocate")).collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(codes, ["0", "0", "2"]);
    let charged = daemon.status()?.gpus.iter().map(|gpu| gpu.allocated_bytes).collect::<Vec<_>>();
    assert_eq!(charged, [Bytes::ZERO, Bytes::mib(128)]);
    program.end()
}

#[test]
fn what_a_pool_has_is_taken_again_when_the_quota_is_full() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(128)), "a")?;
    program.must("alloc x 64MiB --door async; alloc y 64MiB")?;
    for _ in 0..3 {
        program.must("free-async x; alloc x 64MiB --door async")?;
    }
    assert_eq!(program.ask("alloc z 2MiB --door async")?.error(), OUT_OF_MEMORY);
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(128));
    Ok(())
}
