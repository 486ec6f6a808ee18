//! Errors that end the daemon, and their exit codes.

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use crate::config::ConfigError;
use crate::lock::LockError;
use crate::record::RecordError;
use crate::sockets::SocketError;
use crate::state::StateError;

/// Error that ends the daemon.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// A flag or the configuration file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The runtime folder or one of the sockets is not available.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The state folder is not available.
    #[error(transparent)]
    State(#[from] StateError),
    /// A card belongs to another daemon.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The recording cannot be started.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A system call that every daemon needs failed.
    #[error("cannot {what}: {cause}; check the limits of its user (`ulimit -a`) and the system's log")]
    System {
        /// Action that failed, as a verb.
        what: &'static str,
        /// Error of the system.
        cause: io::Error,
    },
}

impl Stop {
    /// Returns the exit code: 2 for a wrong flag or configuration, 4 for a lack of permission, else 1.
    ///
    /// 0 is success, and 3 (no daemon) is for programs that look for a daemon.
    #[must_use]
    pub fn code(&self) -> ExitCode {
        let denied = match self {
            Self::Config(error) => error.is_denied(),
            Self::Sockets(error) => error.is_denied(),
            Self::State(error) => error.is_denied(),
            Self::Lock(error) => error.is_denied(),
            Self::Record(error) => error.is_denied(),
            Self::System { cause, .. } => cause.kind() == ErrorKind::PermissionDenied,
        };
        match self {
            _ if denied => 4.into(),
            Self::Config(_) => 2.into(),
            _ => 1.into(),
        }
    }
}
