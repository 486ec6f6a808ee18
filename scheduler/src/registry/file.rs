//! The registry file: opens it, creates it, or renames a damaged one. The file is reached through its open
//! folder, so the file of another daemon at the same path is never touched.

use std::any::Any;
use std::cell::Cell;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;
use std::{io, thread};

use redb::{Builder, Database};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, accessat, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// Size of the registry file's cache in memory, in bytes.
const CACHE: usize = 1 << 20;
/// Number of attempts to open a registry file that the last daemon has open, and the pause between them.
const BUSY: (u32, Duration) = (100, Duration::from_millis(20));

#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// File that is not a registry or is damaged.
    #[error("{0}")]
    Corrupt(String),
    /// System call that failed; the file itself may be intact.
    #[error("{0}")]
    System(io::Error),
    /// File that another process has open.
    #[error("another process has it open")]
    Busy,
}

impl StoreError {
    pub(super) fn corrupt(what: &impl ToString) -> Self {
        Self::Corrupt(what.to_string())
    }

    /// Separates a lack of resources from damage of the registry file.
    fn of_io(cause: io::Error) -> Self {
        use Errno as E;
        match Errno::from_io_error(&cause) {
            Some(E::NOSPC | E::DQUOT | E::MFILE | E::NFILE | E::NOMEM | E::ROFS | E::FBIG) => {
                Self::System(cause)
            }
            _ => Self::corrupt(&cause),
        }
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(cause: E) -> Self {
        match cause.into() {
            redb::Error::Io(cause) => Self::of_io(cause),
            redb::Error::DatabaseAlreadyOpen => Self::Busy,
            other => Self::corrupt(&other),
        }
    }
}

/// Open registry file. Closing the file writes to it, and the library may panic on any write.
#[derive(Debug)]
pub(super) struct Opened(Option<Database>);

impl Deref for Opened {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().expect("it is open until it is dropped")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let database = self.0.take();
        if thread::panicking() {
            // A second panic would abort the daemon, so the file stays open.
            std::mem::forget(database);
        } else {
            // Damage is found when the file is opened next.
            let _ = catch_panics(|| {
                drop(database);
                Ok(())
            });
        }
    }
}

#[derive(Debug)]
pub(super) struct StoreFile {
    folder: OwnedFd,
    /// Path of the file when its folder was opened, used only in messages.
    pub(super) path: PathBuf,
    name: String,
}

/// Device number and inode number of a file.
pub(super) type Identity = (u64, u64);

impl StoreFile {
    pub(super) fn new(folder: OwnedFd, path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { folder, path, name }
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        Some(identity(&statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?))
    }

    /// Opens the existing registry file and checks all of its contents.
    pub(super) fn open(&self) -> Result<(Opened, Identity), StoreError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut tries = 0;
        loop {
            let file = openat(&self.folder, &self.name, flags, Mode::empty());
            let file = file.map_err(|cause| StoreError::of_io(cause.into()))?;
            let found = fstat(&file).map_err(|cause| StoreError::System(cause.into()))?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                return Err(StoreError::corrupt(&"it is no file"));
            }
            if found.st_size == 0 {
                return Err(StoreError::corrupt(&"it is empty"));
            }
            let opened = catch_panics(|| {
                let mut database = Opened(Some(builder().create_file(File::from(file))?));
                // Checked now, so that no later read finds damage.
                database.0.as_mut().map_or(Ok(true), Database::check_integrity)?;
                Ok(database)
            });
            match opened {
                Err(StoreError::Busy) if tries < BUSY.0 => {
                    tries += 1;
                    thread::sleep(BUSY.1);
                }
                Err(error) => return Err(error),
                Ok(database) => return Ok((database, identity(&found))),
            }
        }
    }

    /// Creates a registry file with the rows that `fill` writes. The file gets its name once it is complete.
    pub(super) fn create(
        &self,
        fill: impl FnOnce(&Database) -> Result<(), StoreError>,
    ) -> Result<(Opened, Identity), StoreError> {
        let system = |cause: Errno| StoreError::System(cause.into());
        let temporary = format!("{}.new", self.name);
        let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.folder, &temporary, flags, Mode::RUSR | Mode::WUSR).map_err(system)?;
        let made = fstat(&file).map_err(system).and_then(|made| {
            let database = catch_panics(|| Ok(Opened(Some(builder().create_file(File::from(file))?))))?;
            fill(&database)?;
            renameat(&self.folder, &temporary, &self.folder, &self.name).map_err(system)?;
            // The rename must be as durable as the file.
            rustix::fs::fsync(&self.folder).map_err(system)?;
            Ok((database, identity(&made)))
        });
        if made.is_err() {
            // On a full disk an incomplete file would only take space.
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        made
    }

    pub(super) fn remove(&self) {
        // If this fails, the next daemon sets the file aside.
        let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }

    /// Renames the registry file to `NAME.WHAT-N` and returns the new path.
    pub(super) fn set_aside(&self, what: &str) -> PathBuf {
        let is_free = |name: &String| {
            accessat(&self.folder, name, rustix::fs::Access::EXISTS, AtFlags::empty()).is_err()
        };
        let mut names = (0..).map(|n| format!("{}.{what}-{n}", self.name));
        let aside = names.find(is_free).unwrap_or_default();
        let _ = renameat(&self.folder, &self.name, self.folder.as_fd(), &aside);
        self.path.with_file_name(aside)
    }
}

fn identity(found: &Stat) -> Identity {
    (found.st_dev, found.st_ino)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder.create_with_file_format_v3(true);
    builder
}

thread_local! {
    /// Whether panics of this thread are caught, and their messages are not printed.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs an action on the registry file. Turns a panic of the library, as damaged files cause, into an error.
pub(super) fn catch_panics<T>(act: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CATCHING.get() {
                usual(panic);
            }
        }));
    });
    CATCHING.set(true);
    // After a panic the database is dropped or opened again, so no broken state is seen.
    let done = catch_unwind(AssertUnwindSafe(act));
    CATCHING.set(false);
    done.unwrap_or_else(|panic| Err(StoreError::Corrupt(words(&*panic))))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it makes no sense")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}
