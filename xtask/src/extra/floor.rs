//! Check of the staged files, which are linked in another way than those under test elsewhere. It builds them,
//! reads their demands on the C library, and runs the tests that would notice a broken link.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::{Artifacts, Part, SHIPPED};
use gpushare_tests::cargo;
use gpushare_tests::world::World;

use super::elsewhere;
use crate::debian::{self, Debian};
use crate::output::progress;
use crate::stage;

/// Names of tests, or parts of them: sharing and turns; captures; variants of a symbol and the search
/// order; fork.
const TESTS: [(&str, &[&str]); 2] =
    [("e2e", &["sharing::", "captures::", "guests::"]), ("bugs", &["b01", "b02", "b08", "b10", "b12"])];

/// The Debian with glibc 2.31.
const OLDER: &str = "bullseye";

pub(super) fn check() -> anyhow::Result<()> {
    // Fails if one of them is too demanding.
    let stage = stage::build()?;
    progress(&stage);
    for (binary, tests) in TESTS {
        let mut cargo = cargo::cargo();
        cargo
            .env(SHIPPED, stage.folder())
            // With the features of the whole workspace, so that nothing is compiled again.
            .args(["test", "--quiet", "--workspace", "--test", binary, "--"])
            .args(tests);
        let output = cargo.stdin(Stdio::null()).output().context("cannot start cargo")?;
        let said = String::from_utf8_lossy(&output.stdout);
        // It names the test that failed, and why.
        ensure!(output.status.success(), "{binary} ended with {}: {said}", output.status);
        ensure!(!said.contains("running 0 tests"), "there is nothing to check in {binary}: {said}");
    }
    on_an_older_glibc(stage.folder())
}

/// No system with 2.17 can be had, but one from before 2.34, where `dlsym` and threads were in libraries of
/// their own.
fn on_an_older_glibc(stage: &Path) -> anyhow::Result<()> {
    let packages = ["libc6", "libgcc-s1"].map(|name| format!("{name}:{}", debian::architecture()));
    let root = match Debian::release(OLDER).unpack("glibc", &packages.each_ref().map(String::as_str)) {
        Ok(root) => root,
        Err(error) => {
            progress(format_args!(
                "SKIPPED a run on the glibc of Debian {OLDER}: it cannot be had any more ({error:#})"
            ));
            return Ok(());
        }
    };
    let architecture = std::env::consts::ARCH;
    let lib = root.join("lib").join(format!("{architecture}-linux-gnu"));
    let loader = fs::read_dir(&lib)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-2.")));
    let loader = loader.with_context(|| format!("{} has no loader", lib.display()))?;

    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(64))?;
    let cuda = world.folder().join("staged");
    fs::create_dir(&cuda)?;
    symlink(stage.join(Part::SimulatedCuda.file()), cuda.join("libcuda.so.1"))?;
    let older = || {
        let mut command = world.program(&loader);
        command
            .env("LD_PRELOAD", stage.join(Part::Library.file()))
            .arg("--library-path")
            .arg(format!("{}:{}", lib.display(), cuda.display()));
        command
    };
    elsewhere::finds_symbols(&world, architecture, older())?;
    elsewhere::shares_the_card(&world, &stage.join(Part::Workload.file()), older())
}
