//! Connection to a running daemon for a new session, or start of this user's own daemon.
//!
//! ```text
//!   run A ──▶ no answer ─▶ flock start.lock ─▶ still no answer ─▶ start ─▶ ready ─▶ unlock ─▶ connect
//!   run B ──▶ no answer ─▶ flock start.lock … waits ……………………………………………………▶ answer ─▶ connect
//! ```
//!
//! The daemon writes to a descriptor (`--ready-fd`) once both sockets accept connections. If the daemon ends
//! before, the descriptor closes, and the last line of the daemon's log is the reason.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gpushare_proto::names::{RUNTIME_DIR, RuntimeDir, SCHEDULER};
use gpushare_sys::folder::{self, FolderError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::places::Places;
use crate::table::harmless;
use gpushare_connection::{Client, ClientError, Tenant};

/// Name of the lock file in the runtime folder, so that only one process at a time starts a daemon.
const LOCK: &str = "start.lock";
/// Maximum duration until a new daemon accepts connections. NVML alone can take seconds with eight cards.
const STARTING: Duration = Duration::from_secs(30);
/// Number of bytes at the end of the daemon's log that are searched for the reason of a failed start.
const LOG_END: u64 = 4096;

/// Reason why no daemon could be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{0} with --runtime-dir")]
    Folder(#[from] FolderError),
    #[error("{path} cannot be locked: {cause}; choose another folder with --runtime-dir")]
    Unlocked { path: PathBuf, cause: io::Error },
    #[error(
        "no daemon answers and there is no gpushare-scheduler to start at {0}; set {SCHEDULER} to its path"
    )]
    NoScheduler(PathBuf),
    #[error("{program} cannot be started: {reason}; check its mode and that it is built for this machine")]
    Unstarted { program: PathBuf, reason: String },
    #[error(
        "the scheduler ended before it was ready ({reason}); see its log {log}, or run `gpushare-ctl doctor`"
    )]
    Ended { reason: String, log: PathBuf },
    #[error(
        "the scheduler is not ready after {STARTING:?}; run `gpushare-ctl doctor`, since a broken driver may hang it, and see its log {0}"
    )]
    Slow(PathBuf),
}

/// Returns the folder of the first daemon that answers, with a connection. Starts the user's own daemon if
/// none answers.
pub(crate) fn reach(places: &Places) -> Result<(RuntimeDir, Client<Tenant>), StartError> {
    if let Some(found) = running(places)? {
        return Ok(found);
    }
    let own = places.own();
    folder::take(own.root(), 0o700)?;
    let _lock = StartLock::take(own.root().join(LOCK))?;
    if let Some(client) = answering(own)? {
        return Ok((own.clone(), client));
    }
    start(own)?;
    Ok((own.clone(), Client::connect(own)?))
}

/// Returns the folder of the first daemon that answers, with a connection; none if no daemon answers.
pub(crate) fn running(places: &Places) -> Result<Option<(RuntimeDir, Client<Tenant>)>, ClientError> {
    for dir in places.candidates() {
        if let Some(client) = answering(dir)? {
            return Ok(Some((dir.clone(), client)));
        }
    }
    Ok(None)
}

/// Connects to the daemon of `dir`; none if no daemon runs there. A daemon that runs and fails is an error.
fn answering(dir: &RuntimeDir) -> Result<Option<Client<Tenant>>, ClientError> {
    match Client::connect(dir) {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Absent(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// File lock that gives the right to start a daemon. The lock file is removed at the end of the start.
#[derive(Debug)]
struct StartLock {
    path: PathBuf,
    _file: File,
}

impl StartLock {
    fn take(path: PathBuf) -> Result<Self, StartError> {
        let locked = || loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // The last owner has removed its file, so the lock is another file now.
            if folder::is_at(&file, &path) {
                return Ok::<_, io::Error>(file);
            }
        };
        match locked() {
            Ok(file) => Ok(Self { path, _file: file }),
            Err(cause) => Err(StartError::Unlocked { path, cause }),
        }
    }
}

impl Drop for StartLock {
    fn drop(&mut self) {
        // The file is still locked, so it is the one that was checked. A failure leaves an empty file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Starts the daemon of `dir` through [`super::detach()`] and waits until it accepts connections.
fn start(dir: &RuntimeDir) -> Result<(), StartError> {
    let program = scheduler()?;
    let unstarted = |reason: String| StartError::Unstarted { program: program.clone(), reason };
    let (mut ready, writer) = io::pipe().map_err(|cause| unstarted(cause.to_string()))?;
    let stage = Command::new("/proc/self/exe")
        .args(["start-daemon"])
        .env(SCHEDULER, &program)
        .env(RUNTIME_DIR, dir.root())
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .map_err(|cause| unstarted(cause.to_string()))?;
    if !stage.status.success() {
        let said = String::from_utf8_lossy(&stage.stderr);
        let reason = said.trim().trim_start_matches("gpushare-ctl: ");
        return Err(unstarted(harmless(reason)));
    }
    let timeout = Timespec::try_from(STARTING).map_err(|cause| unstarted(cause.to_string()))?;
    let polled = poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&timeout));
    match polled.map_err(io::Error::from).and_then(|events| match events {
        0 => Ok(None),
        _ => ready.read(&mut [0; 64]).map(Some),
    }) {
        Ok(Some(1..)) => Ok(()),
        Ok(Some(0)) => Err(StartError::Ended { reason: last_line(&dir.log()), log: dir.log() }),
        Ok(None) => Err(StartError::Slow(dir.log())),
        Err(cause) => Err(unstarted(cause.to_string())),
    }
}

/// Returns the path of the daemon's program: from the environment, else the file beside `gpushare-ctl`.
pub(crate) fn scheduler() -> Result<PathBuf, StartError> {
    let named = std::env::var_os(SCHEDULER).filter(|path| !path.is_empty());
    let path = named.map_or_else(
        || std::env::current_exe().unwrap_or_default().with_file_name("gpushare-scheduler"),
        PathBuf::from,
    );
    let path = std::path::absolute(&path).unwrap_or(path);
    if path.is_file() { Ok(path) } else { Err(StartError::NoScheduler(path)) }
}

fn last_line(log: &Path) -> String {
    let end = || {
        use std::io::{Seek as _, SeekFrom};
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_END)))?;
        let mut end = Vec::new();
        file.take(LOG_END).read_to_end(&mut end)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&end).into_owned())
    };
    let end = end().unwrap_or_default();
    let last = end.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or("it said nothing".to_owned(), |line| harmless(line.trim()))
}
