//! The gate under loom, which tries every interleaving. Its target folder is separate, because `--cfg loom`
//! would rebuild everything of the usual one. The build is not optimised: compiling takes most of a minute
//! of processor time, the tests a fraction of a second.

use anyhow::ensure;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

pub(super) fn check() -> anyhow::Result<()> {
    let mut cargo = cargo::cargo();
    cargo.env("RUSTFLAGS", "--cfg loom").args([
        "test",
        "--quiet",
        "--package",
        "gpushare-client",
        "--test",
        "loom_gate",
        "--target-dir",
        "target/loom",
    ]);
    let said = output_of(cargo)?;
    ensure!(!said.contains("running 0 tests"), "there is nothing to check: {said}");
    Ok(())
}
