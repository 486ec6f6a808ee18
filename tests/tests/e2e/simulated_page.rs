//! The commands below "Start" in docs/simulated-card.md, in one shell, with the files under test in
//! `target/release`.

use std::fs;
use std::os::unix::fs::symlink;

use gpushare_proto::Bytes;
use gpushare_tests::{Part, World, output_of};

#[test]
fn the_recipe_of_the_simulated_card_does_what_its_page_says() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let release = world.folder().join("target/release");
    fs::create_dir_all(&release)?;
    for part in Part::ALL {
        symlink(world.path(part), release.join(part.file()))?;
    }
    let page = include_str!("../../../docs/simulated-card.md");
    let section = page.split_once("## Start\n").unwrap().1.split_once("\n## ").unwrap().0;
    let commands: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    let [build, commands @ .., pid, stop, remove, "exit"] = &commands[..] else {
        panic!("{commands:#?}")
    };
    assert_eq!(*build, "cargo build --release --workspace");
    // The daemon ends also after a failure.
    let end = [*pid, stop, remove].join("\n");
    let script = format!("end() {{\n{end}\n}}\ntrap end EXIT\n{}\n", commands.join("\n"));
    let mut shell = world.program("sh".as_ref());
    let tests = world.folder().join("tmp");
    fs::create_dir(&tests)?;
    shell.env("TMPDIR", &tests).current_dir(world.folder()).args(["-euc", &script]);
    let said = output_of(shell)?;
    assert!(said.contains(r#"{"ready":true"#), "{said}");
    let used = |name: &str| said.lines().any(|line| line.split_whitespace().nth(1) == Some(name));
    assert!(used("ana") && used("bob"), "{said}");
    assert_eq!(fs::read_dir(&tests)?.count(), 0, "the trial's folder is left");
    Ok(())
}
