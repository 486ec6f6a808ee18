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
pub(super) struct Watch {
    process: Process,
    said: PathBuf,
}

/// Quanta and drains that the daemon reported.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Of each grant.
    pub(super) quanta: Vec<Nanos>,
    /// Of each session that was told to let go.
    pub(super) drains: Vec<Nanos>,
}

impl Watch {
    pub(super) fn start(world: &World) -> anyhow::Result<Self> {
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

    /// Everything so far.
    pub(super) fn end(mut self) -> anyhow::Result<Turns> {
        self.process.kill()?;
        let mut turns = Turns::default();
        for line in fs::read_to_string(&self.said)?.lines() {
            // The last line may be cut.
            let Ok(WatchEvent { what, .. }) = serde_json::from_str(line) else {
                continue;
            };
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
pub(super) fn median(times: &[Nanos]) -> Nanos {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
