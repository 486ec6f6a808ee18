//! Starts the real binary in an environment where nothing of the machine's own gpushare shines through.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A command line on the daemon's folder `dir`.
pub(crate) fn ctl(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpushare-ctl"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPUSHARE_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .env_remove("LD_PRELOAD")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("XDG_RUNTIME_DIR", dir)
        .env("GPUSHARE_RUNTIME_DIR", dir)
        .env("GPUSHARE_LIBRARY", a_library());
    command
}

/// A shared library of this machine that does no harm in `LD_PRELOAD`: the C library of this process.
pub(crate) fn a_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc"))
        .expect("the tests are linked with the C library");
    PathBuf::from(path)
}

/// Output of a command that succeeds.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
    assert_eq!(stderr(&output), "");
    String::from_utf8(output.stdout).unwrap()
}

/// The document that the command prints with `--json`.
pub(crate) fn json<T: serde::de::DeserializeOwned>(dir: &Path, arguments: &[&str]) -> T {
    serde_json::from_str(&succeeds(ctl(dir, arguments).arg("--json"))).unwrap()
}

/// The sentence of a failure with exit code `code`: one line on stderr and nothing else.
pub(crate) fn fails(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(output.stdout, b"");
    let sentence = said.strip_prefix("gpushare-ctl: ").expect("our name in front").trim_end();
    assert!(!sentence.contains('\n'), "{said}");
    sentence.to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
