//! Test of docs/troubleshooting.md: the messages that it quotes are those of the programs.

use std::fs;
use std::path::Path;

use gpushare_tests::cargo;

use super::pages::Page;
use crate::promises::listed;

/// Returns the text of all sources of the product, with Rust's broken strings in one line.
fn sources() -> String {
    let mut text = String::new();
    for path in listed("*.rs").unwrap() {
        if ["ctl/", "scheduler/", "interposer/", "proto/"]
            .iter()
            .any(|part| path.starts_with(part))
        {
            text += &fs::read_to_string(cargo::workspace().join(path)).unwrap();
        }
    }
    let lines = text.split("\\\n").enumerate();
    lines
        .map(|(number, line)| if number == 0 { line } else { line.trim_start() })
        .collect()
}

#[test]
fn every_quoted_message_is_one_of_the_programs() {
    let sources = sources();
    let page = Page::read(Path::new("docs/troubleshooting.md"));
    let prose = page.prose();
    // The first cell of a row has the message.
    let cells = prose.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let mut quoted = 0;
    for part in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        assert!(sources.contains(part), "no program says `{part}`");
        quoted += 1;
    }
    assert!(quoted > 30, "only {quoted} messages were found");
}
