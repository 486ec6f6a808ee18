//! A program may interrupt its waits at the gate, as at Ctrl-C, and give the card back. No other program sees
//! a wait that fails.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{LockView, Status};
use gpushare_tests::{Daemon, Dialogue, Program, Sharing, World, foreign};
use rustix::process::Signal;

/// In turns, and nobody is dropped for the time of a test unless it is idle.
const LONG_TURNS: [&str; 4] = ["--mode", "serialized", "--quantum", "10min"];
/// `CUDA_ERROR_NOT_PERMITTED`, by which an interrupted call is known.
const INTERRUPTED: i32 = 800;

/// Starts the program that waits, and another one that holds the card until its latch is opened.
fn start() -> anyhow::Result<(World, Daemon, Dialogue, Program)> {
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&LONG_TURNS)?;
    let program = foreign::compile(&world, "interrupted.c", "interrupted", &["-ldl", "-pthread"])?;
    let command = world.sharing(&Sharing::session("a"), &program);
    let mut a = Dialogue::start(&world, command, "interrupted")?;
    assert_eq!(a.answer()?, "word 1");
    let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
    b.must("alloc x 40MiB; fill x 2; latch l")?;
    Ok((world, daemon, a, b))
}

/// Lets the program wait at the gate in this way, which `b` keeps closed.
fn wait(daemon: &Daemon, a: &mut Dialogue, way: &str) -> anyhow::Result<()> {
    a.tell(way)?;
    let waits = |status: &Status| {
        let a = status.sessions.iter().find(|session| session.name == "a");
        a.is_some_and(|a| {
            matches!(a.lock, LockView::Waiting { .. }) && a.clients.iter().any(|client| client.waiting)
        })
    };
    daemon.until("a waits at its gate", waits).map(drop)
}

#[test]
fn ctrl_c_ends_the_waits_of_all_threads_and_the_next_call_computes_right() -> anyhow::Result<()> {
    let (_world, daemon, mut a, mut b) = start()?;
    assert_eq!(a.ask("watch")?, "watching 0");
    for way in ["forward", "backward", "twice"] {
        wait(&daemon, &mut a, &format!("{way} 7"))?;
        a.process.signal(Signal::INT)?;
        assert_eq!(a.answer()?, format!("{way} {INTERRUPTED}"));
        assert_eq!(a.ask("next")?, "next 2");
        assert_eq!(a.ask("over")?, "over 0");
        let holder = daemon.session("b")?;
        assert!(matches!(holder.lock, LockView::Holding { .. }), "b held the card: {:?}", holder.lock);
    }
    // A signal that came and went ends no later wait.
    wait(&daemon, &mut a, "backward 8")?;
    b.must("open l; sync")?;
    assert_eq!(a.answer()?, "backward 0");
    assert_eq!(a.ask("word")?, "word 8");
    b.must("check x 2")?;
    a.end()
}

#[test]
fn an_interrupted_call_has_no_effect() -> anyhow::Result<()> {
    let (_world, daemon, mut a, mut b) = start()?;
    a.ask("watch")?;
    wait(&daemon, &mut a, "forward 7")?;
    a.process.signal(Signal::INT)?;
    assert_eq!(a.answer()?, format!("forward {INTERRUPTED}"));
    assert_eq!(a.ask("over")?, "over 0");
    b.must("open l; sync")?;
    assert_eq!(a.ask("word")?, "word 1");
    a.end()
}

#[test]
fn other_signals_interrupt_no_wait() -> anyhow::Result<()> {
    for watches in [false, true] {
        let (_world, daemon, mut a, mut b) = start()?;
        if watches {
            a.ask("watch")?;
        }
        wait(&daemon, &mut a, "forward 7")?;
        b.must("open l; sync")?;
        assert_eq!(a.answer()?, "forward 0");
        b.must("fill x 2; latch l")?;
        assert_eq!(a.ask("alarm")?, "alarms");
        a.tell("forward 9")?;
        // The signals arrive while the thread sleeps at the gate.
        assert_eq!(a.answer()?, "100 alarms", "watches: {watches}");
        b.must("open l; sync")?;
        assert_eq!(a.answer()?, "forward 0", "watches: {watches}");
        assert_eq!(a.ask("word")?, "word 9");
        a.end()?;
    }
    Ok(())
}

#[test]
fn a_program_gives_back_a_card_that_nobody_wants() -> anyhow::Result<()> {
    let (_world, daemon, mut a, mut b) = start()?;
    b.must("open l; sync")?;
    assert_eq!(a.ask("forward 7")?, "forward 0");
    let a_lock = |status: &Status| {
        let a = status.sessions.iter().find(|session| session.name == "a");
        a.map(|a| a.lock.clone())
    };
    assert!(matches!(a_lock(&daemon.status()?), Some(LockView::Holding { .. })), "nobody wants the card");
    assert_eq!(a.ask("release")?, "release 0");
    daemon.until("a has given the card back", |status| a_lock(status) == Some(LockView::Idle))?;
    assert_eq!(a.ask("word")?, "word 7");
    a.end()
}
