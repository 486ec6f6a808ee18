//! The last byte of a quota, while all the rest of it lies unused in the pages of 32 sibling processes, of
//! which eight are stopped: those cannot be asked, so the daemon takes it out of their pages.
//!
//! ```text
//!   each round:  every sibling leases a piece and leaves it unused ─▶ eight are stopped
//!                ─▶ one more process asks for the whole quota and is given it: this is timed
//!                ─▶ it leaves all of it unused, and the eight go on
//! ```
//!
//! The process that asks, the daemon and the echo are put on one processor (`cores.rs`).

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, ensure};
use gpushare_proto::{Bytes, Token};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cores::put_together;
use crate::echo::Echo;
use crate::figures::microseconds;
use crate::peer::{Client, Registrar};

const SIBLINGS: usize = 32;
const STOPPED: usize = 8;
const PIECE: Bytes = Bytes::mib(1);
/// No byte of it is left when every sibling has its piece.
const QUOTA: Bytes = Bytes::mib(SIBLINGS as u64);
const ROUNDS: usize = 500;
/// Before the rounds and after them, so that a slow minute of the machine is in both.
const ECHOES: usize = 5000;
/// Environment variable with a sibling's token.
const TOKEN: &str = "QUOTA_BENCH_TOKEN";

pub(crate) fn measure(socket: &Path, daemon: u32) -> anyhow::Result<Value> {
    let token = Registrar::connect(socket).and_then(|mut registrar| registrar.register("recall", QUOTA))?;
    let mut siblings = (0..SIBLINGS)
        .map(|_| Sibling::start(socket, &token))
        .collect::<anyhow::Result<Vec<_>>>()?;
    put_together(daemon)?;
    let mut asker = Client::join(socket, &token)?;
    let mut echo = Echo::start(
        socket.parent().context("the socket is in no folder")?,
        &Client::question(asker.gpu, Bytes::mib(33)),
    )?;
    echo.measure(ECHOES / 10)?;
    let mut echoes = echo.measure(ECHOES)?;
    let mut recalls = Vec::new();
    for round in 0..ROUNDS {
        for sibling in &mut siblings {
            sibling.lease()?;
        }
        let stopped = (0..STOPPED).map(|number| (round * STOPPED + number) % SIBLINGS);
        stopped.clone().try_for_each(|number| siblings[number].stop())?;
        let begun = Instant::now();
        asker.reserve(QUOTA)?;
        recalls.push(begun.elapsed());
        asker.free(QUOTA);
        stopped
            .into_iter()
            .try_for_each(|number| siblings[number].signal(Signal::CONT))?;
    }
    echoes.extend(echo.measure(ECHOES)?);
    Ok(json!({
        "recall_p50_us": microseconds(recalls.clone(), 50)?,
        "recall_p99_us": microseconds(recalls, 99)?,
        "echo_p50_us": microseconds(echoes.clone(), 50)?,
        "echo_p99_us": microseconds(echoes, 99)?,
    }))
}

/// Another process of the session.
struct Sibling {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Sibling {
    fn start(socket: &Path, token: &Token) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("sibling")
            .arg("--socket")
            .arg(socket)
            .env(TOKEN, token.to_hex())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self {
            stdin: child.stdin.take().context("no stdin")?,
            stdout: BufReader::new(child.stdout.take().context("no stdout")?),
            child,
        })
    }

    fn lease(&mut self) -> anyhow::Result<()> {
        self.stdin.write_all(b"\n")?;
        let heard = self.stdout.read_line(&mut String::new())?;
        ensure!(heard > 0, "a sibling ended");
        Ok(())
    }

    /// Returns when it has stopped.
    fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)?;
        let path = format!("/proc/{}/stat", self.child.id());
        while !fs::read_to_string(&path)?.contains(") T ") {
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        // The process has ended already if anything went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other end of [`Sibling`].
pub(crate) fn sibling(socket: &Path) -> anyhow::Result<()> {
    let token = std::env::var(TOKEN).ok().and_then(|hex| Token::from_hex(&hex));
    let mut client = Client::join(socket, &token.context("no token")?)?;
    for line in std::io::stdin().lines() {
        line?;
        client.reserve(PIECE)?;
        client.free(PIECE);
        println!();
    }
    Ok(())
}
