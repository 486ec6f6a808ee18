//! The folder for what must outlive a restart of the machine: sessions that were made to last with their
//! tokens, usage, and what administrators did.
//!
//! ```text
//!   /run/gpushare        sockets, tokens of programs, state ─┐      gone after a reboot
//!   /var/lib/gpushare    registry.redb, tokens, audit.log  ◀─┘      stays; what it says of processes counts on its own boot only
//! ```
//!
//! A daemon whose two folders are one has the lock on it already. Another one is locked for itself: a store has one writer.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gpushare_proto::names;
use gpushare_sys::folder::{self, FolderError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::{Owner, Settings};
use crate::sockets::Folder;

/// Why there is no folder for what must last.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// It is not ours alone.
    #[error("{0} with --state-dir")]
    Folder(#[from] FolderError),
    /// The system refuses.
    #[error("cannot {what} {}: {cause}; look at who owns it, or choose another folder with --state-dir", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Another daemon keeps its sessions there.
    #[error("another gpushare daemon keeps its sessions in {}; give this one another folder with --state-dir", .0.display())]
    Busy(PathBuf),
}

impl StateError {
    /// Whether the cause is a lack of permission.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Folder(error) => error.is_denied(),
            Self::System { cause, .. } => cause.kind() == io::ErrorKind::PermissionDenied,
            Self::Busy(_) => false,
        }
    }
}

/// A folder that is held open, and where that was.
pub(crate) type At = (OwnedFd, PathBuf);

/// The state folder, ours until drop.
#[derive(Debug)]
pub(crate) struct State {
    registry: PathBuf,
    /// None for the daemon's own folder.
    lock: Option<File>,
}

impl State {
    /// Makes the folder if it is not there, checks it, and locks it.
    pub(crate) fn take(settings: &Settings, own: &Folder) -> Result<Self, StateError> {
        let path = &settings.state;
        let registry = path.join(names::REGISTRY);
        let system = |what| move |cause| StateError::System { what, path: path.clone(), cause };
        if own.is_at(path) {
            return Ok(Self { registry, lock: None });
        }
        if let (Owner::User, Some(parent)) = (settings.owner, path.parent()) {
            // Nobody may have needed `$XDG_STATE_HOME` before.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(system("make the folder around"))?;
        }
        folder::take(path, 0o700)?;
        let lock = File::open(path).map_err(system("open"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { registry, lock: Some(lock) }),
            Err(Errno::WOULDBLOCK) => Err(StateError::Busy(path.clone())),
            Err(errno) => Err(system("lock")(errno.into())),
        }
    }

    /// Whether it is a folder of its own.
    pub(crate) fn is_apart(&self) -> bool {
        self.lock.is_some()
    }

    /// The folder itself, wherever it is by now.
    pub(crate) fn descriptor(&self, own: &Folder) -> io::Result<OwnedFd> {
        match &self.lock {
            None => own.descriptor(),
            Some(lock) => lock.as_fd().try_clone_to_owned(),
        }
    }

    /// Where the registry is, and where a daemon without a state folder left one.
    pub(crate) fn places(&self, own: &Folder, before: &Path) -> io::Result<(At, Option<At>)> {
        match &self.lock {
            None => Ok(((own.descriptor()?, self.registry.clone()), None)),
            Some(lock) => {
                let here = (lock.as_fd().try_clone_to_owned()?, self.registry.clone());
                Ok((here, Some((own.descriptor()?, before.to_owned()))))
            }
        }
    }
}
