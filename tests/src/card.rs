//! The simulated card as a process, and its counters.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use simgpu_card::connection::{Connection, Observer};
use simgpu_card::ids::GpuIndex;
use simgpu_card::stats::Stats;
use simgpu_card::wire::{Answer, Refusable, Request, Role};

use crate::process::Process;

/// A running `simgpu-card`.
#[derive(Debug)]
pub struct Card {
    process: Process,
    socket: PathBuf,
}

impl Card {
    /// Starts it and waits until it listens.
    pub(crate) fn start(
        program: &Path,
        folder: &Path,
        socket: &Path,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg("--die-with-parent").arg("--socket").arg(socket).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Process::start(command, folder, "card")?;
        let stdout = process.take_stdout().context("the card has no stdout")?;
        let mut ready = String::new();
        BufReader::new(stdout).read_line(&mut ready)?;
        ensure!(!ready.is_empty(), "the simulated card did not start: {}", process.stderr().trim());
        Ok(Self { process, socket: socket.to_owned() })
    }

    /// Process id of the card.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Resets its first GPU after it fell off the bus.
    pub fn reset(&self) -> anyhow::Result<()> {
        Ok(Observer::connect(&self.socket)?.reset(GpuIndex(0))?)
    }

    /// Takes its first GPU off the bus, until it is reset.
    pub fn fall_off(&self) -> anyhow::Result<()> {
        Ok(Observer::connect(&self.socket)?.fall_off(GpuIndex(0))?)
    }

    /// Lets its first GPU report an Xid.
    pub fn xid(&self, xid: u64) -> anyhow::Result<()> {
        Ok(Observer::connect(&self.socket)?.xid(GpuIndex(0), xid)?)
    }

    /// Sets whether its first GPU is in persistence mode, as NVML says.
    pub fn set_persistence(&self, is_on: bool) -> anyhow::Result<()> {
        Ok(Observer::connect(&self.socket)?.set_persistence(GpuIndex(0), is_on)?)
    }

    /// Lets the next `count` calls of a process fail for want of memory.
    pub fn refuse(&self, pid: u32, call: Refusable, count: u32) -> anyhow::Result<()> {
        Ok(Observer::connect(&self.socket)?.refuse(pid, call, count)?)
    }

    /// Statistics of the card so far.
    pub fn stats(&self) -> anyhow::Result<Stats> {
        let connection = Connection::open(&self.socket, Role::Observer)?;
        match connection.call(Request::Stats, &[])?.answer {
            Answer::Stats(json) => Ok(serde_json::from_str(&json)?),
            other => bail!("the simulated card answered {other:?} for its statistics"),
        }
    }
}
