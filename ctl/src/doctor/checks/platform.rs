//! Checks of other users of the cards: MPS, WSL, confidential computing.

use std::path::PathBuf;

use gpushare_proto::Backend;

use super::super::facts::Facts;
use super::super::model::Outcome;

/// Default folder of MPS's pipes.
const MPS_PIPES: &str = "/tmp/nvidia-mps";

pub(super) fn confidential(facts: &Facts) -> Vec<Outcome> {
    vec![match facts.nvml.facts.confidential {
        None => Outcome::skipped("NVML does not report it"),
        Some(0) => Outcome::ok("off"),
        Some(_) => Outcome::warning(
            "confidential computing is on: each page that moves is encrypted on its way",
            "keep working sets on the card: `gpushare-ctl set mode serialized` makes sessions take turns instead of paging",
        )
        .backend(Backend::Managed, "managed memory works, at the speed of the encryption"),
    }]
}

pub(super) fn mps(facts: &Facts) -> Vec<Outcome> {
    let named = facts.var("CUDA_MPS_PIPE_DIRECTORY");
    let pipes = named.map_or_else(|| PathBuf::from(MPS_PIPES), PathBuf::from);
    // Files of the control daemon; without them a program does not look for a server.
    let there = facts.root.has(pipes.join("control")) || facts.root.has(pipes.join("control_lock"));
    let pid = facts.root.read(pipes.join("nvidia-cuda-mps-control.pid")).ok();
    let pid: Option<u32> = pid.and_then(|text| text.trim().parse().ok());
    let runs = pid.is_none_or(|pid| facts.root.has(format!("/proc/{pid}")));
    vec![match (there, runs) {
        (false, _) => Outcome::ok("MPS does not run"),
        (true, false) => Outcome::warning(
            format!(
                "MPS has ended, but its pipes are still in {}: programs may wait for it",
                pipes.display()
            ),
            format!("remove {}", pipes.display()),
        ),
        (true, true) => Outcome::warning(
            format!(
                "MPS runs (pipes in {}): programs share one server, so a fault of one ends all, and gpushare cannot wait for the work of one alone",
                pipes.display()
            ),
            "stop it, since gpushare takes its place: `echo quit | nvidia-cuda-mps-control`",
        ),
    }]
}

pub(super) fn wsl(facts: &Facts) -> Vec<Outcome> {
    let version = facts.root.read("/proc/version").unwrap_or_default().to_lowercase();
    let is_wsl = facts.root.has("/dev/dxg") || version.contains("microsoft");
    vec![match is_wsl {
        false => Outcome::ok("not WSL"),
        true => Outcome::warning(
            "this is WSL: Windows owns the card and its memory",
            "start programs with `gpushare-ctl run --backend native`; they share the card while their memory fits",
        )
        .backend(Backend::Native, "managed memory does not fault on Windows"),
    }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::model::Severity::{Ok, Skipped, Warning};
    use super::*;

    #[test]
    fn mps_is_known_by_its_pipes() {
        let root = tempfile::tempdir().unwrap();
        let mut facts = Facts::bare(root.path());
        assert_eq!(mps(&facts)[0].severity, Ok);
        let pipes = root.path().join("pipes");
        fs::create_dir(&pipes).unwrap();
        fs::write(pipes.join("control"), "").unwrap();
        facts.set("CUDA_MPS_PIPE_DIRECTORY", "/pipes");
        assert!(mps(&facts)[0].finding.starts_with("MPS runs (pipes in /pipes)"));
        fs::write(pipes.join("nvidia-cuda-mps-control.pid"), "4194400\n").unwrap();
        assert!(mps(&facts)[0].finding.starts_with("MPS has ended"));
        fs::create_dir_all(root.path().join("proc/4194400")).unwrap();
        assert!(mps(&facts)[0].finding.starts_with("MPS runs"));
    }

    #[test]
    fn wsl_is_known_by_its_device_or_its_kernel() {
        let root = tempfile::tempdir().unwrap();
        let facts = Facts::bare(root.path());
        assert_eq!(wsl(&facts)[0].severity, Ok);
        fs::create_dir(root.path().join("proc")).unwrap();
        fs::write(root.path().join("proc/version"), "Linux version 6.6.87.2-microsoft-standard-WSL2")
            .unwrap();
        let [outcome] = &wsl(&facts)[..] else { panic!() };
        assert_eq!(outcome.severity, Warning);
        assert_eq!(outcome.backend.as_ref().unwrap().backend, Backend::Native);
    }

    #[test]
    fn confidential_computing_is_told_by_nvml() {
        let mut facts = Facts::bare("/nonexistent".as_ref());
        assert_eq!(confidential(&facts)[0].severity, Skipped);
        for (feature, severity) in [(0, Ok), (1, Warning)] {
            facts.nvml.facts.confidential = Some(feature);
            assert_eq!(confidential(&facts)[0].severity, severity);
        }
    }
}
