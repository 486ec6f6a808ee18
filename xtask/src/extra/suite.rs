//! The tests of the suite for a real card, which need none: how it counts, compares and ends what hangs.

use std::process::Command;

use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::tools;

pub(super) fn check() -> anyhow::Result<()> {
    tools::need("python3", "python3")?;
    let mut tests = Command::new("python3");
    tests
        .args(["-m", "unittest", "discover", "-s", "tests/gpu"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(cargo::workspace());
    output_of(tests).map(drop)
}
