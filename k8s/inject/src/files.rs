//! Files of gpushare's CDI spec: written, found and removed.
//!
//! ```text
//!   /etc/cdi/gpushare.dev-share.json       the spec
//!   /etc/cdi/gpushare.dev-share.preload    mounted as /etc/ld.so.preload; no runtime reads it as a spec
//! ```
//!
//! A file is replaced by renaming, so that a running container keeps the file that was mounted.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::machine::spec_files;
use crate::share::Share;
use crate::spec::{KIND, Spec};

const SPEC: &str = "gpushare.dev-share.json";
const PRELOAD: &str = "gpushare.dev-share.preload";

/// Reason why a spec cannot be written or removed.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file or its folder cannot be written.
    #[error("{path} cannot be written: {cause}; run as root, or choose another folder")]
    Unwritten {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system.
        cause: io::Error,
    },
    /// A file cannot be removed.
    #[error("{path} cannot be removed: {cause}; run as the user who wrote it")]
    Unremoved {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        cause: io::Error,
    },
}

impl FilesError {
    /// Returns whether the user lacks the right.
    pub fn is_permission(&self) -> bool {
        let (Self::Unwritten { cause, .. } | Self::Unremoved { cause, .. }) = self;
        matches!(cause.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
    }
}

/// Files of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Path of the spec.
    pub spec: PathBuf,
    /// Path of the container's `/etc/ld.so.preload`.
    pub preload: PathBuf,
}

impl Written {
    /// Returns the files in a folder.
    pub fn in_folder(folder: &Path) -> Self {
        Self { spec: folder.join(SPEC), preload: folder.join(PRELOAD) }
    }
}

/// Spec of gpushare that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Path of the spec.
    pub path: PathBuf,
    /// The spec.
    pub spec: Spec,
}

impl Found {
    /// Returns the first file on this machine that the spec mounts and that does not exist.
    pub fn missing(&self) -> Option<&Path> {
        let mounts = self.spec.container_edits.mounts.iter().map(|mount| mount.host_path.as_path());
        mounts.into_iter().find(|path| !path.exists())
    }
}

/// Writes a spec and, if it mounts one from there, the list of preloaded libraries.
pub fn write(folder: &Path, spec: &Spec) -> Result<Written, FilesError> {
    let unwritten = |cause| FilesError::Unwritten { path: folder.to_owned(), cause };
    fs::create_dir_all(folder).map_err(unwritten)?;
    let files = Written::in_folder(folder);
    let mounted = spec.container_edits.mounts.iter().any(|mount| mount.host_path == files.preload);
    if mounted {
        write_file(&files.preload, Share::PRELOAD.as_bytes(), 0o644)?;
    }
    write_file(&files.spec, spec.json().as_bytes(), 0o644)?;
    Ok(files)
}

/// Writes a file under another name and renames it. After a power cut the path has the old file or the new one.
pub fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), FilesError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = || {
        let mut file = fs::File::create(&new)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|cause| {
        // It may not exist.
        let _ = fs::remove_file(&new);
        FilesError::Unwritten { path: path.to_owned(), cause }
    })
}

/// Finds gpushare's specs in folders.
pub fn find(folders: &[PathBuf]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for path in folders.iter().flat_map(|folder| spec_files(folder)) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        if let Some(spec) = serde_yaml_ng::from_str::<Spec>(&text).ok().filter(|spec| spec.kind == KIND) {
            found.push(Found { path, spec });
        }
    }
    found
}

/// Removes the files that [`write()`] made in a folder. Returns those that existed.
pub fn remove(folder: &Path) -> Result<Vec<PathBuf>, FilesError> {
    let Written { spec, preload } = Written::in_folder(folder);
    let mut removed = Vec::new();
    // The spec first: without the other file it would be of no use.
    for path in [spec, preload] {
        match fs::remove_file(&path) {
            Ok(()) => removed.push(path),
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(cause) => return Err(FilesError::Unremoved { path, cause }),
        }
    }
    Ok(removed)
}
