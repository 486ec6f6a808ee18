//! A CUDA program that a test drives line by line (`gpushare-workload hold`).
//!
//! A line can be asked (send and wait) or told (send and go on), so that a test can leave one thread of
//! the program asleep at a gate and talk to another.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use gpushare_proto::Bytes;
use serde_json::Value;

use crate::patience::PATIENCE;
use crate::process::Process;
use crate::world::{Sharing, World};

/// A running `gpushare-workload hold`.
#[derive(Debug)]
pub struct Program {
    process: Process,
    stdin: Option<ChildStdin>,
    answers: Arc<Answers>,
    lines: u64,
}

/// A line that was sent and perhaps not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Answer of the program to one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(Value);

#[derive(Debug, Default)]
struct Answers {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    by_line: BTreeMap<u64, Answer>,
    ended: bool,
}

impl Program {
    /// Starts a program without memory and waits until it has its context.
    pub fn hold(world: &World, sharing: &Sharing, name: &str) -> anyhow::Result<Self> {
        let mut program = Self::begin(world.workload(sharing), world, name)?;
        program.ready()?;
        Ok(program)
    }

    /// Starts a program with a variable in its environment, without memory, and waits until it has its
    /// context.
    pub fn hold_with(
        world: &World,
        sharing: &Sharing,
        name: &str,
        variable: &str,
        value: &str,
    ) -> anyhow::Result<Self> {
        let mut command = world.workload(sharing);
        command.env(variable, value);
        let mut program = Self::begin(command, world, name)?;
        program.ready()?;
        Ok(program)
    }

    /// Starts a program and waits until it holds filled memory, under the name `hold`.
    pub fn holding(world: &World, sharing: &Sharing, name: &str, memory: Bytes) -> anyhow::Result<Self> {
        let mut command = world.workload(sharing);
        command.args(["hold", "--memory", &memory.0.to_string()]);
        let mut program = Self::spawn(command, world, name)?;
        program.ready()?;
        Ok(program)
    }

    /// Starts `hold` by a command that ends in the program's name, and does not wait.
    pub fn begin(mut command: Command, world: &World, name: &str) -> anyhow::Result<Self> {
        command.arg("hold");
        Self::spawn(command, world, name)
    }

    fn spawn(mut command: Command, world: &World, name: &str) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command, world.folder(), name)?;
        let stdin = process.take_stdin();
        let stdout = process.take_stdout().context("the program has no stdout")?;
        let answers = Arc::new(Answers::default());
        let inbox = Arc::clone(&answers);
        thread::spawn(move || inbox.collect_from(stdout));
        Ok(Self { process, stdin, answers, lines: 0 })
    }

    /// Process of the program.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Waits until the program has its context, and its memory if it was to hold some.
    pub fn ready(&mut self) -> anyhow::Result<()> {
        self.ready_within(PATIENCE)
    }

    /// Waits for at most `patience` until the program has its context.
    pub fn ready_within(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.done_within(Ticket(0), patience)
    }

    /// Sends a line and goes on.
    pub fn tell(&mut self, line: &str) -> anyhow::Result<Ticket> {
        let stdin = self.stdin.as_mut().context("the program was told to end")?;
        writeln!(stdin, "{line}").with_context(|| format!("the program has ended before `{line}`"))?;
        self.lines += 1;
        Ok(Ticket(self.lines))
    }

    /// The answer to a line, if it is there already.
    pub fn peek(&self, ticket: Ticket) -> Option<Answer> {
        self.answers.lock().by_line.get(&ticket.0).cloned()
    }

    /// Waits for the answer to a line.
    pub fn answer(&self, ticket: Ticket) -> anyhow::Result<Answer> {
        self.answer_within(ticket, PATIENCE)
    }

    /// Waits for the answer to a line for at most `patience`.
    pub fn answer_within(&self, ticket: Ticket, patience: Duration) -> anyhow::Result<Answer> {
        let waiting = |state: &mut State| !state.ended && !state.by_line.contains_key(&ticket.0);
        let (state, _) = self
            .answers
            .news
            .wait_timeout_while(self.answers.lock(), patience, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match state.by_line.get(&ticket.0) {
            Some(answer) => Ok(answer.clone()),
            None if state.ended => {
                bail!("the program ended at line {}: {}", ticket.0, self.process.stderr().trim())
            }
            None => {
                bail!("no answer to line {} for {patience:?}: {}", ticket.0, self.process.stderr().trim())
            }
        }
    }

    /// Waits for the answer to a line that must succeed.
    pub fn done(&self, ticket: Ticket) -> anyhow::Result<()> {
        self.done_within(ticket, PATIENCE)
    }

    /// Waits for the answer to a line that must succeed, for at most `patience`.
    pub fn done_within(&self, ticket: Ticket, patience: Duration) -> anyhow::Result<()> {
        self.answer_within(ticket, patience)?.expect()
    }

    /// Sends a line and waits for its answer, whatever it is.
    pub fn ask(&mut self, line: &str) -> anyhow::Result<Answer> {
        let ticket = self.tell(line)?;
        self.answer(ticket)
    }

    /// Sends lines, separated by `; `, of which each must succeed and each `check` find what it expects.
    /// Returns the last answer.
    pub fn must(&mut self, lines: &str) -> anyhow::Result<Answer> {
        let mut last = Answer(Value::Null);
        for line in lines.split("; ") {
            last = self.ask(line)?;
            last.expect()?;
        }
        Ok(last)
    }

    /// Launches a kernel that runs until the program ends. From then on the program is never idle, however seldom
    /// its threads run.
    pub fn spin_for_good(&mut self) -> anyhow::Result<()> {
        self.must("alloc stop 4KiB; set stop 0; stream s; spin 3600s --until stop --on s")?;
        Ok(())
    }

    /// Closes the program's stdin, so that it finishes its lines, and waits for its end.
    pub fn quit(&mut self) -> anyhow::Result<ExitStatus> {
        self.stdin = None;
        self.process.wait()
    }

    /// Whether the program has ended.
    pub fn ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.ended()?.is_some())
    }

    /// Kills the program as `kill -9` does.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().map(drop)
    }
}

impl Answer {
    /// The name of the error (`CUDA_ERROR_…`), if it failed.
    pub fn error(&self) -> Option<&str> {
        self.0["error"].as_str()
    }

    /// Number of this name in the answer; zero if there is none.
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    /// Flag of this name in the answer; false if there is none.
    pub fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap_or_default()
    }

    /// Text of this name in the answer; empty if there is none.
    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// Whole answer.
    pub fn json(&self) -> &Value {
        &self.0
    }

    fn expect(&self) -> anyhow::Result<()> {
        if !self.flag("ok") || self.0["matches"] == false {
            bail!("the program's line failed: {}", self.0);
        }
        Ok(())
    }
}

impl Answers {
    fn collect_from(&self, stdout: ChildStdout) {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Ok(answer) = serde_json::from_str::<Value>(&line) {
                let id = answer["id"].as_u64().unwrap_or_default();
                self.lock().by_line.insert(id, Answer(answer));
                self.news.notify_all();
            }
        }
        self.lock().ended = true;
        self.news.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
