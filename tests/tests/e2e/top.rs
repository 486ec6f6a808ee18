//! `gpushare-ctl top` beside real programs: its picture, its keys in a pseudo-terminal, and bad terminals.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::Context as _;
use gpushare_proto::Bytes;
use gpushare_tests::{Daemon, Part, Program, Sharing, World, patience};
use rustix::process::Signal;
use serde_json::Value;

use crate::terminal::Terminal;
use crate::users;

const CARD: Bytes = Bytes::mib(64);
const SIZE: (u16, u16) = (120, 16);
const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";

fn top(world: &World, flags: &[&str]) -> Command {
    let mut command = world.part(Part::Ctl);
    command.arg("top").args(flags);
    command
}

/// Returns a daemon with two programs that hold memory.
fn with_programs() -> anyhow::Result<(World, Daemon, [Program; 2])> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let start = |name: &str| -> anyhow::Result<Program> {
        let mut program = Program::hold(&world, &Sharing::limited(name, Bytes::mib(40)), name)?;
        program.must("alloc x 16MiB; fill x 1; sync")?;
        Ok(program)
    };
    let programs = [start("train")?, start("infer")?];
    Ok((world, daemon, programs))
}

/// Returns the lines of a picture that show sessions.
fn sessions(screen: &str) -> Vec<&str> {
    let is_number = |word: &str| word.strip_prefix('s').is_some_and(|number| number.parse::<u64>().is_ok());
    screen
        .lines()
        .filter(|line| line.split_whitespace().next().is_some_and(is_number))
        .collect()
}

/// Returns the names of the sessions in a picture.
fn names(screen: &str) -> Vec<&str> {
    sessions(screen)
        .into_iter()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect()
}

#[test]
fn keys_filter_and_change_after_a_question_and_a_restart_changes_nothing() -> anyhow::Result<()> {
    let (world, mut daemon, _programs) = with_programs()?;
    let mut terminal = Terminal::start(&world, "top", &top(&world, &[]), SIZE)?;
    let seen = terminal.until("both sessions", |screen| names(screen) == ["train", "infer"])?;
    assert!(seen.contains("gpu0") && seen.contains("parallel"), "{seen}");
    assert!(sessions(&seen)[0].contains("16MiB") && sessions(&seen)[0].contains("40MiB"), "{seen}");
    terminal.until("the command of a program", |screen| screen.contains("gpushare-workload"))?;
    terminal.until("the card's sensors", |screen| screen.contains("°C"))?;

    terminal.press("/inf")?;
    terminal.until("the filter", |screen| names(screen) == ["infer"])?;
    terminal.press(ENTER)?;
    terminal.press(ESCAPE)?;
    terminal.until("all sessions again", |screen| names(screen).len() == 2)?;

    terminal.press("gw")?;
    terminal.until("the prompt", |screen| screen.contains("weight of train"))?;
    terminal.press("250")?;
    terminal.press(ENTER)?;
    let question = "set weight of train (s1) from 100 to 250? y or n";
    terminal.until("the question", |screen| screen.contains(question))?;
    terminal.press("n")?;
    terminal.until("the refusal", |screen| screen.contains("stays 100"))?;
    assert_eq!(daemon.session("train")?.state.terms.weight, 100);
    terminal.press("w250")?;
    terminal.press(ENTER)?;
    terminal.until("the question again", |screen| screen.contains(question))?;
    terminal.press("y")?;
    terminal.until("the answer", |screen| screen.contains("weight of train (s1): 100 → 250"))?;
    assert_eq!(daemon.session("train")?.state.terms.weight, 250);

    daemon.kill()?;
    terminal.until("the loss", |screen| screen.contains("no daemon; trying again"))?;
    assert_eq!(names(&terminal.text()), ["train", "infer"], "the last picture stays");
    daemon.restart()?;
    terminal.until("the daemon's return", |screen| {
        !screen.contains("no daemon") && names(screen).len() == 2 && screen.contains("answers again")
    })?;
    terminal.press("t100ms")?;
    terminal.press(ENTER)?;
    terminal.press("y")?;
    terminal
        .until("the quantum", |screen| screen.contains("quantum of gpu0: ") && screen.contains("→ 100ms"))?;

    terminal.resize((20, 6))?;
    terminal.until("the sentence", |screen| screen.starts_with("top needs 40 columns"))?;
    terminal.resize(SIZE)?;
    terminal.until("the picture", |screen| names(screen).len() == 2)?;
    terminal.press("q")?;
    let (status, said) = terminal.ended()?;
    assert!(status.success(), "{status}: {said}");
    patience::until("the usual terminal", || Ok(terminal.is_usual()?.then_some(())))
}

#[test]
fn a_signal_ends_it_and_leaves_a_usable_terminal() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = Terminal::start(&world, "top", &top(&world, &[]), SIZE)?;
        terminal.until("the picture", |screen| screen.contains("gpu0"))?;
        assert!(!terminal.is_usual()?);
        terminal.signal(signal)?;
        let (status, said) = terminal.ended()?;
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{said}");
        patience::until("the usual terminal", || Ok(terminal.is_usual()?.then_some(())))?;
    }
    Ok(())
}

#[test]
fn once_and_json_show_what_the_programs_have() -> anyhow::Result<()> {
    let (_world, daemon, _programs) = with_programs()?;
    let page = daemon.ctl(&["top", "--once"])?;
    assert_eq!(names(&page), ["train", "infer"], "{page}");
    assert!(!page.contains('\x1b'), "{page:?}");
    assert!(page.contains("mem 32MiB of"), "{page}");
    let json: Value = serde_json::from_str(&daemon.ctl(&["top", "--json"])?)?;
    let train = &json["sessions"][0];
    assert_eq!(train["name"], "train");
    assert_eq!(train["figures"]["memory"][0]["allocated_bytes"], Bytes::mib(16).0);
    assert_eq!(train["figures"]["memory"][0]["limit_bytes"], Bytes::mib(40).0);
    assert!(train["command"].as_str().is_some_and(|command| command.contains("workload")), "{train}");
    assert_eq!(json["daemon"]["pid"], daemon.process().pid());
    assert_eq!(json["gpus"][0]["figures"]["allocated_bytes"], Bytes::mib(32).0);
    Ok(())
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() -> anyhow::Result<()> {
    let (world, daemon, _programs) = with_programs()?;
    for words in [&["status"][..], &["top", "--once"]] {
        assert!(!daemon.ctl(words)?.contains('\x1b'), "not on a terminal: {words:?}");
        for (name, wanted) in [("coloured", true), ("plain", false)] {
            let mut command = world.part(Part::Ctl);
            command.args(words).env("NO_COLOR", if wanted { "" } else { "1" });
            let mut terminal = Terminal::start(&world, &format!("{name}-{}", words[0]), &command, SIZE)?;
            assert!(terminal.ended()?.0.success());
            let seen =
                terminal.until("both sessions", |text| text.contains("train") && text.contains("infer"))?;
            assert_eq!(terminal.has_colours(), wanted, "{words:?}: {seen}");
        }
    }
    Ok(())
}

#[test]
fn a_terminal_that_is_too_small_or_a_daemon_that_is_not_there_gets_one_sentence() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut narrow = Terminal::start(&world, "narrow", &top(&world, &[]), (20, 24))?;
    let (status, said) = narrow.ended()?;
    assert_eq!(status.code(), Some(1));
    assert_eq!(
        said.trim(),
        "gpushare-ctl: top needs 40 columns and 8 lines, and this terminal has 20 and 24; enlarge it, or use \
         `gpushare-ctl top --json`"
    );
    assert!(narrow.is_usual()? && narrow.text().trim().is_empty());
    daemon.kill()?;
    let mut alone = Terminal::start(&world, "alone", &top(&world, &[]), SIZE)?;
    let (status, said) = alone.ended()?;
    assert_eq!(status.code(), Some(3));
    assert!(said.starts_with("gpushare-ctl: no gpushare daemon answers at "), "{said}");
    assert_eq!(said.trim().lines().count(), 1);
    assert!(alone.is_usual()? && alone.text().trim().is_empty());
    Ok(())
}

#[test]
fn a_user_sees_its_own_sessions_and_changes_nothing() -> anyhow::Result<()> {
    let Some(named) = users::users()? else { return Ok(()) };
    let (world, daemon) = users::started(Bytes::mib(256), &[])?;
    let hold = |uid, name: &str| -> anyhow::Result<Program> {
        let command = users::command_of(&world, uid, name, Bytes::mib(32))?;
        let mut program = Program::begin(command, &world, name)?;
        program.ready()?;
        program.must("alloc x 16MiB; fill x 1; sync")?;
        Ok(program)
    };
    let _programs = [hold(named, "mine")?, hold(users::NUMBERED, "theirs")?];
    daemon.until("both are there", |status| status.sessions.len() == 2)?;
    let mut command = top(&world, &["--json"]);
    command.uid(named).gid(named);
    let said = gpushare_tests::process::output_of(command)?;
    assert!(!said.contains("theirs"), "{said}");
    let json: Value = serde_json::from_str(&said)?;
    let own = json["sessions"].as_array().context("no sessions")?;
    assert_eq!(own.len(), 1, "{json:#}");
    assert_eq!(own[0]["name"], "mine");
    assert_eq!(json["gpus"][0]["figures"]["allocated_bytes"], Bytes::mib(32).0);
    let others = json["others"].as_array().context("no others")?;
    assert_eq!(others.len(), 1, "{json:#}");
    assert_eq!(others[0]["session"], daemon.session("theirs")?.session.0);
    Ok(())
}
