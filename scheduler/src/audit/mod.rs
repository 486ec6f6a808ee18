//! The audit log: who changed what, and who was refused memory, for those who ask weeks later.
//!
//! ```text
//!   the core's task                              the audit thread
//!   act, refusal, reservation ─▶ queue of 2048 ─▶ a line of JSON ─▶ audit.log ─ full ─▶ audit.log.1 ─▶ … ─▶ gone
//!                                  │ full                            │ disk full, read-only
//!                                  ▼                                 ▼
//!                               counted ◀────────────────────────── counted: a line of its own as soon as one can be
//!                                                                   written, and a metric
//! ```
//!
//! The core's task only hands over, and never waits: a slow disk costs lines, not grants. The file is opened through its
//! folder's descriptor, so that a folder that was replaced is not written to. A session that is refused in a loop gets
//! thirty-two lines a second and a sum, so that no tenant can push out what others did.

mod file;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use gpushare_proto::audit::{Entry, Line, Timestamp};
use rustix::fs::{Mode, OFlags};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::config::AuditSettings;
use file::File;

/// Lines that may wait for the disk. None is longer than a few hundred bytes.
const WAITING: usize = 2048;
/// How long the daemon's end waits for the disk.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How many lines are written before the disk is asked again whether the file is still the file.
const BATCH: usize = 256;

/// How many lines there were.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
}

/// The core's end of it; the default writes nothing.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    lines: Option<SyncSender<Line>>,
    counts: Arc<Counts>,
    ended: Option<oneshot::Receiver<()>>,
    allocations: u64,
    reserved: u64,
}

impl Audit {
    /// Writes to the configured file, else to the `default` in the folder `at`. A daemon without an audit log is
    /// better than none: what goes wrong is said in the log and counted.
    pub(crate) fn start(settings: &AuditSettings, at: io::Result<OwnedFd>, default: PathBuf) -> Self {
        let counts = Arc::new(Counts::default());
        let (ending, ended) = oneshot::channel();
        let (lines, queue) = sync_channel(WAITING);
        let path = settings.path.clone().unwrap_or(default);
        let folder = match &settings.path {
            None => at,
            Some(path) => folder_of(path),
        };
        let file = File::new(folder, path, settings.size, settings.files);
        let theirs = counts.clone();
        let writing = thread::Builder::new().name("audit".to_owned()).spawn(move || {
            keep(file, &queue, &theirs);
            // Nobody waits if the daemon was in a hurry.
            let _ = ending.send(());
        });
        if let Err(cause) = writing {
            warn!("there is no audit log: the system has no thread for it ({cause})");
        }
        Self {
            lines: Some(lines),
            counts,
            ended: Some(ended),
            allocations: settings.allocations,
            reserved: 0,
        }
    }

    /// Writes a line, or counts it if too many wait already.
    pub(crate) fn write(&self, entry: Entry) {
        let line = Line { at: now(), entry };
        let Some(lines) = &self.lines else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(line) {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the reservation that is at hand is one of those that get a line: of how many, then.
    pub(crate) fn samples_reservation(&mut self) -> Option<u64> {
        if self.allocations == 0 {
            return None;
        }
        self.reserved += 1;
        self.reserved.is_multiple_of(self.allocations).then_some(self.allocations)
    }

    /// Lines written so far.
    pub(crate) fn written(&self) -> u64 {
        self.counts.written.load(Ordering::Relaxed)
    }

    /// Lines lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// Ends when the last line is written, or the disk has had its time.
    pub(crate) async fn finish(mut self) {
        drop(self.lines.take());
        if let Some(ended) = self.ended.take()
            && timeout(LAST_WORDS, ended).await.is_err()
        {
            warn!("the disk did not take the last lines of the audit log");
        }
    }
}

/// The folder of a path, held open.
fn folder_of(path: &std::path::Path) -> io::Result<OwnedFd> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => std::path::Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp(u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX))
}

/// Writes whatever comes, until nothing will.
fn keep(mut file: File, queue: &Receiver<Line>, counts: &Counts) {
    let mut told = 0;
    let mut failing = false;
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH {
            match queue.try_recv() {
                Ok(line) => batch.push(line),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        let mut result = file.prepare();
        let mut lasting = false;
        for line in batch {
            let lost = counts.lost.load(Ordering::Relaxed);
            if result.is_ok() && lost > told {
                let lines = lost - told;
                let entry = Entry::Lost { lines };
                result = file.append(&text(&Line { at: line.at, entry }));
                told = if result.is_ok() { lost } else { told };
            }
            lasting |= matches!(line.entry, Entry::Action(_));
            if result.is_ok() {
                result = file.append(&text(&line));
            }
            let count = match result {
                Ok(()) => &counts.written,
                Err(_) => &counts.lost,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
        if lasting && result.is_ok() {
            result = file.sync();
        }
        if let Some(cause) = file.stayed() {
            warn!(
                "the audit log {} is full and stays as it is: {cause}; it grows until it can be renamed",
                file.path()
            );
        }
        match result {
            Ok(()) if std::mem::take(&mut failing) => info!("the audit log {} is written again", file.path()),
            Err(cause) if !std::mem::replace(&mut failing, true) => warn!(
                "cannot write the audit log {}: {cause}; its lines are counted and lost until it can",
                file.path()
            ),
            _ => {}
        }
    }
    let lost = counts.lost.load(Ordering::Relaxed);
    if lost > told && file.prepare().is_ok() {
        let (at, lines) = (now(), lost - told);
        // The daemon ends: there is nobody left to tell if this is lost too.
        let _ = file.append(&text(&Line { at, entry: Entry::Lost { lines } }));
    }
}

/// A line as it is written.
fn text(line: &Line) -> Vec<u8> {
    // Made of numbers and texts, so this cannot fail.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests;
