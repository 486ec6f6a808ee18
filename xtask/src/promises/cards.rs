//! Figures of real cards, as they were measured there once: docs/results/cards.toml.

use std::fs;

use anyhow::Context;
use gpushare_tests::cargo;
use serde::Deserialize;

use crate::promise::{Promise, Record};

#[derive(Deserialize)]
struct Cards {
    row: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    promise: String,
    op: String,
    promised: f64,
    #[serde(default)]
    tolerance: f64,
    measured: f64,
    #[serde(default)]
    unit: String,
    #[serde(flatten)]
    record: Record,
}

/// Reads the recorded promises, and judges them by what was measured then.
pub(super) fn recorded() -> anyhow::Result<Vec<Promise>> {
    let file = cargo::workspace().join("docs/results/cards.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let cards: Cards =
        toml::from_str(&text).with_context(|| format!("cannot understand {}", file.display()))?;
    let judge = |row: Row| {
        let Row { promise, op, promised, tolerance, measured, unit, record } = row;
        Promise::recorded(promise, &op, promised, tolerance, measured, unit, record)
    };
    cards.row.into_iter().map(judge).collect()
}
