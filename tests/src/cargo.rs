//! Building what `cargo test` does not build: cdylibs, and programs of other crates.
//!
//! Paths are taken from what cargo says and never guessed, so a stale library of another profile cannot be
//! picked up.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde::Deserialize;

/// How the artifacts are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// In little time: for the demo.
    Dev,
    /// For demo, bench and stage.
    Release,
}

/// Whether cargo tells on stderr what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Cargo's progress is shown.
    Shown,
    /// Only errors.
    Hidden,
}

/// Message that cargo prints for one built target.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    target: Target,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Default, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Builds these packages and gives the path of each program and cdylib by the name of its target.
pub fn build(
    packages: &[&str],
    profile: Profile,
    progress: Progress,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut cargo = cargo();
    cargo.arg("build");
    build_with(cargo, packages, profile, progress)
}

/// Builds all libraries of the workspace and these programs as `cargo test --workspace` does, and gives the
/// path of each program and cdylib by the name of its target.
///
/// The features of other crates are those that the whole workspace asks for together. With those of a few
/// packages they would be compiled once more.
pub fn build_as_tests(programs: &[&str]) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut cargo = as_tests();
    cargo.arg("--lib");
    for program in programs {
        cargo.args(["--bin", program]);
    }
    targets(&printed_by(cargo)?)
}

/// Builds by another command than `cargo build`, which takes its flags and prints the same messages.
pub fn build_with(
    mut cargo: Command,
    packages: &[&str],
    profile: Profile,
    progress: Progress,
) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    cargo.arg("--message-format=json");
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    if progress == Progress::Hidden {
        cargo.arg("--quiet");
    }
    for package in packages {
        cargo.args(["--package", package]);
    }
    targets(&printed_by(cargo)?)
}

/// Builds one of the examples of this crate, which are programs that only its tests need, and gives its path.
pub fn build_example(name: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = as_tests();
    cargo.args(["--example", name]);
    let built = targets(&printed_by(cargo)?)?.remove(name);
    built.with_context(|| format!("cargo built no example {name}"))
}

fn as_tests() -> Command {
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--message-format=json", "--workspace"]);
    cargo
}

fn printed_by(mut cargo: Command) -> anyhow::Result<String> {
    let cargo = cargo.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = cargo.output().context("cannot run cargo; is Rust installed?")?;
    ensure!(output.status.success(), "cargo build failed");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The cargo that runs this program, in the workspace.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(workspace());
    // Cargo tells each program its package. Build scripts that look at these variables would run again, and
    // what depends on them would be compiled again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The root of the source tree that this program was built from.
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

fn targets(messages: &str) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut built = BTreeMap::new();
    for line in messages.lines() {
        let message: Message = serde_json::from_str(line).context("cargo printed what is no message")?;
        let linked = message
            .target
            .kind
            .iter()
            .any(|kind| ["bin", "cdylib", "example"].contains(&kind.as_str()));
        if let (true, Some(file)) = (linked, message.filenames.into_iter().next()) {
            built.insert(message.target.name, file);
        }
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_has_a_path() {
        let line = |name: &str, kind: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"{name}","kind":["{kind}"]}},"filenames":["/t/{name}"]}}"#
            )
        };
        let lines = [
            line("ctl", "bin"),
            line("gpushare", "cdylib"),
            line("proto", "lib"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let built = targets(&lines.join("\n")).unwrap();
        let paths: Vec<&Path> = built.values().map(PathBuf::as_path).collect();
        assert_eq!(paths, [Path::new("/t/ctl"), Path::new("/t/gpushare")]);
    }
}
