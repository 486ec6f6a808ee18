//! Thread that writes the log lines to standard error or to a file.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::Path;

use gpushare_proto::Bytes;
use rustix::event::{PollFd, PollFlags, poll};

use super::queue::Queue;
use crate::rotated::{RotatedFile, folder_of};

/// Largest size of a log file.
const FILE_SIZE: Bytes = Bytes::mib(4);
/// Number of full log files that are kept.
const FULL_FILES: u32 = 1;

/// Destination of the log lines.
#[derive(Debug)]
pub(super) enum Sink {
    Stderr {
        /// Whether the last line is incomplete, because the write of its rest failed.
        torn: bool,
    },
    File(Box<RotatedFile>),
}

impl Sink {
    pub(super) fn new(file: Option<&Path>) -> Self {
        match file {
            None => Self::Stderr { torn: false },
            Some(path) => {
                let file = RotatedFile::new(folder_of(path), path.to_owned(), FILE_SIZE, FULL_FILES);
                Self::File(Box::new(file))
            }
        }
    }

    /// Prepares for the next lines. A file that was removed or renamed is created again.
    fn prepare(&mut self) -> io::Result<()> {
        match self {
            Self::Stderr { .. } => Ok(()),
            Self::File(file) => file.prepare(),
        }
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr { torn } => {
                if *torn {
                    write_to_stderr(b"\n", torn)?;
                }
                write_to_stderr(line, torn)
            }
            Self::File(file) => file.append(line),
        }
    }
}

/// Writes bytes that end with a line break to standard error. Waits while a pipe is full.
fn write_to_stderr(mut bytes: &[u8], torn: &mut bool) -> io::Result<()> {
    let mut stderr = io::stderr();
    while !bytes.is_empty() {
        match stderr.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                *torn = !bytes.is_empty();
            }
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            // The starter of the daemon may have made its terminal or pipe non-blocking.
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::OUT)], None)?;
            }
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// Writes lines until the queue ends. `report` makes the line about lost lines, with the reason for the loss.
pub(super) fn write_lines(queue: &Queue, mut sink: Sink, report: impl Fn(u64, &str) -> Vec<u8>) {
    let mut reported = 0;
    let mut why = None;
    while let Some(lines) = queue.take() {
        let mut prepared = sink.prepare();
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            let mut append = || {
                prepared
                    .as_ref()
                    .map_err(|cause| io::Error::new(cause.kind(), cause.to_string()))?;
                let lost = queue.lost();
                if lost > reported {
                    let why = why
                        .take()
                        .unwrap_or_else(|| "lines came faster than they were written".to_owned());
                    sink.append(&report(lost - reported, &why))?;
                    reported = lost;
                }
                sink.append(line)
            };
            if let Err(cause) = append() {
                why = Some(cause.to_string());
                queue.lose(1);
                // The next batch tries again. Until then every line would fail in the same way.
                prepared = Err(cause);
            }
        }
    }
}
