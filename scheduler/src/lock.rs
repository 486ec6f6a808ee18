//! File locks that allow only one daemon for each card and each folder.
//!
//! A card has a lock file that every daemon of the machine tries to lock. The kernel keeps the lock
//! (`flock`), so it always ends with its daemon. The file contains the pid of the locking daemon, for the
//! other daemon's error message. A daemon removes the file at its end. So a daemon that gets the lock checks
//! that the file is still at its path.
//!
//! A process that can open a file can lock it. So only root can open the files of root's daemons. The files of
//! other daemons are open to all, so that another user's daemon can take over after a crash. A daemon of root
//! replaces such a file: no other user keeps a card from it.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpushare_proto::GpuUuid;
use gpushare_sys::folder::is_at;
use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;
use tracing::warn;

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
    file: File,
}

impl CardLock {
    pub(crate) fn take(folder: &Path, uuid: GpuUuid) -> Result<Self, LockError> {
        let path = folder.join(format!("gpushare-{uuid}"));
        let system = |cause| FileError::of("lock", &path, "choose another folder with --lock-dir")(cause);
        let is_root = geteuid().is_root();
        for _ in 0..TRIES {
            if is_root {
                replace_if_open_to_others(&path).map_err(system)?;
            }
            let opened = open(&path, if is_root { PRIVATE } else { PUBLIC });
            if opened.is_err() && is_of_root(&path) {
                break;
            }
            let mut file = opened.map_err(system)?;
            if is_root && !file.metadata().is_ok_and(|found| is_private(&found)) {
                continue;
            }
            if !try_lock(&file).map_err(system)? {
                return Err(LockError::Taken { uuid, pid: written_pid(&mut file) });
            }
            if is_at(&file, &path) {
                write_pid(&mut file).map_err(system)?;
                return Ok(Self { path, file });
            }
        }
        Err(LockError::Taken { uuid, pid: None })
    }
}

impl Drop for CardLock {
    fn drop(&mut self) {
        // A daemon of root may have replaced the file. A failure leaves a file of a few bytes.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Permission bits of a lock file that only its user can open.
const PRIVATE: u32 = 0o600;
/// Permission bits of a lock file that every user can open.
const PUBLIC: u32 = 0o666;

/// Returns whether only this user can open a file, and so lock it.
fn is_private(found: &Metadata) -> bool {
    found.is_file() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0
}

fn is_of_root(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.uid() == 0) && !geteuid().is_root()
}

/// Puts an empty private file in the place of a file that another user can open, whatever it is.
///
/// Swaps the two in one step, because another user could put a file of its own into any gap. If the file was
/// replaced by another daemon of root meanwhile, that daemon's file stays.
fn replace_if_open_to_others(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if is_private(&found) => return Ok(()),
        Ok(_) => {}
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(cause),
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut spare = path.as_os_str().to_owned();
    spare.push(format!(".{:x}", u64::from_ne_bytes(random)));
    let spare = PathBuf::from(spare);
    OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&spare)?;
    let swap = || renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE);
    match swap() {
        Ok(()) => {
            let displaced = fs::symlink_metadata(&spare)?;
            if is_private(&displaced) {
                swap()?;
            } else {
                warn!("replaced {}, which user {} could lock", path.display(), displaced.uid());
            }
        }
        // Its daemon has ended.
        Err(Errno::NOENT) => {}
        Err(errno) => {
            let _ = fs::remove_file(&spare);
            return Err(errno.into());
        }
    }
    // A folder with files in it stays.
    let _ = fs::remove_file(&spare).or_else(|_| fs::remove_dir(&spare));
    Ok(())
}

/// Opens a folder and locks it; `None` if another daemon has locked it.
pub(crate) fn lock_folder(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    Ok(try_lock(&folder)?.then_some(folder))
}

/// Creates or opens a file that only this user can open, and locks it; `None` if another process has locked it.
///
/// The file must be in a folder in which only this user can create files.
pub(crate) fn lock_private(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..TRIES {
        let file = open(path, PRIVATE)?;
        if !try_lock(&file)? {
            return Ok(None);
        }
        if is_at(&file, path) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Locks a file; returns false if another process has locked it.
fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens or creates a lock file without following a link. A new file gets the permission bits `mode`.
///
/// Existing files are opened without `O_CREAT`, which Linux refuses for a foreign file in a sticky folder.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(nofollow).mode(PRIVATE);
    for _ in 0..TRIES {
        match options.open(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        match options.clone().create_new(true).open(path) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(cause),
            Ok(file) => {
                file.set_permissions(Permissions::from_mode(mode))?;
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
        assert_eq!(CardLock::take(folder.path(), CARD).is_ok(), geteuid().is_root());
        assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
    }

    #[test]
    fn no_other_user_keeps_a_card_from_roots_daemon() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("gpushare-{CARD}"));
        let theirs = open(&path, PUBLIC).unwrap();
        assert!(try_lock(&theirs).unwrap());
        let ours = CardLock::take(folder.path(), CARD).unwrap();
        assert!(matches!(CardLock::take(folder.path(), CARD), Err(LockError::Taken { .. })));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, PRIVATE);
        // The daemon whose file was replaced leaves the new one.
        drop(CardLock { path: path.clone(), file: theirs });
        assert!(path.exists());
        drop(ours);
        fs::create_dir(&path).unwrap();
        CardLock::take(folder.path(), CARD).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
