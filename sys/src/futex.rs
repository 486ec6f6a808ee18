//! Futexes: threads sleep on a word of the shared page, and threads of other processes can wake them.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

/// Reason why a sleep ended. A wake may be spurious, so the caller reads the word again in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Another thread woke the sleeping thread.
    Woken,
    /// The word differed from the expected value, so the thread did not sleep.
    Changed,
    /// The timeout passed before a wake.
    TimedOut,
    /// A signal handler ran and ended the sleep.
    Interrupted,
}

/// Sleeps while `word` has the value `expected`, for at most `timeout`.
///
/// # Errors
/// Error of the kernel. A mapped word causes none.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<Woken> {
    // A timeout beyond the kernel's range counts as none.
    let timeout = timeout.and_then(|span| Timespec::try_from(span).ok());
    match futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) => Ok(Woken::Woken),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(Errno::INTR) => Ok(Woken::Interrupted),
        Err(errno) => Err(errno.into()),
    }
}

/// Wakes all threads of all processes that sleep on `word`, and returns their number.
pub fn wake_all(word: &AtomicU32) -> usize {
    wake(word, i32::MAX.unsigned_abs())
}

/// Wakes up to `most` threads that sleep on `word`, the first ones first, and returns their number.
pub fn wake(word: &AtomicU32, most: u32) -> usize {
    // The only errors are bad addresses, which a reference cannot be.
    futex::wake(word, Flags::empty(), most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;
    use crate::page;

    #[test]
    fn a_sleeper_wakes_through_another_mapping_of_the_page() {
        let (file, ours) = page::create().unwrap();
        let theirs = page::map(&file).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while theirs.gate.load(Ordering::Acquire) == 0 {
                    wait(&theirs.gate, 0, None).unwrap();
                }
            });
            ours.gate.store(1, Ordering::Release);
            wake_all(&ours.gate);
        });
    }

    #[test]
    fn a_sleep_says_why_it_ended() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, None).unwrap(), Woken::Changed);
        let short = Some(Duration::from_millis(1));
        assert_eq!(wait(&word, 1, short).unwrap(), Woken::TimedOut);
        assert_eq!(wake_all(&word), 0);
    }
}
