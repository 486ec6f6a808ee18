//! Bug 3: a quota that holds for one door and not for the next. 64 blocks of 64 MiB through each door against 512 MiB.

use gpushare_proto::Bytes;
use gpushare_tests::{Daemon, Program, Sharing, World};

const OUT_OF_MEMORY: Option<&str> = Some("CUDA_ERROR_OUT_OF_MEMORY");
const QUOTA: Bytes = Bytes::mib(512);
const BLOCKS: usize = 64;
/// Blocks that the quota has room for.
const FIT: usize = 8;

/// How a block is asked for, and how it is given back.
struct Door {
    name: &'static str,
    take: fn(usize) -> String,
    free: fn(usize) -> String,
    /// What gives back what the driver keeps when all is freed.
    last: Option<&'static str>,
}

const DOORS: &[Door] = &[
    Door { name: "mem", take: |n| format!("alloc x{n} 64MiB"), free, last: None },
    Door {
        name: "pitch",
        take: |n| format!("alloc x{n} 64MiB --door pitch"),
        free,
        last: None,
    },
    Door {
        name: "managed",
        take: |n| format!("alloc x{n} 64MiB --door managed"),
        free,
        last: None,
    },
    Door {
        name: "async",
        take: |n| format!("alloc x{n} 64MiB --door async"),
        free,
        last: None,
    },
    Door {
        name: "async, freed in order",
        take: |n| format!("alloc x{n} 64MiB --door async"),
        free: free_async,
        last: None,
    },
    Door {
        name: "pool",
        take: |n| format!("alloc x{n} 64MiB --door pool"),
        free: free_async,
        last: None,
    },
    Door {
        name: "graph",
        take: |n| format!("alloc x{n} 64MiB --door graph"),
        free,
        last: Some("trim-graphs"),
    },
    Door {
        name: "handle",
        take: |n| format!("alloc x{n} 64MiB --door handle"),
        free,
        last: None,
    },
    Door {
        name: "array",
        take: |n| format!("alloc x{n} 64MiB --door array"),
        free,
        last: None,
    },
    Door {
        name: "mipmap",
        take: |n| format!("alloc x{n} 64MiB --door mipmap"),
        free,
        last: None,
    },
];

/// The ways whose memory is another one on a backend that does not move it.
const PLAIN: &[&str] = &["mem", "pitch"];

fn free(n: usize) -> String {
    format!("free x{n}")
}

fn free_async(n: usize) -> String {
    format!("free-async x{n}")
}

/// Through one door, on a card that has room for all the blocks: what refuses is the quota.
fn holds_at(world: &World, daemon: &Daemon, door: &Door, sharing: &Sharing) -> anyhow::Result<()> {
    let mut program = Program::hold(world, sharing, "a")?;
    for round in ["once", "and again after all was freed"] {
        for n in 0..BLOCKS {
            let expected = if n < FIT { None } else { OUT_OF_MEMORY };
            assert_eq!(
                program.ask(&(door.take)(n))?.error(),
                expected,
                "block {n} by {}, {round}",
                door.name
            );
        }
        assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, QUOTA, "{}, {round}", door.name);
        assert_eq!(program.must("mem-info")?.number("free_bytes"), 0, "{}, {round}", door.name);
        for n in 0..FIT {
            program.must(&(door.free)(n))?;
        }
        program.must("sync")?;
        if let Some(last) = door.last {
            program.must(last)?;
        }
        assert_eq!(program.must("mem-info")?.number("free_bytes"), QUOTA.0, "{}, {round}", door.name);
    }
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::ZERO, "{}", door.name);
    program.must("alloc all 512MiB")?;
    program.quit()?;
    daemon.until("the session is over", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn a_quota_holds_at_every_door() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let sharing = Sharing::limited("a", QUOTA);
    DOORS.iter().try_for_each(|door| holds_at(&world, &daemon, door, &sharing))
}

#[test]
fn a_quota_holds_for_memory_that_stays_on_the_card() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::gib(4))?.with_daemon(&[])?;
    let sharing = Sharing::limited("a", QUOTA).and(&["--backend", "native"]);
    let plain = DOORS.iter().filter(|door| PLAIN.contains(&door.name));
    plain.into_iter().try_for_each(|door| holds_at(&world, &daemon, door, &sharing))
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
