//! Recording what the core is told, for `cargo xtask replay`.
//!
//! ```text
//!   shell ── begin(now, event), core.handle, finish(effects) ──▶ bounded queue ──▶ thread: one JSON line each ──▶ tape
//!                                                                   │ full                          │ disk full, limit
//!                                                                   └───────▶ the recording ends ◀──┘
//! ```
//!
//! The daemon never waits for the disk: when the queue is full, the recording ends, not the daemon. Whatever ends it
//! is logged, and is the file's last line. An event is noted before the core sees it, so that one which the core
//! does not survive is in the file too.

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

use tape::{Medium, Tape};

/// Events that wait for the disk.
const QUEUE: usize = 4096;
/// How long the end of the daemon waits for the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where to record, and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordTo {
    /// The file.
    pub path: PathBuf,
    /// Its greatest size.
    pub limit: Bytes,
}

/// A recording cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Something else has that name.
    #[error("{} is not a file; record to another place with --record", .0.display())]
    NotAFile(PathBuf),
    /// Somebody's file has that name.
    #[error("{} is no recording of ours, and is not moved away for one; record to another place with --record, or remove it", .0.display())]
    NotARecording(PathBuf),
    /// The system refuses.
    #[error("cannot record to {}: {cause}; make its folder writable, or start without --record", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

impl RecordError {
    /// Whether the cause is a lack of permission.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::System { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl RecordTo {
    /// Makes the file, for its owner alone. The recording that has that name, perhaps of a daemon that died, is
    /// `FILE.1` from now on. Only recordings are moved or replaced; whatever else is there stays, and nothing is
    /// recorded.
    pub(crate) fn create(&self) -> Result<Reel, RecordError> {
        let failed = |cause| RecordError::System { path: self.path.clone(), cause };
        match found(&self.path)? {
            Found::Nothing => {}
            Found::Empty => fs::remove_file(&self.path).map_err(failed)?,
            Found::Recording => {
                let older = older(&self.path);
                found(&older)?;
                fs::rename(&self.path, older).map_err(failed)?;
            }
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.path)
            .map_err(failed)?;
        Ok(Reel { to: self.clone(), file })
    }
}

/// What has the name of a recording.
enum Found {
    Nothing,
    /// A file without content: of a daemon that died at once, or of `mktemp`.
    Empty,
    Recording,
}

fn found(path: &Path) -> Result<Found, RecordError> {
    let failed = |cause| RecordError::System { path: path.to_owned(), cause };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return Err(RecordError::NotAFile(path.to_owned())),
        Ok(_) => {}
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(cause) => return Err(failed(cause)),
    }
    let mut beginning = Vec::new();
    File::open(path)
        .and_then(|file| file.take(Link::BEGINNING.len() as u64).read_to_end(&mut beginning))
        .map_err(failed)?;
    match beginning.as_slice() {
        [] => Ok(Found::Empty),
        beginning if beginning == Link::BEGINNING.as_bytes() => Ok(Found::Recording),
        _ => Err(RecordError::NotARecording(path.to_owned())),
    }
}

fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

/// An empty file to record to.
#[derive(Debug)]
pub(crate) struct Reel {
    to: RecordTo,
    file: File,
}

/// The shell's end of a recording.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    running: Option<Running>,
    /// What the core is being told.
    open: Option<(Nanos, Event)>,
}

#[derive(Debug)]
struct Running {
    path: PathBuf,
    notes: SyncSender<Note>,
    last_word: Arc<OnceLock<String>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Note {
    now: Nanos,
    event: Event,
    effects: Option<Vec<Effect>>,
}

impl Recorder {
    /// Records on `reel`, or nothing without one.
    pub(crate) fn start(reel: Option<Reel>, header: Header) -> Result<Self, RecordError> {
        let Some(Reel { to, file }) = reel else {
            return Ok(Self::default());
        };
        info!("recording to {} until it has {}", to.path.display(), to.limit);
        let recorder = Self::on(file, &to, header, QUEUE);
        recorder.map_err(|cause| RecordError::System { path: to.path, cause })
    }

    fn on(
        medium: impl Medium + Send + 'static,
        to: &RecordTo,
        header: Header,
        queue: usize,
    ) -> io::Result<Self> {
        let (notes, arriving) = sync_channel(queue);
        let (ending, ended) = sync_channel(0);
        let last_word = Arc::new(OnceLock::new());
        let (path, word, limit) = (to.path.clone(), last_word.clone(), to.limit);
        thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            let _ending = ending;
            write(Tape::new(medium, limit), header, &arriving, &word, &path);
        })?;
        Ok(Self {
            running: Some(Running { path: to.path.clone(), notes, last_word, ended }),
            open: None,
        })
    }

    /// The core is about to be told this.
    pub(crate) fn begin(&mut self, now: Nanos, event: Event) {
        if self.running.is_some() {
            self.open = Some((now, event));
        }
    }

    /// This is what it answered.
    pub(crate) fn finish(&mut self, effects: &[Effect]) {
        if let Some((now, event)) = self.open.take() {
            self.note(Note { now, event, effects: Some(effects.to_vec()) });
        }
    }

    fn note(&mut self, note: Note) {
        let Some(running) = &self.running else { return };
        match running.notes.try_send(note) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                let reason = "the disk is too slow for the events";
                warn!("the recording {} ends: {reason}", running.path.display());
                let _ = running.last_word.set(reason.to_owned());
                self.running = None;
            }
            // It ended on its own and has said why.
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
            let _ = running.last_word.set(reason.to_owned());
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

/// Writes what arrives until nothing can, and then why.
fn write(
    mut tape: Tape<impl Medium>,
    header: Header,
    arriving: &Receiver<Note>,
    last_word: &OnceLock<String>,
    path: &Path,
) {
    let reason = match write_all(&mut tape, header, arriving) {
        Ok(()) => last_word.get().cloned().unwrap_or_default(),
        Err(stopped) => {
            warn!("the recording {} ends: {stopped}", path.display());
            stopped.to_string()
        }
    };
    if let Err(cause) = tape.end(&reason) {
        warn!("the recording {} has no last line: {cause}", path.display());
    }
}

/// What has arrived is on the tape whenever nothing more is there.
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
