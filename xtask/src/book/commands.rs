//! Tests of commands on pages: the programs understand each of them.

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _};

use super::pages::{self, Page};

/// Programs of gpushare that pages call by name.
fn program(words: &[&str]) -> Option<(Command, usize)> {
    let file = words.first()?.rsplit('/').next()?;
    match (file, words.get(1)) {
        ("gpushare-ctl" | "gpushare", _) => Some((gpushare_ctl::command(), 1)),
        ("gpushare-scheduler", _) => Some((gpushare_scheduler::command(), 1)),
        ("cargo", Some(&"xtask")) => Some((crate::Arguments::command(), 2)),
        _ => None,
    }
}

/// Parses a command line of a shell if it calls one of our programs. Returns whether it does.
fn understood(line: &str) -> Result<bool, clap::Error> {
    let line = line.trim_start().trim_start_matches("$ ");
    let Some(words) = shlex::split(line) else { return Ok(false) };
    let is_prefix =
        |word: &&String| *word == "sudo" || word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let words: Vec<&str> = words.iter().skip_while(is_prefix).map(String::as_str).collect();
    let ends = |word: &&str| matches!(*word, "|" | "&" | "&&" | ";" | ">" | "2>" | ">>" | "<");
    let end = words.iter().position(ends).unwrap_or(words.len());
    let Some((command, skipped)) = program(&words[..end]) else { return Ok(false) };
    let name = command.get_name().to_owned();
    let arguments = words[skipped..end].iter().map(|&word| word.to_owned());
    match command.try_get_matches_from([name].into_iter().chain(arguments)) {
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => Ok(true),
        result => result.map(|_| true),
    }
}

/// Whether this is the name of an environment variable.
fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') && !name.is_empty()
}

#[test]
fn every_command_in_a_code_block_is_understood() {
    let (mut commands, mut wrong) = (0, Vec::new());
    for page in pages::all() {
        for (number, line) in page.commands() {
            match understood(line) {
                Ok(is_ours) => commands += usize::from(is_ours),
                Err(error) => wrong.push(format!("{}:{number}: {line}: {error}", page.path.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 100, "only {commands} commands were found");
}

/// Commands within sentences may lack values (`gpushare-ctl set`), or have names in place of them.
#[test]
fn every_command_in_a_sentence_has_known_words_and_flags() {
    let (mut commands, mut wrong) = (0, Vec::new());
    for page in pages::all() {
        for span in page.spans() {
            // Of several choices, like `tail|grep`, the first one is taken.
            let words = span.replace("\\|", "|");
            let words = words.split_whitespace().map(|word| word.split('|').next().unwrap_or(word));
            match understood(&words.collect::<Vec<_>>().join(" ")) {
                Ok(is_ours) => commands += usize::from(is_ours),
                Err(error) => match error.kind() {
                    ErrorKind::UnknownArgument
                    | ErrorKind::InvalidSubcommand
                    | ErrorKind::ArgumentConflict => {
                        wrong.push(format!("{}: {span}: {error}", page.path.display()));
                    }
                    _ => commands += 1,
                },
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 50, "only {commands} commands were found");
}

/// Whether a command line of a shell calls `gpushare-ctl` by its short name.
fn is_short(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
    let mut words = line.split_whitespace();
    let is_short = words.next().is_some_and(|word| word.rsplit('/').next() == Some("gpushare"));
    is_short && words.next().is_some()
}

#[test]
fn pages_call_the_command_by_one_name() {
    let mut short = Vec::new();
    for page in pages::all() {
        let lines = page.commands().map(|(_, line)| line.to_owned());
        let found = lines.chain(page.spans()).filter(|line| is_short(line));
        short.extend(found.map(|line| format!("{}: {line}", page.path.display())));
    }
    assert!(short.is_empty(), "write gpushare-ctl:\n{}", short.join("\n"));
    assert!(is_short("$ sudo env/bin/gpushare top") && is_short("gpushare run") && !is_short("gpushare"));
    for page in ["README.md", "docs/start.md", "docs/install.md"] {
        let said = Page::read(page.as_ref())
            .prose()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(said.contains("`gpushare` is a short name for "), "{page} does not name the short name");
    }
}

#[test]
fn a_wrong_command_is_found() {
    let page =
        Page::of("x.md", "text\n```console\n$ gpushare-ctl status --json\n$ ls --json\n```\n`a` b `c`\n");
    let lines: Vec<_> = page.commands().collect();
    assert_eq!(lines, [(3, "$ gpushare-ctl status --json"), (4, "$ ls --json")]);
    assert_eq!(page.spans(), ["a", "c"]);
    for (line, is_ours) in [
        ("$ sudo env/bin/gpushare top --once | less --bad", true),
        ("NO_COLOR=1 gpushare-ctl status # --bad", true),
        ("gpushare-ctl run -- python train.py --bad &", true),
        ("cargo xtask demo --simulated", true),
        ("cargo test --bad", false),
    ] {
        assert_eq!(understood(line).ok(), Some(is_ours), "{line}");
    }
    for line in ["gpushare-ctl status --jsn", "gpushare-ctl stats", "gpushare-scheduler --bad"] {
        assert!(understood(line).is_err(), "{line}");
    }
}
