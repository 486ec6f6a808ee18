//! Length of the pages: words of the two that everyone reads, and lines that are too wide.

use std::fs;

use gpushare_tests::cargo;

use super::code::listed;
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

/// Columns of a line of prose.
const COLUMNS: usize = 110;

pub(super) const CHECK: Check = Check {
    name: "pages",
    effort: Effort::Counted,
    bounds: &[
        Bound::at_most("README.md: words", 800.0, "words"),
        Bound::at_most("ARCHITECTURE.md: words", 2000.0, "words"),
        Bound::at_most("Markdown lines above 110 columns", 0.0, "lines"),
    ],
    measure: || {
        let words = |file| -> anyhow::Result<f64> {
            let text = fs::read_to_string(cargo::workspace().join(file))?;
            Ok(text.split_whitespace().count() as f64)
        };
        let mut wide = 0;
        for file in listed("*.md")? {
            let text = fs::read_to_string(cargo::workspace().join(&file))?;
            for number in wide_lines(&text) {
                progress(format_args!("{file}:{number} is wider than {COLUMNS} columns"));
                wide += 1;
            }
        }
        Ok(vec![words("README.md")?, words("ARCHITECTURE.md")?, f64::from(wide)])
    },
};

/// Numbers of the lines that are too wide; tables, code and lines with a URL may be.
fn wide_lines(text: &str) -> Vec<usize> {
    let mut code = false;
    let mut wide = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        if start.starts_with("```") {
            code = !code;
        }
        let may = code || start.starts_with('|') || line.contains("://");
        if !may && line.chars().count() > COLUMNS {
            wide.push(number);
        }
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_code_and_urls_may_be_wide() {
        let long = "ü".repeat(COLUMNS + 1);
        let text = format!("{}\n| {long} |\n```\n{long}\n```\nhttps://{long}\n{long}\n", "x".repeat(COLUMNS));
        assert_eq!(wide_lines(&text), [7]);
    }
}
