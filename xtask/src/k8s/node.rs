//! `cargo xtask kubernetes`: pods with shares on a node with a real API server, kubelet and container runtime.
//!
//! ```text
//!   Debian: etcd, containerd, runc, kubectl, Go ─────┐
//!           source of Kubernetes 1.20.2 ── build.sh ─┴▶ enter.sh ─▶ node.sh: the node, in namespaces of its own
//!   gpushare, simulated card ──────────────────────────────────────▶
//! ```
//!
//! No registry that the project uses has newer programs of Kubernetes than Debian 12. Release 1.20.2 has no claims
//! (DRA), so the tests of the driver play the kubelet and the API server (`k8s/tests/node`). The first run compiles
//! Kubernetes for about ten minutes. It needs root, and the network of Debian only.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::process::output_of;

use crate::debian::Debian;
use crate::output::progress;

const RELEASE: &str = "bookworm";
const PACKAGES: [&str; 6] =
    ["golang-1.19-go", "golang-1.19-src", "etcd-server", "containerd", "runc", "kubernetes-client"];
const SCRIPTS: [(&str, &str); 4] = [
    ("build.sh", include_str!("node/build.sh")),
    ("enter.sh", include_str!("node/enter.sh")),
    ("node.sh", include_str!("node/node.sh")),
    ("pause.c", include_str!("node/pause.c")),
];
/// Longest time, in seconds, for everything that happens on the node.
const PATIENCE: &str = "300";

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let others = Debian::release(RELEASE).unpack("kubernetes", &PACKAGES)?;
    let source = Debian::sources(RELEASE).source("kubernetes")?;
    let stage = tempfile::tempdir()?;
    let folder = stage.path();
    for (name, script) in SCRIPTS {
        fs::write(folder.join(name), script)?;
    }
    let built = cargo::workspace().join("target/kubernetes");
    fs::create_dir_all(&built)?;
    progress("compiling the kubelet and the API server (about ten minutes the first time)");
    let mut build = Command::new("sh");
    build
        .arg(folder.join("build.sh"))
        .arg(others.join("usr/lib/go-1.19"))
        .arg(source)
        .arg(&built);
    output_of(build).context("cannot compile Kubernetes")?;

    let (programs, logs) = (folder.join("programs"), folder.join("logs"));
    for folder in [&programs, &logs] {
        fs::create_dir(folder)?;
    }
    collect(folder, &programs)?;
    let mut paths = OsString::from(others.join("usr/bin"));
    paths.push(":");
    paths.push(built.join("bin"));
    let mut enter = Command::new("timeout");
    enter.args(["--kill-after=10", PATIENCE, "sh"]).arg(folder.join("enter.sh"));
    let status = enter.arg(&programs).arg(paths).arg(&logs).stdin(Stdio::null()).status()?;
    if !status.success() {
        let kept = stage.keep();
        anyhow::bail!("the node ended with {status}; its logs are in {}", kept.join("logs").display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts the programs that the node needs, besides Kubernetes, into one folder.
fn collect(sources: &Path, programs: &Path) -> anyhow::Result<()> {
    progress("building gpushare and the simulated card");
    let artifacts = Artifacts::build(Profile::Dev, Progress::Hidden)?;
    for part in Part::ALL {
        fs::copy(&artifacts[part], programs.join(part.file()))?;
    }
    let built = cargo::build(&["gpushare-k8s"], Profile::Dev, Progress::Hidden)?;
    let plugin = built.get("gpushare-k8s").context("cargo built no gpushare-k8s")?;
    fs::copy(plugin, programs.join("gpushare-k8s"))?;
    fs::copy(cargo::workspace().join("k8s/manifests/gpushare.yaml"), programs.join("gpushare.yaml"))?;
    let mut cc = Command::new("cc");
    cc.arg("-static")
        .arg("-o")
        .arg(programs.join("pause"))
        .arg(sources.join("pause.c"));
    output_of(cc).map(drop)
}
