//! Test and generator of the tables of checks in docs/doctor.md.

use super::checks::{CHECKS, Check, Group};

/// Returns the tables of all checks in Markdown.
fn tables() -> String {
    let mut page = String::new();
    for &group in Group::ALL {
        page += &format!("\n## {}\n\n| check | looks at | bad if |\n|---|---|---|\n", group.title());
        for Check { id, looks_at, bad_if, .. } in CHECKS.iter().filter(|check| check.group == group) {
            page += &format!("| `{id}` | {looks_at} | {bad_if} |\n");
        }
    }
    page
}

/// The page ends with the tables, from the heading of the first group on.
#[test]
fn the_page_has_the_tables_of_the_checks() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.md");
    let page = std::fs::read_to_string(path).unwrap();
    let first = format!("\n## {}\n", Group::ALL[0].title());
    let (introduction, _) = page.split_once(&first).unwrap();
    let whole = introduction.to_owned() + &tables();
    if std::env::var_os("GPUSHARE_REGENERATE").is_some() {
        std::fs::write(path, whole).unwrap();
    } else {
        assert!(
            page == whole,
            "docs/doctor.md differs from the table of checks; run `GPUSHARE_REGENERATE=1 cargo test -p gpushare-ctl \
             doctor::docs` and commit it"
        );
    }
}
