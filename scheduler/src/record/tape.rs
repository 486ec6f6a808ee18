//! Writer of lines to a file with a size limit. It reserves room for a last line, even on a full disk.
//!
//! A full disk takes no last line either. So the writer remembers the end of a line at least [`LAST_LINE`]
//! bytes before the end of the file. It cuts the file there if the last line does not fit.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};

use gpushare_core::log::{Chain, Line, Link};
use gpushare_proto::Bytes;

/// Largest length of the last line, in bytes.
const LAST_LINE: u64 = 512;
/// Number of bytes that one write call takes.
const CHUNK: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error("it has reached its limit of {0}; --record-limit sets another")]
    Limit(Bytes),
    #[error("the disk does not take it: {0}; free some space, or record to another place")]
    Disk(#[from] io::Error),
}

/// File to which a recording is written.
pub(super) trait Medium: Write {
    /// Truncates the file at the offset `at`, and continues to write there.
    fn cut(&mut self, at: u64) -> io::Result<()>;
}

impl Medium for File {
    fn cut(&mut self, at: u64) -> io::Result<()> {
        self.set_len(at)?;
        self.seek(SeekFrom::Start(at)).map(drop)
    }
}

/// Writer of lines that form a hash chain (each line contains a hash of the lines before).
#[derive(Debug)]
pub(super) struct Tape<M> {
    medium: M,
    limit: Bytes,
    /// Complete lines that are not in the file yet.
    buffer: Vec<u8>,
    /// State of the hash chain after the last line of the buffer.
    chain: Chain,
    /// File offsets of the ends of the latest lines, in order, with the state of the hash chain there.
    ends: VecDeque<End>,
    /// File offset of the end of the last complete line, with the state of the hash chain there.
    written: End,
}

#[derive(Clone, Copy, Debug, Default)]
struct End {
    at: u64,
    chain: Chain,
}

impl<M: Medium> Tape<M> {
    pub(super) fn new(medium: M, limit: Bytes) -> Self {
        Self {
            medium,
            limit,
            buffer: Vec::with_capacity(CHUNK),
            chain: Chain::default(),
            ends: VecDeque::new(),
            written: End::default(),
        }
    }

    pub(super) fn add(&mut self, line: Line) -> Result<(), Stopped> {
        let before = self.buffer.len();
        let chain = self.push(self.chain, line)?;
        let at = self.written.at + self.buffer.len() as u64;
        if at + LAST_LINE > self.limit.0 {
            self.buffer.truncate(before);
            self.flush()?;
            return Err(Stopped::Limit(self.limit));
        }
        self.chain = chain;
        self.ends.push_back(End { at, chain });
        if self.buffer.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the buffer to the file. If the file takes only a part, counts the complete lines of that part.
    pub(super) fn flush(&mut self) -> Result<(), Stopped> {
        let mut taken = 0;
        let mut result = Ok(());
        while taken < self.buffer.len() && result.is_ok() {
            match self.medium.write(&self.buffer[taken..]) {
                Ok(0) => result = Err(io::Error::from(ErrorKind::WriteZero)),
                Ok(more) => taken += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        let reached = self.written.at + taken as u64;
        let whole = self.ends.iter().rev().find(|end| end.at <= reached);
        self.written = whole.copied().unwrap_or(self.written);
        self.buffer.clear();
        while self.ends.get(1).is_some_and(|end| end.at + LAST_LINE <= self.written.at) {
            self.ends.pop_front();
        }
        Ok(result?)
    }

    pub(super) fn end(&mut self, reason: &str) -> io::Result<()> {
        let room = self.ends.front().copied();
        let room = room.filter(|end| end.at + LAST_LINE <= self.written.at);
        // A failed write may have left half a line, which is cut off.
        match (self.end_at(self.written, reason), room) {
            (Err(_), Some(room)) => self.end_at(room, reason),
            (first, _) => first,
        }
    }

    fn end_at(&mut self, end: End, reason: &str) -> io::Result<()> {
        let reason = reason.to_owned();
        self.buffer.clear();
        self.push(end.chain, Line::End { reason })?;
        self.medium.cut(end.at)?;
        self.medium.write_all(&self.buffer)
    }

    /// Adds a line to the buffer. Returns the state of the hash chain `chain` after this line.
    fn push(&mut self, chain: Chain, line: Line) -> io::Result<Chain> {
        let chain = chain.with(&line);
        serde_json::to_writer(&mut self.buffer, &Link { line, chain })?;
        self.buffer.push(b'\n');
        Ok(chain)
    }
}
