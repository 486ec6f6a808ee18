//! A daemon of a world: started, asked, restarted, killed.

use std::io::Read;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, ensure};
use gpushare_proto::GpuId;
use gpushare_proto::admin::{ResidenceView, SessionView, Status};
use rustix::process::Signal;
use serde::Deserialize;

use crate::artifacts::Part;
use crate::patience;
use crate::process::{Process, output_of};
use crate::world::World;

/// A running `gpushare-scheduler`.
#[derive(Debug)]
pub struct Daemon {
    world: World,
    flags: Vec<String>,
    process: Process,
}

impl Daemon {
    /// Starts a daemon with these flags and waits until its sockets listen. It is a user's own without
    /// `--system`.
    pub fn start(world: &World, flags: &[&str]) -> anyhow::Result<Self> {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let process = launch(world, &flags, &[])?;
        Ok(Self { world: world.clone(), flags, process })
    }

    /// Process of the daemon.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Whether the daemon has ended.
    pub fn ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.ended()?.is_some())
    }

    /// Kills the daemon as `kill -9` does.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().map(drop)
    }

    /// Sends SIGTERM to the daemon and waits for its end.
    pub fn stop(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait()
    }

    /// Starts an ended daemon again, with its former flags.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.restart_under(&[])
    }

    /// Starts an ended daemon again, with these flags from now on.
    pub fn restart_with(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        self.restart()
    }

    /// Restarts the daemon through a program that becomes it, like `unshare`, given with its arguments.
    pub fn restart_under(&mut self, launcher: &[&str]) -> anyhow::Result<()> {
        ensure!(self.process.ended()?.is_some(), "the daemon still runs; stop or kill it first");
        self.process = launch(&self.world, &self.flags, launcher)?;
        Ok(())
    }

    /// Runs `gpushare-ctl` with these words and returns its stdout.
    pub fn ctl(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut ctl = self.world.part(Part::Ctl);
        ctl.args(words);
        output_of(ctl)
    }

    /// Status of the daemon, by `gpushare-ctl status --json`.
    pub fn status(&self) -> anyhow::Result<Status> {
        let mut ctl = self.world.part(Part::Ctl);
        ctl.args(["status", "--json"]);
        let json = output_of(ctl)?;
        serde_json::from_str(&json).with_context(|| format!("no status: {json}"))
    }

    /// Places of the remapped memory of a session on the first card, by `gpushare-ctl status --json`.
    pub fn residence(&self, name: &str) -> anyhow::Result<ResidenceView> {
        self.residence_on(name, GpuId(0))
    }

    /// Places of the remapped memory of a session on a card.
    pub fn residence_on(&self, name: &str, gpu: GpuId) -> anyhow::Result<ResidenceView> {
        #[derive(Deserialize)]
        struct Residences {
            residences: Vec<ResidenceView>,
        }
        let session = self.session(name)?.session;
        let Residences { residences } = serde_json::from_str(&self.ctl(&["status", "--json"])?)?;
        let found = residences
            .into_iter()
            .find(|place| (place.session, place.gpu) == (session, gpu));
        found.with_context(|| format!("`{name}` has no remapped memory on {gpu}"))
    }

    /// One session of the status, by name.
    pub fn session(&self, name: &str) -> anyhow::Result<SessionView> {
        let sessions = self.status()?.sessions;
        let found = sessions.into_iter().find(|session| session.name == name);
        found.with_context(|| format!("there is no session `{name}`"))
    }

    /// Waits until `is_so` holds for the status and returns that status; `what` names it in the error.
    pub fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> anyhow::Result<Status> {
        patience::until(what, || self.status().map(|status| is_so(&status).then_some(status)))
    }

    /// Runs `gpushare-ctl set …`.
    pub fn set(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut ctl = self.world.part(Part::Ctl);
        ctl.arg("set").args(words);
        output_of(ctl).map(drop)
    }
}

impl World {
    /// Starts a daemon in this world with these flags.
    pub fn with_daemon(self, flags: &[&str]) -> anyhow::Result<(Self, Daemon)> {
        let daemon = Daemon::start(&self, flags)?;
        Ok((self, daemon))
    }
}

fn launch(world: &World, flags: &[String], launcher: &[&str]) -> anyhow::Result<Process> {
    let mut command = match launcher.split_first() {
        None => world.part(Part::Scheduler),
        Some((program, arguments)) => {
            let mut command = world.program(Path::new(program));
            command.args(arguments).arg(world.path(Part::Scheduler));
            command
        }
    };
    // Its stdout is the pipe on which it says that both sockets listen.
    if !flags.iter().any(|flag| flag == "--system") {
        command.arg("--user");
    }
    command.args(["--ready-fd", "1"]);
    if let Some(config) = world.scheduler_config() {
        command.arg("--config").arg(config);
    }
    command.args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process::start(command, world.folder(), "daemon")?;
    let mut ready = [0];
    let read = process.take_stdout().context("the daemon has no stdout")?.read(&mut ready)?;
    ensure!(read == 1, "the daemon did not start: {}", process.stderr().trim());
    Ok(process)
}
