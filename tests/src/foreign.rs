//! Programs of others: what `tests/clients/` holds, compiled when a test needs it.
//!
//! The C programs are compiled into the world's folder by `cc`, which every machine with Rust has. The Rust
//! programs are examples of this crate, so that only its tests compile what they depend on.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::cargo;
use crate::process::output_of;
use crate::world::World;

/// The sources.
pub fn sources() -> PathBuf {
    cargo::workspace().join("tests/clients")
}

/// Compiles a C source to `output` in the world's folder, with further flags for `cc`.
pub fn compile(world: &World, source: &str, output: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
    let output = world.folder().join(output);
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&output)
        .arg(sources().join(source))
        .args(flags);
    output_of(cc).with_context(|| format!("cannot compile {source}"))?;
    Ok(output)
}

/// Compiles a C program that opens libcuda itself.
pub fn program(world: &World, name: &str) -> anyhow::Result<PathBuf> {
    compile(world, &format!("{name}.c"), name, &["-ldl"])
}

/// One of the Rust programs.
pub fn example(name: &str) -> anyhow::Result<PathBuf> {
    cargo::build_example(name)
}

/// Runs a program to its end in the world, sharing as said; its stdout.
pub fn run(
    world: &World,
    sharing: &crate::world::Sharing,
    program: &Path,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let mut command = world.sharing(sharing, program);
    command.args(arguments);
    output_of(command)
}
