//! Events of the daemon while programs run (`gpushare-ctl watch`).

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

use gpushare_proto::Nanos;
use gpushare_proto::admin::{WatchEvent, WatchEventKind};
use gpushare_tests::artifacts::Part;
use gpushare_tests::patience;
use gpushare_tests::process::Process;
use gpushare_tests::world::World;

/// A running watch.
#[derive(Debug)]
pub(crate) struct Watch {
    process: Process,
    said: PathBuf,
}

/// Quanta and drains that the daemon reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// Of each grant.
    pub(crate) quanta: Vec<Nanos>,
    /// Of each session that was told to let go.
    pub(crate) drains: Vec<Nanos>,
}

impl Watch {
    pub(crate) fn start(world: &World) -> anyhow::Result<Self> {
        let said = world.folder().join("watch.out");
        let mut command = world.part(Part::Ctl);
        command.args(["watch", "--json"]);
        command.stdin(Stdio::null()).stdout(File::create(&said)?);
        let process = Process::start(command, world.folder(), "watch")?;
        patience::until("the watch begins", || {
            Ok(fs::read_to_string(&said)?.contains("watching").then_some(()))
        })?;
        Ok(Self { process, said })
    }

    /// Ends the watch and returns all events so far.
    pub(crate) fn events(mut self) -> anyhow::Result<Vec<WatchEvent>> {
        self.process.kill()?;
        let said = fs::read_to_string(&self.said)?;
        // The last line may be cut.
        Ok(said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Ends the watch and returns quanta and drains so far.
    pub(crate) fn end(self) -> anyhow::Result<Turns> {
        let mut turns = Turns::default();
        for WatchEvent { what, .. } in self.events()? {
            match what {
                WatchEventKind::Granted { quantum_ns, .. } => turns.quanta.push(quantum_ns),
                WatchEventKind::Dropped { drain_ns: Some(drain), .. } => turns.drains.push(drain),
                _ => {}
            }
        }
        Ok(turns)
    }
}

/// The one in the middle; zero where there is none.
pub(crate) fn median(times: &[Nanos]) -> Nanos {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
