//! A CUDA program that runs to its end and says whether its memory was right (`gpushare-workload train`).

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_workload::train::Report;

use crate::process::Process;
use crate::world::{Sharing, World};

/// A running `gpushare-workload train`.
#[derive(Debug)]
pub struct Training {
    process: Process,
    stdout: PathBuf,
    /// File at which it begins no further step.
    until: PathBuf,
}

impl Training {
    /// Starts `gpushare-workload train` with this memory and any other flags of it.
    pub fn start(
        world: &World,
        sharing: &Sharing,
        name: &str,
        memory: Bytes,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        Self::begin(world.workload(sharing), world, name, memory, flags)
    }

    /// Starts `train` by a command that ends in the program's name.
    pub fn begin(
        mut command: Command,
        world: &World,
        name: &str,
        memory: Bytes,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let stdout = world.folder().join(format!("{name}.out"));
        let until = world.folder().join(format!("{name}.until"));
        command.args(["train", "--memory", &memory.0.to_string()]).args(flags);
        command.arg("--until").arg(&until);
        command.stdin(Stdio::null()).stdout(File::create(&stdout)?);
        let process = Process::start(command, world.folder(), name)?;
        Ok(Self { process, stdout, until })
    }

    /// Process of the program.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Whether the program has ended.
    pub fn ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.ended()?.is_some())
    }

    /// Kills the program as `kill -9` does.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().map(drop)
    }

    /// Lets the program end after its step, however many are left, and returns its report.
    pub fn finish(&mut self) -> anyhow::Result<Report> {
        File::create(&self.until)?;
        self.report()
    }

    /// Waits for the end of the program and returns its report, also after it found corrupted memory.
    pub fn report(&mut self) -> anyhow::Result<Report> {
        let status = self.process.wait()?;
        let line = fs::read_to_string(&self.stdout)?;
        serde_json::from_str(&line)
            .with_context(|| format!("no report ({status}): {line}{}", self.process.stderr()))
    }
}
