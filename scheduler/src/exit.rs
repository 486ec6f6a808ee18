//! Errors that end the daemon, and their exit codes.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpushare_sys::folder::FolderError;

use crate::config::ConfigError;

/// Error of a system call on a file or folder.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {cause}; {hint}", path.display())]
pub(crate) struct FileError {
    /// Action that failed, as a verb.
    what: &'static str,
    path: PathBuf,
    #[source]
    cause: io::Error,
    hint: &'static str,
}

impl FileError {
    pub(crate) fn of(what: &'static str, path: &Path, hint: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self { what, path: path.to_owned(), cause, hint }
    }
}

/// Describes the failure of a system call that every daemon needs. `what` is a verb.
pub(crate) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |cause| {
        let message = format!(
            "cannot {what}: {cause}; check the limits of its user (`ulimit -a`) and the system's log"
        );
        anyhow::Error::new(cause).context(message)
    }
}

pub(crate) fn is_denied(error: &(dyn Error + 'static)) -> bool {
    let denied = |cause: &io::Error| cause.kind() == ErrorKind::PermissionDenied;
    std::iter::successors(Some(error), |&error| error.source()).any(|error| {
        error.downcast_ref().is_some_and(denied) || error.downcast_ref().is_some_and(FolderError::is_denied)
    })
}

/// Returns the exit code: 2 for a wrong flag or configuration, 4 for a lack of permission, else 1.
///
/// 0 is success, and 3 (no daemon) is for programs that look for a daemon.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    match error {
        error if is_denied(error.as_ref()) => 4.into(),
        error if error.is::<ConfigError>() => 2.into(),
        _ => 1.into(),
    }
}
