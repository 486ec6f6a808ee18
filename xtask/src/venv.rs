//! Tools and packages from PyPI, each set in an environment of its own below `target/`.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::output::progress;
use crate::tools;

/// How often pip tries to reach the index again, each time after a longer pause.
const RETRIES: &str = "5";

/// An environment with packages in it.
pub(crate) struct Venv(PathBuf);

impl Venv {
    /// `target/NAME` with exactly these packages, `PACKAGE==VERSION` each. Nothing is asked of the network
    /// if they are there.
    ///
    /// # Errors
    /// Python is missing and cannot be installed, or the packages cannot be had.
    pub(crate) fn with(name: &str, packages: &[&str]) -> anyhow::Result<Self> {
        Self::made(name, packages, |pip, _| {
            pip.args(packages);
            Ok(())
        })
    }

    /// `target/NAME` with exactly these packages, `PACKAGE==VERSION --hash=sha256:…` each. A file with another
    /// checksum is an error.
    ///
    /// # Errors
    /// As for [`Self::with`].
    pub(crate) fn pinned(name: &str, packages: &[&str]) -> anyhow::Result<Self> {
        Self::made(name, packages, |pip, folder| {
            let list = folder.join("requirements.txt");
            fs::write(&list, packages.join("\n"))?;
            pip.args(["--require-hashes", "--only-binary=:all:", "--requirement"]).arg(list);
            Ok(())
        })
    }

    /// Makes the environment if it has not exactly these packages. `choose` adds them to pip's arguments.
    fn made(
        name: &str,
        packages: &[&str],
        choose: impl FnOnce(&mut Command, &Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        tools::need("python3", "python3-venv")?;
        let venv = Self(cargo::workspace().join("target").join(name));
        let installed = venv.0.join("installed");
        let wanted = packages.join("\n");
        if fs::read_to_string(&installed).is_ok_and(|there| there == wanted) {
            return Ok(venv);
        }
        progress(format_args!("installing {} from PyPI", packages.join(", ")));
        let mut python = Command::new("python3");
        python.args(["-m", "venv", "--clear"]).arg(&venv.0);
        output_of(python).context("python3 cannot make an environment; install python3-venv")?;
        let mut pip = tools::pip(&venv.program("python"));
        pip.args(["--no-deps", "--retries", RETRIES]);
        choose(&mut pip, &venv.0)?;
        output_of(pip).with_context(|| {
            format!(
                "cannot install {} from PyPI; is the network there? For another index set PIP_INDEX_URL",
                packages.join(", ")
            )
        })?;
        fs::write(installed, wanted)?;
        Ok(venv)
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// One of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// The caller's `PATH` behind its programs.
    pub(crate) fn first_in_path(&self) -> anyhow::Result<OsString> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [self.bin()].into_iter().chain(env::split_paths(&path));
        env::join_paths(folders).context("target/ has a colon in its path")
    }

    fn bin(&self) -> PathBuf {
        Path::new(&self.0).join("bin")
    }
}
