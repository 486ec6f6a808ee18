//! `hold`: memcpy and memset, synchronous and asynchronous.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use clap::Subcommand;
use serde_json::json;

use super::command::On;
use super::desk::{Answer, Desk, HostWords, done};
use crate::memory::Buffer;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum CopyCommand {
    /// Copy VALUE to every word of a buffer from host memory
    Put {
        buffer: String,
        value: u32,
        #[arg(long)]
        r#async: bool,
        #[command(flatten)]
        stream: On,
    },
    /// Copy a buffer to host memory and tell its first and last word
    Get { buffer: String },
    /// Start to copy a buffer to host memory; `look` tells what has arrived
    Fetch {
        buffer: String,
        #[command(flatten)]
        stream: On,
    },
    /// Tell the first and the last word of what `fetch` brought
    Look { buffer: String },
    /// Copy one buffer to another on the device
    Copy { from: String, to: String },
    /// Set every word of a buffer by memset
    Set {
        buffer: String,
        value: u32,
        #[arg(long)]
        r#async: bool,
        #[command(flatten)]
        stream: On,
    },
}

impl Desk {
    pub(super) fn copies(&self, command: &CopyCommand) -> Answer {
        let gpu = self.gpu()?;
        match command {
            CopyCommand::Put { buffer, value, r#async: false, .. } => {
                let buffer = self.buffers.get(buffer)?;
                gpu.upload(buffer, &vec![*value; len(buffer)])?;
                done()
            }
            CopyCommand::Put { buffer, value, r#async: true, stream } => {
                let buffer = self.buffers.get(buffer)?;
                gpu.upload_async(buffer, host_words(buffer, *value), self.stream(stream)?)?;
                done()
            }
            CopyCommand::Get { buffer } => {
                let buffer = self.buffers.get(buffer)?;
                let mut words = vec![0; len(buffer)];
                gpu.download(buffer, &mut words)?;
                Ok(json!({ "first": words.first(), "last": words.last() }))
            }
            CopyCommand::Fetch { buffer: name, stream } => {
                let buffer = self.buffers.get(name)?;
                let words = host_words(buffer, 0);
                self.fetched.put(name, words);
                gpu.download_async(buffer, words, self.stream(stream)?)?;
                done()
            }
            CopyCommand::Look { buffer } => {
                let words = self.fetched.get(buffer)?;
                let word = |word: Option<&AtomicU32>| word.map(|word| word.load(Relaxed));
                Ok(json!({ "first": word(words.first()), "last": word(words.last()) }))
            }
            CopyCommand::Copy { from, to } => {
                gpu.copy(self.buffers.get(from)?, self.buffers.get(to)?)?;
                done()
            }
            CopyCommand::Set { buffer, value, r#async, stream } => {
                let stream = if *r#async { Some(self.stream(stream)?) } else { None };
                gpu.set(self.buffers.get(buffer)?, *value, stream)?;
                done()
            }
        }
    }
}

fn len(buffer: Buffer) -> usize {
    usize::try_from(buffer.words()).unwrap_or(usize::MAX)
}

/// Host memory as large as a buffer, for the rest of the process.
fn host_words(buffer: Buffer, value: u32) -> HostWords {
    (0..buffer.words()).map(|_| AtomicU32::new(value)).collect::<Vec<_>>().leak()
}
