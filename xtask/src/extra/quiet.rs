//! A program that never touches CUDA pays nothing for the preload: no output, no thread, no open file.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::world::{Sharing, World};

/// State of `cat` while it waits for its second line, and its output at its end.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    threads: usize,
    /// The kinds of open files: `pipe`, `socket`, or a path.
    files: Vec<String>,
    stdout: String,
    stderr: String,
    success: bool,
}

pub(super) fn check() -> anyhow::Result<()> {
    let world = World::on_this_machine(Artifacts::of_tests()?)?;
    let (native, _) = look_at_cat(&world, &Sharing::Native)?;
    let (preloaded, maps) = look_at_cat(&world, &Sharing::Preload)?;
    ensure!(maps.contains("libgpushare.so"), "the library was not loaded");
    ensure!(preloaded == native, "with the preload {preloaded:?}, without it {native:?}");
    Ok(())
}

fn look_at_cat(world: &World, sharing: &Sharing) -> anyhow::Result<(Seen, String)> {
    let mut cat = world.sharing(sharing, Path::new("/bin/cat"));
    let mut cat = cat
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = cat.stdin.take().context("cat has no stdin")?;
    let mut stdout = BufReader::new(cat.stdout.take().context("cat has no stdout")?);

    // Once a line has come back, whatever a library does at the start of a program is over.
    let mut said = String::new();
    writeln!(stdin, "hello")?;
    stdout.read_line(&mut said)?;
    let process = Path::new("/proc").join(cat.id().to_string());
    let maps = fs::read_to_string(process.join("maps"))?;
    let threads = fs::read_dir(process.join("task"))?.count();
    let mut files = fs::read_dir(process.join("fd"))?
        .map(|entry| Ok(kind(&fs::read_link(entry?.path())?)))
        .collect::<anyhow::Result<Vec<String>>>()?;
    files.sort();

    drop(stdin);
    stdout.read_to_string(&mut said)?;
    let output = cat.wait_with_output()?;
    let seen = Seen {
        threads,
        files,
        stdout: said,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        success: output.status.success(),
    };
    Ok((seen, maps))
}

/// `pipe:[4711]` without its number, which is another one each time.
fn kind(file: &Path) -> String {
    let file = file.display().to_string();
    file.split(":[").next().unwrap_or_default().to_owned()
}
