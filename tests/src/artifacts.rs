//! Where the programs and libraries under test are: just built, or in one folder on a machine without Rust.
//!
//! The files of a release are linked in another way than those that `cargo test` builds.
//! `GPUSHARE_TEST_SHIPPED=FOLDER` runs any test on the library, the daemon and the command line of a stage.

use std::collections::BTreeMap;
use std::ops::Index;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, ensure};

use crate::cargo::{self, Profile, Progress};

/// One program or library under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The daemon.
    Scheduler,
    /// The command line.
    Ctl,
    /// `libgpushare.so`.
    Library,
    /// The CUDA program.
    Workload,
    /// The simulated card.
    Card,
    /// The simulated libcuda.
    SimulatedCuda,
    /// The simulated libnvidia-ml.
    SimulatedNvml,
}

impl Part {
    /// Artifacts that users get.
    pub const SHIPPED: [Self; 3] = [Self::Library, Self::Scheduler, Self::Ctl];
    /// Artifacts that are programs. The others are libraries.
    const PROGRAMS: [Self; 4] = [Self::Scheduler, Self::Ctl, Self::Workload, Self::Card];
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Scheduler,
        Self::Ctl,
        Self::Library,
        Self::Workload,
        Self::Card,
        Self::SimulatedCuda,
        Self::SimulatedNvml,
    ];

    /// Crate of the part, cargo's name of its target, and its file in a stage.
    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Scheduler => ("gpushare-scheduler", "gpushare-scheduler", "gpushare-scheduler"),
            Self::Ctl => ("gpushare-ctl", "gpushare-ctl", "gpushare-ctl"),
            Self::Library => ("gpushare-interposer", "gpushare", "libgpushare.so"),
            Self::Workload => ("gpushare-workload", "gpushare-workload", "gpushare-workload"),
            Self::Card => ("simgpu-card", "simgpu-card", "simgpu-card"),
            Self::SimulatedCuda => ("simgpu-cuda", "simcuda", "libsimcuda.so"),
            Self::SimulatedNvml => ("simgpu-nvml", "simnvml", "libsimnvml.so"),
        }
    }

    /// The crate that it is built from.
    pub const fn package(self) -> &'static str {
        self.names().0
    }

    /// Cargo's name of the part's target.
    pub const fn target(self) -> &'static str {
        self.names().1
    }

    /// File of the part in a stage.
    pub const fn file(self) -> &'static str {
        self.names().2
    }
}

/// The folder of what is shipped, for tests to run on.
pub const SHIPPED: &str = "GPUSHARE_TEST_SHIPPED";

/// The absolute path of every part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifacts(BTreeMap<Part, PathBuf>);

impl Index<Part> for Artifacts {
    type Output = Path;

    fn index(&self, part: Part) -> &Path {
        &self.0[&part]
    }
}

impl Artifacts {
    /// Artifacts of this test run: built by the first test that asks, or in part those that [`SHIPPED`]
    /// names.
    pub fn of_tests() -> anyhow::Result<&'static Self> {
        static BUILT: OnceLock<Result<Artifacts, String>> = OnceLock::new();
        BUILT
            .get_or_init(|| {
                let built = cargo::build_as_tests(&Part::PROGRAMS.map(Part::target));
                let built = built.and_then(Self::from_targets);
                let with_shipped = built.and_then(|built| match std::env::var_os(SHIPPED) {
                    Some(folder) => built.with_shipped(Path::new(&folder)),
                    None => Ok(built),
                });
                with_shipped.map_err(|error| format!("{error:#}"))
            })
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Builds them, and by the profile for development `xtask` too: with the features of the program that
    /// asks, so that what both use is compiled once.
    pub fn build(profile: Profile, progress: Progress) -> anyhow::Result<Self> {
        let mut packages = Part::ALL.map(Part::package).to_vec();
        if profile == Profile::Dev {
            packages.push("xtask");
        }
        Self::from_targets(cargo::build(&packages, profile, progress)?)
    }

    /// Artifacts that a build has made, by the names of their targets.
    pub fn from_targets(mut built: BTreeMap<String, PathBuf>) -> anyhow::Result<Self> {
        Self::find(|part| built.remove(part.target()))
    }

    fn with_shipped(mut self, folder: &Path) -> anyhow::Result<Self> {
        for part in Part::SHIPPED {
            let path = std::path::absolute(folder.join(part.file()))?;
            ensure!(path.is_file(), "{SHIPPED} names no {}", path.display());
            self.0.insert(part, path);
        }
        Ok(self)
    }

    /// Artifacts in one folder, as `cargo xtask gpu stage` leaves them.
    pub fn beside(folder: &Path) -> anyhow::Result<Self> {
        Self::find(|part| {
            let path = folder.join(part.file());
            path.is_file().then_some(path)
        })
        .with_context(|| {
            format!("{} is not a complete stage; make one by `cargo xtask gpu stage`", folder.display())
        })
    }

    fn find(mut path: impl FnMut(Part) -> Option<PathBuf>) -> anyhow::Result<Self> {
        let with_path = |part: Part| {
            let path = path(part).with_context(|| format!("{} is missing", part.file()))?;
            Ok((part, path))
        };
        Part::ALL.into_iter().map(with_path).collect::<anyhow::Result<_>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_stage_says_how_to_make_one() {
        let error = Artifacts::beside(Path::new("/nonexistent")).unwrap_err();
        assert!(format!("{error}").contains("cargo xtask gpu stage"), "{error}");
    }
}
