//! Notebooks share the simulated card: kernels of `gpushare-ctl jupyter install` with the wheel of
//! `gpushare-jupyter`, driven by `jupyter_client`.
//!
//! The script is `notebooks.py`, which shares `tests/gpu/notebook.py` with the suite for a real card. Its cells use
//! the driver by ctypes. The configuration of JupyterHub in the guide is checked by `hub.py`.

mod hub;
mod picture;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::foreign;
use gpushare_tests::process::output_of;
use gpushare_tests::world::World;

use crate::dist::jupyter;
use crate::output::progress;
use crate::tools;
use crate::venv::Venv;

/// Everything that a kernel and its client need, since nothing is resolved.
const PACKAGES: [&str; 30] = [
    "asttokens==3.0.2",
    "comm==0.2.3",
    "debugpy==1.8.22",
    "executing==2.3.0",
    "flit_core==3.12.0",
    "ipykernel==7.4.0",
    "ipython==9.18.1",
    "ipython-pygments-lexers==1.1.1",
    "jedi==0.20.1",
    "jupyter-client==8.10.0",
    "jupyter-core==5.9.1",
    "matplotlib-inline==0.2.2",
    "nest-asyncio2==1.7.4",
    "packaging==26.3",
    "parso==0.8.7",
    "pexpect==4.9.0",
    "platformdirs==4.14.7",
    "prompt_toolkit==3.0.53",
    "psutil==7.2.2",
    "ptyprocess==0.7.0",
    "pure-eval==0.2.4",
    "pygments==2.21.0",
    "python-dateutil==4.0.0",
    "pyzmq==27.3.0",
    "stack_data==0.6.3",
    "tornado==6.6.1",
    "traitlets==5.16.1",
    "typing-extensions==4.16.0",
    "tzdata==2026.6",
    "wcwidth==0.9.4",
];
/// Card with room for three of the four notebooks, whose contexts take next to nothing.
const CARD: [&str; 6] = ["--memory", "256MiB", "--context-memory", "64KiB", "--context-create-us", "100"];

pub(super) fn check() -> anyhow::Result<()> {
    hub::check()?;
    let venv = Venv::with("notebooks", &PACKAGES)?;
    let world = World::with_card_flags(Artifacts::of_tests()?, &CARD)?;
    install_wheel(&venv, world.folder())?;
    let mut parts = world.program(&venv.program("python"));
    parts
        .args(["-B", "-m", "unittest", "discover", "-s"])
        .arg(cargo::workspace().join("ctl/jupyter/tests"));
    output_of(parts).context("the tests of gpushare-jupyter's parts fail")?;
    let library =
        foreign::compile(&world, "notebook.c", "notebook.so", &["-shared", "-fPIC", "-ldl", "-pthread"])?;
    let _daemon = Daemon::start(&world, &["--quantum", "100ms"])?;

    let folder = |name: &str| world.folder().join(name);
    let mut script = world.program(&venv.program("python"));
    script
        .arg(cargo::workspace().join("xtask/src/extra/notebooks.py"))
        .arg(world.path(Part::Ctl))
        .arg(library)
        .arg(cargo::workspace().join("docs/notebooks.md"))
        .arg(folder("cells.json"))
        .current_dir(world.folder())
        .env("VIRTUAL_ENV", venv.folder())
        .env("PATH", venv.first_in_path()?)
        .env("HOME", world.folder())
        .env("JUPYTER_DATA_DIR", folder("jupyter"))
        .env("JUPYTER_RUNTIME_DIR", folder("jupyter-run"))
        .env("JUPYTER_CONFIG_DIR", folder("jupyter-config"))
        .env("IPYTHONDIR", folder("ipython"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", cargo::workspace().join("tests/gpu"))
        .env_remove("JUPYTER_PATH");
    let said = output_of(script)?;
    picture::draw(&folder("cells.json"), world.folder())?;
    let last = said.lines().last().context("the script said nothing")?;
    ensure!(last.starts_with("first results after "), "the script ended with {last:?}");
    progress(format_args!("notebooks: {last}"));
    Ok(())
}

/// Builds the wheel of the package by pip, which has the files of the one in all packages, and installs the latter.
fn install_wheel(venv: &Venv, folder: &Path) -> anyhow::Result<()> {
    let wheels = folder.join("wheels");
    let mut build = Command::new(venv.program("python"));
    build
        .args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--no-build-isolation", "--no-index", "--wheel-dir"])
        .arg(&wheels)
        .arg(cargo::workspace().join("ctl/jupyter"));
    output_of(build).context("cannot build the wheel of gpushare-jupyter")?;
    let wheel = fs::read_dir(&wheels)?.next().context("pip built no wheel")??.path();
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(name == jupyter::name(), "pip built {name}, and the packages have {}", jupyter::name());
    let shipped = folder.join(name);
    fs::write(&shipped, jupyter::bytes()?)?;
    let (built, shipped_files) = (modules(&wheel)?, modules(&shipped)?);
    ensure!(
        built == shipped_files,
        "pip built a wheel with {built:?}, and the packages have {shipped_files:?}"
    );
    let mut install = tools::pip(&venv.program("python"));
    install.args(["--no-deps", "--no-index", "--force-reinstall"]).arg(shipped);
    output_of(install)
        .context("cannot install the wheel of gpushare-jupyter")
        .map(drop)
}

/// Returns the names of a wheel's files, apart from those about the wheel.
fn modules(wheel: &Path) -> anyhow::Result<BTreeSet<String>> {
    let archive = zip::ZipArchive::new(File::open(wheel)?)?;
    let names = archive.file_names().filter(|name| !name.contains(".dist-info/"));
    Ok(names.map(str::to_owned).collect())
}
