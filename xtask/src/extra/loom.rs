//! The gate under loom, which tries every interleaving. In a target folder of its own: `--cfg loom` would
//! rebuild everything of the usual one.

use anyhow::ensure;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

pub(super) fn check() -> anyhow::Result<()> {
    let mut cargo = cargo::cargo();
    cargo.env("RUSTFLAGS", "--cfg loom").args([
        "test",
        "--quiet",
        "--release",
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
