//! Why the daemon does not start or ends badly, and the exit code that says so to a program.

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use crate::config::ConfigError;
use crate::lock::LockError;
use crate::record::RecordError;
use crate::sockets::SocketError;
use crate::state::StateError;

/// Whatever ends the daemon with anything but success.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// A flag or the configuration file makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder or one of the sockets is not to be had.
    #[error(transparent)]
    Sockets(#[from] SocketError),
    /// The folder for what must last is not to be had.
    #[error(transparent)]
    State(#[from] StateError),
    /// A card belongs to another daemon.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// What the core is told cannot be recorded as asked.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The system refuses something that every daemon needs.
    #[error("cannot {what}: {cause}; look at the limits of its user (`ulimit -a`) and at the system's log")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

impl Stop {
    /// 1 for an error, 2 for a wrong flag or configuration, 4 for a lack of permission. 0 is success, and
    /// 3 (no daemon) is for the programs that look for one.
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
