//! `docs/symbols.md`, generated from the symbol table.

use std::fmt::Write as _;
use std::{env, fs};

use gpushare_symbols::{Disposition, Family, NEWEST, Variant, variants};

#[test]
fn the_committed_page_is_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/symbols.md");
    if env::var_os("GPUSHARE_REGENERATE").is_some() {
        fs::write(path, page()).unwrap();
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == page(),
        "docs/symbols.md is not what the table says; run \
         `GPUSHARE_REGENERATE=1 cargo test -p gpushare-symbols --test page` and commit it"
    );
}

#[test]
fn every_export_is_on_the_page_once() {
    let page = page();
    for variant in variants() {
        let name = format!("`{}`", variant.export);
        assert_eq!(page.matches(&name).count(), 1, "{name}");
    }
}

fn page() -> String {
    let mut page = format!(
        "# Driver functions

This page lists all {} functions of the CUDA driver from CUDA 12.0 to {NEWEST}, and what gpushare does about
each. It is generated from the table in `interposer/symbols/`. To change it, change the table and run
`GPUSHARE_REGENERATE=1 cargo test -p gpushare-symbols --test page`. `cargo xtask symbols` compares the table
with NVIDIA's headers.

A function that is missing here belongs to a newer driver. gpushare passes such a function through without
knowing what it does: memory that it allocates is not charged, and work that it starts does not pass the gate.
`gpushare-ctl status` names the unknown functions that a process obtained.

The CUDA version that introduced an export follows its name. `_ptsz` and `_ptds` mark the variants for the
per-thread default stream.
",
        variants().len()
    );
    for (title, about, has) in SECTIONS {
        let rows: Vec<_> = variants().iter().filter(|row| has(row.disposition)).collect();
        if rows.is_empty() {
            continue;
        }
        write!(page, "\n## {title}\n\n{about}\n").unwrap();
        for why in reasons(&rows) {
            let mut first = why.chars();
            let capital = first.next().map_or(String::new(), |letter| letter.to_uppercase().to_string());
            write!(page, "\n{capital}{}:\n\n", first.as_str()).unwrap();
            let of_reason = rows.iter().filter(|row| row.disposition.why() == why);
            let mut of_base: Vec<(&str, Vec<String>)> = Vec::new();
            for row in of_reason {
                let version = if row.is_listed() { format!(" {}", row.version) } else { String::new() };
                let export = format!("`{}`{version}", row.export);
                match of_base.last_mut() {
                    Some((base, exports)) if *base == row.base => exports.push(export),
                    _ => of_base.push((row.base, vec![export])),
                }
            }
            for (_, exports) in of_base {
                page.push_str(&item(&exports));
            }
        }
    }
    page
}

/// A list item with lines of at most 110 columns.
fn item(exports: &[String]) -> String {
    let (mut item, mut line) = (String::new(), String::from("-"));
    for (at, export) in exports.iter().enumerate() {
        let comma = if at + 1 < exports.len() { "," } else { "" };
        if line.len() + 1 + export.len() + comma.len() > 110 {
            item += &format!("{line}\n");
            line = String::from(" ");
        }
        line += &format!(" {export}{comma}");
    }
    item + &line + "\n"
}

/// Title of a section, its introduction, and the condition for its rows.
type Section = (&'static str, &'static str, fn(Disposition) -> bool);

const SECTIONS: [Section; 4] = [
    ("Wrapped", "A hook runs before and after the driver's function.", |what| {
        matches!(what, Disposition::Wrapped(_))
    }),
    ("Answered", "A hook answers from gpushare's own tables, or changes the driver's answer.", |what| {
        matches!(what, Disposition::Answered(_))
    }),
    (
        "Unsupported",
        "gpushare cannot account for these functions. Refused calls return `CUDA_ERROR_NOT_SUPPORTED`.\nThe others reach the driver.",
        |what| matches!(what, Disposition::Refused(_) | Disposition::Unsupported(_)),
    ),
    ("Passed", "The driver is called directly.", |what| matches!(what, Disposition::Passed(_))),
];

/// Reasons of these rows: families in the order of the table, then others by name.
fn reasons(rows: &[&Variant]) -> Vec<&'static str> {
    let place = |why: &str| Family::ALL.iter().position(|family| family.does() == why);
    let mut reasons: Vec<_> = rows.iter().map(|row| row.disposition.why()).collect();
    reasons.sort_by_key(|why| (place(why), *why));
    reasons.dedup();
    reasons
}
