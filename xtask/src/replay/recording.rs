//! Reading a recording line by line. A last line that was cut is an end; any other line that does not read
//! is an error, because what follows it would mean something else without it. A line whose chain is not
//! that of the lines up to it is not what the daemon wrote there; the first such line is remembered.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use gpushare_core::log::{Chain, FORMAT, Handled, Header, Line, Link};
use serde::Serialize;

/// A recording, from its first event on.
#[derive(Debug)]
pub(crate) struct Recording {
    path: PathBuf,
    reader: BufReader<File>,
    header: Header,
    /// Lines read.
    line: u64,
    /// Of the last line.
    chain: Chain,
    /// The first line that does not follow those before it.
    altered_at_line: Option<u64>,
}

/// Next entry of a recording.
#[derive(Debug)]
pub(crate) enum Next {
    /// In this line.
    Event(u64, Handled),
    /// Nothing.
    Ended(Ending),
}

/// How a recording ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// With these words.
    Said(String),
    /// After a whole line.
    Nothing,
    /// Within this line.
    Truncated {
        /// Its number.
        line: u64,
    },
}

impl Recording {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut reader = BufReader::new(file);
        let no_recording = || format!("{} is no recording of `gpushare-scheduler --record`", path.display());
        let mut first = Vec::new();
        reader.read_until(b'\n', &mut first).with_context(no_recording)?;
        let link: Link = serde_json::from_slice(&first).with_context(|| match format_of(&first) {
            Some(format) if format != u64::from(FORMAT) => other_format(path, format),
            _ => no_recording(),
        })?;
        let Line::Header(header) = &link.line else {
            bail!("{}: it has no header", no_recording());
        };
        let header = header.as_ref().clone();
        ensure!(header.format == FORMAT, other_format(path, header.format.into()));
        let mut recording = Self {
            path: path.to_owned(),
            reader,
            header,
            line: 1,
            chain: Chain::default(),
            altered_at_line: None,
        };
        recording.follow(&link, &first);
        Ok(recording)
    }

    /// The first line that is not what the daemon wrote there: changed, repeated, out of order, or after
    /// one that is missing.
    pub(crate) fn altered_at_line(&self) -> Option<u64> {
        self.altered_at_line
    }

    /// Holds a line against its chain. The next one is held against what this one says, so that one edit is
    /// one.
    fn follow(&mut self, link: &Link, bytes: &[u8]) {
        let whole = serde_json::to_vec(link).is_ok_and(|written| bytes.strip_suffix(b"\n") == Some(&written));
        if !whole || link.chain != self.chain.with(&link.line) {
            self.altered_at_line.get_or_insert(self.line);
        }
        self.chain = link.chain;
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn next(&mut self) -> anyhow::Result<Next> {
        let mut bytes = Vec::new();
        self.reader.read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(Next::Ended(Ending::Nothing));
        }
        self.line += 1;
        let line = self.line;
        if bytes.last() != Some(&b'\n') {
            return Ok(Next::Ended(Ending::Truncated { line }));
        }
        let strange = format!("line {line} of {} is no line of a recording", self.path.display());
        let link: Link = serde_json::from_slice(&bytes).with_context(|| strange.clone())?;
        self.follow(&link, &bytes);
        match link.line {
            Line::Handled(handled) => Ok(Next::Event(line, handled)),
            Line::End { reason } => {
                let more = self.reader.fill_buf()?;
                if !more.is_empty() {
                    self.altered_at_line.get_or_insert(line + 1);
                }
                Ok(Next::Ended(Ending::Said(reason)))
            }
            Line::Header(_) => bail!("{strange}: a second header"),
        }
    }
}

/// The format of a first line that may be of any version.
fn format_of(first: &[u8]) -> Option<u64> {
    let value: serde_json::Value = serde_json::from_slice(first).ok()?;
    let line = value.get("line").unwrap_or(&value);
    line.get("header")?.get("format")?.as_u64()
}

fn other_format(path: &Path, format: u64) -> String {
    format!(
        "{} has format {format}, and this xtask reads format {FORMAT}; check out the gpushare that its header names, \
         or record again with this one",
        path.display()
    )
}
