//! Programs that a preload does not reach, or would end: `run` says so in one line and starts them all the
//! same.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::ensure;
use gpushare_proto::Bytes;
use gpushare_tests::process::write_executable;
use gpushare_tests::{Sharing, World, foreign, output_of};

/// Output of a program of `run` on both streams, and its exit code.
struct Said {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

fn run(world: &World, program: &Path) -> anyhow::Result<Said> {
    let mut command = world.sharing(&Sharing::session("program"), program);
    let output = command.stdin(Stdio::null()).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Said {
        stdout: text(output.stdout),
        stderr: text(output.stderr),
        code: output.status.code(),
    })
}

/// A program whose loader is called as musl's is, but is this machine's own.
fn named_as_musls(world: &World) -> anyhow::Result<PathBuf> {
    let own = match std::env::consts::ARCH {
        "aarch64" => "ld-linux-aarch64.so.1",
        _ => "ld-linux-x86-64.so.2",
    };
    let mut cc = Command::new("cc");
    cc.arg(format!("-print-file-name={own}"));
    let own = PathBuf::from(output_of(cc)?.trim());
    ensure!(own.is_absolute(), "cc does not know where the loader is");
    let loader = world.folder().join("ld-musl-test.so.1");
    symlink(own, &loader)?;
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    foreign::compile(world, "preloaded.c", "musl", &[&flag, "-ldl"])
}

#[test]
fn a_program_of_glibc_is_preloaded_into_and_nothing_is_said() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let program = foreign::program(&world, "preloaded")?;
    let said = run(&world, &program)?;
    assert_eq!(said.stdout, "loaded yes, next yes\n");
    assert_eq!((said.stderr.as_str(), said.code), ("", Some(41)));
    Ok(())
}

#[test]
fn a_program_of_musl_runs_without_the_preload_that_would_end_it() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let musl = named_as_musls(&world)?;
    let script = world.folder().join("script");
    write_executable(&script, &format!("#!{}\n", musl.display()))?;
    let line = format!("gpushare-ctl: {} is linked with musl,", musl.display());
    for program in [&musl, &script] {
        let said = run(&world, program)?;
        assert_eq!(said.stdout, "loaded no, next yes\n");
        assert!(said.stderr.starts_with(&line), "{}", said.stderr);
        assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
        assert_eq!(said.code, Some(41));
    }
    Ok(())
}

#[test]
fn a_static_program_is_named_as_one_that_does_not_share() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(64))?.with_daemon(&[])?;
    let flags = ["-static", "-nostdlib", "-ffreestanding"];
    let program = foreign::compile(&world, "static.c", "static", &flags)?;
    let said = run(&world, &program)?;
    let line = format!("gpushare-ctl: {} is linked statically,", program.display());
    assert!(said.stderr.starts_with(&line), "{}", said.stderr);
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    assert_eq!(said.code, Some(7));
    Ok(())
}
