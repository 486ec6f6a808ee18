//! Files of an audit log: the current file and the rotated files `.1`, `.2`, ….
//!
//! A rotation renames files while they are read. So each file is held open and identified by its inode.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::exit::{self, CommandError, CtlError};

/// Maximum number of rotated files of the audit log that a daemon keeps.
const MOST: u32 = 1000;

/// Reason why the audit log cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuditError {
    #[error("there is no audit log {0}; the daemon creates it with its first line; --file names another one")]
    Missing(PathBuf),
    #[error("cannot read the audit log {path}: {cause}; run as the daemon's user or as root")]
    Unreadable { path: PathBuf, cause: io::Error },
}

impl CommandError for AuditError {
    fn code(&self) -> u8 {
        match self {
            Self::Missing(_) => exit::NOT_FOUND,
            Self::Unreadable { cause, .. } if cause.kind() == ErrorKind::PermissionDenied => exit::PERMISSION,
            Self::Unreadable { .. } => exit::ERROR,
        }
    }
}

/// Open files of the audit log, oldest first.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    files: Vec<File>,
}

impl Log {
    pub(super) fn open(path: &Path) -> Result<Self, AuditError> {
        let files = opened(path, None).map_err(|cause| unreadable(path, cause))?;
        if files.is_empty() {
            return Err(AuditError::Missing(path.to_owned()));
        }
        Ok(Self { path: path.to_owned(), files })
    }

    /// Returns the last lines of the audit log, oldest first, and the offset of the newest file's end.
    pub(super) fn tail(&self, lines: usize) -> Result<(Vec<String>, u64), AuditError> {
        let mut last: Vec<String> = Vec::new();
        let mut end = 0;
        for (number, file) in self.files.iter().rev().enumerate() {
            if number > 0 && last.len() >= lines {
                break;
            }
            let (found, at) = read(file, 0).map_err(|cause| unreadable(&self.path, cause))?;
            if number == 0 {
                end = at;
            }
            let wanted = lines - last.len();
            let skipped = found.len().saturating_sub(wanted);
            last.splice(0..0, found.into_iter().skip(skipped));
        }
        Ok((last, end))
    }

    pub(super) fn each(&self, mut visit: impl FnMut(&str) -> Result<(), CtlError>) -> Result<(), CtlError> {
        for file in &self.files {
            let mut reader = BufReader::new(file);
            reader.rewind().map_err(|cause| unreadable(&self.path, cause))?;
            let mut line = Vec::new();
            loop {
                line.clear();
                let read = reader.read_until(b'\n', &mut line);
                if read.map_err(|cause| unreadable(&self.path, cause))? == 0 {
                    break;
                }
                visit(String::from_utf8_lossy(&line).trim_end_matches('\n'))?;
            }
        }
        Ok(())
    }
}

/// Reader of the lines that the daemon adds to the audit log.
#[derive(Debug)]
pub(super) struct Follow {
    path: PathBuf,
    file: File,
    at: u64,
}

impl Follow {
    /// Returns a reader that begins at offset `at` of the log's newest file.
    pub(super) fn new(mut log: Log, at: u64) -> Self {
        // A log has at least one file once it is open.
        let file = log.files.pop().unwrap_or_else(|| unreachable!("a log has a file"));
        let path = log.path;
        Self { path, file, at }
    }

    /// Returns the complete lines that were added to the log since the last call, across rotations.
    pub(super) fn more(&mut self) -> Result<Vec<String>, AuditError> {
        let failed = |cause| unreadable(&self.path, cause);
        // First list the files, then read the rest of ours: a renamed file no longer grows.
        let newer = opened(&self.path, Some(&self.file)).map_err(failed)?;
        let (mut lines, at) = read(&self.file, self.at).map_err(failed)?;
        self.at = at;
        for file in newer {
            let (more, at) = read(&file, 0).map_err(failed)?;
            lines.extend(more);
            (self.file, self.at) = (file, at);
        }
        Ok(lines)
    }
}

/// Opens the files of the log, oldest first: those newer than `known`, or all files without a `known` file.
fn opened(path: &Path, known: Option<&File>) -> io::Result<Vec<File>> {
    let mut files: Vec<File> = Vec::new();
    for number in 0..=MOST {
        match File::open(numbered(path, number)) {
            Ok(file) if known.is_some_and(|known| same(known, &file)) => break,
            // A rotation between two opens can show one file under two names.
            Ok(file) if files.iter().any(|other| same(other, &file)) => {}
            Ok(file) => files.push(file),
            // Just after a rotation, or before the first line, no file has the first name.
            Err(cause) if cause.kind() == ErrorKind::NotFound && number == 0 => {}
            Err(cause) if cause.kind() == ErrorKind::NotFound => break,
            Err(cause) => return Err(cause),
        }
    }
    files.reverse();
    Ok(files)
}

/// Returns the complete lines of a file from offset `at` on, and the offset of the last line's end.
fn read(mut file: &File, at: u64) -> io::Result<(Vec<String>, u64)> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
    let text = String::from_utf8_lossy(&bytes[..whole]);
    let lines = text.lines().map(str::to_owned).collect();
    Ok((lines, at + u64::try_from(whole).unwrap_or(0)))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{number}"));
            name.into()
        }
    }
}

fn same(a: &File, b: &File) -> bool {
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn unreadable(path: &Path, cause: io::Error) -> AuditError {
    let path = path.to_owned();
    AuditError::Unreadable { path, cause }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    fn write(folder: &Path, name: &str, lines: &str) {
        fs::write(folder.join(name), lines).unwrap();
    }

    fn add(folder: &Path, lines: &str) {
        let path = folder.join("audit.log");
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        file.write_all(lines.as_bytes()).unwrap();
    }

    fn rotate(folder: &Path) {
        for number in (1..4).rev() {
            let from = numbered(&folder.join("audit.log"), number - 1);
            let _ = fs::rename(from, numbered(&folder.join("audit.log"), number));
        }
    }

    #[test]
    fn the_last_lines_are_those_of_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "audit.log.2", "1\n2\n");
        write(folder, "audit.log.1", "3\n4\n");
        write(folder, "audit.log", "5\n6");
        let log = Log::open(&folder.join("audit.log")).unwrap();
        assert_eq!(log.tail(1).unwrap().0, ["5"], "a line that is being written is none yet");
        assert_eq!(log.tail(2).unwrap().0, ["4", "5"]);
        assert_eq!(log.tail(9).unwrap().0, ["1", "2", "3", "4", "5"]);
        let mut all = Vec::new();
        log.each(|line| {
            all.push(line.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(all, ["1", "2", "3", "4", "5", "6"]);
    }

    #[test]
    fn who_follows_misses_nothing_when_files_are_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        add(folder, "1\n");
        let log = Log::open(&folder.join("audit.log")).unwrap();
        let (last, at) = log.tail(9).unwrap();
        assert_eq!(last, ["1"]);
        let mut follow = Follow::new(log, at);
        add(folder, "2\n3");
        assert_eq!(follow.more().unwrap(), ["2"]);
        add(folder, "\n");
        rotate(folder);
        assert_eq!(follow.more().unwrap(), ["3"]);
        add(folder, "4\n");
        rotate(folder);
        add(folder, "5\n");
        assert_eq!(follow.more().unwrap(), ["4", "5"]);
        assert_eq!(follow.more().unwrap(), [""; 0]);
    }

    #[test]
    fn a_log_that_is_not_there_is_said_to_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let error = Log::open(&folder.path().join("audit.log")).unwrap_err();
        assert!(error.to_string().contains("no audit log"), "{error}");
    }
}
