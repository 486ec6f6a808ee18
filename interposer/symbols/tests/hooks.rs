//! The rows that are wrapped, answered or refused are exactly the hooks: the lines of `interposer/src/`.
//!
//! They are read as text, because the library that they make takes over `dlsym` in every program it is in.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gpushare_symbols::{Variant, by_export, variants};

/// What a line says of a variant.
#[derive(Debug, PartialEq, Eq)]
struct Hook {
    base: String,
    version: u32,
    per_thread: bool,
}

#[test]
fn every_hook_has_a_row_of_the_same_base_version_and_stream() {
    let hooks = hooks();
    assert!(hooks.len() > 100, "only {} hooks found", hooks.len());
    let wrong: Vec<_> = hooks
        .iter()
        .filter(|(export, hook)| {
            by_export(export).is_none_or(|row| hook_of(row) != **hook || !row.disposition.is_hooked())
        })
        .map(|(export, hook)| (export, hook, by_export(export)))
        .collect();
    assert!(wrong.is_empty(), "hooks whose rows say something else: {wrong:#?}");
}

#[test]
fn every_row_that_is_hooked_has_its_hook() {
    let hooks = hooks();
    let missing: Vec<_> = variants()
        .iter()
        .filter(|row| row.disposition.is_hooked() && !hooks.contains_key(row.export))
        .map(|row| row.export)
        .collect();
    assert!(missing.is_empty(), "without a hook: {missing:?}");
}

fn hook_of(row: &Variant) -> Hook {
    Hook { base: row.base.to_owned(), version: row.version.0, per_thread: row.per_thread() }
}

/// Every hook, by export.
fn hooks() -> BTreeMap<String, Hook> {
    let mut hooks = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"), &mut hooks);
    hooks
}

fn read(folder: &Path, hooks: &mut BTreeMap<String, Hook>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, hooks);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            for line in lines(&source) {
                parse(&line, hooks);
            }
        }
    }
}

/// The lines of all `hooks! { ... }` of a source, without comments. They hold no braces and no strings.
fn lines(source: &str) -> Vec<String> {
    let code: Vec<_> = source
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect();
    let code = code.join(" ");
    code.split("hooks! {")
        .skip(1)
        .filter_map(|rest| rest.split_once('}'))
        .flat_map(|(block, _)| block.split(';').map(str::to_owned).collect::<Vec<_>>())
        .filter(|line| !line.trim().is_empty())
        .collect()
}

/// `VIA BASE(ARGUMENTS) = VERSION [TWIN] EXPORT, ...`
fn parse(line: &str, hooks: &mut BTreeMap<String, Hook>) {
    let (call, list) = line.rsplit_once('=').unwrap_or_else(|| panic!("no `=` in {line}"));
    let base = base_of(call).unwrap_or_else(|| panic!("no base name in {line}"));
    for variant in list.split(',') {
        let words: Vec<_> = variant.split_whitespace().collect();
        let (version, per_thread, export) = match words[..] {
            [version, export] => (version, false, export),
            [version, _twin, export] => (version, true, export),
            _ => panic!("no variant: {variant} in {line}"),
        };
        let hook = Hook {
            base: base.to_owned(),
            version: version.replace('_', "").parse().unwrap(),
            per_thread,
        };
        let twice = hooks.insert(export.to_owned(), hook);
        assert!(twice.is_none(), "{export} is hooked twice");
    }
}

/// The name in front of the last parentheses.
fn base_of(call: &str) -> Option<&str> {
    let mut depth = 0;
    let open = call.char_indices().rev().find_map(|(at, letter)| {
        depth += i32::from(letter == ')') - i32::from(letter == '(');
        (letter == '(' && depth == 0).then_some(at)
    })?;
    call[..open].split_whitespace().last()
}

#[test]
fn a_line_with_everything_in_it_is_understood() {
    let source = "hooks! {\n // gated\n [hook: Kind::One(2), size] cuX(\n f: *mut (u8, u8), size: usize // bytes\n ) = \
                  3020 cuX_v2, 12_000 ptsz cuX_v2_ptsz;\n}\n";
    let mut hooks = BTreeMap::new();
    for line in lines(source) {
        parse(&line, &mut hooks);
    }
    let hook = |version, per_thread| Hook { base: "cuX".to_owned(), version, per_thread };
    assert_eq!(
        hooks,
        BTreeMap::from([
            ("cuX_v2".to_owned(), hook(3020, false)),
            ("cuX_v2_ptsz".to_owned(), hook(12_000, true)),
        ])
    );
}
