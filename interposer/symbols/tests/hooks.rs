//! Checks that the hooks, which are the lines of `interposer/src/`, are exactly the rows with a hooked
//! disposition.
//!
//! The lines are read as text, because a test that links the library would get its `dlsym`.

use std::collections::BTreeSet;
use std::fs;

use gpushare_symbols::{by_export, variants};

#[test]
fn the_hooks_are_exactly_the_hooked_rows() {
    let hooks = hooks();
    assert!(hooks.len() > 100, "only {} hooks found", hooks.len());
    let is_hooked = |export: &str| by_export(export).is_some_and(|row| row.disposition.is_hooked());
    let without_row: Vec<_> = hooks.iter().filter(|export| !is_hooked(export)).collect();
    assert!(without_row.is_empty(), "hooks without a row that says so: {without_row:?}");
    let hooked = variants().iter().filter(|row| row.disposition.is_hooked());
    let missing: Vec<_> = hooked.filter(|row| !hooks.contains(row.export)).map(|row| row.export).collect();
    assert!(missing.is_empty(), "without a hook: {missing:?}");
}

/// The exports of every hook.
fn hooks() -> BTreeSet<String> {
    let mut hooks = BTreeSet::new();
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../src")).unwrap() {
        for export in exports(&fs::read_to_string(entry.unwrap().path()).unwrap()) {
            assert!(hooks.insert(export.clone()), "{export} is hooked twice");
        }
    }
    hooks
}

/// The exports that the `hooks! { ... }` of a source names. A line is `VIA EXPORT... (ARGUMENTS);`, without
/// braces.
fn exports(source: &str) -> Vec<String> {
    let code: Vec<_> = source
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect();
    let blocks = code.join(" ");
    let blocks = blocks.split("hooks! {").skip(1).filter_map(|rest| rest.split_once('}'));
    let lines = blocks
        .flat_map(|(block, _)| block.split(';'))
        .filter(|line| !line.trim().is_empty());
    lines
        .flat_map(|line| names(line).unwrap_or_else(|| panic!("no exports in {line}")))
        .collect()
}

/// The words between a line's family and its arguments, the last parentheses.
fn names(line: &str) -> Option<Vec<String>> {
    let mut depth = 0;
    let open = line.char_indices().rev().find_map(|(at, letter)| {
        depth += i32::from(letter == ')') - i32::from(letter == '(');
        (letter == '(' && depth == 0).then_some(at)
    })?;
    let head = line[..open].trim();
    let (_, names) = head.rsplit_once(']').or_else(|| head.split_once(' '))?;
    Some(names.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_line_with_everything_in_it_is_understood() {
    let source = "hooks! {\n // gated\n [hook: Kind::One(2), size] cuX_v2\n cuX_v2_ptsz(\n f: *mut (u8, u8) // bytes\n );
                  gated cuY(a: u8);\n}\n";
    assert_eq!(exports(source), ["cuX_v2", "cuX_v2_ptsz", "cuY"]);
}
