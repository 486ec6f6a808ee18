//! What a quota costs: bytes taken in the process, a refusal there, the last byte when it lies in the pages of stopped
//! siblings, and a daemon with a thousand clients. No GPU and no simulated card: the driver does nothing, and most clients
//! only speak the protocol (`benches/src/daemon/`).

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};
use gpushare_workload::report::percentile;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::output::progress;

/// How often what takes no time is measured; the median counts.
const RUNS: usize = 5;
/// A card for one session of the crowd, which lets go before its quantum is over.
const TURNS: [&str; 6] = ["--mode", "serialized", "--capacity", "0=64MiB", "--quantum", "30s"];

/// All figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Quota {
    /// Bytes taken from the lease, and a block entered in the books.
    reserve_ns: f64,
    /// From the call of an allocation above the whole limit to its error; the median.
    refuse_local_us: f64,
    /// From the question to the answer, where every byte must be taken back from siblings.
    recall_p99_us: f64,
    /// The same frame to another process and back; the median.
    echo_p50_us: f64,
    sessions: u64,
    clients: u64,
    /// From the last word of those who let go to the last client of the next session.
    grant_p99_us: f64,
    /// Processors that the daemon used meanwhile.
    daemon_cpu: f64,
    /// The most that it had in memory.
    daemon_rss_mb: f64,
}

#[derive(Deserialize)]
struct Reserve {
    reserve_ns: f64,
    give_back_ns: f64,
}

#[derive(Deserialize)]
struct Refuse {
    call_ns: f64,
    library: String,
}

#[derive(Deserialize)]
struct Recall {
    recall_p50_us: f64,
    recall_p99_us: f64,
    echo_p50_us: f64,
    /// How much of the recall's is the machine's.
    echo_p99_us: f64,
}

#[derive(Deserialize)]
struct Crowd {
    sessions: u64,
    clients: u64,
    grant_p50_us: f64,
    grant_p99_us: f64,
    daemon_cpu: f64,
    daemon_rss_mb: f64,
}

pub(super) fn measure() -> anyhow::Result<Quota> {
    progress("building in release");
    let artifacts = Artifacts::build(Profile::Release, Progress::Shown)?;
    let built = cargo::build(&["gpushare-benches"], Profile::Release, Progress::Shown)?;
    let world = World::on_this_machine(&artifacts)?;
    let driver = world.folder().join("noop");
    fs::create_dir(&driver)?;
    symlink(&built["noopcuda"], driver.join("libcuda.so.1"))?;
    let bench = &built["daemon"];

    progress("reserving in the process");
    let reserve = reserve(&world, bench)?;
    let daemon = Daemon::start(&world, &[])?;
    progress("refusing in the process");
    let refuse_ns = refuse(&world, &built["hotpath"], &driver)?;
    progress("taking back what siblings leave unused");
    let recall: Recall = parsed(talking(&world, bench, "recall"))?;
    progress(format_args!(
        "the median recall took {} us, an echo {} us (p99)",
        recall.recall_p50_us, recall.echo_p99_us
    ));
    drop(daemon);
    let daemon = Daemon::start(&world, &TURNS)?;
    progress("handing the card around among a thousand");
    let crowd: Crowd = parsed(talking_about(&world, bench, "crowd", &daemon))?;
    progress(format_args!("the median grant took {} us", crowd.grant_p50_us));
    Ok(Quota {
        reserve_ns: reserve,
        refuse_local_us: (refuse_ns / 10.0).round() / 100.0,
        recall_p99_us: recall.recall_p99_us,
        echo_p50_us: recall.echo_p50_us,
        sessions: crowd.sessions,
        clients: crowd.clients,
        grant_p99_us: crowd.grant_p99_us,
        daemon_cpu: crowd.daemon_cpu,
        daemon_rss_mb: crowd.daemon_rss_mb,
    })
}

fn reserve(world: &World, bench: &Path) -> anyhow::Result<f64> {
    let (mut reserving, mut giving_back) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut command = world.program(bench);
        command.arg("reserve");
        let run: Reserve = parsed(command)?;
        reserving.push(run.reserve_ns);
        giving_back.push(run.give_back_ns);
    }
    progress(format_args!("giving back takes {} ns", median(&mut giving_back)));
    Ok(median(&mut reserving))
}

fn refuse(world: &World, hotpath: &Path, driver: &Path) -> anyhow::Result<f64> {
    let mut refusing = Vec::new();
    for _ in 0..RUNS {
        let mut command = world.sharing(&Sharing::limited("refused", Bytes::gib(1)), hotpath);
        command.env("LD_LIBRARY_PATH", driver);
        let run: Refuse = parsed({
            command.args(["--call", "refuse", "--batches", "20"]);
            command
        })?;
        ensure!(run.library == Part::Library.file(), "the call was {}'s", run.library);
        refusing.push(run.call_ns);
    }
    Ok(median(&mut refusing))
}

/// The bench with the daemon's socket.
fn talking(world: &World, bench: &Path, what: &str) -> Command {
    let mut command = world.program(bench);
    command.arg(what).arg("--socket").arg(world.runtime_dir().tenant_socket());
    command
}

/// The same with its process.
pub(super) fn talking_about(world: &World, bench: &Path, what: &str, daemon: &Daemon) -> Command {
    let mut command = talking(world, bench, what);
    command.arg("--daemon").arg(daemon.process().pid().to_string());
    command
}

/// What the bench printed.
pub(super) fn parsed<T: DeserializeOwned>(command: Command) -> anyhow::Result<T> {
    let line = output_of(command)?;
    serde_json::from_str(&line).with_context(|| format!("no measurement: {line}"))
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    percentile(figures, 50)
}

impl Quota {
    /// Each figure that has a bound, with the bound and both in words.
    fn bounds(&self) -> [(f64, f64, &'static str, &'static str); 6] {
        let echo = self.echo_p50_us;
        [
            (self.reserve_ns, 100.0, "reserving and entering a block takes", "ns"),
            (self.refuse_local_us, 5.0, "a refusal in the process takes", "us"),
            (
                self.recall_p99_us,
                4.0 * echo + 100.0,
                "the 99th percentile of a recall, with 4 echoes and 100 us as its bound, is",
                "us",
            ),
            (
                self.grant_p99_us,
                2000.0 + 2.0 * echo,
                "the 99th percentile of a grant, with 2 ms and 2 echoes as its bound, is",
                "us",
            ),
            (self.daemon_cpu, 1.0, "the daemon keeps busy", "processors"),
            (self.daemon_rss_mb, 100.0, "the daemon has", "MB in memory"),
        ]
    }

    /// Whether no figure is above its bound.
    pub(super) fn hold(&self) -> anyhow::Result<()> {
        super::within(self.bounds().into_iter().map(|(measured, bound, what, unit)| {
            let sentence = format!("{what} {measured} {unit}, at most {bound:.1} are allowed");
            (measured, bound, sentence)
        }))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            reserve_ns,
            refuse_local_us,
            recall_p99_us,
            echo_p50_us,
            sessions,
            clients,
            grant_p99_us,
            daemon_cpu,
            daemon_rss_mb,
        } = self;
        write!(
            f,
            "reserving takes {reserve_ns} ns, a refusal in the process {refuse_local_us} us, a recall from 32 siblings \
             {recall_p99_us} us (p99) where an echo takes {echo_p50_us} us; with {clients} clients in {sessions} sessions a \
             grant takes {grant_p99_us} us (p99), and the daemon {daemon_cpu} processors and {daemon_rss_mb} MB"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_THE_BOUND: Quota = Quota {
        reserve_ns: 100.0,
        refuse_local_us: 5.0,
        recall_p99_us: 140.0,
        echo_p50_us: 10.0,
        sessions: 500,
        clients: 1000,
        grant_p99_us: 2020.0,
        daemon_cpu: 1.0,
        daemon_rss_mb: 100.0,
    };

    #[test]
    fn every_broken_bound_has_its_sentence() {
        AT_THE_BOUND.hold().unwrap();
        let slow = Quota { recall_p99_us: 140.5, daemon_rss_mb: 101.0, ..AT_THE_BOUND };
        assert_eq!(
            slow.hold().unwrap_err().to_string(),
            "the 99th percentile of a recall, with 4 echoes and 100 us as its bound, is 140.5 us, at most 140.0 are \
             allowed; the daemon has 101 MB in memory, at most 100.0 are allowed"
        );
    }
}
