//! Command `doctor`: checks this machine for sharing and reports problems with advice.
//!
//! ```text
//!   facts    gathered once: files, variables, daemons, and the driver in child processes with a time limit
//!   checks   one row each: facts in, findings with advice out
//!   report   one model ─▶ text, JSON, exit code ─▶ bundle (redacted)
//! ```
//!
//! The doctor changes nothing and makes no context. A broken driver cannot crash it.

mod bundle;
mod checks;
mod child;
mod facts;
mod model;
mod text;
mod versions;

use std::io;
use std::process::ExitCode;

use gpushare_probe::Question;

pub(crate) use self::bundle::BundleError;
use self::facts::Facts;
use self::model::Report;
use crate::cli::DoctorArgs;
use crate::exit::{self, CommandError};
use crate::output;
use crate::places::Places;

/// Reason why the command `doctor` itself failed. The exit code is that of errors.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("this command is internal to `gpushare-ctl doctor`; use that")]
    NotByHand,
}

impl CommandError for DoctorError {
    fn code(&self) -> u8 {
        exit::DOCTOR_FAILED
    }
}

/// Runs all checks and prints the report. Returns the exit code: 0 no problems, 1 warnings, 2 errors.
pub(crate) fn doctor(args: &DoctorArgs, places: &Places) -> Result<ExitCode, DoctorError> {
    let facts = Facts::gather(args, places);
    let report = Report::of(&facts);
    output::show(args.json, &report, || text::render(&report, text::is_coloured()))?;
    if let Some(file) = &args.bundle {
        bundle::write(file, &facts, &report, args)?;
    }
    Ok(ExitCode::from(report.exit))
}

/// Runs the driver probe for `question` in this process, which the driver may crash.
pub(crate) fn probe(question: &str) -> Result<(), DoctorError> {
    gpushare_probe::answer(Question::named(question).ok_or(DoctorError::NotByHand)?);
    Ok(())
}
