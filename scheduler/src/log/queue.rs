//! Bounded queue of log lines between the threads of the daemon and the thread that writes the lines.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Largest number of bytes that wait for the writer thread.
const MOST: usize = 1 << 20;

/// Queue of log lines. A line that finds the queue full is lost and counted.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    news: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Complete lines.
    lines: Vec<u8>,
    /// Whether no more lines are added.
    ended: bool,
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Every change under the lock is complete, so a poisoned lock is usable.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, which ends with a line break.
    pub(super) fn add(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        if waiting.lines.len() + line.len() > MOST {
            drop(waiting);
            return self.lose(1);
        }
        waiting.lines.extend_from_slice(line);
        drop(waiting);
        self.news.notify_one();
    }

    /// Waits for lines and takes all of them; `None` once the queue is empty and ended.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting();
        while waiting.lines.is_empty() {
            if waiting.ended {
                return None;
            }
            waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut waiting.lines))
    }

    pub(super) fn end(&self) {
        self.waiting().ended = true;
        self.news.notify_one();
    }

    /// Counts lines as lost.
    pub(super) fn lose(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    /// Returns the number of lines lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Writer of log records to the queue. Each write is one record with its line break.
#[derive(Clone, Debug)]
pub(super) struct Records(pub(super) Arc<Queue>);

impl Write for Records {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.0.add(record);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_loses_lines_and_counts_them() {
        let queue = Queue::default();
        let line = [b'x'; 1 << 10];
        (0..1030).for_each(|_| queue.add(&line));
        assert_eq!(queue.lost(), 6);
        assert_eq!(queue.take().map(|lines| lines.len()), Some(MOST));
        queue.add(b"on\n");
        queue.end();
        assert_eq!(queue.take().as_deref(), Some(&b"on\n"[..]));
        assert_eq!(queue.take(), None);
    }
}
