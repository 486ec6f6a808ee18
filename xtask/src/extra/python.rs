//! Python's ctypes is the plainest program that finds CUDA by `dlopen` and `dlsym`: it shares the simulated
//! card, sees its own memory right, and the daemon sees it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::{Sharing, World};

use crate::tools;

/// Allocates, sets and reads memory, then waits for the end of stdin.
pub(super) const SCRIPT: &str = include_str!("smoke.py");

pub(super) fn check() -> anyhow::Result<()> {
    tools::need("python3", "python3")?;
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?;
    let daemon = Daemon::start(&world, &[])?;
    let mut python = world.sharing(&Sharing::session("python"), Path::new("python3"));
    let mut python = python
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdin = python.stdin.take();
    let mut stdout = BufReader::new(python.stdout.take().context("python has no stdout")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    let session = daemon.session("python");

    // The script ends when its stdin does.
    drop(stdin);
    let output = python.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the script ended with {}: {said}", output.status);
    ensure!(line == "16777216 bytes hold 0xabcd1234\n", "the script said {line:?}: {said}");
    let allocated: Bytes = session?.gpus.iter().map(|gpu| gpu.allocated_bytes).sum();
    ensure!(allocated == Bytes::mib(16), "the daemon sees {allocated}");
    Ok(())
}
