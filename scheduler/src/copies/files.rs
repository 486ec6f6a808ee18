//! Memory files of copies: how they are made, when they are done, and who closes them.
//!
//! The daemon seals the size of a file before a process gets it, so that the process cannot make it larger.
//! The process seals what is in it. The kernel allows that only once nobody can write to the file: it has no
//! writable mapping and no page that a device holds for writing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use gpushare_proto::Bytes;
use gpushare_sys::memory_file;
use rustix::fs::{self, Mode, OFlags, SealFlags};

use super::table::{Files, Stage};

/// Name of the files in `/proc/PID/maps` of the processes that map them.
const NAME: &str = "gpushare-copy";
/// Seals of a file whose size cannot change.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Seals of a file that is done.
const ALL: SealFlags = SIZE.union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Maker of memory files. Starts the thread that closes them with the first file.
#[derive(Debug, Default)]
pub(crate) struct MemoryFiles {
    closer: Option<Closer>,
}

/// Way to the thread that closes files.
#[derive(Clone, Debug)]
struct Closer {
    files: Sender<Arc<OwnedFd>>,
    /// Number of files that the thread has not closed yet.
    waiting: Arc<AtomicUsize>,
}

impl Closer {
    fn close(&self, file: Arc<OwnedFd>) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread lasts as long as there is a sender.
        let _ = self.files.send(file);
    }
}

/// Memory file of a copy.
///
/// The last close of such a file frees up to 128 MiB, which takes the kernel milliseconds. So a thread does
/// that, whoever drops the last clone of this.
#[derive(Clone, Debug)]
pub(crate) struct CopyFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Dropped before `last`, so that it is not the last one.
    file: Arc<OwnedFd>,
    _last: Last,
}

/// Owner of a file that outlives the others and leaves it to the thread.
#[derive(Debug)]
struct Last {
    file: Option<Arc<OwnedFd>>,
    closer: Closer,
}

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.closer.close(file);
        }
    }
}

impl CopyFile {
    fn new(file: OwnedFd, closer: Closer) -> Self {
        let file = Arc::new(file);
        let last = Last { file: Some(file.clone()), closer };
        Self(Arc::new(Shared { file, _last: last }))
    }

    /// Returns the same file, opened for reading only. Before Linux 6.7, a process could not map a sealed
    /// file by a descriptor with which it could write.
    fn read_only(&self) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self::new(file, self.0._last.closer.clone()))
    }
}

impl AsFd for CopyFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl MemoryFiles {
    fn closer(&mut self) -> io::Result<Closer> {
        if let Some(closer) = &self.closer {
            return Ok(closer.clone());
        }
        let (files, closing) = channel();
        let closer = Closer { files, waiting: Arc::default() };
        let waiting = closer.waiting.clone();
        let close = move |file: Arc<OwnedFd>| {
            drop(file);
            waiting.fetch_sub(1, Ordering::Relaxed);
        };
        thread::Builder::new()
            .name("copy-closer".to_owned())
            .spawn(move || closing.into_iter().for_each(close))?;
        self.closer = Some(closer.clone());
        Ok(closer)
    }
}

impl Files for MemoryFiles {
    type File = CopyFile;

    fn make(&mut self, bytes: Bytes) -> io::Result<CopyFile> {
        let closer = self.closer()?;
        let file = memory_file::create(NAME)?;
        fs::ftruncate(&file, bytes.0)?;
        fs::fcntl_add_seals(&file, SIZE)?;
        Ok(CopyFile::new(file, closer))
    }

    fn stage(&self, file: &CopyFile, bytes: Bytes) -> Stage {
        let size = fs::fstat(file).map(|facts| u64::try_from(facts.st_size));
        let (Ok(seals), Ok(Ok(size))) = (fs::fcntl_get_seals(file), size) else {
            return Stage::Spoilt;
        };
        match (size == bytes.0, seals.contains(ALL), seals.contains(SealFlags::SEAL)) {
            (true, true, _) => Stage::Sealed,
            (true, false, false) => Stage::Open,
            (false, ..) | (true, false, true) => Stage::Spoilt,
        }
    }

    fn closing(&self) -> usize {
        let closer = self.closer.as_ref();
        closer.map_or(0, |closer| closer.waiting.load(Ordering::Relaxed))
    }

    fn for_readers(&self, file: &CopyFile) -> CopyFile {
        // Without /proc, processes on an older kernel cannot map it. They then keep their own bytes.
        file.read_only().unwrap_or_else(|_| file.clone())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const SIZE_OF_COPY: Bytes = Bytes::mib(2);

    fn made() -> (MemoryFiles, CopyFile) {
        let mut files = MemoryFiles::default();
        let file = files.make(SIZE_OF_COPY).unwrap();
        (files, file)
    }

    #[test]
    fn a_file_is_done_once_it_has_all_seals() {
        let (files, file) = made();
        for seals in [SealFlags::empty(), SIZE, SealFlags::WRITE] {
            fs::fcntl_add_seals(&file, seals).unwrap();
            assert_eq!(files.stage(&file, SIZE_OF_COPY), Stage::Open, "{seals:?}");
        }
        fs::fcntl_add_seals(&file, ALL).unwrap();
        assert_eq!(files.stage(&file, SIZE_OF_COPY), Stage::Sealed);
        assert_eq!(files.stage(&file, Bytes::mib(4)), Stage::Spoilt, "of another size");
        let done = files.for_readers(&file);
        assert_eq!(fs::fcntl_getfl(&done).unwrap() & OFlags::RWMODE, OFlags::RDONLY);
        assert_eq!(fs::fstat(&done).unwrap().st_ino, fs::fstat(&file).unwrap().st_ino);
        assert!(fs::fcntl_get_seals(&done).unwrap().contains(ALL));
    }

    #[test]
    fn a_file_that_can_never_be_done_is_spoilt() {
        let (files, file) = made();
        fs::fcntl_add_seals(&file, SealFlags::SEAL).unwrap();
        assert_eq!(files.stage(&file, SIZE_OF_COPY), Stage::Spoilt);
    }

    #[test]
    fn nobody_resizes_a_file() {
        let (_, file) = made();
        for size in [0, SIZE_OF_COPY.0 * 2] {
            assert_eq!(fs::ftruncate(&file, size), Err(Errno::PERM));
        }
    }

    #[test]
    fn the_last_clone_leaves_the_file_to_the_thread() {
        let (files, closing) = channel();
        let closer = Closer { files, waiting: Arc::default() };
        let files = MemoryFiles { closer: Some(closer.clone()) };
        let file = CopyFile::new(memory_file::create(NAME).unwrap(), closer);
        let clone = file.clone();
        drop(file);
        assert!(closing.try_recv().is_err());
        assert_eq!(files.closing(), 0);
        drop(clone);
        assert_eq!(files.closing(), 1, "until the thread has closed it");
        assert_eq!(Arc::strong_count(&closing.try_recv().unwrap()), 1);
    }
}
