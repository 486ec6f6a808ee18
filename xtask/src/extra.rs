//! `cargo xtask ci-extra`: the checks that need other tools than Rust and a C linker. A tool that is
//! missing is installed; where that is not possible its check fails, so that no check is ever skipped unseen.

use std::fmt;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use crate::k8s::chart;
use crate::output::{progress, result};

mod clients;

mod notebooks;
mod dashboard;

mod grafana;

mod loom;

mod python;

mod quiet;

mod suite;

mod floor;

mod musl;

mod elsewhere;

mod aarch64;

mod packages;

/// One check: its name, and what it does.
type Check = (&'static str, fn() -> anyhow::Result<()>);

const CHECKS: [Check; 17] = [
    ("loom: the gate under every interleaving", loom::check),
    ("quiet: a program without CUDA notices nothing", quiet::check),
    ("python: ctypes shares the simulated card", python::check),
    ("clients: NVIDIA's packages say what they say natively", clients::packages),
    ("notebooks: kernels of Jupyter take turns, and Ctrl-C ends a wait", notebooks::check),
    ("dashboard: a browser shows the page, and changes a setting by keyboard", dashboard::check),
    ("grafana: Prometheus reads the queries, and the alerts fire in their tests", grafana::check),
    (
        "chart: Kubernetes' schemas accept what it makes, wrong values are refused, and the image is built",
        chart::check,
    ),
    ("book: mdbook, as it was looked at, builds the documentation without a warning", crate::book::check),
    ("symbols: every function of CUDA's headers has a row, and every row a header", crate::symbols::check),
    ("chaos: nothing is lost and no program hangs while things break", crate::chaos::check),
    ("promises: counted values and virtual times keep their bounds", crate::promises::check),
    ("suite: the real card's suite judges as it should", suite::check),
    ("floor: what is shipped asks for no glibc newer than 2.17, and does what the tests say", floor::check),
    ("packages: docs/install.md is followed, up to a machine with systemd", packages::check),
    ("musl: neither way of preloading harms a program of musl", musl::check),
    ("aarch64: built, linted, and shares the card in emulation", aarch64::check),
];

#[derive(Debug, Default, Serialize)]
struct Outcome {
    passed: usize,
    failed: usize,
}

/// Choice of checks.
#[derive(Args)]
pub(crate) struct Options {
    /// Only the checks of these names, like `musl`; all without any
    checks: Vec<String>,
    /// Leave out a check; may be given several times
    #[arg(long, value_name = "CHECK", conflicts_with = "checks")]
    skip: Vec<String>,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let mut outcome = Outcome::default();
    let short = |name: &'static str| name.split(':').next().unwrap_or(name);
    for wanted in options.checks.iter().chain(&options.skip) {
        let known = CHECKS.map(|(name, _)| short(name));
        ensure!(
            known.contains(&wanted.as_str()),
            "there is no check {wanted}; there are {}",
            known.join(", ")
        );
    }
    let named = |names: &[String], name| names.iter().any(|named| named == short(name));
    let wanted =
        |name| !named(&options.skip, name) && (options.checks.is_empty() || named(&options.checks, name));
    for (name, check) in CHECKS.into_iter().filter(|(name, _)| wanted(*name)) {
        let start = Instant::now();
        let (word, count) = match check() {
            Ok(()) => ("ok".to_owned(), &mut outcome.passed),
            Err(error) => (format!("FAILED: {error:#}"), &mut outcome.failed),
        };
        *count += 1;
        progress(format_args!("{name} ... {word} ({:.1} s)", start.elapsed().as_secs_f64()));
    }
    result(&outcome, json)?;
    Ok(if outcome.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}
