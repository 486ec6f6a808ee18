//! Cost of an answer to the kubelet: from the call of `Allocate` over the plugin's socket to its answer, with
//! 64 shares (`k8s/kubelet/src/main.rs`).

use std::fmt;
use std::fs;

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::process::Process;
use gpushare_tests::world::World;
use serde::{Deserialize, Serialize};

use super::parsed;
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

pub(super) const CHECK: Check = Check {
    name: "allocate",
    effort: Effort::Timed,
    bounds: &[Bound::at_most("device plugin: p99 of Allocate with 64 shares", 10.0, "ms")],
    measure: || Ok(measure()?.values()),
};

/// Number of shares of the one card.
const SHARES: &str = "64";

/// Figures of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Allocate {
    shares: usize,
    calls: usize,
    allocate_p50_us: f64,
    allocate_p99_us: f64,
}

pub(super) fn measure() -> anyhow::Result<Allocate> {
    progress("building in release");
    let artifacts = Artifacts::build(Profile::Release, Progress::Shown)?;
    let built = cargo::build(&["gpushare-k8s", "gpushare-kubelet"], Profile::Release, Progress::Shown)?;
    let world = World::simulated(&artifacts, Bytes::mib(256))?;
    let at = |relative: &str| world.folder().join(relative);
    for folder in ["plugins", "root/dev", "root/usr/lib64"] {
        fs::create_dir_all(at(folder))?;
    }
    for file in ["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0", "usr/lib64/libcuda.so.1"] {
        fs::write(at("root").join(file), "")?;
    }
    let program = |name: &str| built.get(name).with_context(|| format!("cargo built no {name}"));
    let mut plugin = world.program(program("gpushare-k8s")?);
    // By mounts: the longest answer.
    plugin.args(["device-plugin", "--shares", SHARES, "--inject", "mounts"]);
    plugin.arg("--plugins-dir").arg(at("plugins"));
    plugin.arg("--files").arg(at("files"));
    plugin.arg("--host-root").arg(at("root"));
    plugin.arg("--runtime-dir").arg(world.runtime_dir().root());
    plugin.arg("--library").arg(world.path(Part::Library));
    plugin.arg("--ctl").arg(world.path(Part::Ctl));
    let _plugin = Process::start(plugin, world.folder(), "plugin")?;
    progress("allocating shares");
    let mut kubelet = world.program(program("gpushare-kubelet")?);
    kubelet.arg("--plugins-dir").arg(at("plugins"));
    parsed(kubelet)
}

impl Allocate {
    /// Values of the promises, in the order of their bounds.
    pub(super) fn values(&self) -> Vec<f64> {
        vec![self.allocate_p99_us / 1e3]
    }
}

impl fmt::Display for Allocate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shares, calls, allocate_p50_us, allocate_p99_us } = self;
        write!(
            f,
            "with {shares} shares an answer to Allocate takes {allocate_p50_us} us (p50), {allocate_p99_us} us (p99 of \
             {calls} calls)"
        )
    }
}
