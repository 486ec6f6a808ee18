//! File locks that allow only one daemon for each card and each folder.
//!
//! A card has a lock file that every daemon of the machine tries to lock. The kernel keeps the lock
//! (`flock`), so it always ends with its daemon. The file contains the pid of the locking daemon, for the
//! other daemon's error message. Every user may open and write the file, so that another user's daemon can
//! take over after a crash. A daemon removes the file at its end. So a daemon that gets the lock checks that
//! the file is still at its path.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpushare_proto::GpuUuid;
use gpushare_sys::folder::is_at;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::errors::FileError;

/// Number of attempts to lock a card while other daemons start and end.
const TRIES: u32 = 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error(
        "{uuid} already belongs to a gpushare daemon{}; a card has one daemon: use that one or stop it first",
        holder(*pid)
    )]
    Taken { uuid: GpuUuid, pid: Option<u32> },
    #[error(transparent)]
    System(#[from] FileError),
}

/// Describes a daemon by its pid, if the pid is known.
pub(crate) fn holder(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (pid {pid})"))
}

/// File lock of this daemon on a card, released when the value is dropped.
#[derive(Debug)]
pub(crate) struct CardLock {
    path: PathBuf,
    _file: File,
}

impl CardLock {
    pub(crate) fn take(folder: &Path, uuid: GpuUuid) -> Result<Self, LockError> {
        let path = folder.join(format!("gpushare-{uuid}"));
        let system = |cause| FileError::of("lock", &path, "choose another folder with --lock-dir")(cause);
        for _ in 0..TRIES {
            let mut file = open(&path).map_err(system)?;
            if !try_lock(&file).map_err(system)? {
                return Err(LockError::Taken { uuid, pid: written_pid(&mut file) });
            }
            if is_at(&file, &path) {
                write_pid(&mut file).map_err(system)?;
                return Ok(Self { path, _file: file });
            }
        }
        Err(LockError::Taken { uuid, pid: None })
    }
}

impl Drop for CardLock {
    fn drop(&mut self) {
        // The lock is still held, so the file at the path is this one. A failure leaves a file of a few
        // bytes.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a folder and locks it; `None` if another daemon has locked it.
pub(crate) fn lock_folder(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    Ok(try_lock(&folder)?.then_some(folder))
}

/// Locks a file; returns false if another process has locked it.
fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens or creates a card's lock file without following a link.
///
/// Existing files are opened without `O_CREAT`, which Linux refuses for a foreign file in a sticky folder.
fn open(path: &Path) -> io::Result<File> {
    let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(nofollow);
    for _ in 0..TRIES {
        match options.open(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        match options.clone().create_new(true).open(path) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(cause),
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(0o666))?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn written_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: GpuUuid = GpuUuid::gpu([7; 16]);

    #[test]
    fn a_card_has_one_daemon_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = CardLock::take(folder.path(), CARD).unwrap();
        let error = CardLock::take(folder.path(), CARD).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        CardLock::take(folder.path(), GpuUuid::gpu([8; 16])).unwrap();
        drop(first);
        CardLock::take(folder.path(), CARD).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_lock_file_of_a_dead_daemon_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("gpushare-{CARD}"));
        fs::write(&path, "4194304000\n").unwrap();
        let _lock = CardLock::take(folder.path(), CARD).unwrap();
        let pid = fs::read_to_string(&path).unwrap();
        assert_eq!(pid, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(format!("gpushare-{CARD}"))).unwrap();
        assert!(CardLock::take(folder.path(), CARD).is_err());
        assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
    }
}
