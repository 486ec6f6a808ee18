//! `kill -9` of anybody.

use gpushare_proto::Bytes;
use gpushare_proto::admin::LockView;
use gpushare_tests::{Program, Sharing, World};
use rustix::process::Signal;

const LONG_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "10min"];

fn tenant(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name), name)?;
    program.must("alloc x 40MiB")?;
    Ok(program)
}

/// Keeps the card busy until it is told to stop or dies.
fn spin(program: &mut Program) -> anyhow::Result<()> {
    program.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
    Ok(())
}

#[test]
fn the_next_one_runs_when_the_holder_is_killed() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&LONG_TURNS)?;
    let mut a = tenant(&world, "a")?;
    let mut b = tenant(&world, "b")?;
    spin(&mut a)?;
    let fill = b.tell("fill x 2")?;
    daemon.until("b waits", |status| !status.gpus[0].queue.is_empty())?;
    a.kill()?;
    b.done(fill)?;
    b.must("check x 2")?;
    let status = daemon.until("a is gone", |status| status.sessions.len() == 1)?;
    assert_eq!(status.gpus[0].allocated_bytes, Bytes::mib(40));
    Ok(())
}

#[test]
fn a_killed_waiter_leaves_the_queue_and_holds_up_nobody() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&LONG_TURNS)?;
    let mut a = tenant(&world, "a")?;
    let mut b = tenant(&world, "b")?;
    let mut c = tenant(&world, "c")?;
    spin(&mut a)?;
    b.tell("fill x 2")?;
    daemon.until("b waits", |status| status.gpus[0].queue.len() == 1)?;
    let fill = c.tell("fill x 3")?;
    daemon.until("c waits behind it", |status| status.gpus[0].queue.len() == 2)?;
    b.kill()?;
    daemon.until("only c waits", |status| status.gpus[0].queue.len() == 1)?;
    a.must("write-value stop 1")?;
    c.done(fill)?;
    c.must("check x 3")?;
    Ok(())
}

#[test]
fn a_stopped_holder_is_named_as_the_reason_and_loses_nothing() -> anyhow::Result<()> {
    let (world, daemon) =
        World::of(Bytes::mib(64))?.with_daemon(&["--mode", "serialized", "--quantum", "50ms"])?;
    let mut a = tenant(&world, "a")?;
    let mut b = tenant(&world, "b")?;
    a.must("fill x 1")?;
    spin(&mut a)?;
    a.process().signal(Signal::STOP)?;
    let fill = b.tell("fill x 2")?;
    daemon.until("a is told to let go and cannot", |status| {
        let a = status.sessions.iter().find(|session| session.name == "a");
        a.is_some_and(|a| matches!(&a.lock, LockView::Dropping { reason, .. } if reason.contains("stopped")))
    })?;
    assert_eq!(b.peek(fill), None);
    a.process().signal(Signal::CONT)?;
    a.must("write-value stop 1")?;
    b.done(fill)?;
    a.must("check x 1")?;
    Ok(())
}
