//! Writer thread of the registry. It keeps the state of sessions and clients, and writes the latest one as
//! soon as the last write is on the disk.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gpushare_proto::admin::UserUsageView;
use tokio::sync::{oneshot, watch};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::store::Store;
use super::usage::{self, Hours, Usage};
use super::{Book, Changes};

/// Pause after a first failed write, and the longest pause after repeated failures.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

#[derive(Debug)]
pub(crate) struct News {
    pub(crate) changes: Changes,
    /// Usage of all sessions since the last request to write.
    pub(crate) spent: Usage,
    /// Number of the latest act of an administrator that this state includes.
    pub(crate) act: u64,
}

/// Answer of the writer thread: the result of writing all acts up to the one with this number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) act: u64,
    /// Error message if the acts are not on the disk.
    pub(crate) failure: Option<String>,
}

/// Work that the writer thread has not begun yet.
#[derive(Debug, Default)]
struct Slot {
    news: Option<(Changes, u64)>,
    spent: Usage,
    questions: Vec<Question>,
    ending: bool,
}

#[derive(Debug)]
struct Question {
    hours: Hours,
    answer: oneshot::Sender<Result<Vec<UserUsageView>, String>>,
}

#[derive(Debug, Default)]
struct Mailbox {
    slot: Mutex<Slot>,
    news: Condvar,
}

impl Mailbox {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        // Every change under the lock is complete, so a poisoned lock is usable.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work, at most until the point in time `retry`, and takes the work.
    fn take(&self, retry: Option<Instant>) -> Slot {
        let mut slot = self.slot();
        while slot.news.is_none() && slot.questions.is_empty() && !slot.ending {
            let left = retry.map(|retry| retry.saturating_duration_since(Instant::now()));
            slot = match left {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.news.wait_timeout(slot, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.news.wait(slot).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let ending = slot.ending;
        Slot { ending, ..std::mem::take(&mut slot) }
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    mailbox: Arc<Mailbox>,
    words: watch::Receiver<Word>,
    thread: JoinHandle<bool>,
}

impl Writer {
    /// Starts the thread for a registry file whose present contents are `book`.
    pub(crate) fn start(store: Store, book: Book) -> std::io::Result<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let (say, words) = watch::channel(Word::default());
        let own = mailbox.clone();
        let thread = thread::Builder::new().name("registry".into()).stack_size(512 << 10);
        let thread = thread.spawn(move || keep(store, book.sorted(), &own, &say))?;
        Ok(Self { mailbox, words, thread })
    }

    /// Hands changes to the writer thread, which adds them to earlier ones that are not written yet.
    pub(crate) fn publish(&self, news: News) {
        let mut slot = self.mailbox.slot();
        let (changes, act) = slot.news.get_or_insert_default();
        changes.add(news.changes);
        *act = news.act;
        usage::add(&mut slot.spent, news.spent);
        drop(slot);
        self.mailbox.news.notify_one();
    }

    /// Requests the usage in some hours. The answer includes all usage handed over before.
    pub(crate) fn ask(&self, hours: Hours, answer: oneshot::Sender<Result<Vec<UserUsageView>, String>>) {
        self.mailbox.slot().questions.push(Question { hours, answer });
        self.mailbox.news.notify_one();
    }

    pub(crate) async fn word(&mut self) -> Word {
        if self.words.changed().await.is_err() {
            // The thread ends only with this handle.
            std::future::pending::<()>().await;
        }
        self.words.borrow_and_update().clone()
    }

    /// Ends the writer thread after a last write. Returns its answer, and whether the registry has usage.
    pub(crate) async fn finish(self) -> (Word, bool) {
        self.mailbox.slot().ending = true;
        self.mailbox.news.notify_one();
        let ended = spawn_blocking(move || self.thread.join()).await;
        // The thread does not panic.
        (self.words.borrow().clone(), matches!(ended, Ok(Ok(true))))
    }
}

/// Writes each latest state. Repeats a failed write until it succeeds or a newer state exists.
fn keep(mut store: Store, mut book: Book, mailbox: &Mailbox, say: &watch::Sender<Word>) -> bool {
    let mut act = 0;
    let mut retry: Option<(Instant, Duration)> = None;
    loop {
        let slot = mailbox.take(retry.map(|(at, _)| at));
        let due = retry.is_some_and(|(at, _)| at <= Instant::now());
        let fresh = slot.news.is_some();
        if let Some((changes, latest)) = slot.news {
            book.apply(changes);
            act = latest;
        }
        if fresh || due || slot.ending {
            let failure = store.write(&book, slot.spent).err();
            retry = match (&failure, retry) {
                (None, None) => None,
                (None, Some(_)) => {
                    info!("the registry {} is written again", store.path().display());
                    None
                }
                (Some(cause), None) => {
                    warn!(
                        "cannot write the registry {}: {cause}; until it can be written, no session is made, and \
                         a restarted daemon would not wait for all processes",
                        store.path().display()
                    );
                    Some((Instant::now() + RETRY.0, RETRY.0))
                }
                (Some(_), Some((_, pause))) => {
                    let pause = (pause * 2).min(RETRY.1);
                    Some((Instant::now() + pause, pause))
                }
            };
            say.send_replace(Word { act, failure });
        }
        for question in slot.questions {
            // The receiver may be gone.
            let _ = question.answer.send(store.usage(question.hours));
        }
        if slot.ending {
            return store.has_usage();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn news(next_client: u64, act: u64) -> News {
        let changes = Changes { next_session: 1, next_client, ..Changes::default() };
        News { changes, spent: Usage::new(), act }
    }

    #[tokio::test]
    async fn a_failed_write_is_repeated_and_each_result_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.redb");
        let open = || Store::open((File::open(folder.path()).unwrap().into(), path.clone()), None).unwrap();
        let mut writer = Writer::start(open().0, Book::new(1, 1)).unwrap();
        let done = |act| Word { act, failure: None };
        writer.publish(news(2, 1));
        assert_eq!(writer.word().await, done(1));

        let in_the_way = folder.path().join("registry.redb.new");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&in_the_way).unwrap();
        writer.publish(news(3, 2));
        let word = writer.word().await;
        assert_eq!(word.act, 2);
        assert!(word.failure.is_some());
        fs::remove_dir(&in_the_way).unwrap();
        loop {
            let word = writer.word().await;
            if word == done(2) {
                break;
            }
        }
        assert!(!writer.finish().await.1, "there was no usage");
        assert_eq!(open().1, Book::new(1, 3));
    }
}
