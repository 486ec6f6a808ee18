//! The file that lets a restarted daemon know whom to wait for.
//!
//! ```text
//!   shell ── whole book, at each change ──▶ latest wins ──▶ writer: temporary file, then rename
//!                                                                │
//!   next daemon ◀── whose processes still live? ◀── registry.json ┘
//! ```
//!
//! The writer works beside the shell, so a slow disk delays no grant. The file is of use on the boot that
//! wrote it only. One that does not read is set aside, never guessed at.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpushare_proto::session::{Binding, Terms};
use gpushare_proto::{ClientId, GpuUuid, SessionId};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::identity::{ImplicitKey, ProcessId};
use crate::secret::TokenHash;

/// The form of the file.
const FORMAT: u32 = 2;
/// No daemon counts as far: it would take a million sessions a second for a hundred thousand years.
const MOST: u64 = u64::MAX / 4;

/// Everything that outlives a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Book {
    format: u32,
    /// The kernel's name for this run of the machine.
    boot: String,
    pub(crate) next_session: u64,
    pub(crate) next_client: u64,
    pub(crate) sessions: Vec<SessionEntry>,
    pub(crate) clients: Vec<ClientEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionEntry {
    pub(crate) session: SessionId,
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) oversubscribe: bool,
    pub(crate) card: Option<GpuUuid>,
    pub(crate) origin: Origin,
    pub(crate) paused: bool,
    pub(crate) revoked: bool,
    /// When its time is over, in nanoseconds of the wall clock.
    pub(crate) expires_unix: Option<u64>,
}

/// Where a session comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// A process registered it and holds its token.
    Registered {
        token: TokenHash,
        uid: u32,
        by: ProcessId,
    },
    /// An administrator made it, and it lives until one deletes it.
    Created {
        token: Option<TokenHash>,
        binding: Binding,
        uid: u32,
    },
    /// It was made for peers without a token.
    Implicit(ImplicitKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientEntry {
    pub(crate) client: ClientId,
    pub(crate) session: SessionId,
    pub(crate) process: ProcessId,
}

impl Book {
    pub(crate) fn new(next_session: u64, next_client: u64) -> Self {
        Self {
            format: FORMAT,
            boot: boot_id(),
            next_session,
            next_client,
            ..Self::default()
        }
    }

    /// Whether a number is used that was not given yet, or so great that counting on would wrap.
    fn is_impossible(&self) -> bool {
        let given = |number: u64, next: u64| (1..next).contains(&number);
        let counts = |next: u64| (1..=MOST).contains(&next);
        let sessions = self
            .sessions
            .iter()
            .all(|entry| given(entry.session.0, self.next_session));
        let clients = self
            .clients
            .iter()
            .all(|entry| given(entry.client.0, self.next_client));
        !(counts(self.next_session) && counts(self.next_client) && sessions && clients)
    }

    /// What is left of it when the machine has started anew: sessions that live until they are deleted.
    fn over_a_boot(mut self) -> Self {
        let (next_session, next_client) = (self.next_session, self.next_client);
        self.sessions
            .retain(|entry| matches!(entry.origin, Origin::Created { .. }));
        let sessions = self.sessions;
        Self {
            sessions,
            ..Self::new(next_session, next_client)
        }
    }

    /// What the last daemon of this boot left; an empty book if there is none.
    pub(crate) fn read(path: &Path) -> Self {
        let empty = || Self::new(1, 1);
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return empty(),
            Err(cause) => return set_aside(path, &cause, empty()),
        };
        match serde_json::from_str::<Self>(&text) {
            Ok(book) if book.format != FORMAT => {
                set_aside(path, &format!("it has format {}", book.format), empty())
            }
            Ok(book) if book.is_impossible() => {
                set_aside(path, &"its numbers are none that a daemon writes", empty())
            }
            Ok(book) if book.boot != boot_id() => book.over_a_boot(),
            Ok(book) => book,
            Err(cause) => set_aside(path, &cause, empty()),
        }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn set_aside(path: &Path, cause: &dyn std::fmt::Display, instead: Book) -> Book {
    let aside = (0..)
        .map(|n| PathBuf::from(format!("{}.corrupt-{n}", path.display())))
        .find(|aside| !aside.exists())
        .unwrap_or_default();
    let _ = fs::rename(path, &aside);
    warn!(
        "the registry {} does not read ({cause}); it is now {}, and sessions start anew",
        path.display(),
        aside.display()
    );
    instead
}

/// How long the writer waits after a failure, and how long at most after many.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Writes the latest book to the file.
#[derive(Debug)]
pub(crate) struct Writer {
    latest: watch::Sender<Book>,
    task: JoinHandle<()>,
}

impl Writer {
    /// Writes into the folder `at`, which is where `path` was when it was opened: should another daemon's be there
    /// by now, its registry stays as it is. Must be called inside a runtime.
    pub(crate) fn start(at: OwnedFd, path: PathBuf) -> Self {
        let (latest, books) = watch::channel(Book::default());
        let task = tokio::spawn(keep(at.into(), path, books));
        Self { latest, task }
    }

    /// This is how things are now.
    pub(crate) fn publish(&self, book: Book) {
        self.latest.send_replace(book);
    }

    /// Ends when the last book is written, or cannot be.
    pub(crate) async fn finish(self) {
        drop(self.latest);
        // The task ends by itself and panics nowhere.
        let _ = self.task.await;
    }
}

/// Writes each book that is the latest, and one that could not be written again until it is or there is another one.
async fn keep(at: Arc<OwnedFd>, path: PathBuf, mut books: watch::Receiver<Book>) {
    let name = path.file_name().unwrap_or_default().to_owned();
    let mut failing = false;
    while books.changed().await.is_ok() {
        let mut pause = RETRY.0;
        loop {
            let book = books.borrow_and_update().clone();
            let (at, name) = (at.clone(), name.clone());
            let written = spawn_blocking(move || write(&at, &name, &book)).await;
            let Ok(Err(cause)) = written else {
                if std::mem::take(&mut failing) {
                    info!("the registry {} is written again", path.display());
                }
                break;
            };
            if !std::mem::replace(&mut failing, true) {
                warn!(
                    "cannot write the registry {}: {cause}; until it can, a restarted daemon would not wait for all \
                     processes",
                    path.display()
                );
            }
            tokio::select! {
                () = sleep(pause) => {}
                news = books.changed() => if news.is_err() {
                    // The daemon ends, and this was the last book.
                    return;
                },
            }
            pause = (pause * 2).min(RETRY.1);
        }
    }
}

fn write(at: &OwnedFd, name: &OsStr, book: &Book) -> io::Result<()> {
    let mut temporary = name.to_owned();
    temporary.push(".new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(openat(at, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .write_all(&serde_json::to_vec(book)?)
        .and_then(|()| Ok(renameat(at, &temporary, at, name)?));
    if written.is_err() {
        // On a full disk half a book is of use to nobody, and takes room.
        let _ = unlinkat(at, &temporary, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::identity::Scope;

    fn book() -> Book {
        let mut book = Book::new(3, 4);
        book.sessions = vec![SessionEntry {
            session: SessionId(2),
            name: "train".into(),
            terms: Terms::default(),
            oversubscribe: false,
            card: None,
            origin: Origin::Implicit(ImplicitKey {
                uid: 7,
                scope: Scope::PosixSession(9),
            }),
            paused: false,
            revoked: false,
            expires_unix: None,
        }];
        book
    }

    fn opened(path: &Path) -> OwnedFd {
        File::open(path.parent().unwrap()).unwrap().into()
    }

    fn writer(path: &Path) -> Writer {
        Writer::start(opened(path), path.to_owned())
    }

    fn write_to(path: &Path, book: &Book) -> io::Result<()> {
        write(&opened(path), path.file_name().unwrap(), book)
    }

    #[tokio::test]
    async fn a_book_that_could_not_be_written_is_written_when_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        fs::create_dir(&path).unwrap();
        let writer = writer(&path);
        writer.publish(book());
        sleep(Duration::from_millis(50)).await;
        fs::remove_dir(&path).unwrap();
        while !path.exists() {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(Book::read(&path), book());
        // Also when the daemon ends while it cannot.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        writer.publish(book());
        writer.finish().await;
        assert!(path.is_dir());
    }

    #[tokio::test]
    async fn another_daemons_registry_at_the_same_path_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("run"), folder.path().join("gone"));
        fs::create_dir(&ours).unwrap();
        let path = ours.join("registry.json");
        let writer = writer(&path);
        fs::rename(&ours, &theirs).unwrap();
        fs::create_dir(&ours).unwrap();
        fs::write(&path, "another's").unwrap();
        writer.publish(book());
        writer.finish().await;
        assert_eq!(fs::read_to_string(&path).unwrap(), "another's");
        assert_eq!(Book::read(&theirs.join("registry.json")), book());
    }

    #[test]
    fn a_book_with_numbers_that_would_wrap_or_were_not_given_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        let books = [
            Book {
                next_session: u64::MAX,
                ..book()
            },
            Book {
                next_client: 0,
                ..book()
            },
            Book {
                next_session: 2,
                ..book()
            },
        ];
        for (n, impossible) in books.iter().enumerate() {
            write_to(&path, impossible).unwrap();
            assert_eq!(Book::read(&path), Book::new(1, 1), "{impossible:?}");
            assert!(folder.path().join(format!("registry.json.corrupt-{n}")).exists());
        }
    }

    #[tokio::test]
    async fn the_latest_book_is_what_the_next_daemon_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        let writer = writer(&path);
        writer.publish(Book::new(1, 1));
        writer.publish(book());
        writer.finish().await;
        assert_eq!(Book::read(&path), book());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_does_not_read_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        assert_eq!(Book::read(&path), Book::new(1, 1));
        for n in 0..2 {
            fs::write(&path, "{\"format\": 1, ").unwrap();
            assert_eq!(Book::read(&path), Book::new(1, 1));
            assert!(folder.path().join(format!("registry.json.corrupt-{n}")).exists());
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_book_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        fs::create_dir(&path).unwrap();
        assert!(write_to(&path, &book()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn after_a_reboot_only_the_numbers_go_on_and_what_was_made_to_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        let old = Book {
            boot: "another".into(),
            ..book()
        };
        write_to(&path, &old).unwrap();
        assert_eq!(Book::read(&path), Book::new(3, 4));
        let mut kept = old;
        kept.sessions[0].origin = Origin::Created {
            token: None,
            binding: Binding::Uid(7),
            uid: 0,
        };
        write_to(&path, &kept).unwrap();
        assert_eq!(Book::read(&path).sessions, kept.sessions);
    }
}
