//! Bell of a shared page: threads sleep until the gate or the flags of the page change.
//!
//! ```text
//!   sleeper                              the side that changes the page
//!   heard = bell                         gate or flags = new
//!   look at gate and flags               bell += 1, wake all
//!   sleep while bell == heard
//! ```
//!
//! A change before the look is seen. A change after it rings the bell, so the sleep ends or does not begin.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpushare_proto::page::Page;

use crate::futex::{self, Woken};

/// Returns the present number of the bell, which a thread reads before it looks at the page and sleeps.
pub fn heard(page: &Page) -> u32 {
    page.bell.load(Ordering::SeqCst)
}

/// Wakes all threads that sleep on the page, after its gate or its flags changed.
pub fn ring(page: &Page) {
    page.bell.fetch_add(1, Ordering::SeqCst);
    futex::wake_all(&page.bell);
}

/// Largest number of threads that [`ring_some`] and [`wake_more`] wake.
pub const SOME: u32 = 64;

/// Rings as [`ring`] does, but wakes a bounded number of threads. Returns whether others may still sleep.
///
/// A process decides how many of its threads sleep, and each costs the waking thread about 10 µs.
pub fn ring_some(page: &Page) -> bool {
    page.bell.fetch_add(1, Ordering::SeqCst);
    wake_more(page)
}

/// Wakes a bounded number of the threads that still sleep. Returns whether others may still sleep.
pub fn wake_more(page: &Page) -> bool {
    futex::wake(&page.bell, SOME) == SOME as usize
}

/// Sleeps until the bell has rung since its number was `heard`, for at most `timeout`.
///
/// # Errors
/// Error of the kernel. A mapped page causes none.
pub fn sleep(page: &Page, heard: u32, timeout: Option<Duration>) -> io::Result<Woken> {
    futex::wait(&page.bell, heard, timeout)
}

#[cfg(test)]
mod tests {
    use gpushare_proto::page::FLAG_WANTED;
    use gpushare_proto::{GateState, GateWord};

    use super::*;
    use crate::page;

    #[test]
    fn a_change_between_the_look_and_the_sleep_ends_the_sleep() {
        let (file, ours) = page::create().unwrap();
        let theirs = page::map(&file).unwrap();
        let change_flags = || theirs.flags.store(FLAG_WANTED, Ordering::Release);
        let change_gate = || theirs.gate.store(GateWord::new(1, GateState::Open).0, Ordering::Release);
        for change in [&change_flags as &dyn Fn(), &change_gate] {
            let heard = heard(&ours);
            change();
            ring(&theirs);
            assert_eq!(sleep(&ours, heard, None).unwrap(), Woken::Changed);
        }
    }

    #[test]
    fn one_ring_wakes_a_bounded_number_of_threads() {
        let page = Page::new(GateState::Open);
        let threads = SOME as usize * 2;
        let heard = heard(&page);
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = (0..threads).map(|_| scope.spawn(|| sleep(&page, heard, None))).collect();
            // Wakes those that sleep already; the others see the change.
            let mut rings = usize::from(ring_some(&page));
            while !sleepers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                rings += usize::from(wake_more(&page));
            }
            assert!(rings <= 2, "{rings}");
        });
    }

    #[test]
    fn a_bell_that_does_not_ring_wakes_nobody() {
        let page = Page::new(GateState::Open);
        let short = Some(Duration::from_millis(1));
        assert_eq!(sleep(&page, heard(&page), short).unwrap(), Woken::TimedOut);
    }
}
