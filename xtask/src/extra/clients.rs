//! NVIDIA's own Python packages as clients of the simulated card: each script prints the same natively and
//! with gpushare. They come from PyPI into an environment below `target/`, at the versions that are named
//! here.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::foreign;
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};

use crate::tools;

const PACKAGES: [&str; 3] = ["cuda-bindings==13.5.0", "cuda-pathfinder==1.9.0", "nvidia-ml-py==13.615.71"];

pub(super) fn packages() -> anyhow::Result<()> {
    let python = python()?;
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(64))?;
    let _daemon = Daemon::start(&world, &["--mode", "serialized"])?;
    for script in ["cuda_bindings.py", "nvidia_ml.py"] {
        let script = foreign::sources().join(script);
        let said = |sharing: &Sharing| {
            let mut command = world.sharing(sharing, &python);
            command.arg(&script);
            output_of(command)
        };
        let native = said(&Sharing::Native)?;
        for sharing in [Sharing::Preload, Sharing::session("python")] {
            let shared = said(&sharing)?;
            ensure!(
                shared == native,
                "{} said {shared} with {sharing:?} and natively {native}",
                script.display()
            );
        }
    }
    smi(&world, &python)
}

/// Checks the answers of NVIDIA's Python package, which finds its functions by ctypes, inside a session
/// with a limit.
fn smi(world: &World, python: &Path) -> anyhow::Result<()> {
    let (card, limit) = (Bytes::mib(64), Bytes::mib(16));
    let said = |sharing: &Sharing| {
        let mut command = world.sharing(sharing, python);
        command.arg(foreign::sources().join("nvidia_ml.py"));
        output_of(command)
    };
    let expected = said(&Sharing::Native)?.replace(&card.0.to_string(), &limit.0.to_string());
    let shared = said(&Sharing::limited("smi", limit))?;
    ensure!(shared == expected, "nvidia_ml.py said {shared} instead of {expected}");
    Ok(())
}

/// The interpreter of an environment with the packages in it.
fn python() -> anyhow::Result<PathBuf> {
    let python = tools::python()?;
    let mut pip = tools::pip(&python);
    pip.arg("--no-deps").args(PACKAGES);
    output_of(pip)?;
    Ok(python)
}
