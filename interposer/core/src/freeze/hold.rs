//! Holding of the process's calls: whether they wait, and the wait itself.
//!
//! A thread of the program that waits tells the daemon, which then lets the process go on. A thread of gpushare's own
//! tells it only after a while, since often nobody waits for it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpushare_proto::page::Page;
use gpushare_sys::bell;

use crate::gate::{listen, wake_sleepers};
use crate::process::{is_own_thread, panics::guest_or};

/// Whether calls of the driver wait: 1 if they do. The entry points read it too.
pub static HOLD: AtomicU32 = AtomicU32::new(0);
/// Number of threads that wait.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Functions of the process's state for this module and the drainer, which the state is built upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acts {
    /// Does what the flag in the page asks for. Returns whether calls wait, and whether to look again soon.
    pub(crate) serve: fn(&'static Page) -> (bool, bool),
    /// Tells the daemon what keeps the process from being frozen.
    pub(crate) report: fn(&'static Page),
    /// Tells the daemon that a thread waits.
    pub(crate) call: fn(),
}

/// The functions, once the process has a state.
pub(crate) static ACTS: OnceLock<Acts> = OnceLock::new();

/// Longest sleep of a thread that waits. Then a message that could not be sent is repeated.
const NAP: Duration = Duration::from_millis(500);
/// Time after which a thread of gpushare's own tells the daemon that it waits. A thread of the program may wait for it
/// at a lock.
const OWN_PATIENCE: Duration = Duration::from_secs(1);

/// Waits while calls of the driver wait. Called right before each call that passes no entry point.
#[inline]
pub fn pause() {
    if HOLD.load(Ordering::Relaxed) != 0 {
        wait();
    }
}

/// Waits at the end of the process, as [`pause`] does. The caller has marked the process as ending before. The drainer
/// sets `HOLD` and then looks at that mark, so one of the two sees the other, which needs the strongest order.
pub(crate) fn pause_at_exit() {
    if is_held() {
        wait();
    }
}

/// Returns whether calls of the driver wait.
pub(crate) fn is_held() -> bool {
    HOLD.load(Ordering::SeqCst) != 0
}

/// Returns whether a thread waits.
#[cfg(test)]
pub(super) fn is_awaited() -> bool {
    WAITING.load(Ordering::SeqCst) > 0
}

/// Makes calls wait.
pub(super) fn hold() {
    HOLD.store(1, Ordering::SeqCst);
}

/// Lets calls go on.
pub(super) fn release() {
    HOLD.store(0, Ordering::SeqCst);
    wake_sleepers();
}

/// Forgets the waits of a parent in the child of a fork, which has none of its threads.
pub(crate) fn reset() {
    HOLD.store(0, Ordering::SeqCst);
    WAITING.store(0, Ordering::SeqCst);
}

#[cold]
#[inline(never)]
pub(super) fn wait() {
    guest_or(wait_for_release, || ());
}

fn wait_for_release() {
    let is_own = is_own_thread();
    let began = Instant::now();
    WAITING.fetch_add(1, Ordering::SeqCst);
    while is_held() {
        let (page, heard) = listen();
        if !is_held() {
            break;
        }
        if (!is_own || began.elapsed() >= OWN_PATIENCE)
            && let Some(acts) = ACTS.get()
        {
            (acts.call)();
        }
        let _ = bell::sleep(page, heard, Some(NAP));
    }
    WAITING.fetch_sub(1, Ordering::SeqCst);
}
