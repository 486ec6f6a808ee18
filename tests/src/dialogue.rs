//! A program of others that is driven by lines on its stdin and answers by lines on its stdout.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use anyhow::{Context, bail};

use crate::patience::PATIENCE;
use crate::process::Process;
use crate::world::World;

/// A running program and both ends of the dialogue with it.
#[derive(Debug)]
pub struct Dialogue {
    /// The program.
    pub process: Process,
    steps: ChildStdin,
    answers: Receiver<String>,
}

impl Dialogue {
    /// Starts `command`; its stderr goes to `NAME.err` in the world's folder.
    pub fn start(world: &World, mut command: Command, name: &str) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command, world.folder(), name)?;
        let steps = process.take_stdin().context("it has no stdin")?;
        let stdout = process.take_stdout().context("it has no stdout")?;
        let (inbox, answers) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map(|line| inbox.send(line)).find(Result::is_err)
        });
        Ok(Self { process, steps, answers })
    }

    /// Sends a line.
    pub fn tell(&mut self, step: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.steps, "{step}")?)
    }

    /// Waits for the next line.
    pub fn answer(&mut self) -> anyhow::Result<String> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Disconnected) => bail!("it ended: {}", self.process.stderr().trim()),
            Err(RecvTimeoutError::Timeout) => {
                bail!("no answer for {PATIENCE:?}: {}", self.process.stderr().trim())
            }
        }
    }

    /// Sends a line and waits for the next one.
    pub fn ask(&mut self, step: &str) -> anyhow::Result<String> {
        self.tell(step)?;
        self.answer()
    }

    /// Waits for a line and returns the lines before it.
    pub fn answers_until(&mut self, last: &str) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        loop {
            match self.answer()? {
                line if line == last => return Ok(lines),
                line => lines.push(line),
            }
        }
    }

    /// Closes the program's stdin and waits for its good end.
    pub fn end(mut self) -> anyhow::Result<()> {
        drop(self.steps);
        self.process.succeed()
    }
}
