//! A program under another loader than this machine's, by which it meets another C library or another
//! processor: the loader (or emulator) is the command, the program its argument.

use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use gpushare_proto::Bytes;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::foreign;
use gpushare_tests::process::output_of;
use gpushare_tests::program::Program;
use gpushare_tests::world::World;

use crate::shipped;

/// Our `dlsym`, which is written in assembly: it answers for names that are ours and jumps for all others.
pub(super) fn finds_symbols(world: &World, architecture: &str, mut loader: Command) -> anyhow::Result<()> {
    let program = world.folder().join("preloaded");
    let mut cc = shipped::c_compiler(architecture)?;
    cc.arg("-o")
        .arg(&program)
        .arg(foreign::sources().join("preloaded.c"))
        .arg("-ldl");
    output_of(cc)?;
    let output = loader.arg(&program).output()?;
    ensure!(
        output.stdout == b"loaded yes, next yes\n"
            && output.stderr.is_empty()
            && output.status.code() == Some(41),
        "with the preload {output:?}"
    );
    Ok(())
}

/// The CUDA program allocates, and the daemon sees it.
pub(super) fn shares_the_card(world: &World, workload: &Path, mut loader: Command) -> anyhow::Result<()> {
    let daemon = Daemon::start(world, &[])?;
    loader.arg(workload);
    let mut program = Program::begin(loader, world, "elsewhere")?;
    program.ready()?;
    program.must("alloc x 8MiB")?;
    let status = daemon.status()?;
    let gpus = status.sessions.iter().flat_map(|session| &session.gpus);
    let allocated: Bytes = gpus.map(|gpu| gpu.allocated_bytes).sum();
    ensure!(allocated == Bytes::mib(8), "the daemon sees {allocated}");
    ensure!(program.quit()?.success(), "the program ended badly");
    Ok(())
}
