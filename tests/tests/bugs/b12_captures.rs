//! Bug 12: tools that synchronise inside their launch hook break every stream capture. Two programs that
//! contend record and replay graphs.

use crate::tenants::{SHORT_TURNS, both_do, tenant, tenants, world};

const ROUNDS: u32 = 4;
const REPLAYS: u32 = 3;

/// Lines that record a graph, which adds 1 and then 2, and replay it.
fn round(mode: &str, number: u32) -> Vec<String> {
    let mut lines = vec![
        format!("capture s --mode {mode}"),
        "add x 1 --on s".to_owned(),
        "add x 2 --door ex --on s".to_owned(),
        format!("end-capture s g{number}"),
    ];
    lines.extend((0..REPLAYS).map(|_| format!("replay g{number} --on s")));
    lines.push("sync s".to_owned());
    lines
}

#[test]
fn two_programs_that_contend_capture_and_replay_right_in_every_mode() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let modes = ["global", "thread", "relaxed"];
    let mut programs = tenants(&world, ["a", "b"])?;
    for program in &mut programs {
        program.must("stream s; fill x 0 --on s")?;
    }
    for mode in modes {
        for number in 0..ROUNDS {
            both_do(&mut programs, &round(mode, number))?;
        }
    }
    for program in &mut programs {
        program.must(&format!("check x {}", 3 * ROUNDS * REPLAYS * 3))?;
    }
    assert!(daemon.status()?.gpus[0].handoffs >= 4, "they contended");
    Ok(())
}

/// Each line runs while a drop is pending: the rival waits all the time.
#[test]
fn what_a_program_does_beside_its_capture_goes_on_while_a_drop_is_pending() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let mut a = tenant(&world, "a")?;
    a.must("alloc y 4MiB; stream s; stream t; fill x 0 --on s; sync")?;
    let mut b = tenant(&world, "b")?;
    a.must("capture s --mode thread")?;
    let fill = b.tell("fill x 9")?;
    daemon.until("b waits", |status| !status.gpus[0].queue.is_empty())?;
    a.must("add x 5 --on s; @other fill y 7 --on t; @other sync t; @other alloc z 4MiB; @other free z")?;
    assert_eq!(b.peek(fill), None, "the lock is held while a capture runs");
    a.must("end-capture s g")?;
    b.done(fill)?;
    a.must("replay g --on s; replay g --on s; check x 10; check y 7")?;
    b.must("check x 9")?;
    Ok(())
}
