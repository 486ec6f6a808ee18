//! `cargo xtask symbols`: how many of the driver's functions are wrapped, answered, passed and unsupported,
//! and whether one that NVIDIA's headers list, or libcudart asks for, has no row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::process::ExitCode;

use anyhow::ensure;
use gpushare_symbols::{Disposition, Variant, by_base, by_export, variants};
use serde::{Serialize, Serializer};

use crate::output::{progress, result};

mod headers;

/// Counts of the rows, and the differences from the headers.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    variants: usize,
    wrapped: usize,
    answered: usize,
    passed: usize,
    unsupported: usize,
    /// Listed by a header or asked for by libcudart, and nowhere here.
    #[serde(serialize_with = "count")]
    without_row: Vec<String>,
    /// Here, and in no header.
    #[serde(skip)]
    without_header: Vec<&'static str>,
    /// The releases whose headers were read.
    headers: Vec<&'static str>,
    /// How many variants each disposition has.
    #[serde(skip)]
    groups: BTreeMap<(&'static str, &'static str), usize>,
}

pub(crate) fn run(json: bool) -> anyhow::Result<ExitCode> {
    let listed = headers::fetch().unwrap_or_else(|error| {
        progress(format_args!(
            "warning: NVIDIA's headers cannot be had, so the rows are held against nothing: {error:#}"
        ));
        BTreeMap::new()
    });
    let outcome = Outcome::of(&listed);
    let complete = outcome.without_row.is_empty() && outcome.without_header.is_empty();
    result(&outcome, json)?;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For `ci-extra`: the headers must be had, and say what the rows say.
pub(crate) fn check() -> anyhow::Result<()> {
    let Outcome { without_row, without_header, .. } = Outcome::of(&headers::fetch()?);
    ensure!(without_row.is_empty(), "without a row: {without_row:?}");
    ensure!(without_header.is_empty(), "in no header: {without_header:?}");
    Ok(())
}

impl Outcome {
    fn of(releases: &BTreeMap<&'static str, headers::Release>) -> Self {
        let listed = || releases.values().flat_map(|release| &release.listed);
        let asked = || releases.values().flat_map(|release| &release.asked);
        let mut outcome = Self { headers: releases.keys().copied().collect(), ..Self::default() };
        for variant in variants() {
            outcome.add(variant);
        }
        let unlisted = listed().filter(|listed| !listed.has_row()).map(ToString::to_string);
        let unasked = asked().filter(|name| by_base(name).is_empty() && by_export(name).is_none());
        let without: BTreeSet<_> = unlisted.chain(unasked.cloned()).collect();
        outcome.without_row = without.into_iter().collect();
        if !releases.is_empty() {
            outcome.without_header = variants()
                .iter()
                .filter(|row| row.is_listed() && !listed().any(|listed| listed.is(row)))
                .map(|row| row.export)
                .collect();
        }
        outcome
    }

    fn add(&mut self, variant: &Variant) {
        self.variants += 1;
        let disposition = variant.disposition;
        *match disposition {
            Disposition::Wrapped(_) => &mut self.wrapped,
            Disposition::Answered(_) => &mut self.answered,
            Disposition::Passed(_) => &mut self.passed,
            Disposition::Refused(_) | Disposition::Unsupported(_) => &mut self.unsupported,
        } += 1;
        *self.groups.entry((disposition.word(), disposition.why())).or_default() += 1;
    }
}

fn count<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    list.len().serialize(serializer)
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((word, why), count) in &self.groups {
            writeln!(f, "{count:5}  {word:<12} {why}")?;
        }
        write!(f, "{:5}  variants; ", self.variants)?;
        match &self.headers[..] {
            [] => f.write_str("held against no header"),
            headers => write!(f, "held against the headers of CUDA {}", headers.join(", ")),
        }?;
        if !self.without_row.is_empty() {
            write!(f, "\nwithout a row: {}", self.without_row.join(", "))?;
        }
        if !self.without_header.is_empty() {
            write!(f, "\nin no header: {}", self.without_header.join(", "))?;
        }
        Ok(())
    }
}
