//! Threads that sleep at the closed gate: their number, how long they sleep, their request to the daemon, and
//! the line on stderr after two seconds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpushare_proto::{GateWord, Nanos, names};
use gpushare_sys::clock;

use crate::process::stderr;

/// Length of a wait at the gate after which a line on stderr explains the reason.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// Smallest time between two lines on stderr that explain waits of one process.
const NOTICE_EVERY: Nanos = Nanos::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    sleepers: AtomicU32,
    /// Point in time on the monotonic clock, in nanoseconds, when the first of the present threads fell
    /// asleep.
    since: AtomicU64,
    /// Sum of the time that all threads have slept at the gate, in nanoseconds.
    pub(crate) waited: AtomicU64,
    /// Gate word for which the daemon was last asked for the lock, plus one; zero for none.
    asked: AtomicU64,
    /// Point in time of the last line on stderr, on the monotonic clock in nanoseconds; zero for none.
    printed: AtomicU64,
}

/// Thread that sleeps at the gate, counted until it wakes or is cancelled.
pub(super) struct Sleeper<'a> {
    waiters: &'a Waiters,
    since: Instant,
}

impl Waiters {
    pub(super) fn add(&self) -> Sleeper<'_> {
        let now = clock::monotonic().0;
        // Stored before the thread is counted, so that a reader does not see the time of an earlier wait.
        if !self.any() {
            self.since.store(now, Ordering::SeqCst);
        }
        if self.sleepers.fetch_add(1, Ordering::SeqCst) == 0 {
            self.since.store(now, Ordering::SeqCst);
        }
        Sleeper { waiters: self, since: Instant::now() }
    }

    pub(crate) fn any(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn since(&self) -> Nanos {
        Nanos(self.since.load(Ordering::Relaxed))
    }

    /// Asks for the lock by `send`, once for each gate word. Repeats a request that was not sent. Returns whether
    /// this call sent one.
    pub(super) fn ask(&self, word: GateWord, send: impl FnOnce() -> bool) -> bool {
        let mark = u64::from(word.0) + 1;
        if self.asked.swap(mark, Ordering::AcqRel) == mark {
            return false;
        }
        let sent = send();
        if !sent {
            self.ask_again();
        }
        sent
    }

    /// Makes the next waiting thread repeat its request, since a new daemon does not know earlier ones.
    pub(crate) fn ask_again(&self) {
        self.asked.store(0, Ordering::Release);
    }
}

impl Sleeper<'_> {
    /// Prints why the thread waits, if the wait is long and no line was printed lately.
    pub(super) fn explain(&self, reason: impl FnOnce() -> String) {
        let (waited, last) = (self.since.elapsed(), &self.waiters.printed);
        let now = clock::monotonic().0;
        let printed = last.load(Ordering::Relaxed);
        let due = printed == 0 || now.saturating_sub(printed) >= NOTICE_EVERY.0;
        if waited < NOTICE_AFTER || !due {
            return;
        }
        let claimed = last.compare_exchange(printed, now, Ordering::Relaxed, Ordering::Relaxed);
        if claimed.is_err() {
            return;
        }
        // A thread that waited for room would stay here while the gate opens.
        let fits = stderr::print_at_once(format_args!(
            "waiting for the GPU since {:.0} s: {}; `gpushare-ctl status` shows more ({}=1 prints a summary at exit)",
            waited.as_secs_f64(),
            reason(),
            names::SUMMARY,
        ));
        if !fits {
            last.store(printed, Ordering::Relaxed);
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.waiters.sleepers.fetch_sub(1, Ordering::SeqCst);
        let waited = Nanos::from(self.since.elapsed()).0;
        self.waiters.waited.fetch_add(waited, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::GateState;

    use super::*;

    const CLOSED: GateWord = GateWord::new(4, GateState::Closed);

    #[test]
    fn a_word_is_asked_about_once() {
        let waiters = Waiters::default();
        let words = [CLOSED, CLOSED, CLOSED.next(GateState::Closed)];
        assert_eq!(words.map(|word| waiters.ask(word, || true)), [true, false, true]);
    }

    #[test]
    fn a_question_that_was_not_sent_is_asked_again() {
        let waiters = Waiters::default();
        assert!(!waiters.ask(CLOSED, || false));
        assert!(waiters.ask(CLOSED, || true));
    }
}
