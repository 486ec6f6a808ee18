//! The state folder, which contains persistent sessions with their tokens, usage, and the audit log.
//!
//! ```text
//!   /run/gpushare        sockets, tokens of programs, state ─┐   gone after a reboot
//!   /var/lib/gpushare    registry.redb, tokens, audit.log  ◀─┘   stays
//! ```
//!
//! The state folder may be the runtime folder, which is locked already. Another folder gets its own lock,
//! because only one daemon may write a registry file.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use gpushare_proto::names;
use gpushare_sys::folder::{self, FolderError};

use crate::config::{Owner, Settings};
use crate::errors::FileError;
use crate::lock::lock_folder;
use crate::sockets::Folder;

/// Advice for the user after a failed system call on the state folder.
const HINT: &str = "check its owner, or choose another folder with --state-dir";

#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("{0} with --state-dir")]
    Folder(#[from] FolderError),
    #[error(transparent)]
    System(#[from] FileError),
    #[error(
        "another gpushare daemon keeps its sessions in {}; give this one another folder with --state-dir",
        .0.display()
    )]
    Busy(PathBuf),
}

/// Open folder, and the path of a file in it.
pub(crate) type At = (OwnedFd, PathBuf);

/// State folder of this daemon, locked until the value is dropped.
#[derive(Debug)]
pub(crate) struct State {
    registry: PathBuf,
    /// Lock on the state folder; `None` if it is the runtime folder, which is locked already.
    lock: Option<File>,
}

impl State {
    /// Creates the state folder if it is missing, checks it, and locks it.
    pub(crate) fn take(settings: &Settings, own: &Folder) -> Result<Self, StateError> {
        let path = &settings.state;
        let registry = path.join(names::REGISTRY);
        let system = |what| FileError::of(what, path, HINT);
        if own.is_at(path) {
            return Ok(Self { registry, lock: None });
        }
        if let (Owner::User, Some(parent)) = (settings.owner, path.parent()) {
            // `$XDG_STATE_HOME` itself may not exist yet.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(system("make the parent folder of"))?;
        }
        folder::take(path, 0o700)?;
        match lock_folder(path).map_err(system("lock"))? {
            None => Err(StateError::Busy(path.clone())),
            lock => Ok(Self { registry, lock }),
        }
    }

    pub(crate) fn is_apart(&self) -> bool {
        self.lock.is_some()
    }

    /// Opens the state folder again, even if it was moved.
    pub(crate) fn descriptor(&self, own: &Folder) -> io::Result<OwnedFd> {
        match &self.lock {
            None => own.descriptor(),
            Some(lock) => lock.as_fd().try_clone_to_owned(),
        }
    }

    /// Returns the place of the registry file, and the place where an older release kept it.
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
