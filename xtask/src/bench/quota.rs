//! Cost of a quota: bytes taken in the process, a refusal there, the last byte when it lies in the pages of
//! stopped siblings, and a daemon with a thousand clients, most of which only speak the protocol, and with a
//! viewer (`benches/src/daemon/`).

use std::fmt;

use gpushare_proto::Bytes;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::Sharing;
use serde::{Deserialize, Serialize};

use super::{Call, RUNS, Rig, ensure_hooked, median, parsed};
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

pub(super) const CHECK: Check = Check {
    name: "quota",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("reservation of a block in the process", 3.0, "map lookups"),
        Bound::at_most("refusal in the process", 140.0, "map lookups"),
        Bound::at_most("p99 of a recall from 32 siblings / (4 echoes + 100 us)", 1.0, "×"),
        Bound::at_most("p99 of a grant with 1000 clients / (2 echoes + 2 ms)", 1.0, "×"),
        Bound::at_most("processors that the daemon uses with 1000 clients", 1.0, ""),
        Bound::at_most("memory of the daemon with 1000 clients", 100.0, "MB"),
        Bound::at_most("more processors that the daemon uses for a viewer of 1000 sessions", 0.02, ""),
        Bound::at_most("p99 of a grant with 1000 sessions beside a viewer / without it", 1.25, "×"),
    ],
    measure: || Ok(measure()?.values()),
};

/// A card for one session of the crowd, which lets go before its quantum is over.
const TURNS: [&str; 6] = ["--mode", "serialized", "--capacity", "0=64MiB", "--quantum", "30s"];

/// Figures of the benchmark.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Quota {
    /// A lookup in a hash map behind a mutex, for comparison.
    map_ns: f64,
    /// Bytes taken from the lease, and a block entered in the list of allocations.
    reserve_ns: f64,
    /// From the call of an allocation above the whole limit to its error; the median.
    refuse_local_us: f64,
    /// From the question to the answer, where every byte must be taken back from siblings.
    recall_p99_us: f64,
    /// Median time of the same frame to another process and back.
    echo_p50_us: f64,
    sessions: u64,
    clients: u64,
    /// From the last word of those who let go to the last client of the next session.
    grant_p99_us: f64,
    /// Processors that the daemon used meanwhile.
    daemon_cpu: f64,
    /// The most that it had in memory.
    daemon_rss_mb: f64,
    viewed_sessions: u64,
    /// Processors that the daemon used more beside a viewer of these sessions.
    viewer_cpu: f64,
    /// p99 of a grant beside the viewer over that without it.
    viewed_grant_p99: f64,
}

#[derive(Deserialize)]
struct Reserve {
    reserve_ns: f64,
    give_back_ns: f64,
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

#[derive(Deserialize)]
struct Viewer {
    viewed_sessions: u64,
    viewer_cpu: f64,
    viewed_grant_p99: f64,
    changes_per_message: u64,
}

pub(super) fn measure() -> anyhow::Result<Quota> {
    let rig = Rig::build()?;
    progress("reserving in the process");
    let map_ns = rig.map_ns()?;
    let reserve_ns = reserve(&rig)?;
    let daemon = Daemon::start(&rig.world, &[])?;
    progress("refusing in the process");
    let refuse_ns = refuse(&rig)?;
    progress("taking back what siblings leave unused");
    let recall: Recall = parsed(rig.peer_of("recall", &daemon))?;
    progress(format_args!(
        "the median recall took {} us, an echo {} us (p99)",
        recall.recall_p50_us, recall.echo_p99_us
    ));
    drop(daemon);
    let daemon = Daemon::start(&rig.world, &TURNS)?;
    progress("handing the card around among a thousand");
    let crowd: Crowd = parsed(rig.peer_of("crowd", &daemon))?;
    progress(format_args!("the median grant took {} us", crowd.grant_p50_us));
    drop(daemon);
    let daemon = Daemon::start(&rig.world, &TURNS)?;
    progress("watching a thousand sessions take turns");
    let mut command = rig.peer_of("viewer", &daemon);
    command.arg("--admin").arg(rig.world.runtime_dir().admin_socket());
    let viewer: Viewer = parsed(command)?;
    progress(format_args!("a viewer got {} changes a second", viewer.changes_per_message));
    Ok(Quota {
        map_ns,
        reserve_ns,
        refuse_local_us: (refuse_ns / 10.0).round() / 100.0,
        recall_p99_us: recall.recall_p99_us,
        echo_p50_us: recall.echo_p50_us,
        sessions: crowd.sessions,
        clients: crowd.clients,
        grant_p99_us: crowd.grant_p99_us,
        daemon_cpu: crowd.daemon_cpu,
        daemon_rss_mb: crowd.daemon_rss_mb,
        viewed_sessions: viewer.viewed_sessions,
        viewer_cpu: viewer.viewer_cpu,
        viewed_grant_p99: viewer.viewed_grant_p99,
    })
}

fn reserve(rig: &Rig) -> anyhow::Result<f64> {
    let (mut reserving, mut giving_back) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let mut command = rig.world.program(&rig.built["daemon"]);
        command.arg("reserve");
        let run: Reserve = parsed(command)?;
        reserving.push(run.reserve_ns);
        giving_back.push(run.give_back_ns);
    }
    progress(format_args!("giving back takes {} ns", median(giving_back)));
    Ok(median(reserving))
}

fn refuse(rig: &Rig) -> anyhow::Result<f64> {
    let sharing = Sharing::limited("refused", Bytes::gib(1));
    let mut refusing = Vec::new();
    for _ in 0..RUNS {
        let run: Call = parsed(rig.caller(&sharing, &["--call", "refuse", "--batches", "20"]))?;
        ensure_hooked(&run.library, true)?;
        refusing.push(run.call_ns);
    }
    Ok(median(refusing))
}

impl Quota {
    /// Values of the promises, in the order of their bounds.
    pub(super) fn values(&self) -> Vec<f64> {
        let (map, echo) = (self.map_ns, self.echo_p50_us);
        vec![
            self.reserve_ns / map,
            self.refuse_local_us * 1e3 / map,
            self.recall_p99_us / (4.0 * echo + 100.0),
            self.grant_p99_us / (2.0 * echo + 2000.0),
            self.daemon_cpu,
            self.daemon_rss_mb,
            self.viewer_cpu,
            self.viewed_grant_p99,
        ]
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            map_ns: _,
            reserve_ns,
            refuse_local_us,
            recall_p99_us,
            echo_p50_us,
            sessions,
            clients,
            grant_p99_us,
            daemon_cpu,
            daemon_rss_mb,
            viewed_sessions,
            viewer_cpu,
            viewed_grant_p99,
        } = self;
        write!(
            f,
            "reserving takes {reserve_ns} ns, a refusal in the process {refuse_local_us} us, a recall from 32 siblings \
             {recall_p99_us} us (p99) where an echo takes {echo_p50_us} us; with {clients} clients in {sessions} sessions a \
             grant takes {grant_p99_us} us (p99), and the daemon {daemon_cpu} processors and {daemon_rss_mb} MB; a viewer \
             of {viewed_sessions} sessions takes {viewer_cpu} processors of the daemon, and a grant beside it \
             {viewed_grant_p99} times as long (p99)"
        )
    }
}
