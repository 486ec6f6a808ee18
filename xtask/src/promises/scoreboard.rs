//! docs/results/scoreboard.md: a table of all promises with the machine, date and commit of the latest run
//! of each.
//!
//! The page is also its own memory: lines of promises that were not measured now are taken over as they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::{fs, thread};

use anyhow::Context;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use super::{cards, checks};
use crate::promise::{Promise, Promises};

const HEAD: &str = "\
# Scoreboard

Every promise of gpushare, with its bound and the latest measurement. `cargo xtask promises` measures all of
them and writes this page; `--only NAME` does so for one check, `--quick` for those that need no idle machine.
A bound is a ratio within one run or a counted quantity. A map lookup is a lookup in a hash map of a thousand
numbers behind a mutex, timed in the same run. Unless a row says otherwise, measurements are of the
[simulated card](../simulated-card.md), and no result of a GPU.

| promise | bound | measured | holds | machine | date | commit |
|---|---|---|---|---|---|---|
";

const CARDS: &str = "
## Real cards

Figures that were measured on a real card at the given date. They are recorded in `cards.toml`, and not
measured by the command above.

| promise | bound | measured | held | card, driver | command | date | commit |
|---|---|---|---|---|---|---|---|
";

/// Writes the page with new lines for the measured promises.
pub(super) fn update(promises: &Promises) -> anyhow::Result<()> {
    let file = page();
    let old = fs::read_to_string(&file).unwrap_or_default();
    let stamp = format!("{} | {} | {}", machine()?, date()?, commit()?);
    let names: Vec<&str> = checks().iter().flat_map(|check| check.bounds).map(|bound| bound.name).collect();
    let text = text(&old, &names, promises, &stamp, &cards::recorded()?);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn page() -> PathBuf {
    cargo::workspace().join("docs/results/scoreboard.md")
}

/// The page: a line for each of `names`, new if it was measured now, else taken over.
fn text(old: &str, names: &[&str], promises: &Promises, stamp: &str, recorded: &[Promise]) -> String {
    let old: BTreeMap<&str, &str> = old
        .lines()
        .filter_map(|line| Some((line.strip_prefix("| ")?.split(" | ").next()?, line)))
        .collect();
    let measured = promises.rows.iter().filter(|row| !row.skipped && row.record.is_none());
    let measured: BTreeMap<&str, &Promise> = measured.map(|row| (row.name.as_str(), row)).collect();
    let mut page = HEAD.to_owned();
    for name in names {
        let _ = match (measured.get(name), old.get(name)) {
            (Some(row), _) => writeln!(page, "{} | {stamp} |", cells(row)),
            (None, Some(line)) => writeln!(page, "{line}"),
            (None, None) => writeln!(page, "| {name} | | | not measured yet | | | |"),
        };
    }
    page.push_str(CARDS);
    for row in recorded {
        if let Some(record) = &row.record {
            let _ = writeln!(
                page,
                "{} | {}, {} | `{}` | {} | {} |",
                cells(row),
                record.card,
                record.driver,
                record.command,
                record.date,
                record.commit
            );
        }
    }
    page
}

fn cells(row: &Promise) -> String {
    let verdict = match row.holds {
        Some(true) => "yes",
        _ => "**no**",
    };
    format!("| {} | {} | {} | {verdict}", row.name, row.bound(), row.value())
}

fn machine() -> anyhow::Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = thread::available_parallelism()?;
    Ok(format!("{cores} cores, {}", model.unwrap_or("unknown processor").trim()))
}

fn date() -> anyhow::Result<String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%d"]);
    Ok(output_of(date)?.trim().to_owned())
}

/// Short hash of the commit, and whether files differ from it.
fn commit() -> anyhow::Result<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(cargo::workspace()).args(arguments);
        output_of(git)
    };
    let hash = git(&["rev-parse", "--short", "HEAD"])?.trim().to_owned();
    let changed = git(&["status", "--porcelain", "--", ".", ":!docs/results/scoreboard.md"])?;
    Ok(if changed.trim().is_empty() { hash } else { format!("{hash} with changes") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promise::Bound;

    #[test]
    fn the_page_shows_what_is_recorded_of_real_cards() {
        let shown = fs::read_to_string(page()).unwrap();
        let names: Vec<&str> =
            checks().iter().flat_map(|check| check.bounds).map(|bound| bound.name).collect();
        let again = text(&shown, &names, &Promises::default(), "", &cards::recorded().unwrap());
        assert!(shown == again, "cards.toml has changed: cargo xtask promises --only pages");
    }

    #[test]
    fn lines_that_were_not_measured_stay() {
        let row = |name| Bound::at_most(name, 1.0, "×").judge(2.0);
        let old = "| a | ≤ 1 × | 0.5 × | yes | m | d | c |\n| gone | ≤ 1 | 0 | yes | m | d | c |\n";
        let page = text(old, &["a", "b", "c"], &Promises { rows: vec![row("b")] }, "m | d2 | c2", &[]);
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
        assert_eq!(
            lines[1..4],
            [
                "| a | ≤ 1 × | 0.5 × | yes | m | d | c |",
                "| b | ≤ 1 × | 2 × | **no** | m | d2 | c2 |",
                "| c | | | not measured yet | | | |",
            ]
        );
        assert!(!page.contains("gone"));
    }
}
