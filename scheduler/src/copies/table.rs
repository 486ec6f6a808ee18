//! Table of the copies: which connections of which user have bytes of a name, and the file of each copy.
//!
//! ```text
//!             two chunks                sealed
//!   Alone ──────────────▶ filled by A ─────────▶ made
//!     ▲                        │
//!     └── A ends, or spoils ───┘
//! ```
//!
//! A state is never told by a process: whether a file is sealed is looked up whenever the answer depends on
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io;

use gpushare_proto::Bytes;
use gpushare_proto::copies::{CopiesView, CopyName, is_size_of_copy};
use rustix::process::{Resource, getrlimit};
use tracing::debug;

use crate::connections::ConnectionId;
use crate::identity::User;

/// Maker of the files of copies, and the only one who looks at them.
pub(crate) trait Files: Debug {
    type File: Clone + Debug;

    /// Makes an empty file of this size, which cannot be resized.
    fn make(&mut self, bytes: Bytes) -> io::Result<Self::File>;

    /// Looks at the seals and the size of a file that a process was given to fill.
    fn stage(&self, file: &Self::File, bytes: Bytes) -> Stage;

    /// Returns the number of files that the table has dropped and that are still open.
    fn closing(&self) -> usize;

    /// Returns a sealed file as processes get it that only read.
    fn for_readers(&self, file: &Self::File) -> Self::File;
}

/// Stage of a file that a process was given to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The file can still be written, and sealed later.
    Open,
    /// The file is sealed: nobody can change it any more.
    Sealed,
    /// The file has not the seals of a copy and can never have them.
    Spoilt,
}

/// Answer to a process, with the file that comes with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked<File> {
    Alone,
    Fill(File),
    Made(File),
    Busy,
    Refused,
}

/// Name and size of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) name: CopyName,
    pub(crate) bytes: Bytes,
}

/// Bounds on what one connection, one user and all users may have in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Largest number of names of one connection.
    pub(crate) of_connection: usize,
    /// Largest number of pairs of a connection and a name, over all connections of one user.
    pub(crate) of_user: usize,
    /// Largest number of files of one user.
    pub(crate) files_of_user: usize,
    /// Largest number of files of all users.
    pub(crate) files: usize,
}

impl Bounds {
    /// Largest number of files of all users, however many the daemon may have open.
    const MOST_FILES: usize = 16 << 10;

    /// Returns the bounds of a daemon with the limit on descriptors of this process.
    pub(crate) fn of_this_process() -> Self {
        Self::with_descriptors(getrlimit(Resource::Nofile).current)
    }

    /// Returns the bounds of a daemon that may have `descriptors` open. A quarter of them is for copies, and
    /// half of that for one user.
    pub(super) fn with_descriptors(descriptors: Option<u64>) -> Self {
        let quarter = descriptors.map_or(usize::MAX, |all| usize::try_from(all / 4).unwrap_or(usize::MAX));
        let files = quarter.min(Self::MOST_FILES);
        Self { of_connection: 4 << 10, of_user: 16 << 10, files_of_user: files / 2, files }
    }
}

/// Table of all copies, by user.
#[derive(Debug)]
pub(crate) struct Table<F: Files> {
    files: F,
    bounds: Bounds,
    users: BTreeMap<User, OfUser<F::File>>,
    connections: BTreeMap<ConnectionId, OfConnection>,
}

#[derive(Debug)]
struct OfConnection {
    user: User,
    keys: BTreeSet<Key>,
}

#[derive(Debug)]
struct OfUser<File> {
    entries: BTreeMap<Key, Entry<File>>,
    /// Number of pairs of a connection and a key.
    askings: usize,
    files: usize,
    /// Size of the files together.
    bytes: Bytes,
}

#[derive(Debug)]
struct Entry<File> {
    /// Number of chunks with these bytes, of each connection that has any.
    chunks: BTreeMap<ConnectionId, u32>,
    copy: Option<CopyOf<File>>,
}

#[derive(Debug)]
struct CopyOf<File> {
    file: File,
    progress: Progress,
}

/// Progress of a copy, as far as the daemon has looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The process of this connection fills the file.
    Filling(ConnectionId),
    Sealed,
    /// The file is sealed, and is the one for readers.
    Made,
}

impl<F: Files> Table<F> {
    pub(crate) fn new(files: F, bounds: Bounds) -> Self {
        Self { files, bounds, users: BTreeMap::new(), connections: BTreeMap::new() }
    }

    /// Notes that a connection of a user has chunks with the bytes of a key, in place of what it said of this
    /// key before. Returns the answer. After [`Asked::Refused`] the connection is noted for this key no more.
    pub(crate) fn ask(
        &mut self,
        user: &User,
        connection: ConnectionId,
        key: Key,
        chunks: u32,
    ) -> Asked<F::File> {
        let is_noted = chunks > 0 && is_size_of_copy(key.bytes) && self.note(user, connection, key, chunks);
        let answer = if is_noted { self.answer(user, connection, key) } else { None };
        answer.unwrap_or_else(|| {
            self.end(connection, key);
            Asked::Refused
        })
    }

    /// Forgets that a connection has bytes of a key.
    pub(crate) fn end(&mut self, connection: ConnectionId, key: Key) {
        let Some(of_connection) = self.connections.get_mut(&connection) else { return };
        if !of_connection.keys.remove(&key) {
            return;
        }
        let user = of_connection.user.clone();
        if of_connection.keys.is_empty() {
            self.connections.remove(&connection);
        }
        self.leave(&user, connection, key);
    }

    /// Forgets a connection.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        if let Some(OfConnection { user, keys }) = self.connections.remove(&connection) {
            keys.into_iter().for_each(|key| self.leave(&user, connection, key));
        }
    }

    /// Returns the number and size of the copies, and the number of their users.
    pub(crate) fn view(&self) -> CopiesView {
        let with_files = || self.users.values().filter(|user| user.files > 0);
        CopiesView {
            copies: self.all_files() as u64,
            bytes: with_files().map(|user| user.bytes).sum(),
            users: with_files().count() as u64,
        }
    }

    fn all_files(&self) -> usize {
        self.users.values().map(|user| user.files).sum()
    }

    /// Enters a connection under a key. Returns whether the bounds allow it.
    fn note(&mut self, user: &User, connection: ConnectionId, key: Key, chunks: u32) -> bool {
        let names = self.connections.get(&connection).map_or(0, |of| of.keys.len());
        let askings = self.users.get(user).map_or(0, |of| of.askings);
        let is_known = self.connections.get(&connection).is_some_and(|of| of.keys.contains(&key));
        if !is_known && (names >= self.bounds.of_connection || askings >= self.bounds.of_user) {
            return false;
        }
        let of_connection = self
            .connections
            .entry(connection)
            .or_insert_with(|| OfConnection { user: user.clone(), keys: BTreeSet::new() });
        of_connection.keys.insert(key);
        let of_user = self.users.entry(user.clone()).or_insert_with(OfUser::new);
        let entry = of_user
            .entries
            .entry(key)
            .or_insert_with(|| Entry { chunks: BTreeMap::new(), copy: None });
        if entry.chunks.insert(connection, chunks).is_none() {
            of_user.askings += 1;
        }
        true
    }

    /// Returns the answer to a connection that is noted under a key; none if there may be no further file.
    fn answer(&mut self, user: &User, connection: ConnectionId, key: Key) -> Option<Asked<F::File>> {
        let open_files = self.all_files() + self.files.closing();
        let of_user = self.users.get_mut(user)?;
        of_user.look(&self.files, key);
        let entry = of_user.entries.get_mut(&key)?;
        if let Some(CopyOf { file, progress }) = &mut entry.copy {
            if *progress == Progress::Sealed {
                (*file, *progress) = (self.files.for_readers(file), Progress::Made);
            }
            return Some(match *progress {
                // The process may have lost the file.
                Progress::Filling(filler) if filler == connection => Asked::Fill(file.clone()),
                Progress::Filling(_) => Asked::Busy,
                Progress::Sealed | Progress::Made => Asked::Made(file.clone()),
            });
        }
        if entry.chunks.len() < 2 && entry.chunks.values().all(|&chunks| chunks < 2) {
            return Some(Asked::Alone);
        }
        if of_user.files >= self.bounds.files_of_user || open_files >= self.bounds.files {
            return None;
        }
        let made = self.files.make(key.bytes);
        let file = made.inspect_err(|cause| debug!("no file for a copy: {cause}")).ok()?;
        entry.copy = Some(CopyOf { file: file.clone(), progress: Progress::Filling(connection) });
        of_user.files += 1;
        of_user.bytes += key.bytes;
        Some(Asked::Fill(file))
    }

    /// Removes a connection from a key, with the file that only this connection could have sealed.
    fn leave(&mut self, user: &User, connection: ConnectionId, key: Key) {
        let Some(of_user) = self.users.get_mut(user) else { return };
        let Some(entry) = of_user.entries.get_mut(&key) else { return };
        let was_noted = entry.chunks.remove(&connection).is_some();
        let is_unused = entry.chunks.is_empty();
        of_user.askings -= usize::from(was_noted);
        if is_unused {
            of_user.drop_copy(key);
            of_user.entries.remove(&key);
        } else if of_user.is_filled_by(connection, key) {
            of_user.look(&self.files, key);
            if of_user.is_filled_by(connection, key) {
                of_user.drop_copy(key);
            }
        }
        if of_user.entries.is_empty() {
            self.users.remove(user);
        }
    }
}

impl<File: Clone + Debug> OfUser<File> {
    fn new() -> Self {
        Self { entries: BTreeMap::new(), askings: 0, files: 0, bytes: Bytes::ZERO }
    }

    /// Looks whether a file has been sealed or spoilt that a process was to fill.
    fn look<F: Files<File = File>>(&mut self, files: &F, key: Key) {
        let copy = self.entries.get_mut(&key).and_then(|entry| entry.copy.as_mut());
        let Some(copy) = copy.filter(|copy| matches!(copy.progress, Progress::Filling(_))) else {
            return;
        };
        match files.stage(&copy.file, key.bytes) {
            Stage::Open => {}
            Stage::Sealed => copy.progress = Progress::Sealed,
            Stage::Spoilt => self.drop_copy(key),
        }
    }

    fn is_filled_by(&self, connection: ConnectionId, key: Key) -> bool {
        let copy = self.entries.get(&key).and_then(|entry| entry.copy.as_ref());
        copy.is_some_and(|copy| copy.progress == Progress::Filling(connection))
    }

    fn drop_copy(&mut self, key: Key) {
        if self.entries.get_mut(&key).and_then(|entry| entry.copy.take()).is_some() {
            self.files -= 1;
            self.bytes -= key.bytes;
        }
    }
}
