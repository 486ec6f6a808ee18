//! Completions of shells: they know the commands and flags, and nothing internal. No daemon is asked.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::ctl::{ctl, fails, succeeds};

const NOWHERE: &str = "/nonexistent";

fn completions(shell: &str) -> String {
    succeeds(&mut ctl(Path::new(NOWHERE), &["completions", shell]))
}

/// Returns what bash offers for the last of `words`.
fn offered(words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gpushare-ctl");
    fs::write(&file, completions("bash")).unwrap();
    let script = r#"
        source "$1" && shift
        complete -p gpushare-ctl | grep -q -- '-F _gpushare_ctl ' || exit 9
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _gpushare_ctl "$1" "${!#}" "${COMP_WORDS[$# - 2]}"
        echo "${COMPREPLY[@]}"
    "#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, "bash"]).arg(&file).args(words);
    succeeds(&mut bash).trim_end().to_owned()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(offered(&["gpushare-ctl", "sta"]), "status");
    assert_eq!(offered(&["gpushare-ctl", "session", "cr"]), "create");
    assert_eq!(offered(&["gpushare-ctl", "run", "--over"]), "--oversubscribe");
    assert_eq!(offered(&["gpushare-ctl", "completions", "z"]), "zsh");
    assert_eq!(offered(&["gpushare-ctl", "set", "context-reserve", "1", "--g"]), "--gpu");
    assert_eq!(offered(&["gpushare-ctl", "start-d"]), "");
}

#[test]
fn every_shell_has_all_commands_and_none_of_the_internal_ones() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = completions(shell);
        for known in ["oversubscribe", "doctor", "gpushare-ctl"] {
            assert!(text.contains(known), "{shell} does not know {known}");
        }
        for internal in ["start-daemon", "doctor-probe"] {
            assert!(!text.contains(internal), "{shell} completes {internal}");
        }
    }
}

#[test]
fn completions_are_for_the_name_by_which_the_program_was_called() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("gpushare");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gpushare-ctl"), &other).unwrap();
    let text = succeeds(Command::new(&other).args(["completions", "fish"]));
    assert!(text.contains("complete -c gpushare ") && !text.contains("complete -c gpushare-ctl"), "{text}");
}

#[test]
fn an_unknown_shell_is_refused_in_one_sentence() {
    assert_eq!(
        fails(&mut ctl(Path::new(NOWHERE), &["completions", "tcsh"]), 2),
        "invalid value 'tcsh' for '<SHELL>' [possible values: bash, elvish, fish, powershell, zsh]; see \
         `gpushare-ctl completions --help`"
    );
}
