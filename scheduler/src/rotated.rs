//! Rotated file of lines, for the audit log and for the log. Lines are only appended. When the file is
//! full, it is renamed and a new one begins.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use gpushare_proto::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, statat};
use rustix::io::Errno;

#[derive(Debug)]
pub(crate) struct RotatedFile {
    folder: io::Result<OwnedFd>,
    path: PathBuf,
    name: OsString,
    size: Bytes,
    files: u32,
    open: Option<Open>,
    /// Error of the last rotation that no message has reported yet.
    rotation_error: Option<io::Error>,
}

#[derive(Debug)]
struct Open {
    file: std::fs::File,
    length: u64,
    /// Whether the last line of the file is incomplete, after a full disk or a killed daemon.
    torn: bool,
    /// Whether the file is never rotated, as for a pipe, a device, or a file that could not be renamed
    /// (`chattr +a`).
    stays: bool,
    regular: bool,
}

impl RotatedFile {
    /// Creates the log for the file `path` in the open `folder`. A file holds at most `size` bytes; `files`
    /// older files are kept.
    pub(crate) fn new(folder: io::Result<OwnedFd>, path: PathBuf, size: Bytes, files: u32) -> Self {
        let name = path.file_name().unwrap_or(OsStr::new("log")).to_owned();
        Self { folder, path, name, size, files, open: None, rotation_error: None }
    }

    pub(crate) fn path(&self) -> std::path::Display<'_> {
        Path::display(&self.path)
    }

    /// Opens the file, unless the file at its path is open already.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        let closed =
            |cause: &io::Error| io::Error::new(cause.kind(), format!("its folder does not open ({cause})"));
        let folder = self.folder.as_ref().map_err(closed)?;
        if let Some(open) = &self.open {
            let ours = open.file.metadata()?;
            match statat(folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) if (there.st_dev, there.st_ino) == (ours.dev(), ours.ino()) => return Ok(()),
                Ok(_) | Err(Errno::NOENT) => self.open = None,
                Err(cause) => return Err(cause.into()),
            }
        }
        // RDWR, to read whether the last line is complete. NONBLOCK, because a pipe may have no reader.
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

    /// Appends a line. Begins a new file if the present one has no room for the line.
    pub(crate) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let is_full = |open: &Open| !open.stays && open.length > 0 && open.length + length > self.size.0;
        if self.open.as_ref().is_some_and(is_full)
            && let Err(cause) = self.rotate()
        {
            match &mut self.open {
                // Not tried again, because each try would remove the oldest file.
                Some(open) => open.stays = true,
                None => return Err(cause),
            }
            self.rotation_error = Some(cause);
        }
        let Some(open) = &mut self.open else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        if open.torn {
            open.add(b"\n")?;
        }
        open.add(line)
    }

    pub(crate) fn rotation_error(&mut self) -> Option<io::Error> {
        self.rotation_error.take()
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        match &self.open {
            Some(open) if open.regular => open.file.sync_data(),
            _ => Ok(()),
        }
    }

    /// Raises the number in the name of each full file, drops the oldest one, and opens a new file.
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
    /// Appends bytes that end with a line break. Records whether the disk took only a part of them.
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

/// Opens the folder of the file at a path.
pub(crate) fn folder_of(path: &Path) -> io::Result<OwnedFd> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}
