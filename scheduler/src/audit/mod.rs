//! The audit log: acts of administrators and refused memory requests, as lines of JSON.
//!
//! ```text
//!   the daemon's task                      the audit thread
//!   entry ─▶ queue of 2048 ─▶ line of JSON ─▶ audit.log ─ full ─▶ audit.log.1 ─▶ … ─▶ removed
//!              │ full               │ disk full, read-only
//!              ▼                    ▼
//!            counted ◀──────────── counted: reported by a metric, and by a line once one can be written
//! ```
//!
//! The daemon's task never waits: a slow disk costs lines, not grants. The file is opened by its open folder,
//! so that a replaced folder at the same path gets no lines. A session that is refused in a loop gets
//! thirty-two lines a second and one sum. So no tenant can push out the entries about others.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use gpushare_proto::audit::{Entry, Line, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::config::AuditSettings;
use crate::rotated::{RotatedFile, folder_of};

/// Largest number of audit lines that wait for the writer thread. A line has a few hundred bytes.
const QUEUE: usize = 2048;
/// Longest time for which the ending daemon waits for the disk to take the last audit lines.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of lines written between two checks that the audit file is still at its path.
const BATCH: usize = 256;

/// Numbers of audit lines since the daemon started: written ones and lost ones.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
}

/// Sender of audit lines to the thread that writes them. The default value writes nothing.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    lines: Option<SyncSender<Line>>,
    counts: Arc<Counts>,
    ended: Option<oneshot::Receiver<()>>,
    /// Sampling of memory reservations: one of so many gets an audit line; 0 for none.
    allocations: u64,
    reserved: u64,
}

impl Audit {
    /// Starts the writer thread for the configured file, else for `default` in the open folder `at`. After a
    /// failure, the daemon runs without an audit log.
    pub(crate) fn start(settings: &AuditSettings, at: io::Result<OwnedFd>, default: PathBuf) -> Self {
        let counts = Arc::new(Counts::default());
        let (ending, ended) = oneshot::channel();
        let (lines, queue) = sync_channel(QUEUE);
        let folder = settings.path.as_deref().map_or(at, folder_of);
        let path = settings.path.clone().unwrap_or(default);
        let file = RotatedFile::new(folder, path, settings.size, settings.files);
        let theirs = counts.clone();
        let writing = thread::Builder::new().name("audit".to_owned()).spawn(move || {
            write_lines(file, &queue, &theirs);
            // The receiver is gone if the daemon did not wait.
            let _ = ending.send(());
        });
        if let Err(cause) = writing {
            warn!("there is no audit log: cannot start its thread: {cause}");
        }
        Self {
            lines: Some(lines),
            counts,
            ended: Some(ended),
            allocations: settings.allocations,
            reserved: 0,
        }
    }

    /// Queues a line for the writer thread, or counts the line as lost if the queue is full.
    pub(crate) fn write(&self, entry: Entry) {
        let line = Line { at: now(), entry };
        let Some(lines) = &self.lines else { return };
        if lines.try_send(line).is_err() {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a memory reservation. Returns how many reservations its audit line stands for, if it gets one.
    pub(crate) fn samples_reservation(&mut self) -> Option<u64> {
        if self.allocations == 0 {
            return None;
        }
        self.reserved += 1;
        self.reserved.is_multiple_of(self.allocations).then_some(self.allocations)
    }

    /// Returns the numbers of lines written and lost since the daemon started.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.counts.written.load(Ordering::Relaxed), self.counts.lost.load(Ordering::Relaxed))
    }

    /// Completes when the last audit line is written, or after two seconds.
    pub(crate) async fn finish(self) {
        self.finish_within(PATIENCE).await;
    }

    async fn finish_within(mut self, patience: Duration) {
        drop(self.lines.take());
        if let Some(ended) = self.ended.take()
            && timeout(patience, ended).await.is_err()
        {
            warn!("the disk did not take the last lines of the audit log");
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp(u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX))
}

/// Writes audit lines until the daemon closes the queue.
fn write_lines(mut file: RotatedFile, queue: &Receiver<Line>, counts: &Counts) {
    let mut reported = 0;
    let mut failing = false;
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        batch.extend(queue.try_iter().take(BATCH - 1));
        let mut result = file.prepare();
        let mut has_act = false;
        for line in batch {
            let lost = counts.lost.load(Ordering::Relaxed);
            if result.is_ok() && lost > reported {
                let lines = lost - reported;
                let entry = Entry::Lost { lines };
                result = file.append(&text(&Line { at: line.at, entry }));
                reported = if result.is_ok() { lost } else { reported };
            }
            has_act |= matches!(line.entry, Entry::Action(_));
            if result.is_ok() {
                result = file.append(&text(&line));
            }
            let count = match result {
                Ok(()) => &counts.written,
                Err(_) => &counts.lost,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        if has_act && result.is_ok() {
            result = file.sync();
        }
        if let Some(cause) = file.rotation_error() {
            warn!("cannot rotate the audit log {}: {cause}; it grows beyond its size", file.path());
        }
        match result {
            Ok(()) if std::mem::take(&mut failing) => info!("the audit log {} is written again", file.path()),
            Err(cause) if !std::mem::replace(&mut failing, true) => warn!(
                "cannot write the audit log {}: {cause}; lines are lost and counted until it can be written",
                file.path()
            ),
            _ => {}
        }
    }
    let lost = counts.lost.load(Ordering::Relaxed);
    if lost > reported && file.prepare().is_ok() {
        let (at, lines) = (now(), lost - reported);
        // The daemon ends, so a loss of this line cannot be reported.
        let _ = file.append(&text(&Line { at, entry: Entry::Lost { lines } }));
    }
}

fn text(line: &Line) -> Vec<u8> {
    // A line consists of numbers and texts, so this cannot fail.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests;
