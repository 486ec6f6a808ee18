//! Slow path of the gate: a thread that finds the gate closed asks the daemon for the lock and sleeps until
//! the gate word changes. Some threads pass a closed gate: during a capture, at the end of the process, and with
//! collective kernels while a drain runs. The program may interrupt the waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpushare_proto::page::Page;
use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{GateState, GateWord, Nanos};
use gpushare_sys::unwind::cancellation_point;
use gpushare_sys::{bell, clock};

use super::interrupt::{INTERRUPTED, INTERRUPTS};
use super::noted::{AnsweredDrop, GiveBack, NotedWord};
use super::{GATE, Pass, captures::Captures, collectives::Collectives, communication::MarkedStreams};
use super::{listen, waiters::Waiters};
use crate::daemon::Daemon;
use crate::driver::types::{CUDA_ERROR_DEINITIALIZED, CUresult};
use crate::freeze::hold::pause;
use crate::process::is_exiting;

/// Longest time from the closing of the gate to the start of its drain, and the pause between two checks.
const DRAIN_BEGINS: Nanos = Nanos::from_millis(2);
const GLANCE: Duration = Duration::from_micros(50);
/// Time for which the thread that asked for the lock looks at the gate word before it sleeps. A card that is free,
/// or that is given at once, is granted within it. A sleeping thread would wake up some 50 µs later.
const ANSWER: Duration = Duration::from_micros(100);
/// Longest sleep at the gate. Then a request that could not be sent is repeated, and a long wait is explained.
const NAP: Duration = Duration::from_millis(500);

/// Longest time for which threads that look at the closed gate may count as inside.
const LOOKING: Duration = Duration::from_millis(20);
/// Longest wait of a thread of an ending process for memory that is away. The engine no longer moves then.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Number of threads so far that passed the closed gate: in a capture, or in a process that is ending.
pub(super) static EXCUSED: AtomicU64 = AtomicU64::new(0);

/// Returns whether no thread is inside the closed gate, and only `excused` threads have ever passed a closed one. A
/// thread that looks at the gate counts as inside for a moment, so this waits a moment.
pub(crate) fn is_quiet(excused: u64) -> bool {
    let began = Instant::now();
    while !GATE.is_empty() {
        if began.elapsed() >= LOOKING {
            return false;
        }
        std::thread::yield_now();
    }
    EXCUSED.load(Ordering::SeqCst) == excused
}

/// Returns whether no thread has ever looked at the gate.
pub(crate) fn is_unused() -> bool {
    GATE.entries() == 0
}

/// Decides which threads pass the closed gate, and remembers the drainer's answers to drops.
#[derive(Debug, Default)]
pub(crate) struct Gatekeeper {
    daemon: Arc<Daemon>,
    pub(crate) captures: Captures,
    pub(crate) collectives: Collectives,
    pub(crate) marked: MarkedStreams,
    pub(crate) waiters: Waiters,
    pub(super) answered: AnsweredDrop,
    /// Closed word under which nothing proves that no work is in flight, since a context has failed.
    pub(super) unproved: NotedWord,
    pub(super) gives_back: GiveBack,
    /// Number of bytes that the drainer asked the driver to move to the card.
    pub(crate) moved: AtomicU64,
}

impl Gatekeeper {
    pub(crate) fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon, collectives: Collectives::of_environment(), ..Self::default() }
    }

    /// Waits at the gate, which was found closed, until it opens, and enters.
    ///
    /// # Errors
    /// [`INTERRUPTED`] if the program interrupts the wait. `CUDA_ERROR_DEINITIALIZED` in a process that is ending
    /// while its memory is away.
    pub(crate) fn wait(&self) -> Result<Pass<'static>, CUresult> {
        // Read before this thread counts as waiting, so that a request in between is not lost.
        let interrupts = INTERRUPTS.count();
        let sleeper = self.waiters.add();
        let began = Instant::now();
        loop {
            // A cancelled thread ends here: it holds nothing, and natively it would not wait.
            cancellation_point();
            let (page, heard) = listen();
            if let Some(pass) = self.excuse() {
                return Ok(pass);
            }
            let word = match GATE.enter(&page.gate) {
                Ok(pass) => {
                    pause();
                    return Ok(pass);
                }
                Err(word) => word,
            };
            if is_exiting() && began.elapsed() >= LAST_WAIT {
                return Err(CUDA_ERROR_DEINITIALIZED);
            }
            if INTERRUPTS.ends(interrupts, clock::monotonic) {
                return Err(INTERRUPTED);
            }
            let asks = self.waiters.ask(word, || self.daemon.send(&TenantRequest::Wait { word }));
            if asks && is_answered(&page.gate, word) {
                continue;
            }
            // Everything is looked at again whatever ended the sleep.
            let _ = bell::sleep(page, heard, Some(NAP));
            sleeper.explain(|| self.daemon.link().map_or_else(String::new, |link| link.identity().waits_for));
        }
    }

    /// Makes the drainer give the present grant back once no work is in flight; the caller wakes the drainer.
    pub(crate) fn give_back(&self) {
        self.gives_back.ask(super::page());
    }

    /// Passes the closed gate with work that communicates between cards, unless the drain has ended or memory is away.
    pub(crate) fn pass_communication(&self, word: GateWord) -> Option<Pass<'static>> {
        // The drainer may not have noticed yet that the gate closed.
        let began = clock::monotonic();
        loop {
            let now = clock::monotonic();
            let (page, heard) = listen();
            if self.admits(page, word, now) {
                let pass = GATE.enter_anyway();
                // Checked again inside: a drain that ended before this thread was counted does not wait for
                // it.
                pause();
                return self.admits(page, word, now).then_some(pass);
            }
            let seen = GateWord(page.gate.load(Ordering::Acquire)).plain();
            if seen != word || self.answered.covers(page, word) || now - began >= DRAIN_BEGINS {
                return None;
            }
            let _ = bell::sleep(page, heard, Some(GLANCE));
        }
    }

    /// Returns whether work that communicates between cards passes the gate of `page` under a closed word. Memory is away
    /// if the gate was marked under an earlier grant, which was taken away before the gate opened.
    fn admits(&self, page: &Page, word: GateWord, now: Nanos) -> bool {
        let is_away = GateWord(page.gate.load(Ordering::SeqCst)).is_evicting();
        !is_away && self.collectives.is_admitted(word, now)
    }

    /// Passes the closed gate in a process that is ending, or while a capture records launches. Nobody passes while
    /// memory is away.
    fn excuse(&self) -> Option<Pass<'static>> {
        let is_away = || GateWord(super::page().gate.load(Ordering::SeqCst)).is_evicting();
        let excused = || (self.captures.any() || is_exiting()) && !is_away();
        if !excused() {
            return None;
        }
        let pass = GATE.enter_anyway();
        // Before the mark is looked at again: whoever sets it looks at this number afterwards.
        EXCUSED.fetch_add(1, Ordering::SeqCst);
        // Checked again inside: a capture that ended before this thread was counted held up no drain.
        excused().then(|| {
            pause();
            pass
        })
    }

    /// Returns whether work may be in flight under the last grant of `page`: the lock is not given back yet.
    pub(crate) fn may_hold(&self, page: &Page) -> bool {
        let word = GateWord(page.gate.load(Ordering::Acquire)).plain();
        word.state() != GateState::Closed || !self.answered.covers(page, word)
    }
}

/// Looks at a gate word for the time [`ANSWER`], and returns whether it changes.
fn is_answered(gate: &AtomicU32, word: GateWord) -> bool {
    let began = Instant::now();
    loop {
        if GateWord(gate.load(Ordering::Acquire)).plain() != word {
            return true;
        }
        if began.elapsed() >= ANSWER {
            return false;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn work_that_communicates_passes_a_closed_gate_only_while_memory_is_there() {
        let (gate, page, word) =
            (Gatekeeper::default(), Page::default(), GateWord::new(4, GateState::Closed));
        let ms = Nanos::from_millis;
        gate.collectives.admit(word, ms(1), ms(10));
        page.gate.store(word.0, Ordering::SeqCst);
        assert!(gate.admits(&page, word, ms(2)));
        page.gate.store(word.0 | GateWord::EVICTING, Ordering::SeqCst);
        assert!(!gate.admits(&page, word, ms(2)), "an earlier grant has left holes");
        page.gate.store(word.0, Ordering::SeqCst);
        gate.collectives.end_admission();
        assert!(!gate.admits(&page, word, ms(2)));
    }

    #[test]
    fn a_thread_that_asked_sees_the_answer_without_sleep_and_gives_up_soon() {
        let word = GateWord::new(4, GateState::Closed);
        let gate = AtomicU32::new(word.0);
        assert!(!is_answered(&gate, word));
        thread::scope(|scope| {
            scope.spawn(|| gate.store(word.next(GateState::Open).0, Ordering::Release));
            while !is_answered(&gate, word) {}
        });
        assert!(is_answered(&gate, word));
    }
}
