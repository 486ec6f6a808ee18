//! `cargo xtask promises`: measures every promise of the project, and keeps docs/results/scoreboard.md.
//!
//! ```text
//!   CHECKS ── those that are wanted ─▶ values ─▶ judged against their bounds ─▶ table or JSON, exit code
//!   docs/results/cards.toml: figures of real cards, with card and date ─┘  └─▶ scoreboard.md: lines of what ran are replaced
//! ```
//!
//! With `--quick` only values that are counted or computed in virtual time are measured. The others are
//! skipped, and their lines of the scoreboard stay as they are.

use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;

use crate::load::beside_others;
use crate::output::{progress, result};
use crate::promise::{Check, Effort, Promises};
use crate::{bench, chaos, demo, fuzz, scenario, sim};

mod cards;
mod code;
mod pages;
mod scoreboard;

#[cfg(test)]
pub(crate) use code::listed;

/// Options of `cargo xtask promises`.
#[derive(Args)]
pub(crate) struct Options {
    /// Measure only what is counted or computed in virtual time, and skip the rest
    #[arg(long)]
    quick: bool,
    /// Measure only the check of this name, like `thrash`; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// All checks, those first that need no idle machine.
fn checks() -> Vec<Check> {
    let mut checks = vec![pages::CHECK, code::CHECK, sim::CHECK, sim::CLUSTER, fuzz::CHECK];
    checks.extend(bench::CHECKS);
    checks.extend(scenario::CHECKS);
    checks.extend([demo::CHECK, chaos::CHECK]);
    checks
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let mut checks = checks();
    if !options.only.is_empty() {
        let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        let unknown = options.only.iter().find(|name| !names.contains(&name.as_str()));
        ensure!(unknown.is_none(), "there is no check {unknown:?}; there are {}", names.join(", "));
        checks.retain(|check| options.only.iter().any(|name| name == check.name));
    }
    let mut promises = measure(&checks, options.quick);
    if options.only.is_empty() {
        promises.rows.extend(cards::recorded()?);
    }
    scoreboard::update(&promises)?;
    result(&promises, json)?;
    Ok(promises.exit_code())
}

/// For `ci-extra`: counted values hold. The scoreboard stays as it is.
pub(crate) fn check() -> anyhow::Result<()> {
    let promises = measure(&checks(), true);
    let broken = promises.broken();
    ensure!(broken.is_empty(), "broken promises: {}", broken.join("; "));
    Ok(())
}

fn measure(checks: &[Check], quick: bool) -> Promises {
    let mut promises = Promises::default();
    for check in checks {
        let rows = if quick && check.effort == Effort::Timed {
            check.skip()
        } else {
            progress(format_args!("promises: {}", check.name));
            match check.effort {
                Effort::Timed => beside_others(|| check.judge()),
                Effort::Counted => check.judge(),
            }
        };
        promises.rows.extend(rows.rows);
    }
    promises
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_promise_has_a_name_of_its_own() {
        let names: Vec<String> = checks()
            .iter()
            .flat_map(|check| check.bounds)
            .map(|bound| bound.name.to_owned())
            .chain(cards::recorded().unwrap().into_iter().map(|row| row.name))
            .collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }
}
