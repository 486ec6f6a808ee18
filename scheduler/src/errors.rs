//! Errors of system calls, with a remedy for each.

use std::io;
use std::path::{Path, PathBuf};

/// Error of a system call on a file or folder.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {cause}; {hint}", path.display())]
pub(crate) struct FileError {
    /// Action that failed, as a verb, like "open".
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

/// Describes a failed system call that every daemon needs. `what` is the action, as a verb.
pub(crate) fn failed(what: &'static str) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |cause| {
        let message = format!(
            "cannot {what}: {cause}; check the limits of its user (`ulimit -a`) and the system's log"
        );
        anyhow::Error::new(cause).context(message)
    }
}
