//! docs/symbols.md, made of the rows.

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

What gpushare does when a program calls a function of the CUDA driver: all {} of them, from CUDA 12.0 to {NEWEST}. This page is
made of the table in `interposer/symbols/`; do not edit it, run
`GPUSHARE_REGENERATE=1 cargo test -p gpushare-symbols --test page` after changing that. `cargo xtask symbols` counts
the rows and holds them against NVIDIA's headers.

A function that is not here is one of a driver newer than this table. When a program is handed one, gpushare passes it through, and the
program's memory can no longer be moved off the card safely: `gpushare-ctl status` names the function.

Behind each export stands the CUDA version that introduced it; `_ptsz` and `_ptds` are the twins for the per-thread default
stream.
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
            let mut base = "";
            for row in of_reason {
                let start = if row.base == base {
                    ","
                } else if base.is_empty() {
                    "-"
                } else {
                    "\n-"
                };
                base = row.base;
                write!(page, "{start} `{}`", row.export).unwrap();
                if row.is_listed() {
                    write!(page, " {}", row.version).unwrap();
                }
            }
            page.push('\n');
        }
    }
    page
}

/// A section's title, what it is about, and which rows it has.
type Section = (&'static str, &'static str, fn(Disposition) -> bool);

const SECTIONS: [Section; 4] = [
    ("Wrapped", "A hook stands in front of the driver's function.", |what| {
        matches!(what, Disposition::Wrapped(_))
    }),
    (
        "Answered",
        "A hook answers from gpushare's own tables, instead of the driver or over its answer.",
        |what| matches!(what, Disposition::Answered(_)),
    ),
    (
        "Unsupported",
        "What gpushare cannot follow. Refused calls return `CUDA_ERROR_NOT_SUPPORTED`; the others reach the driver.",
        |what| matches!(what, Disposition::Refused(_) | Disposition::Unsupported(_)),
    ),
    ("Passed", "The driver is called as if gpushare were not there.", |what| {
        matches!(what, Disposition::Passed(_))
    }),
];

/// The reasons of these rows: of families in the order of the table, others by name.
fn reasons(rows: &[&Variant]) -> Vec<&'static str> {
    let place = |why: &str| Family::ALL.iter().position(|family| family.does() == why);
    let mut reasons: Vec<_> = rows.iter().map(|row| row.disposition.why()).collect();
    reasons.sort_by_key(|why| (place(why), *why));
    reasons.dedup();
    reasons
}
