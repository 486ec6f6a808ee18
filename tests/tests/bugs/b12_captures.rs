//! Bug 12: tools that synchronise inside their launch hook break every stream capture. Two programs that
//! contend record and replay graphs.

use gpushare_tests::Program;

use crate::tenants::{SHORT_TURNS, tenant, world};

const ROUNDS: u32 = 4;
const REPLAYS: u32 = 3;

/// Records a graph that adds 1 and then 2, and replays it.
fn round(program: &mut Program, mode: &str, number: u32) -> anyhow::Result<()> {
    program.must(&format!("capture s --mode {mode}; add x 1 --on s; add x 2 --door ex --on s"))?;
    program.must(&format!("end-capture s g{number}"))?;
    for _ in 0..REPLAYS {
        program.must(&format!("replay g{number} --on s"))?;
    }
    program.must("sync s")?;
    Ok(())
}

#[test]
fn two_programs_that_contend_capture_and_replay_right_in_every_mode() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&SHORT_TURNS)?;
    let modes = ["global", "thread", "relaxed"];
    let work = |name: &'static str| -> anyhow::Result<()> {
        let mut program = tenant(&world, name)?;
        program.must("stream s; fill x 0 --on s")?;
        for mode in modes {
            for number in 0..ROUNDS {
                round(&mut program, mode, number)?;
            }
        }
        let expected = 3 * ROUNDS * REPLAYS * 3;
        assert!(program.ask(&format!("check x {expected}"))?.flag("matches"), "{name}");
        Ok(())
    };
    std::thread::scope(|scope| {
        let programs = ["a", "b"].map(|name| scope.spawn(move || work(name)));
        programs.into_iter().try_for_each(|program| program.join().expect("no panic"))
    })?;
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
