//! What people type wrong: one sentence with what to do, and the documented exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gpushare_proto::names::RuntimeDir;

use crate::ctl::{a_library, ctl, fails, succeeds};

const NOWHERE: &str = "/nonexistent";

fn wrong(arguments: &[&str], code: i32) -> String {
    fails(&mut ctl(Path::new(NOWHERE), arguments), code)
}

#[test]
fn an_unknown_flag() {
    assert_eq!(
        wrong(&["status", "--frobnicate"], 2),
        "unexpected argument '--frobnicate' found; see `gpushare-ctl status --help`"
    );
    assert_eq!(
        wrong(&["run", "--frobnicate", "--", "true"], 125),
        "unexpected argument '--frobnicate' found; see `gpushare-ctl run --help`"
    );
}

#[test]
fn a_live_picture_without_a_terminal() {
    assert_eq!(
        wrong(&["top"], 1),
        "standard output is no terminal; use `gpushare-ctl top --once` or `gpushare-ctl top --json`"
    );
    assert!(wrong(&["top", "--once", "--json"], 2).contains("cannot be used with"));
}

#[test]
fn no_command_at_all() {
    assert!(wrong(&[], 2).contains("requires a subcommand"));
    assert!(wrong(&["set"], 2).contains("requires a subcommand"));
    assert!(wrong(&["run"], 125).contains("<CMD>"));
}

#[test]
fn a_size_that_is_no_size() {
    assert_eq!(
        wrong(&["run", "--memory", "8 apples", "--", "true"], 125),
        "invalid value '8 apples' for '--memory <SIZE>': `8 apples` is not a size; write it like 8GiB, \
         512MiB or 1.5G; see `gpushare-ctl run --help`"
    );
    assert!(wrong(&["set", "capacity", "lots"], 2).contains("write it like 8GiB, 512MiB or 1.5G, or `auto`"));
}

#[test]
fn a_weight_out_of_range_or_of_nobody() {
    for text in ["abc", "0", "10001", "99999999999", "-5", "1.5"] {
        let hint = "is no weight; write a whole number from 1 to 10000; see `gpushare-ctl";
        assert_eq!(
            wrong(&["set", "weight", text, "--user", "ana"], 2),
            format!("invalid value '{text}' for '<VALUE>': `{text}` {hint} set --help`")
        );
        assert_eq!(
            wrong(&["run", "--weight", text, "--", "true"], 125),
            format!("invalid value '{text}' for '--weight <N>': `{text}` {hint} run --help`")
        );
    }
    assert_eq!(
        wrong(&["set", "weight", "300"], 2),
        "a weight is that of a session or of a user; write `set weight 300 --session NAME-OR-ID` or `set weight 300 \
         --user USER`"
    );
    let session = wrong(&["set", "priority", "low"], 2);
    assert!(session.contains("--session <NAME-OR-ID>"), "{session}");
}

#[test]
fn a_missing_program() {
    assert_eq!(
        wrong(&["run", "--", "no-such-program"], 127),
        "no program `no-such-program` was found; check its name and PATH"
    );
    assert!(wrong(&["run", "--", "/no/such/program"], 127).contains("`/no/such/program`"));
}

#[test]
fn a_program_that_cannot_be_executed() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let sentence = wrong(&["run", "--", plain.to_str().unwrap()], 126);
    assert!(sentence.contains("cannot be executed: Permission denied"), "{sentence}");
    assert!(sentence.ends_with("check its mode (chmod +x)"), "{sentence}");
}

#[test]
fn a_socket_path_that_is_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let dir = RuntimeDir::new(folder.path());
    fs::create_dir_all(dir.tenant_socket()).unwrap();
    fs::create_dir(dir.admin_socket()).unwrap();
    let what = "is a directory, not the socket of a daemon; remove it, or choose another folder with \
                --runtime-dir";
    assert_eq!(
        fails(&mut ctl(folder.path(), &["status"]), 1),
        format!("{} {what}", dir.admin_socket().display())
    );
    assert_eq!(
        fails(&mut ctl(folder.path(), &["run", "--", "true"]), 125),
        format!("{} {what}", dir.tenant_socket().display())
    );
}

#[test]
fn a_preload_file_of_the_wrong_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libgpushare.so");
    let mut bytes = fs::read(a_library()).unwrap();
    let foreign = if cfg!(target_arch = "aarch64") { (62u16, "x86_64") } else { (183, "aarch64") };
    bytes[18..20].copy_from_slice(&foreign.0.to_le_bytes());
    fs::write(&library, &bytes).unwrap();
    let (theirs, ours) = (foreign.1, std::env::consts::ARCH);
    assert_eq!(
        with_library(&library),
        format!(
            "{} is built for 64-bit {theirs} and this machine is 64-bit {ours}; install gpushare for 64-bit \
             {ours}, or set GPUSHARE_LIBRARY",
            library.display()
        )
    );
}

#[test]
fn a_preload_file_that_the_loader_would_ignore() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.so");
    fs::write(&script, "#!/bin/sh\necho not a library\n").unwrap();
    assert!(with_library(&script).contains("is not a shared library; set GPUSHARE_LIBRARY"));
    assert!(with_library(&folder.path().join("gone.so")).contains("cannot be read: No such file"));
    let spaced = folder.path().join("a b.so");
    fs::copy(a_library(), &spaced).unwrap();
    assert!(with_library(&spaced).contains("a space, a colon or a `$`; install it elsewhere"));
}

fn with_library(library: &Path) -> String {
    let mut run = ctl(Path::new(NOWHERE), &["run", "--", "true"]);
    fails(run.env("GPUSHARE_LIBRARY", library), 125)
}

#[test]
fn a_runtime_folder_whose_name_is_too_long_for_a_socket() {
    let long = format!("/{}", "x".repeat(120));
    assert!(fails(&mut ctl(Path::new(&long), &["status"]), 1).contains("choose a shorter folder"));
}

#[test]
fn help_and_version_are_answers() {
    let nowhere = Path::new(NOWHERE);
    assert!(succeeds(&mut ctl(nowhere, &["--help"])).contains("Exit codes: 0 done"));
    assert!(succeeds(&mut ctl(nowhere, &["run", "--help"])).contains("Exit codes: 125 gpushare failed"));
    assert_eq!(
        succeeds(&mut ctl(nowhere, &["--version"])),
        concat!("gpushare-ctl ", env!("CARGO_PKG_VERSION"), "\n")
    );
}
