//! Holding of the process's calls: whether they wait, and the wait itself.
//!
//! A thread of the program that waits tells the daemon, which then lets the process go on. A thread of gpushare's own
//! tells it only after a while, since often nobody waits for it.
//!
//! A thread that holds a lock must not wait, since the way to the next daemon needs such locks too. So it takes a
//! `Pass` with the lock, or waits before it has the lock. The process does not park while there is a pass.

use std::cell::Cell;
use std::marker::PhantomData;
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
/// Number of passes.
static PASSES: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Number of passes of the thread.
    static OWN_PASSES: Cell<u32> = const { Cell::new(0) };
}

/// Functions of the process's state for this module and the drainer, which the state is built upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acts {
    /// Does what the flag in the page asks for. Returns whether calls wait, and whether to look again soon.
    pub(crate) serve: fn(&'static Page) -> (bool, bool),
    /// Tells the daemon what keeps the process from being frozen. Returns whether it may go away although nobody rings.
    pub(crate) report: fn(&'static Page) -> bool,
    /// Tells the daemon that a thread waits, unless that would block. Returns whether it was told.
    pub(crate) call: fn() -> bool,
}

/// The functions, once the process has a state.
pub(crate) static ACTS: OnceLock<Acts> = OnceLock::new();

/// Longest sleep of a thread that waits, after which it tells the daemon again.
const NAP: Duration = Duration::from_millis(500);
/// First sleep of a thread that waits and could not tell the daemon. It doubles up to [`NAP`].
const SHORT_NAP: Duration = Duration::from_millis(5);
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

/// Pass of a thread that holds a lock: its calls of the driver do not wait, and the process does not park.
#[derive(Debug)]
pub(crate) struct Pass(PhantomData<*const ()>);

impl Pass {
    /// Returns a pass, or `None` if calls wait already. The caller then releases its lock and waits by [`pause`].
    pub(crate) fn take() -> Option<Self> {
        let pass = Self(PhantomData);
        // First the count and then the look, as the drainer first sets `HOLD` and then looks at the count. A handler of
        // a signal between the two lines waits.
        PASSES.fetch_add(1, Ordering::SeqCst);
        OWN_PASSES.set(OWN_PASSES.get() + 1);
        let is_first = OWN_PASSES.get() == 1;
        (!is_first || !is_held()).then_some(pass)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        OWN_PASSES.set(OWN_PASSES.get() - 1);
        PASSES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns whether the calling thread has a pass.
pub(super) fn has_pass() -> bool {
    OWN_PASSES.get() > 0
}

/// Returns whether no thread has a pass.
pub(super) fn has_no_passes() -> bool {
    PASSES.load(Ordering::SeqCst) == 0
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
pub(crate) fn is_awaited() -> bool {
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
    PASSES.store(OWN_PASSES.get(), Ordering::SeqCst);
}

#[cold]
#[inline(never)]
pub(super) fn wait() {
    guest_or(wait_for_release, || ());
}

fn wait_for_release() {
    if OWN_PASSES.get() > 0 {
        return;
    }
    let is_own = is_own_thread();
    let began = Instant::now();
    let mut retry = SHORT_NAP;
    WAITING.fetch_add(1, Ordering::SeqCst);
    while is_held() {
        let (page, heard) = listen();
        if !is_held() {
            break;
        }
        let mut nap = NAP;
        if (!is_own || began.elapsed() >= OWN_PATIENCE)
            && let Some(acts) = ACTS.get()
            // Never waits for a lock: a handler of a signal may have interrupted the thread that holds it.
            && !(acts.call)()
        {
            nap = retry;
            retry = (retry * 2).min(NAP);
        }
        let _ = bell::sleep(page, heard, Some(nap));
    }
    WAITING.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::{Mutex, MutexGuard};

    use crate::process::lock;

    static ALONE: Mutex<()> = Mutex::new(());

    /// Takes a pass once no other test makes calls wait.
    pub(crate) fn pass() -> super::Pass {
        loop {
            match super::Pass::take() {
                Some(pass) => return pass,
                None => super::pause(),
            }
        }
    }

    /// Calls wait as long as the value lives, in one test at a time.
    pub(crate) struct Held(#[expect(dead_code, reason = "a guard")] MutexGuard<'static, ()>);

    impl Held {
        pub(crate) fn begin() -> Self {
            let alone = lock(&ALONE);
            super::hold();
            Self(alone)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            super::release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::testing::{Held, pass};
    use super::*;

    #[test]
    fn a_thread_with_a_pass_does_not_wait_and_keeps_the_process_from_parking() {
        let pass = pass();
        let held = Held::begin();
        pause();
        assert!(Pass::take().is_some(), "a second one of the same thread");
        assert!(!has_no_passes());
        thread::scope(|scope| _ = scope.spawn(|| assert!(Pass::take().is_none())));
        drop(pass);
        assert!(Pass::take().is_none());
        drop(held);
    }

    #[test]
    fn a_thread_that_could_not_tell_the_daemon_repeats_it() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let call = || CALLS.fetch_add(1, Ordering::SeqCst) > 3;
        let acts = Acts { serve: |_| (false, false), report: |_| false, call };
        ACTS.set(acts).expect("no other test sets them");
        let held = Held::begin();
        thread::scope(|scope| {
            let call = scope.spawn(pause);
            while CALLS.load(Ordering::SeqCst) <= 3 {
                thread::yield_now();
            }
            assert!(!call.is_finished());
            drop(held);
        });
    }
}
