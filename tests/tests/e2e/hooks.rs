//! Every way to give work to the card waits at a closed gate, and does there what it does natively.

use gpushare_proto::Bytes;
use gpushare_proto::admin::{LockView, Status};
use gpushare_tests::{Daemon, Dialogue, Program, Sharing, World, foreign};

const DOORS: [&str; 15] = [
    "host-function",
    "callback",
    "write-32",
    "write-64",
    "wait-32",
    "wait-64",
    "batch",
    "attach",
    "prefetch",
    "discard",
    "discard-and-prefetch",
    "copies-12",
    "copies-13",
    "upload",
    "several-cards",
];

fn start(world: &World, sharing: &Sharing) -> anyhow::Result<Dialogue> {
    let program = foreign::compile(world, "doors.c", "doors", &["-ldl", "-pthread"])?;
    let mut doors = Dialogue::start(world, world.sharing(sharing, &program), "doors")?;
    assert_eq!(doors.answer()?, "ready");
    Ok(doors)
}

#[test]
fn every_hook_waits_for_its_turn_and_then_acts_as_natively() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut native = start(&world, &Sharing::Native)?;
    let mut expected = Vec::new();
    for door in DOORS {
        assert_eq!(native.ask(door)?, format!("{door} asked"));
        expected.push(native.answer()?);
    }
    native.end()?;
    let words = expected.iter().filter(|line| line.ends_with(" 0 33")).count();
    assert!(words >= 2, "the copies arrived: {expected:?}");
    assert_eq!(expected[0], "host-function 0 21");

    let daemon = Daemon::start(&world, &["--mode", "serialized", "--quantum", "10min"])?;
    let mut shared = start(&world, &Sharing::session("doors"))?;
    let mut rival = Program::hold(&world, &Sharing::session("rival"), "rival")?;
    rival.must("alloc x 40MiB")?;
    let waits = |status: &Status| {
        let doors = status.sessions.iter().find(|session| session.name == "doors");
        doors.is_some_and(|session| matches!(session.lock, LockView::Waiting { .. }))
    };
    for (door, expected) in DOORS.iter().zip(expected) {
        // Nobody else may work until the latch is open.
        rival.must("latch l")?;
        assert_eq!(shared.ask(door)?, format!("{door} asked"));
        daemon.until(&format!("{door} waits for its turn"), waits)?;
        rival.must("open l")?;
        assert_eq!(shared.answer()?, expected);
    }
    shared.end()
}
