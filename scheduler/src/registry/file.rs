//! The store's file: found, made and set aside by its name in a folder that is held open, so that another
//! daemon's at the same path is never touched.

use std::any::Any;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use redb::{Builder, Database, DatabaseError, StorageError};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, accessat, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// Pages that the store keeps in memory.
const CACHE: usize = 1 << 20;
/// How often a file is tried that the last daemon has not quite let go of, and how long apart.
const BUSY: (u32, Duration) = (100, Duration::from_millis(20));

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// What is there is no store that was written here.
    #[error("{0}")]
    Corrupt(String),
    /// It may be fine, but the system does not let us at it.
    #[error("{0}")]
    System(io::Error),
}

impl Trouble {
    pub(super) fn corrupt(what: &impl ToString) -> Self {
        Self::Corrupt(what.to_string())
    }
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(cause: E) -> Self {
        match cause.into() {
            redb::Error::Io(cause) => cause.into_trouble(),
            other => Self::corrupt(&other),
        }
    }
}

trait IntoTrouble {
    fn into_trouble(self) -> Trouble;
}

impl IntoTrouble for io::Error {
    /// What only time or room can mend is no fault of the file.
    fn into_trouble(self) -> Trouble {
        match Errno::from_io_error(&self) {
            Some(
                Errno::NOSPC
                | Errno::DQUOT
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::ROFS
                | Errno::FBIG,
            ) => Trouble::System(self),
            _ => Trouble::corrupt(&self),
        }
    }
}

/// An open store. To close it the library writes, and may panic like on any other write.
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
            // A second panic would end the daemon. The file stays open, under whatever name it is given.
            std::mem::forget(database);
        } else {
            // What is damaged is found by the next one to open it.
            let _ = careful(|| {
                drop(database);
                Ok::<_, Trouble>(())
            });
        }
    }
}

/// A file's place.
#[derive(Debug)]
pub(super) struct Place {
    folder: OwnedFd,
    /// Where the folder was when it was opened, for people.
    pub(super) path: PathBuf,
    name: String,
}

/// Which file it is.
pub(super) type Identity = (u64, u64);

impl Place {
    pub(super) fn new(folder: OwnedFd, path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { folder, path, name }
    }

    /// The file that has the name now; none if none has.
    pub(super) fn identity(&self) -> Option<Identity> {
        Some(identity(&statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?))
    }

    /// Opens the store that is there.
    pub(super) fn open(&self) -> Result<(Opened, Identity), Trouble> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut tries = 0;
        loop {
            let file = openat(&self.folder, &self.name, flags, Mode::empty());
            let file = file.map_err(|cause| io::Error::from(cause).into_trouble())?;
            let found = fstat(&file).map_err(|cause| Trouble::System(cause.into()))?;
            if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
                return Err(Trouble::corrupt(&"it is no file"));
            }
            if found.st_size == 0 {
                return Err(Trouble::corrupt(&"it is empty"));
            }
            let opened = careful(|| {
                let mut database = Opened(Some(builder().create_file(File::from(file))?));
                // What is damaged is found now, and not by the one who asks for it.
                database.0.as_mut().map_or(Ok(true), Database::check_integrity)?;
                Ok(database)
            });
            match opened {
                Err(NotOpen::Busy) if tries < BUSY.0 => {
                    tries += 1;
                    thread::sleep(BUSY.1);
                }
                Err(NotOpen::Busy) => {
                    return Err(Trouble::System(io::Error::other("another process has it open")));
                }
                Err(NotOpen::Trouble(trouble)) => return Err(trouble),
                Ok(database) => return Ok((database, identity(&found))),
            }
        }
    }

    /// Makes a new one, which `fill` gives its first rows. It has its name once it is whole.
    pub(super) fn create(
        &self,
        fill: impl FnOnce(&Database) -> Result<(), Trouble>,
    ) -> Result<(Opened, Identity), Trouble> {
        let system = |cause: Errno| Trouble::System(cause.into());
        let temporary = format!("{}.new", self.name);
        let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.folder, &temporary, flags, Mode::RUSR | Mode::WUSR).map_err(system)?;
        let made = fstat(&file).map_err(system).and_then(|made| {
            let database =
                careful(|| Ok::<_, NotOpen>(Opened(Some(builder().create_file(File::from(file))?))))?;
            fill(&database)?;
            renameat(&self.folder, &temporary, &self.folder, &self.name).map_err(system)?;
            // The name must be as safe as what it names.
            rustix::fs::fsync(&self.folder).map_err(system)?;
            Ok((database, identity(&made)))
        });
        if made.is_err() {
            // On a full disk half a store is of use to nobody, and takes room.
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        made
    }

    /// Takes away what is there.
    pub(super) fn remove(&self) {
        // One that stays is set aside by the next daemon.
        let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }

    /// Gives what is there another name, which says `what` it is; that name.
    pub(super) fn set_aside(&self, what: &str) -> PathBuf {
        let is_free = |name: &String| {
            accessat(&self.folder, name, rustix::fs::Access::EXISTS, AtFlags::empty()).is_err()
        };
        let aside = (0..)
            .map(|n| format!("{}.{what}-{n}", self.name))
            .find(is_free)
            .unwrap_or_default();
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

/// Why a file was not opened.
enum NotOpen {
    Busy,
    Trouble(Trouble),
}

impl From<DatabaseError> for NotOpen {
    fn from(cause: DatabaseError) -> Self {
        match cause {
            DatabaseError::DatabaseAlreadyOpen => Self::Busy,
            other => Self::Trouble(other.into()),
        }
    }
}

impl From<StorageError> for NotOpen {
    fn from(cause: StorageError) -> Self {
        Self::Trouble(cause.into())
    }
}

impl From<Trouble> for NotOpen {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<NotOpen> for Trouble {
    fn from(not_open: NotOpen) -> Self {
        match not_open {
            NotOpen::Busy => Self::System(io::Error::other("another process has it open")),
            NotOpen::Trouble(trouble) => trouble,
        }
    }
}

thread_local! {
    /// Whether a panic of this thread is somebody's answer and no news for people.
    static CARE: Cell<bool> = const { Cell::new(false) };
}

/// Does something with the store. The store's library panics on some damage: that is an answer too, said by
/// us.
pub(super) fn careful<T, E: From<Trouble>>(act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !CARE.get() {
                usual(panic);
            }
        }));
    });
    CARE.set(true);
    // Whatever it was about is dropped or reopened after a panic, and never looked at again.
    let done = catch_unwind(AssertUnwindSafe(act));
    CARE.set(false);
    done.unwrap_or_else(|panic| Err(Trouble::Corrupt(words(&*panic)).into()))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it makes no sense");
    text.lines().next().unwrap_or_default().to_owned()
}
