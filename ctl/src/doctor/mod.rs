//! `doctor`: what an operator runs at three in the morning and attaches to a bug report.
//!
//! ```text
//!   facts    asked once: files, variables, daemons, and the driver in processes of their own with a time limit
//!   checks   a row each: facts in, findings out, each with what to do
//!   report   one model ─▶ text, JSON, exit code ─▶ bundle (redacted)
//! ```
//!
//! Nothing is changed, no context is made, and nothing that is broken can take the doctor with it.

mod bundle;
mod checks;
mod child;
mod facts;
mod model;
mod text;
mod versions;

#[cfg(test)]
mod docs;

use std::io;
use std::process::ExitCode;

use gpushare_probe::Question;

pub(crate) use self::bundle::BundleError;
use self::facts::Facts;
use self::model::Report;
use crate::cli::DoctorArgs;
use crate::output;
use crate::places::Places;

/// Why there is no report. Its code is that of errors: a script must not take it for a warning.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("this command is a stage of `gpushare-ctl doctor`; use that")]
    NotByHand,
}

/// Looks at everything and says what it found: 0 fine, 1 warnings, 2 errors.
pub(crate) fn doctor(args: &DoctorArgs, places: &Places) -> Result<ExitCode, DoctorError> {
    let facts = Facts::gather(args, places);
    let report = Report::of(&facts);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&text::render(&report, text::Colour::of_stdout()))?;
    }
    if let Some(file) = &args.bundle {
        bundle::write(file, &facts, &report, args)?;
    }
    Ok(ExitCode::from(report.exit))
}

/// The child that the driver may take with it.
pub(crate) fn probe(question: &str) -> Result<(), DoctorError> {
    gpushare_probe::answer(Question::named(question).ok_or(DoctorError::NotByHand)?);
    Ok(())
}
