//! Answers of `cuGetProcAddress` to a program that starts like libcudart, with and without gpushare.
//!
//! ```text
//! NAMES ──> libcudart_start ──────────────────────> libcuda      NAME VERSION FLAGS  libcuda.so.1  cuLaunchKernel_ptsz
//!      └──> libcudart_start + libgpushare.so ─────> libcuda      NAME VERSION FLAGS  libgpushare   cuLaunchKernel_ptsz
//! ```
//!
//! The driver's own answer is the judge: its code and status must not change, and where it points to an
//! export that libgpushare.so has too, that very export of libgpushare.so must be answered; anything else
//! must stay as it is, to the byte.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::artifacts::Part;
use crate::foreign;
use crate::process::output_of;
use crate::world::{Sharing, World};

/// The library whose answers stand for the driver's.
const OURS: &str = "libgpushare.so";

/// Result of comparing the lookups without gpushare and with it.
#[derive(Debug, Default)]
pub struct Lookups {
    /// How many lookups were compared.
    pub compared: usize,
    /// The exports of libgpushare.so that were answered.
    pub ours: BTreeSet<String>,
    /// How many pointers were the driver's own.
    pub passed: usize,
    /// How many lookups found nothing, with and without gpushare.
    pub nothing: usize,
    /// Lookups that were answered wrongly, as the program printed them without and with gpushare.
    pub wrong: Vec<(String, String)>,
    /// Output of the program's own work with gpushare.
    pub word: String,
}

/// Asks for every name of a file (a base name and versions on each line) both ways.
pub fn compare(world: &World, names: &Path) -> anyhow::Result<Lookups> {
    let program = foreign::program(world, "libcudart_start")?;
    let ask = |sharing: &Sharing| {
        let mut command = world.sharing(sharing, &program);
        command.arg(names);
        if *sharing != Sharing::Native {
            command.arg(world.path(Part::Library));
        }
        output_of(command)
    };
    let (native, shared) = (ask(&Sharing::Native)?, ask(&Sharing::Preload)?);
    ensure!(
        native.lines().count() == shared.lines().count(),
        "{} lookups without gpushare and {} with it",
        native.lines().count(),
        shared.lines().count()
    );
    let mut lookups = Lookups::default();
    for (native, shared) in native.lines().zip(shared.lines()) {
        lookups.add(native, shared)?;
    }
    Ok(lookups)
}

/// A line of the program.
struct Line<'a> {
    /// Text of one lookup: its question, code and status.
    answer: Vec<&'a str>,
    /// The library that the pointer leads to.
    file: &'a str,
    /// Where in it.
    place: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> anyhow::Result<Self> {
        let mut words = line.split_whitespace();
        let answer: Vec<_> = words.by_ref().take(5).collect();
        let file = words.next().with_context(|| format!("no lookup: {line}"))?;
        Ok(Self { answer, file, place: words.collect() })
    }
}

impl Lookups {
    fn add(&mut self, native: &str, shared: &str) -> anyhow::Result<()> {
        let (driver, answer) = (Line::parse(native)?, Line::parse(shared)?);
        self.compared += 1;
        if native.starts_with("word ") {
            shared.clone_into(&mut self.word);
        }
        let same_words = driver.answer == answer.answer && driver.place == answer.place;
        if !same_words || (answer.file != driver.file && answer.file != OURS) {
            self.wrong.push((native.to_owned(), shared.to_owned()));
        } else if answer.file == OURS {
            self.ours.extend(answer.place.first().map(|&export| export.to_owned()));
        } else if answer.file == "-" {
            self.nothing += 1;
        } else {
            self.passed += 1;
        }
        Ok(())
    }
}
