//! Every way to give work to the card waits at a closed gate, and does there what it does natively.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_proto::admin::{LockView, Status};
use gpushare_tests::{Daemon, Process, Program, Sharing, World, foreign};

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

struct Doors {
    process: Process,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Doors {
    fn start(world: &World, sharing: &Sharing) -> anyhow::Result<Self> {
        let program = foreign::compile(world, "doors.c", "doors", &["-ldl", "-pthread"])?;
        let mut command = world.sharing(sharing, &program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command, world.folder(), "doors")?;
        let stdin = process.take_stdin().context("it has no stdin")?;
        let lines = BufReader::new(process.take_stdout().context("it has no stdout")?).lines();
        let mut doors = Self { process, stdin, lines };
        assert_eq!(doors.line()?, "ready");
        Ok(doors)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let line = self.lines.next();
        line.with_context(|| format!("it ended: {}", self.process.stderr().trim()))?
            .map_err(Into::into)
    }

    fn ask(&mut self, door: &str) -> anyhow::Result<()> {
        writeln!(self.stdin, "{door}")?;
        assert_eq!(self.line()?, format!("{door} asked"));
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        drop(self.stdin);
        self.process.succeed()
    }
}

#[test]
fn each_door_to_the_card_waits_for_its_turn_and_then_does_what_it_does_natively() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut native = Doors::start(&world, &Sharing::Native)?;
    let mut expected = Vec::new();
    for door in DOORS {
        native.ask(door)?;
        expected.push(native.line()?);
    }
    native.end()?;
    let words = expected.iter().filter(|line| line.ends_with(" 0 33")).count();
    assert!(words >= 2, "the copies arrived: {expected:?}");
    assert_eq!(expected[0], "host-function 0 21");

    let daemon = Daemon::start(&world, &["--mode", "serialized", "--quantum", "10min"])?;
    let mut shared = Doors::start(&world, &Sharing::session("doors"))?;
    let mut rival = Program::hold(&world, &Sharing::session("rival"), "rival")?;
    rival.must("alloc x 40MiB")?;
    let waits = |status: &Status| {
        let doors = status.sessions.iter().find(|session| session.name == "doors");
        doors.is_some_and(|session| matches!(session.lock, LockView::Waiting { .. }))
    };
    for (door, expected) in DOORS.iter().zip(expected) {
        // Nobody else may work until the latch is open.
        rival.must("latch l")?;
        shared.ask(door)?;
        daemon.until(&format!("{door} waits for its turn"), waits)?;
        rival.must("open l")?;
        assert_eq!(shared.line()?, expected);
    }
    shared.end()
}
