//! Exit codes and error messages of the commands: a failed command prints one sentence on stderr.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use gpushare_connection::ClientError;
use gpushare_proto::tenant::FailureCode;

/// Exit code of a failure that no other code describes.
pub(crate) const ERROR: u8 = 1;
/// Exit code of `doctor`: a check found an error, or the command itself failed.
pub(crate) const DOCTOR_FAILED: u8 = 2;
/// Exit code: the arguments are invalid.
pub(crate) const USAGE: u8 = 2;
/// Exit code: no daemon answers.
pub(crate) const DAEMON_DOWN: u8 = 3;
/// Exit code: the user lacks the permission.
pub(crate) const PERMISSION: u8 = 4;
/// Exit code: the card or session does not exist.
pub(crate) const NOT_FOUND: u8 = 5;
/// Exit code of `run`: gpushare failed, not the program. Docker uses this code for its own failures.
pub(crate) const RUN_FAILED: u8 = 125;
/// Exit code of `run`: the program was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// Exit code of `run`: the program was not found.
pub(crate) const PROGRAM_NOT_FOUND: u8 = 127;

/// Error that decides the exit code of the failed command.
pub(crate) trait CommandError: std::error::Error {
    /// Returns the exit code of a command that fails with this error.
    fn code(&self) -> u8 {
        ERROR
    }
}

impl CommandError for ClientError {
    fn code(&self) -> u8 {
        match self {
            Self::Absent(_) | Self::Silent(_) | Self::Gone(_) => DAEMON_DOWN,
            Self::Denied(_) | Self::Stranger { .. } => PERMISSION,
            Self::Refused(failure) => match failure.code {
                FailureCode::Permission => PERMISSION,
                FailureCode::NotFound => NOT_FOUND,
                _ => ERROR,
            },
            _ => ERROR,
        }
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

/// Returns the exit code of a command's result. Prints the error, if any.
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
