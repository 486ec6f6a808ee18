//! Effect of attacks on well-behaved sessions: a thousand sessions of an administrator beside one user who attacks
//! (`benches/src/daemon/hostile/`).
//!
//! The 99th percentile of the others' grants is compared with that in the same run without the attack, in
//! alternation: of the time from a request to the turn, and of the time from one's turn to the next one's. The
//! larger quotient counts. The user's share of the card's time is compared with its part by weight.

use std::fmt;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use anyhow::ensure;
use gpushare_tests::daemon::Daemon;
use serde::Deserialize;

use super::{Rig, parsed};
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

/// Largest effect of an attack on the others' grants: twice as long, and a millisecond.
const fn grant(name: &'static str) -> Bound {
    Bound::at_most(name, 1.0, "×")
}

/// Largest share of the attackers' user: what is due to it, and 5%.
const fn share(name: &'static str) -> Bound {
    Bound::at_most(name, 1.05, "×")
}

pub(super) const CHECK: Check = Check {
    name: "hostile",
    effort: Effort::Timed,
    bounds: &[
        grant("256 connections that ask: p99 of a grant / (2 × without + 1 ms)"),
        share("256 connections that ask: share of the card / due share"),
        grant("64 sessions of one user: p99 of a grant / (2 × without + 1 ms)"),
        share("64 sessions of one user: share of the card / due share"),
        grant("claims of contexts: p99 of a grant / (2 × without + 1 ms)"),
        share("claims of contexts: share of the card / due share"),
        grant("claims of 2 s drains: p99 of a grant / (2 × without + 1 ms)"),
        share("claims of 2 s drains: share of the card / due share"),
        grant("claims of 23 GB moves: p99 of a grant / (2 × without + 1 ms)"),
        share("claims of 23 GB moves: share of the card / due share"),
        grant("4 watchers and a scraper: p99 of a grant / (2 × without + 1 ms)"),
        share("4 watchers and a scraper: share of the card / due share"),
        grant("flood of connections: p99 of a grant / (2 × without + 1 ms)"),
        share("flood of connections: share of the card / due share"),
        grant("garbage: p99 of a grant / (2 × without + 1 ms)"),
        share("garbage: share of the card / due share"),
        grant("readers that stall: p99 of a grant / (2 × without + 1 ms)"),
        share("readers that stall: share of the card / due share"),
    ],
    measure,
};

/// Short turns, so that a phase has many; users may register sessions.
const CONFIG: &str = r#"[scheduling]
mode = "serialized"
quantum_min = "10ms"
switch_cost = "100us"
bandwidth_per_second = "400GiB"
context_reserve = "1MiB"

[self_service]
max_memory = "2560MiB"
"#;

#[derive(Deserialize)]
struct Measured {
    attacks: Vec<Attack>,
}

/// Figures of one attack, in the order of the bounds.
#[derive(Deserialize)]
struct Attack {
    attack: String,
    without: Figures,
    with: Figures,
}

#[derive(Deserialize)]
struct Figures {
    /// From the request of a well-behaved session to its turn.
    wait_p99_us: f64,
    /// From the end of a well-behaved session's turn to the next turn, if that is a well-behaved session's too.
    handover_p99_us: f64,
    /// Share of the attackers' user in the card's time, divided by its due.
    share: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wait_p99_us, handover_p99_us, share } = self;
        write!(f, "p99 of a wait {wait_p99_us} us, of a handover {handover_p99_us} us, share {share:.3}")
    }
}

impl Attack {
    fn values(&self) -> [f64; 2] {
        let grant = |with: f64, without: f64| with / (2.0 * without + 1000.0);
        let (with, without) = (&self.with, &self.without);
        let wait = grant(with.wait_p99_us, without.wait_p99_us);
        [wait.max(grant(with.handover_p99_us, without.handover_p99_us)), with.share]
    }
}

fn measure() -> anyhow::Result<Vec<f64>> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the attackers are another user than the daemon's; run this as root"
    );
    let rig = Rig::build()?;
    let folder = rig.world.folder();
    // The attackers' user must reach the socket.
    fs::set_permissions(folder, Permissions::from_mode(0o711))?;
    let config = folder.join("hostile.toml");
    fs::write(&config, CONFIG)?;
    // Free again when the daemon starts.
    let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let config = config.to_string_lossy();
    let flags = ["--system", "--config", &*config, "--metrics", &metrics, "--capacity", "0=64MiB"];
    let daemon = Daemon::start(&rig.world, &flags)?;
    progress("attacking");
    let mut hostile = rig.world.program(&rig.built["daemon"]);
    hostile.arg("hostile").arg("--runtime").arg(rig.world.runtime_dir().root());
    hostile.args(["--daemon", &daemon.process().pid().to_string(), "--metrics", &metrics]);
    let measured: Measured = parsed(hostile)?;
    for Attack { attack, with, without } in &measured.attacks {
        progress(format_args!("{attack}: {with}; without it {without}"));
    }
    let values: Vec<f64> = measured.attacks.iter().flat_map(Attack::values).collect();
    ensure!(values.len() == CHECK.bounds.len(), "the bench measured {} attacks", measured.attacks.len());
    Ok(values)
}
