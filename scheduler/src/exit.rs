//! Exit codes of the errors that end the daemon.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

use gpushare_sys::folder::FolderError;

use crate::config::ConfigError;

pub(crate) fn is_denied(error: &(dyn Error + 'static)) -> bool {
    let denied = |cause: &io::Error| cause.kind() == ErrorKind::PermissionDenied;
    std::iter::successors(Some(error), |&error| error.source()).any(|error| {
        error.downcast_ref().is_some_and(denied) || error.downcast_ref().is_some_and(FolderError::is_denied)
    })
}

/// Returns the exit code: 2 for a wrong flag or configuration, 4 for missing permission, else 1.
///
/// Code 0 is success. Code 3 (no daemon) is only used by programs that look for a daemon.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    match error {
        error if is_denied(error.as_ref()) => 4.into(),
        error if error.is::<ConfigError>() => 2.into(),
        _ => 1.into(),
    }
}
