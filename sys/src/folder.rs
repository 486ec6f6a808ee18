//! Folders that only one user may write to: runtime folders of daemons, folders of their tenants, and folders
//! of token files.
//!
//! Some lie in `/tmp` or another place where any user could have created them first. So an existing folder is
//! trusted only if it is a real folder, belongs to the caller, and no other user may write to it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Reason why a folder cannot be used. The caller adds which option chooses another folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system refused an operation on the folder.
    #[error("cannot {what} {}: {cause}; choose another folder", path.display())]
    System {
        /// Operation that the system refused, as text.
        what: &'static str,
        /// Path on which the operation was tried.
        path: PathBuf,
        /// Error that the system returned.
        cause: io::Error,
    },
    /// The path is taken by something other than a folder, perhaps a link.
    #[error("{} is not a folder; remove it or choose another folder", .0.display())]
    NoFolder(PathBuf),
    /// The folder belongs to another user.
    #[error(
        "{} belongs to user {owner} and this is user {us}; remove it or choose another folder",
        path.display()
    )]
    Foreign {
        /// Path of the folder.
        path: PathBuf,
        /// User id of the folder's owner.
        owner: u32,
        /// User id of this process.
        us: u32,
    },
    /// Other users may write to the folder.
    #[error(
        "others may write to {path} (mode {mode:o}); run `chmod go-w {path}` once you know why, or choose another \
         folder",
        path = path.display()
    )]
    Open {
        /// Path of the folder.
        path: PathBuf,
        /// Permission bits of the folder.
        mode: u32,
    },
}

impl FolderError {
    /// Returns whether the cause is a lack of permission.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::System { cause, .. } => cause.kind() == io::ErrorKind::PermissionDenied,
            Self::Foreign { .. } => true,
            Self::NoFolder(_) | Self::Open { .. } => false,
        }
    }
}

/// Creates a folder with the permission bits `mode`, or checks the existing folder. Returns whether the
/// folder was created.
///
/// # Errors
/// [`FolderError`] if other users may write to the folder, or if it cannot be created.
pub fn take(path: &Path, mode: u32) -> Result<bool, FolderError> {
    let failed = |what| move |cause| FolderError::System { what, path: path.to_owned(), cause };
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            // The umask may have removed more permissions.
            let permissions = Permissions::from_mode(mode);
            fs::set_permissions(path, permissions).map_err(failed("set the permissions of"))?;
            return Ok(true);
        }
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
        Err(cause) => return Err(failed("make the folder")(cause)),
    }
    let found = fs::symlink_metadata(path).map_err(failed("look at"))?;
    let us = rustix::process::geteuid().as_raw();
    if !found.is_dir() {
        return Err(FolderError::NoFolder(path.to_owned()));
    }
    if found.uid() != us {
        return Err(FolderError::Foreign { path: path.to_owned(), owner: found.uid(), us });
    }
    match found.mode() & 0o7777 {
        mode if mode & 0o022 != 0 => Err(FolderError::Open { path: path.to_owned(), mode }),
        _ => Ok(false),
    }
}

/// Returns whether the open `file` (or folder) is still the one that `path` names.
pub fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |ours: fs::Metadata, there: fs::Metadata| (ours.dev(), ours.ino()) == (there.dev(), there.ino());
    file.metadata()
        .and_then(|ours| Ok(same(ours, fs::symlink_metadata(path)?)))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_new_folder_is_ours_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpushare");
        assert!(take(&path, 0o700).unwrap());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(!take(&path, 0o700).unwrap());
    }

    #[test]
    fn a_folder_that_others_could_have_prepared_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/tmp", &link).unwrap();
        assert!(matches!(take(&link, 0o700), Err(FolderError::NoFolder(_))));
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let said = take(&open, 0o700).unwrap_err().to_string();
        assert!(said.contains("(mode 777)"), "{said}");
        let nowhere = folder.path().join("no/where");
        assert!(matches!(take(&nowhere, 0o700), Err(FolderError::System { .. })));
    }

    #[test]
    fn another_file_in_the_same_place_is_not_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path));
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path));
        let _other = File::create(&path).unwrap();
        assert!(!is_at(&file, &path));
    }
}
