//! A program of musl (Alpine) and a library that needs glibc: by `LD_PRELOAD` the library ends the program
//! before its first instruction, `gpushare-ctl run` leaves it out, and `/etc/ld.so.preload` does nothing,
//! because only glibc reads it.
//!
//! musl comes from Debian, unpacked below `target/`. A file in `/etc` is put there in a mount namespace of
//! our own; where that is not allowed, this part is skipped with a line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::foreign;
use gpushare_tests::process::output_of;
use gpushare_tests::world::{Sharing, World};

use crate::debian::Debian;
use crate::output::progress;

/// Runs a program where only `$ETC` is in /etc.
const IN_OTHER_ETC: &str = r#"mount --bind "$ETC" /etc && exec "$@""#;

pub(super) fn check() -> anyhow::Result<()> {
    let world = World::simulated(Artifacts::of_tests()?, Bytes::mib(64))?;
    let _daemon = Daemon::start(&world, &[])?;
    let musl = compile(&world)?;
    let is_hello = |output: &Output| output.status.code() == Some(41) && output.stdout == b"hello\n";

    let native = world.program(&musl).output()?;
    ensure!(is_hello(&native) && native.stderr.is_empty(), "natively {native:?}");
    let preloaded = world.sharing(&Sharing::Preload, &musl).output()?;
    ensure!(
        preloaded.status.code() == Some(127) && preloaded.stdout.is_empty(),
        "docs/old-systems.md says that it ends with 127: {preloaded:?}"
    );
    let run = world.sharing(&Sharing::session("musl"), &musl).output()?;
    let line = String::from_utf8_lossy(&run.stderr);
    ensure!(
        is_hello(&run) && line.lines().count() == 1 && line.contains("is linked with musl"),
        "by run {run:?}"
    );
    for_the_whole_system(&world, &musl)
}

/// `/etc/ld.so.preload`: glibc loads us, musl and static programs notice nothing.
fn for_the_whole_system(world: &World, musl: &Path) -> anyhow::Result<()> {
    let etc = world.folder().join("etc");
    fs::create_dir(&etc)?;
    let in_it = |program: &Path, arguments: &[&str]| {
        let mut unshare = world.program("unshare".as_ref());
        unshare
            .env("ETC", &etc)
            .args(["--mount", "--map-root-user", "sh", "-c", IN_OTHER_ETC, "sh"])
            .arg(program)
            .args(arguments);
        unshare
    };
    if let Err(error) = output_of(in_it("true".as_ref(), &[])) {
        progress(format_args!("SKIPPED /etc/ld.so.preload: no mount namespace can be made here ({error:#})"));
        return Ok(());
    }
    let library = world.path(Part::Library);
    fs::write(etc.join("ld.so.preload"), format!("{}\n", library.display()))?;

    let maps = output_of(in_it("cat".as_ref(), &["/proc/self/maps"]))?;
    ensure!(maps.contains(Part::Library.file()), "a program of glibc has no preload: {maps}");
    let flags = ["-static", "-nostdlib", "-ffreestanding"];
    let alone = foreign::compile(world, "static.c", "static", &flags)?;
    for (program, said, code) in [(musl, "hello\n", 41), (&alone, "", 7)] {
        let output = in_it(program, &[]).output()?;
        ensure!(
            output.status.code() == Some(code)
                && output.stdout == said.as_bytes()
                && output.stderr.is_empty(),
            "{} is harmed: {output:?}",
            program.display()
        );
    }
    Ok(())
}

/// `hello.c` against musl.
fn compile(world: &World) -> anyhow::Result<PathBuf> {
    let (architecture, triple) = match std::env::consts::ARCH {
        "aarch64" => ("aarch64", "aarch64-linux-musl"),
        _ => ("x86_64", "x86_64-linux-musl"),
    };
    let root = Debian::of_this_machine().unpack("musl", &["musl", "musl-dev"])?;
    let lib = root.join("usr/lib").join(triple);
    let program = world.folder().join("musl");
    let mut loader = std::ffi::OsString::from("-Wl,--dynamic-linker=");
    loader.push(root.join(format!("lib/ld-musl-{architecture}.so.1")));
    let mut cc = Command::new("cc");
    cc.args(["-nostdinc", "-nostdlib", "-isystem"])
        .arg(root.join("usr/include").join(triple))
        .arg("-o")
        .arg(&program)
        .args([lib.join("Scrt1.o"), lib.join("crti.o")])
        .arg(foreign::sources().join("hello.c"))
        .args([root.join("lib").join(triple).join("libc.so"), lib.join("crtn.o")])
        .arg(loader);
    output_of(cc).context("cannot compile a program of musl")?;
    Ok(program)
}
