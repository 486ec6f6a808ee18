//! Exit codes and error messages: a failed command prints one sentence on stderr.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Any failure without a code of its own.
pub(crate) const ERROR: u8 = 1;
/// `doctor`: a check found an error, or the doctor itself failed.
pub(crate) const DOCTOR_FAILED: u8 = 2;
/// The arguments are invalid.
pub(crate) const USAGE: u8 = 2;
/// No daemon answers.
pub(crate) const DAEMON_DOWN: u8 = 3;
/// The user lacks the permission.
pub(crate) const PERMISSION: u8 = 4;
/// The card or session does not exist.
pub(crate) const NOT_FOUND: u8 = 5;
/// `run`: gpushare failed, not the program (the code that docker uses for its own failures).
pub(crate) const RUN_FAILED: u8 = 125;
/// `run`: the program was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// `run`: the program was not found.
pub(crate) const PROGRAM_NOT_FOUND: u8 = 127;

/// Error of a module, with its exit code.
pub(crate) trait CommandError: std::error::Error {
    /// Returns the exit code of a command that fails with this error.
    fn code(&self) -> u8 {
        ERROR
    }
}

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CtlError {
    #[error("{0}")]
    Failed(Box<dyn CommandError>),
    #[error("there is no {kind} `{name}`; {known}")]
    NotFound { kind: &'static str, name: String, known: String },
    #[error("{count} sessions are named `{name}`; name one by its number: {numbers}")]
    Ambiguous { name: String, count: usize, numbers: String },
    #[error("cannot write the trace {path}: {cause}; choose another file with --trace")]
    Trace { path: PathBuf, cause: io::Error },
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl<E: CommandError + 'static> From<E> for CtlError {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// Returns the exit code of a command, and prints its error.
pub(crate) fn end(result: Result<ExitCode, CtlError>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    let code = match &error {
        CtlError::Failed(failure) => failure.code(),
        CtlError::NotFound { .. } => NOT_FOUND,
        _ => ERROR,
    };
    fail(&error, code)
}

/// Prints an error on stderr and returns `code`. A closed stderr is ignored.
pub(crate) fn fail(why: &dyn fmt::Display, code: u8) -> ExitCode {
    warn(why);
    ExitCode::from(code)
}

pub(crate) fn warn(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "gpushare-ctl: {what}");
}
