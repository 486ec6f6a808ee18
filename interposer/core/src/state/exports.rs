//! Exports of the process: other processes of its user, which the daemon names, get memory that the program has given
//! them a handle of.

use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;

use gpushare_proto::sharing::{ExportName, Meeting};

use super::State;
use crate::driver::types::CUDA_ERROR_INVALID_VALUE;
use crate::process::{lock, spawn};
use crate::sharing::{meeting, transfer};

/// Most threads that serve importers at once.
const MOST_THREADS: usize = 8;
/// Most importers that wait for such a thread. A later one waits in vain.
const MOST_WAITING: usize = 1024;

/// Importers that are to be served.
struct Queue {
    waiting: VecDeque<(ExportName, Meeting)>,
    threads: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { waiting: VecDeque::new(), threads: 0 });

impl Queue {
    /// Adds an importer. Returns whether a thread more is to serve.
    fn add(&mut self, importer: (ExportName, Meeting)) -> bool {
        if self.waiting.len() >= MOST_WAITING {
            return false;
        }
        self.waiting.push_back(importer);
        let is_needed = self.threads < MOST_THREADS;
        self.threads += usize::from(is_needed);
        is_needed
    }

    /// Returns the next importer for a thread, or ends the thread.
    fn next(&mut self) -> Option<(ExportName, Meeting)> {
        let next = self.waiting.pop_front();
        self.threads -= usize::from(next.is_none());
        next
    }
}

impl State {
    /// Sends exported memory to the process that waits at a meeting. Threads for that purpose do so, since an importer
    /// may be slow.
    pub(super) fn hand_over(&'static self, export: ExportName, meeting: Meeting) {
        if !lock(&QUEUE).add((export, meeting)) {
            return;
        }
        let serve = move || {
            while let Some((export, meeting)) = { lock(&QUEUE).next() } {
                // The importer hears of the end of its connection.
                let _ = self.serve(&export, &meeting);
            }
        };
        if spawn("gpushare-export", serve).is_err() {
            // The importer waits in vain, unless another thread serves.
            lock(&QUEUE).threads -= 1;
        }
    }

    fn serve(&self, export: &ExportName, meeting: &Meeting) -> io::Result<()> {
        let stream = meeting::join(meeting)?;
        let lending = match self.memory.remap.lend(export) {
            Ok(lending) => lending,
            Err(reason) => return transfer::refuse(&stream, reason),
        };
        let Some(card) = self.driver.uuid(lending.device) else {
            return transfer::refuse(&stream, CUDA_ERROR_INVALID_VALUE);
        };
        transfer::send(&stream, card.bytes(), lending.pieces())?;
        drop(lending);
        self.memory.remap.add_importer(export, stream);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::ClientId;
    use gpushare_proto::sharing::Secret;

    use super::*;

    fn importer(number: u64) -> (ExportName, Meeting) {
        let secret = Secret([0; 16]);
        let export = ExportName { exporter: ClientId(1), number, secret };
        (export, Meeting { socket: [0; 16], exporter: secret, importer: secret })
    }

    #[test]
    fn many_importers_at_once_are_served_one_after_the_other_by_a_few_threads() {
        let mut queue = Queue { waiting: VecDeque::new(), threads: 0 };
        let threads = (0..100).filter(|&number| queue.add(importer(number))).count();
        assert_eq!(threads, MOST_THREADS);
        let served: Vec<u64> = (0..100).map(|_| queue.next().unwrap().0.number).collect();
        assert_eq!(served, (0..100).collect::<Vec<_>>());
        assert!((0..threads).all(|_| queue.next().is_none()));
        assert_eq!(queue.threads, 0);
        assert!(queue.add(importer(1)), "the next one gets a thread");
    }

    #[test]
    fn no_more_importers_wait_than_the_bound_says() {
        let mut queue = Queue { waiting: VecDeque::new(), threads: 0 };
        (0..2 * MOST_WAITING as u64).for_each(|number| _ = queue.add(importer(number)));
        assert_eq!(queue.waiting.len(), MOST_WAITING);
    }
}
