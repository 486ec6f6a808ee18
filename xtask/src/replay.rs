//! `replay FILE`: does again, event by event, what a recorded daemon did, and says where it broke a rule.
//!
//! ```text
//!   gpushare-scheduler --record FILE ──▶ lines ──▶ the core of this checkout ──▶ decisions, one line per event
//!                                                        │ invariants
//!                                                        └──▶ the first that is broken, with its line: exit 1
//! ```
//!
//! A replay that decides otherwise than the daemon did ends with exit 1 too: either the recording is of
//! another version, or something besides its events went into a decision. So does a recording that is not
//! as the daemon wrote it.

pub(crate) mod recording;
mod words;

use std::fmt;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use gpushare_core::Effect;
use gpushare_core::harness::Harness;
use gpushare_core::invariants::Broken;
use gpushare_core::log::{Fingerprint, Handled};
use gpushare_proto::Nanos;
use serde::Serialize;

use recording::{Ending, Next, Recording};
use words::words;

/// Which recording.
#[derive(Args)]
pub(crate) struct Options {
    /// Recording that `gpushare-scheduler --record` wrote
    file: PathBuf,
}

/// Result of a replay.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Report {
    /// The gpushare that was recorded.
    version: String,
    events: u64,
    effects: u64,
    /// The first rule that did not hold.
    broken: Option<Break>,
    /// The first line at which the daemon did something else.
    diverged_at_line: Option<u64>,
    /// The first line that is not what the daemon wrote there.
    altered_at_line: Option<u64>,
    ending: Ending,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Break {
    line: u64,
    rule: String,
    found: String,
}

impl Report {
    fn is_clean(&self) -> bool {
        self.broken.is_none() && self.diverged_at_line.is_none() && self.altered_at_line.is_none()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, effects, .. } = self;
        match &self.ending {
            Ending::Said(reason) => writeln!(f, "the recording ends: {reason}")?,
            Ending::Nothing => writeln!(f, "the recording just ends: the daemon was killed")?,
            Ending::Truncated { line } => writeln!(
                f,
                "the recording ends within line {line}, which is left out: the daemon was killed, or the file copied \
                 while it was written"
            )?,
        }
        if let Some(line) = self.altered_at_line {
            writeln!(
                f,
                "line {line} is not what the daemon wrote there: it was changed, repeated or moved, or the line \
                 before it is missing"
            )?;
        }
        if let Some(line) = self.diverged_at_line {
            let (theirs, ours) = (&self.version, env!("CARGO_PKG_VERSION"));
            writeln!(
                f,
                "line {line} has other effects than the daemon's; it was gpushare {theirs}, this is {ours}"
            )?;
        }
        match &self.broken {
            Some(Break { line, rule, found }) => write!(f, "broken in line {line}: {rule}: {found}"),
            None => write!(f, "{events} events, {effects} effects, no rule broken"),
        }
    }
}

/// Replays a recording.
pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let mut recording = Recording::open(&options.file)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let result = replay(&mut recording, json, &mut out).and_then(|report| {
        if json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{report}")?;
        }
        out.flush()?;
        Ok(report)
    });
    match result {
        Ok(report) if report.is_clean() => Ok(ExitCode::SUCCESS),
        Ok(_) => Ok(ExitCode::FAILURE),
        Err(error) if is_hang_up(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    }
}

/// Whether the reader of the output has closed it.
fn is_hang_up(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Tells every decision until the end or the first broken rule.
fn replay(recording: &mut Recording, json: bool, out: &mut impl Write) -> anyhow::Result<Report> {
    let header = recording.header().clone();
    let mut machine = Harness::new(header.machine(), header.started);
    let mut report = Report {
        version: header.version.clone(),
        events: 0,
        effects: 0,
        broken: None,
        diverged_at_line: None,
        altered_at_line: None,
        ending: Ending::Nothing,
    };
    loop {
        let next = recording.next()?;
        report.altered_at_line = recording.altered_at_line();
        let (line, handled) = match next {
            Next::Event(line, handled) => (line, handled),
            Next::Ended(ending) => {
                report.ending = ending;
                return Ok(report);
            }
        };
        report.events += 1;
        let before = std::mem::replace(&mut machine.now, handled.now);
        // A machine that panics has broken its first rule, and its line is what one looks for.
        let step = catch_unwind(AssertUnwindSafe(|| machine.step(handled.event)));
        let Ok((effects, rules)) = step else {
            tell(out, json, header.started, line, &handled, &[])?;
            report.broken = Some(Break {
                line,
                rule: "no event panics the machine".to_owned(),
                found: words(&handled.event)?,
            });
            return Ok(report);
        };
        tell(out, json, header.started, line, &handled, &effects)?;
        report.effects += effects.len() as u64;
        if handled.effects.is_some_and(|recorded| recorded != Fingerprint::of(&effects)) {
            report.diverged_at_line.get_or_insert(line);
        }
        let back = (handled.now < before).then(|| Broken {
            rule: "time does not run backwards",
            found: format!("{} ns after {} ns", handled.now.0, before.0),
        });
        if let Some(broken) = back.or(rules.err()) {
            report.broken = Some(Break { line, rule: broken.rule.to_owned(), found: broken.found });
            return Ok(report);
        }
    }
}

/// One event and what the machine made of it.
#[derive(Serialize)]
struct Decision<'a> {
    line: u64,
    #[serde(flatten)]
    handled: &'a Handled,
    effects: &'a [Effect],
}

fn tell(
    out: &mut impl Write,
    json: bool,
    started: Nanos,
    line: u64,
    handled: &Handled,
    effects: &[Effect],
) -> anyhow::Result<()> {
    if json {
        let handled = &Handled { effects: None, ..handled.clone() };
        let decision = Decision { line, handled, effects };
        serde_json::to_writer(&mut *out, &decision)?;
        writeln!(out)?;
        return Ok(());
    }
    let micros = (handled.now - started).0 / 1000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    writeln!(out, "{line:>7} {seconds:>6}.{micros:06} s  {}", words(&handled.event)?)?;
    for effect in effects {
        writeln!(out, "{:>25}→ {}", "", words(effect)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
