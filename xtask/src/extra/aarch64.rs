//! Check of the shipped crates for aarch64 (Grace, Jetson) on another machine. All of them are linted. The
//! library is built and loaded in emulation.
//!
//! ```text
//!   Debian: rustc-web, clippy, libstd for both ─▶ objects ─▶ zig (PyPI) ─▶ libgpushare.so for glibc 2.17
//!   Debian: libc6 and libgcc of arm64, qemu-user ─────────────────────────▶ runs it
//! ```
//!
//! rustup has no standard library for that target where we build, Debian's second compiler has. All of it is
//! unpacked below `target/`.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::{self, Progress};
use gpushare_tests::process::output_of;
use gpushare_tests::world::World;

use super::elsewhere;
use crate::debian::Debian;
use crate::output::progress;
use crate::shipped::{Build, floor_of};

const ARCHITECTURE: &str = "aarch64";
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// A compiler for the other architecture, and that architecture's C library.
struct Tools {
    toolchain: PathBuf,
    scripts: PathBuf,
    sysroot: PathBuf,
    qemu: PathBuf,
}

pub(super) fn check() -> anyhow::Result<()> {
    if env::consts::ARCH != "x86_64" {
        progress(
            "SKIPPED aarch64: Debian's cross compiler is taken for x86_64 only; here the usual build is the check",
        );
        return Ok(());
    }
    let tools = Tools::fetch()?;
    tools.lint()?;
    let build = Build {
        architecture: ARCHITECTURE,
        rustc: Some(&tools.scripts.join("rustc")),
        libgcc: tools.sysroot.join("lib/aarch64-linux-gnu/libgcc_s.so.1"),
        folder: "aarch64",
    };
    let library = build.run(&[Part::Library.package()], Progress::Hidden)?;
    let library = &library[Part::Library.target()];
    floor_of(library)?;
    let world = World::on_this_machine(Artifacts::of_tests()?)?;
    elsewhere::finds_symbols(&world, ARCHITECTURE, tools.emulated(&world, library, world.folder()))
}

impl Tools {
    fn fetch() -> anyhow::Result<Self> {
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

    /// Clippy of that toolchain, every warning an error.
    fn lint(&self) -> anyhow::Result<()> {
        let mut check = cargo::cargo();
        check
            .env("RUSTC", self.scripts.join("rustc"))
            .env("RUSTC_WORKSPACE_WRAPPER", self.scripts.join("clippy-driver"))
            .env("RUSTFLAGS", "-Dwarnings")
            .args(["check", "--quiet", "--target", TARGET, "--target-dir", "target/aarch64-lint"]);
        for part in Part::SHIPPED {
            check.args(["--package", part.package()]);
        }
        output_of(check).map(drop).context("clippy for aarch64")
    }

    /// The emulator with the library preloaded; the program and its arguments come next.
    fn emulated(&self, world: &World, library: &Path, lib: &Path) -> Command {
        let mut qemu = world.program(&self.qemu);
        qemu.arg("-L")
            .arg(&self.sysroot)
            .arg("-E")
            .arg(format!("LD_PRELOAD={}", library.display()))
            .arg("-E")
            .arg(format!("LD_LIBRARY_PATH={}", lib.display()));
        qemu
    }
}
