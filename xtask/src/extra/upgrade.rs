//! Upgrade of a node under programs that keep an old library: the library of an earlier commit is built, and the
//! test of a whole node starts its pods with it.

use std::fs;
use std::process::Command;

use anyhow::Context;
use gpushare_tests::artifacts::Part;
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::process::output_of;

use crate::output::progress;

/// Earliest commit whose library today's daemon must serve: the first with today's layout of the shared page. Its
/// messages have the bytes of `proto/tests/golden`, of which later commits only added some.
const OLDEST: &str = "61e30c38d927e970bc19a6bae3b7ad3fcda0703d";
/// Variable by which the test takes the library of its pods (`k8s/tests/node/whole.rs`).
const OLD_LIBRARY: &str = "GPUSHARE_TEST_OLD_LIBRARY";

pub(super) fn check() -> anyhow::Result<()> {
    let folder = cargo::workspace().join("target/old-library");
    let (source, archive) = (folder.join("source"), folder.join("source.tar"));
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    fs::create_dir_all(&source)?;
    let mut git = Command::new("git");
    git.current_dir(cargo::workspace())
        .args(["archive", "--output"])
        .arg(&archive)
        .arg(OLDEST);
    output_of(git)
        .context("the history lacks the commit of the old library; fetch all of it (`--unshallow`)")?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&source);
    output_of(tar)?;
    progress(format_args!("building the library of {}", &OLDEST[..7]));
    let mut build = cargo::cargo();
    build
        .arg("build")
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", folder.join("target"));
    let built = cargo::build_with(build, &[Part::Library.package()], Profile::Dev, Progress::Hidden)?;
    let library = built.get(Part::Library.target()).context("cargo built no library")?;
    let mut test = cargo::cargo();
    test.args(["test", "--quiet", "--package", "gpushare-k8s", "--test", "node", "four_pods"]);
    test.env(OLD_LIBRARY, library);
    output_of(test).map(drop)
}
