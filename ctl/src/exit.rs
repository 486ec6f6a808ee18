//! How a command ends: one sentence on stderr, and a code that a script can tell apart.

use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::audit::AuditError;
use crate::cli::EnvironmentError;
use crate::client::ClientError;
use crate::doctor::DoctorError;
use crate::run::RunError;
use crate::run::library::LibraryError;
use crate::run::token::TokenError;

/// Something failed that has no code of its own.
pub(crate) const ERROR: u8 = 1;
/// `doctor`: something is wrong, or it could not look.
pub(crate) const DOCTOR_FAILED: u8 = 2;
/// The arguments make no sense.
pub(crate) const USAGE: u8 = 2;
/// No daemon answers.
pub(crate) const DAEMON_DOWN: u8 = 3;
/// This user may not do that.
pub(crate) const PERMISSION: u8 = 4;
/// There is no such card or session.
pub(crate) const NOT_FOUND: u8 = 5;
/// `run`: gpushare failed, as docker's own failures.
pub(crate) const RUN_FAILED: u8 = 125;
/// `run`: the program was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// `run`: the program was not found.
pub(crate) const PROGRAM_NOT_FOUND: u8 = 127;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CtlError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("there is no {kind} `{name}`; {known}")]
    NotFound { kind: &'static str, name: String, known: String },
    #[error("{count} sessions are named `{name}`; name one by its number: {numbers}")]
    Ambiguous { name: String, count: usize, numbers: String },
    #[error("cannot write the trace {path}: {cause}; choose another file with --trace")]
    Trace { path: PathBuf, cause: io::Error },
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

impl CtlError {
    fn code(&self) -> u8 {
        match self {
            Self::Client(error) => error.code(),
            Self::Run(error) => error.code(),
            Self::Doctor(_) => DOCTOR_FAILED,
            Self::NotFound { .. } | Self::Audit(AuditError::Missing(_)) => NOT_FOUND,
            Self::Audit(error) if error.is_denied() => PERMISSION,
            Self::Environment(_) => USAGE,
            Self::Library(_)
            | Self::Audit(_)
            | Self::Token(_)
            | Self::Ambiguous { .. }
            | Self::Trace { .. }
            | Self::Output(_) => ERROR,
        }
    }
}

/// The end of a command.
pub(crate) fn end(result: Result<ExitCode, CtlError>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => fail(&error, error.code()),
    }
}

/// Says why and ends with `code`. If stderr is gone too, only the code is left to say it.
pub(crate) fn fail(why: &dyn fmt::Display, code: u8) -> ExitCode {
    warn(why);
    ExitCode::from(code)
}

/// Says on stderr what the user must know although the command goes on.
pub(crate) fn warn(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "gpushare-ctl: {what}");
}
