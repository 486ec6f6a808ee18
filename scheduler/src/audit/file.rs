//! The file: appended to, never cut, and renamed when it is full.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use gpushare_proto::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, statat};
use rustix::io::Errno;

/// The file that is written to, and those before it.
#[derive(Debug)]
pub(super) struct File {
    folder: io::Result<OwnedFd>,
    path: PathBuf,
    name: OsString,
    size: Bytes,
    files: u32,
    open: Option<Open>,
    /// Why the present file could not be renamed, until somebody is told.
    stayed: Option<io::Error>,
}

#[derive(Debug)]
struct Open {
    file: std::fs::File,
    length: u64,
    /// Whether the last line has no end: the disk was full, or a daemon was killed.
    torn: bool,
    /// Pipes and devices are not renamed, nor what cannot be (`chattr +a`).
    stays: bool,
    regular: bool,
}

impl File {
    /// `path` in the folder that it was in when that was opened; at most `size` in one file, and `files` before it.
    pub(super) fn new(folder: io::Result<OwnedFd>, path: PathBuf, size: Bytes, files: u32) -> Self {
        let name = path.file_name().unwrap_or(OsStr::new("audit.log")).to_owned();
        Self { folder, path, name, size, files, open: None, stayed: None }
    }

    pub(super) fn path(&self) -> std::path::Display<'_> {
        Path::display(&self.path)
    }

    /// Opens it unless it is open and still the one of that name: somebody may have moved it.
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        let folder = self
            .folder
            .as_ref()
            .map_err(|cause| io::Error::new(cause.kind(), format!("its folder does not open ({cause})")))?;
        if let Some(open) = &self.open {
            let ours = open.file.metadata()?;
            match statat(folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if (there.st_dev, there.st_ino) == (ours.dev(), ours.ino()) => return Ok(()),
                Ok(_) | Err(Errno::NOENT) => self.open = None,
                Err(cause) => return Err(cause.into()),
            }
        }
        // To read as well: whether the last line is whole. Never to wait: a pipe may have no reader.
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::CLOEXEC
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY;
        let file = std::fs::File::from(openat(folder, &self.name, flags, Mode::RUSR | Mode::WUSR)?);
        let metadata = file.metadata()?;
        let (length, regular) = (metadata.len(), metadata.is_file());
        let mut last = [b'\n'];
        if regular && length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        self.open = Some(Open { file, length, torn: last != [b'\n'], stays: !regular, regular });
        Ok(())
    }

    /// Adds a line, in a new file if the present one has no room for it.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let is_full = |open: &Open| !open.stays && open.length > 0 && open.length + length > self.size.0;
        if self.open.as_ref().is_some_and(is_full)
            && let Err(cause) = self.rotate()
        {
            match &mut self.open {
                // Not tried again: each try would push the oldest file out.
                Some(open) => open.stays = true,
                None => return Err(cause),
            }
            self.stayed = Some(cause);
        }
        let Some(open) = &mut self.open else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        if open.torn {
            open.add(b"\n")?;
        }
        open.add(line)
    }

    /// Why the present file could not be renamed, once.
    pub(super) fn stayed(&mut self) -> Option<io::Error> {
        self.stayed.take()
    }

    /// On the disk, not only on its way.
    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.open {
            Some(open) if open.regular => open.file.sync_data(),
            _ => Ok(()),
        }
    }

    /// Each file becomes the one before it, and the oldest is no more.
    fn rotate(&mut self) -> io::Result<()> {
        if let Ok(folder) = &self.folder {
            for number in (1..=self.files).rev() {
                match renameat(folder, self.numbered(number - 1), folder, self.numbered(number)) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(cause) => return Err(cause.into()),
                }
            }
            self.open = None;
        }
        self.prepare()
    }

    fn numbered(&self, number: u32) -> OsString {
        let mut name = self.name.clone();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        name
    }
}

impl Open {
    /// Adds bytes that end a line. If only a part goes in, the next line begins on a line of its own.
    fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    self.length += u64::try_from(written).unwrap_or(0);
                    self.torn = !bytes.is_empty();
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }
}
