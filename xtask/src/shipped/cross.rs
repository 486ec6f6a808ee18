//! Tools to build for aarch64 (Grace, Jetson) on x86-64.
//!
//! ```text
//!   Debian: rustc-web, clippy, libstd for both ─▶ objects ─▶ zig (PyPI) ─▶ files for glibc 2.17
//!   Debian: libc6 and libgcc of arm64, qemu-user ─────────────────────────▶ runs them
//! ```
//!
//! rustup has no standard library for that target where we build, Debian's second compiler has. All of it is
//! unpacked below `target/`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use gpushare_tests::artifacts::Part;
use gpushare_tests::cargo::{self, Progress};
use gpushare_tests::process::output_of;

use super::{Build, Linking};
use crate::debian::Debian;

/// The other architecture.
pub(crate) const ARCHITECTURE: &str = "aarch64";
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// A compiler for the other architecture, and that architecture's C library.
pub(crate) struct Tools {
    toolchain: PathBuf,
    scripts: PathBuf,
    sysroot: PathBuf,
    qemu: PathBuf,
}

impl Tools {
    /// Unpacks them.
    pub(crate) fn fetch() -> anyhow::Result<Self> {
        let debian = Debian::of_this_machine();
        let std = debian.dependency("rust-web-clippy", "libstd-rust-web-")?;
        let llvm = debian.dependency(&std, "libllvm")?;
        let toolchain =
            ["rustc-web", "rust-web-clippy", &std, &llvm, "libstd-rust-web-dev", "libstd-rust-web-dev:arm64"];
        let toolchain = debian.unpack("rust", &toolchain)?;
        let sysroot = debian.unpack("arm64", &["libc6:arm64", "libgcc-s1:arm64"])?;
        let qemu = debian.unpack("qemu", &["qemu-user-static"])?;
        let tools = Self {
            scripts: toolchain.join("scripts"),
            toolchain,
            sysroot,
            qemu: qemu.join("usr/bin/qemu-aarch64-static"),
        };
        fs::create_dir_all(&tools.scripts)?;
        for program in ["rustc", "clippy-driver"] {
            tools.script(program)?;
        }
        Ok(tools)
    }

    /// `program` with its own libraries. Only it: what it starts and what is built with it has those of
    /// this machine.
    fn script(&self, program: &str) -> anyhow::Result<()> {
        let usr = self.toolchain.join("usr");
        let text = format!(
            "#!/bin/sh\nLD_LIBRARY_PATH='{lib}' SYSROOT='{usr}' exec '{usr}/bin/{program}' \"$@\"\n",
            lib = usr.join("lib/x86_64-linux-gnu").display(),
            usr = usr.display(),
        );
        let path = self.scripts.join(program);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
    }

    /// Clippy of that toolchain, every warning an error. The procedural macros and build scripts are those of
    /// [`Self::build`].
    pub(crate) fn lint(&self) -> anyhow::Result<()> {
        let mut check = cargo::cargo();
        check
            .env("RUSTC", self.scripts.join("rustc"))
            .env("RUSTC_WORKSPACE_WRAPPER", self.scripts.join("clippy-driver"))
            .env("RUSTFLAGS", "-Dwarnings")
            .args(["check", "--quiet", "--release", "--target", TARGET, "--target-dir"])
            .arg(Path::new("target").join(ARCHITECTURE));
        for part in Part::SHIPPED {
            check.args(["--package", part.package()]);
        }
        output_of(check).map(drop).context("clippy for aarch64")
    }

    /// Builds these packages in release.
    pub(crate) fn build(
        &self,
        packages: &[&str],
        linking: Linking,
        progress: Progress,
    ) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let build = Build {
            architecture: ARCHITECTURE,
            rustc: Some(&self.scripts.join("rustc")),
            linking,
            libgcc: self.sysroot.join("lib/aarch64-linux-gnu/libgcc_s.so.1"),
            folder: "aarch64",
            targets: &[],
        };
        build.run(packages, progress)
    }

    /// Program that runs programs of the other architecture.
    pub(crate) fn emulator(&self) -> &Path {
        &self.qemu
    }

    /// Folder with the other architecture's C library.
    pub(crate) fn sysroot(&self) -> &Path {
        &self.sysroot
    }
}
