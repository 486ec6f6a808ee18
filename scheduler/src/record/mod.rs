//! Records the events of the decision machine for `cargo xtask replay`.
//!
//! ```text
//!   engine ─ begin(now, event), core.handle, finish(effects) ─▶ bounded queue ─▶ thread: JSON lines ─▶ tape
//!                                                                │ full                  │ disk full, limit
//!                                                                └─▶ the recording ends ◀┘
//! ```
//!
//! The daemon never waits for the disk. If the queue is full, the recording ends. The reason of the end is
//! logged, and is the last line of the file. An event is queued before the decision machine handles it. So an
//! event that causes a panic is in the file too.

mod tape;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use gpushare_core::log::{Fingerprint, Handled, Header, Line, Link};
use gpushare_core::{Effect, Event};
use gpushare_proto::{Bytes, Nanos};
use tracing::{info, warn};

use crate::errors::FileError;
use tape::{Medium, Tape};

/// Largest number of events that wait for the writer thread.
const QUEUE: usize = 4096;
/// Longest wait of the ending daemon for the disk to take the last events.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordTo {
    pub(crate) path: PathBuf,
    pub(crate) limit: Bytes,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("{} is not a file; record to another place with --record", .0.display())]
    NotAFile(PathBuf),
    #[error(
        "{} is no recording of ours and is not replaced by one; record to another place with --record, or \
         remove it",
        .0.display()
    )]
    NotARecording(PathBuf),
    #[error(transparent)]
    System(#[from] FileError),
}

impl RecordTo {
    /// Creates the file of a recording with mode 0600.
    ///
    /// Renames an older recording at the path to `FILE.1`. Never moves or replaces other files.
    pub(crate) fn create(&self) -> Result<Reel, RecordError> {
        let failed = |cause| failed(&self.path, cause);
        match found(&self.path)? {
            Found::Nothing => {}
            Found::Empty => fs::remove_file(&self.path).map_err(failed)?,
            Found::Recording => {
                let older = older(&self.path);
                found(&older)?;
                fs::rename(&self.path, older).map_err(failed)?;
            }
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&self.path).map_err(failed)?;
        Ok(Reel { to: self.clone(), file })
    }
}

enum Found {
    Nothing,
    /// Empty file, left by a daemon that died at once or made by `mktemp`.
    Empty,
    Recording,
}

fn found(path: &Path) -> Result<Found, RecordError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return Err(RecordError::NotAFile(path.to_owned())),
        Ok(_) => {}
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(cause) => return Err(failed(path, cause)),
    }
    let mut beginning = Vec::new();
    File::open(path)
        .and_then(|file| file.take(Link::BEGINNING.len() as u64).read_to_end(&mut beginning))
        .map_err(|cause| failed(path, cause))?;
    match beginning.as_slice() {
        [] => Ok(Found::Empty),
        beginning if beginning == Link::BEGINNING.as_bytes() => Ok(Found::Recording),
        _ => Err(RecordError::NotARecording(path.to_owned())),
    }
}

fn failed(path: &Path, cause: io::Error) -> RecordError {
    let hint = "make its folder writable, or do not use --record";
    FileError::of("record to", path, hint)(cause).into()
}

fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// New, empty file for a recording.
#[derive(Debug)]
pub(crate) struct Reel {
    to: RecordTo,
    file: File,
}

/// Recorder of events for the daemon's task. The default value records nothing.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    running: Option<Running>,
    /// Event that the decision machine is handling, with the point in monotonic time of the event.
    open: Option<(Nanos, Event)>,
}

#[derive(Debug)]
struct Running {
    path: PathBuf,
    notes: SyncSender<Note>,
    end_reason: Arc<OnceLock<String>>,
    /// Channel that is disconnected once the writer thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Note {
    now: Nanos,
    event: Event,
    effects: Option<Vec<Effect>>,
}

impl Recorder {
    /// Starts a recording in the file `reel`. Records nothing without a file.
    pub(crate) fn start(reel: Option<Reel>, header: Header) -> Result<Self, RecordError> {
        let Some(Reel { to, file }) = reel else {
            return Ok(Self::default());
        };
        info!("recording to {} until it has {}", to.path.display(), to.limit);
        let recorder = Self::on(file, &to, header, QUEUE);
        recorder.map_err(|cause| failed(&to.path, cause))
    }

    fn on(
        medium: impl Medium + Send + 'static,
        to: &RecordTo,
        header: Header,
        queue: usize,
    ) -> io::Result<Self> {
        let (notes, arriving) = sync_channel(queue);
        let (ending, ended) = sync_channel(0);
        let end_reason = Arc::new(OnceLock::new());
        let (path, word, limit) = (to.path.clone(), end_reason.clone(), to.limit);
        thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            let _ending = ending;
            write(Tape::new(medium, limit), header, &arriving, &word, &path);
        })?;
        Ok(Self {
            running: Some(Running { path: to.path.clone(), notes, end_reason, ended }),
            open: None,
        })
    }

    /// Notes an event before the decision machine handles it.
    pub(crate) fn begin(&mut self, now: Nanos, event: Event) {
        if self.running.is_some() {
            self.open = Some((now, event));
        }
    }

    pub(crate) fn finish<'a>(&mut self, effects: impl Iterator<Item = &'a Effect>) {
        if let Some((now, event)) = self.open.take() {
            self.note(Note { now, event, effects: Some(effects.cloned().collect()) });
        }
    }

    fn note(&mut self, note: Note) {
        let Some(running) = &self.running else { return };
        match running.notes.try_send(note) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let reason = "the disk is too slow for the events";
                warn!("the recording {} ends: {reason}", running.path.display());
                let _ = running.end_reason.set(reason.to_owned());
                self.running = None;
            }
            // The thread has ended and has logged the reason.
            Err(TrySendError::Disconnected(_)) => self.running = None,
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let survived = self.open.is_none();
        if let Some((now, event)) = self.open.take() {
            self.note(Note { now, event, effects: None });
        }
        if let Some(running) = self.running.take() {
            let reason = if survived {
                "the daemon ended"
            } else {
                "the daemon did not survive the last event"
            };
            let _ = running.end_reason.set(reason.to_owned());
            drop(running.notes);
            if running.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                warn!(
                    "the recording {} has no end: the disk does not answer within {PATIENCE:?}",
                    running.path.display()
                );
            }
        }
    }
}

/// Writes all queued lines, and then a last line with the reason of the end.
fn write(
    mut tape: Tape<impl Medium>,
    header: Header,
    arriving: &Receiver<Note>,
    end_reason: &OnceLock<String>,
    path: &Path,
) {
    let reason = match write_all(&mut tape, header, arriving) {
        Ok(()) => end_reason.get().cloned().unwrap_or_default(),
        Err(stopped) => {
            warn!("the recording {} ends: {stopped}", path.display());
            stopped.to_string()
        }
    };
    if let Err(cause) = tape.end(&reason) {
        warn!("the recording {} has no last line: {cause}", path.display());
    }
}

/// Writes queued lines until the daemon closes the queue. Flushes whenever the queue is empty.
fn write_all(
    tape: &mut Tape<impl Medium>,
    header: Header,
    arriving: &Receiver<Note>,
) -> Result<(), tape::Stopped> {
    tape.add(Line::Header(Box::new(header)))?;
    tape.flush()?;
    loop {
        let next = match arriving.try_recv() {
            Err(TryRecvError::Empty) => {
                tape.flush()?;
                arriving.recv().ok()
            }
            other => other.ok(),
        };
        let Some(Note { now, event, effects }) = next else {
            return tape.flush();
        };
        tape.add(Line::Handled(Handled {
            now,
            event,
            effects: effects.map(|effects| Fingerprint::of(&effects)),
        }))?;
    }
}

#[cfg(test)]
mod tests;
