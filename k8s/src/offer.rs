//! The one switch between the device plugin and DRA, and its check: a card is never offered by both.
//!
//! ```text
//!   two processes on a node           FILES/offer.lock is locked by the one that offers the cards
//!   DRA, then the device plugin       the plugin does not start while claims are prepared: only their driver can
//!                                     release them
//!   the device plugin, then DRA       the driver withholds a card while a pod has a share of it (dra/publisher)
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use rustix::fs::{FlockOperation, flock};

use crate::args::Interface;
use crate::dra::Prepared;

/// File that is locked.
const LOCK: &str = "offer.lock";

/// Reason why this process must not offer the cards.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OfferError {
    #[error(
        "the cards of this node are offered by another process already ({holder}, which locks {path}); end it first"
    )]
    Locked { path: PathBuf, holder: String },
    #[error("{path} cannot be locked: {cause}; run as root, with the folder of --files mounted for writing")]
    NoLock { path: PathBuf, cause: io::Error },
    #[error(
        "{count} claims are prepared on this node, as {first}, and only their driver can release them; end their pods \
         (kubectl drain), or go on with --offer dra"
    )]
    Claimed { count: usize, first: String },
}

/// Right to offer this node's cards. It ends when it is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Right {
    _lock: fs::File,
}

/// Takes the right to offer the cards by an interface. `folder` is that of `--files`.
pub(crate) fn take(interface: Interface, folder: &Path, prepared: &Prepared) -> Result<Right, OfferError> {
    let path = folder.join(LOCK);
    let no_lock = |cause| OfferError::NoLock { path: path.clone(), cause };
    fs::create_dir_all(folder).map_err(no_lock)?;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path);
    let mut file = file.map_err(no_lock)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // It only helps to find the process.
        let _ = file.read_to_string(&mut holder);
        return Err(OfferError::Locked { path, holder: holder.trim().to_owned() });
    }
    let claims = prepared.all();
    if let (Interface::DevicePlugin, Some(claim)) = (interface, claims.values().next()) {
        let first = format!("{}/{}", claim.namespace, claim.name);
        return Err(OfferError::Claimed { count: claims.len(), first });
    }
    let name = interface.to_possible_value().map(|value| value.get_name().to_owned());
    let words = format!("{}, pid {}\n", name.unwrap_or_default(), std::process::id());
    let written = file.set_len(0).and_then(|()| file.write_all(words.as_bytes()));
    written.map_err(no_lock)?;
    Ok(Right { _lock: file })
}
