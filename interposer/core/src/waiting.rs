//! The slow path of the gate: a thread asks for the lock, sleeps on the gate's word, and says on stderr
//! after two seconds what it waits for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpushare_proto::names;
use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{GateWord, Nanos};
use gpushare_sys::unwind::cancellation_point;
use gpushare_sys::{clock, futex};

use crate::gate::Pass;
use crate::guest::guest_or;
use crate::process::{self, State};
use crate::{lifecycle, notice};

/// When a wait is worth a line on stderr.
const NOTICE_AFTER: Duration = Duration::from_secs(2);
/// The least time between two such lines of one process.
const NOTICE_EVERY: Duration = Duration::from_secs(60);
/// How long a drain takes to begin, and how often a thread that waits for that looks.
const BEGINNING: Nanos = Nanos::from_millis(2);
const GLANCE: Duration = Duration::from_micros(50);
/// The longest sleep without a look around: the page may have been exchanged.
const NAP: Duration = Duration::from_millis(500);

/// Threads of this process at the gate, and what they did there.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Threads that sleep now.
    pub sleepers: AtomicU32,
    /// When a thread last came to sleep where none slept, on the monotonic clock.
    pub came: AtomicU64,
    /// Nanoseconds slept by all threads so far.
    pub waited: AtomicU64,
    /// The word that was last asked about, plus one; zero for none.
    asked: AtomicU64,
    /// Milliseconds since the process's start of the last line on stderr.
    said: AtomicU64,
}

/// Waits at the gate until it opens, and enters.
#[cold]
pub fn at_gate(word: GateWord) -> Pass<'static> {
    guest_or(|| wait(word), || process::GATE.enter_anyway())
}

/// The same with work that may talk to other cards, and then be what work in flight waits for.
#[cold]
pub fn at_gate_with(word: GateWord, talks: impl FnOnce(&State) -> bool) -> Pass<'static> {
    let passed = guest_or(|| pass_collective(word, talks), || None);
    passed.unwrap_or_else(|| at_gate(word))
}

/// Passes a closed gate while the drain that it began has not ended. Asked inside, as [`excused`]: a drain that had ended before
/// this thread was counted does not wait for it.
fn pass_collective(word: GateWord, talks: impl FnOnce(&State) -> bool) -> Option<Pass<'static>> {
    let state = State::existing()?;
    if !talks(state) {
        return None;
    }
    // The mover may not have seen yet that the gate closed.
    let began = clock::monotonic();
    loop {
        let now = clock::monotonic();
        if state.collectives.is_admitted(word, now) {
            let pass = process::GATE.enter_anyway();
            let admitted = state.collectives.is_admitted(word, now);
            return admitted.then_some(pass);
        }
        let page = process::page();
        let seen = GateWord(page.gate.load(Ordering::Acquire));
        if seen != word || state.let_go.under(page, word) || now - began >= BEGINNING {
            return None;
        }
        let _ = futex::wait(&page.gate, word.0, Some(GLANCE));
    }
}

fn wait(mut word: GateWord) -> Pass<'static> {
    let Some(state) = State::existing() else { return process::GATE.enter_anyway() };
    let asleep = Asleep::new(&state.waiting);
    loop {
        // A thread that is told to end does so here: it has nothing, and natively it would not be waiting.
        cancellation_point();
        if let Some(pass) = excused(state) {
            return pass;
        }
        state
            .waiting
            .ask(word, |request| state.link().is_some_and(|link| link.tell(request)));
        let page = process::page();
        // Whatever ends the sleep, the word is looked at again.
        let _ = futex::wait(&page.gate, word.0, Some(NAP));
        match process::GATE.enter(&process::page().gate) {
            Ok(pass) => return pass,
            Err(seen) => word = seen,
        }
        state.waiting.say(state, asleep.since.elapsed());
    }
}

/// A thread that sleeps, counted until it wakes or is cancelled.
struct Asleep<'a> {
    waiting: &'a Waiting,
    since: Instant,
}

impl<'a> Asleep<'a> {
    fn new(waiting: &'a Waiting) -> Self {
        if waiting.sleepers.fetch_add(1, Ordering::SeqCst) == 0 {
            waiting.came.store(clock::monotonic().0, Ordering::Relaxed);
        }
        Self { waiting, since: Instant::now() }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.waiting.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.waiting.waited.fetch_add(nanos(self.since.elapsed()), Ordering::Relaxed);
    }
}

/// Passes a closed gate while a capture runs (what it records is not executed, and the lock is held until
/// it ends) and in a process that ends. Asked again inside: a capture that ended before this thread was
/// counted held up no drain.
fn excused(state: &State) -> Option<Pass<'static>> {
    let excused = || state.captures.any() || lifecycle::is_exiting();
    excused().then(|| process::GATE.enter_anyway()).filter(|_| excused())
}

/// Wakes everybody who sleeps at the gate, to look around.
pub fn release_all() {
    futex::wake_all(&process::page().gate);
}

impl Waiting {
    /// Asks for the lock, once for each word that somebody waits on.
    fn ask(&self, word: GateWord, tell: impl FnOnce(&TenantRequest) -> bool) {
        let mark = u64::from(word.0) + 1;
        if self.asked.swap(mark, Ordering::AcqRel) != mark && !tell(&TenantRequest::Wait { word }) {
            // Nobody was there to hear it, perhaps after this process said who waits: asked again after a nap.
            self.ask_again();
        }
    }

    /// A daemon that returned does not know what its predecessor was asked.
    pub fn ask_again(&self) {
        self.asked.store(0, Ordering::Release);
    }

    fn say(&self, state: &State, waited: Duration) {
        let now = u64::try_from(state.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let said = self.said.load(Ordering::Relaxed);
        let due = said == 0 || now.saturating_sub(said) >= NOTICE_EVERY.as_millis() as u64;
        if waited < NOTICE_AFTER || !due {
            return;
        }
        if self
            .said
            .compare_exchange(said, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            let reason = state.link().map_or_else(String::new, |link| link.identity().waits_for);
            notice::say(format_args!(
                "waiting for the GPU since {:.0} s: {reason}; `gpushare-ctl status` shows more ({}=1 sums up at exit)",
                waited.as_secs_f64(),
                names::SUMMARY,
            ));
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use gpushare_proto::GateState;

    use super::*;

    const CLOSED: GateWord = GateWord::new(4, GateState::Closed);

    #[test]
    fn a_word_is_asked_about_once() {
        let waiting = Waiting::default();
        let mut asked = 0;
        for word in [CLOSED, CLOSED, CLOSED.next(GateState::Closed)] {
            waiting.ask(word, |_| {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 2);
    }

    #[test]
    fn a_question_that_no_daemon_heard_is_asked_again() {
        let waiting = Waiting::default();
        waiting.ask(CLOSED, |_| false);
        let mut asked = false;
        waiting.ask(CLOSED, |_| {
            asked = true;
            true
        });
        assert!(asked);
    }
}
