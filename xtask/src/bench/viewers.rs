//! Cost of the page for browsers: processor time of the daemon for each viewer with a thousand sessions that
//! take turns, and the grants meanwhile (`benches/src/daemon/viewers.rs`).

use std::fmt;

use anyhow::Context;
use gpushare_tests::daemon::Daemon;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Rig, parsed};
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

pub(super) const CHECK: Check = Check {
    name: "viewers",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("page: processors for the first viewer of 1000 sessions", 0.02, ""),
        Bound::at_most("page: processors for each of 8 viewers of 1000 sessions", 0.02, ""),
        Bound::at_most("page: p99 of a grant with 8 viewers / (without + 200 us)", 1.0, "×"),
    ],
    measure: || Ok(measure()?.values()),
};

/// Flags for a card for one session at a time, which lets go before its quantum is over.
const TURNS: [&str; 8] =
    ["--mode", "serialized", "--capacity", "0=64MiB", "--quantum", "30s", "--dashboard", "127.0.0.1:0"];

/// Figures of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Viewers {
    sessions: u64,
    viewers: u64,
    /// Processors that the daemon used without a viewer, before and after.
    without_cpu: Vec<f64>,
    /// Processors that the daemon used for the first viewer.
    first_viewer_cpu: f64,
    /// Processors that the daemon used for all viewers, divided by their number.
    each_viewer_cpu: f64,
    /// Bytes that a viewer was sent in a second.
    bytes_per_s: f64,
    /// From the last word of those who let go to the next session, without a viewer.
    grant_p99_us: f64,
    grant_p99_with_one_us: f64,
    grant_p99_with_many_us: f64,
}

pub(super) fn measure() -> anyhow::Result<Viewers> {
    let rig = Rig::build()?;
    let daemon = Daemon::start(&rig.world, &TURNS)?;
    let view: Value = serde_json::from_str(&daemon.ctl(&["dashboard", "--json"])?)?;
    let url = view["url"].as_str().context("no link")?;
    let (address, link) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once("/#link="))
        .context("a strange link")?;
    progress("showing a thousand sessions that take turns");
    let mut bench = rig.peer_of("viewers", &daemon);
    bench.args(["--page", address, "--link", link]);
    parsed(bench)
}

impl Viewers {
    /// Values of the promises, in the order of their bounds.
    pub(super) fn values(&self) -> Vec<f64> {
        vec![
            self.first_viewer_cpu,
            self.each_viewer_cpu,
            self.grant_p99_with_many_us / (self.grant_p99_us + 200.0),
        ]
    }
}

impl fmt::Display for Viewers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sessions, viewers, without_cpu, first_viewer_cpu, each_viewer_cpu, bytes_per_s, ..
        } = self;
        let Self { grant_p99_us, grant_p99_with_one_us, grant_p99_with_many_us, .. } = self;
        write!(
            f,
            "with {sessions} sessions the daemon uses {without_cpu:?} processors, {first_viewer_cpu} more for a viewer and \
             {each_viewer_cpu} for each of {viewers}, who get {bytes_per_s} bytes a second; a grant takes {grant_p99_us} us \
             (p99), {grant_p99_with_one_us} us with one and {grant_p99_with_many_us} us with all of them"
        )
    }
}
