//! The mover: a thread that does what the gate's word asks of the process.
//!
//! It is level-triggered. It looks at the word, does that word's duty, and gives up at once when the word
//! changes under it, so a drop can be reopened and a grant taken away at any moment and nothing is ever
//! half-remembered:
//!
//! ```text
//!   closed          drain: nobody inside, no capture, nothing in flight   → Released{word}
//!   moving          bring the memory in                                   → open the gate, Entered{word}
//!   open, wanted    quiet for the idle grace? prove it (word = idle)       → close it, Released{open word}
//!   open            rest
//! ```
//!
//! It waits for work in flight by polling events, never by a call that blocks: a drop that turns out to
//! wait for a thread at the gate must stay abortable. Drivers before CUDA 12.5 have no event that covers a whole
//! context; there it synchronises the context, which the reopened gate ends too.

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpushare_proto::page::{FLAG_WANTED, Page};
use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{Bytes, GateState, GateWord, Nanos};
use gpushare_sys::{clock, futex};

use crate::driver::contexts::List;
use crate::driver::types::{CAPTURE_MODE_RELAXED, CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUevent};
use crate::grace::Grace;
use crate::lock;
use crate::process::{GATE, State, page};

/// The longest rest without a look around: the page may have been exchanged.
const REST: Duration = Duration::from_secs(1);
/// Pauses between two looks at work in flight: this part of the time so far, for what lies between its end and the look is a
/// pause of the card that counts as held. A limited program pays for it once in each slice of some 30 ms.
const POLL_PART: u32 = 64;
const POLL_MIN: Duration = Duration::from_micros(20);
const POLL_MAX: Duration = Duration::from_millis(1);

/// What a word asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Rest,
    Drain,
    BringIn,
    WatchIdle,
}

fn duty(word: GateWord, let_go: bool, flags: u32) -> Duty {
    match word.state() {
        GateState::Closed if let_go => Duty::Rest,
        GateState::Closed => Duty::Drain,
        GateState::Moving => Duty::BringIn,
        GateState::Open if flags & FLAG_WANTED != 0 => Duty::WatchIdle,
        // Idle is our own doing and never outlives `watch_idle`.
        GateState::Open | GateState::Idle => Duty::Rest,
    }
}

/// The closed word that was answered last, and the page it was in: a returned daemon's page counts its changes
/// from the beginning, so the same word means another drop there.
#[derive(Debug, Default)]
pub struct LetGo(Mutex<Option<(usize, GateWord)>>);

impl LetGo {
    /// Whether there is nothing to give back under the closed `word` of `page`: it was answered, or nothing
    /// was ever granted.
    #[must_use]
    pub fn under(&self, page: &Page, word: GateWord) -> bool {
        word.change() == 0 || *lock(&self.0) == Some((std::ptr::from_ref(page).addr(), word))
    }

    fn note(&self, page: &Page, word: GateWord) {
        *lock(&self.0) = Some((std::ptr::from_ref(page).addr(), word));
    }
}

struct Mover {
    state: &'static State,
    grace: Grace,
}

/// The mover thread.
pub fn run(state: &'static State) {
    let mut mode = CAPTURE_MODE_RELAXED;
    // SAFETY: exchanges one integer. Our event queries must not break a capture of the application.
    unsafe { (state.driver.thread_exchange_capture_mode)(&raw mut mode) };
    let mut mover = Mover { state, grace: Grace::default() };
    loop {
        mover.step();
    }
}

impl Mover {
    fn step(&mut self) {
        let page = page();
        let word = load(page);
        let let_go = self.state.let_go.under(page, word);
        match duty(word, let_go, page.flags.load(Ordering::Acquire)) {
            Duty::Rest => rest(page, word, REST),
            Duty::Drain => self.drain(page, word),
            Duty::BringIn => self.bring_in(page, word),
            Duty::WatchIdle => self.watch_idle(page, word),
        }
    }

    fn drain(&mut self, page: &'static Page, word: GateWord) {
        let since = Instant::now();
        let (collectives, entries) = (&self.state.collectives, GATE.entries());
        let target = Nanos(u64::from(page.drain_target.load(Ordering::Relaxed)) * 1_000);
        collectives.admit(word, clock::monotonic(), target);
        let drained = self.drained(page, word);
        collectives.admit_no_more();
        // Who came in after the gate had closed launched behind what was waited for.
        if drained && (GATE.entries() == entries || self.drained(page, word)) {
            self.state.let_go.note(page, word);
            self.tell(&TenantRequest::Released { word, drain: since.elapsed().into() });
        }
    }

    fn bring_in(&mut self, page: &'static Page, word: GateWord) {
        let since = Instant::now();
        self.judge_idleness();
        // A process that met its daemon again may be in a capture, which a mark of ours would break.
        let capturing = self.state.is_capturing();
        let moved = if capturing { Bytes::ZERO } else { self.prefetch() };
        if !capturing && !self.in_flight_done(page, word) {
            return;
        }
        let open = word.with(GateState::Open);
        if exchange(page, word, open) {
            futex::wake_all(&page.gate);
            self.state.moved.fetch_add(moved.0, Ordering::Relaxed);
            self.tell(&TenantRequest::Entered { word, moved, took: since.elapsed().into() });
        }
    }

    /// Asks the driver to bring every managed range to its card. Faults bring what it could not.
    fn prefetch(&self) -> Bytes {
        let driver = &self.state.driver;
        let mut moved = Bytes::ZERO;
        for live in self.state.contexts.visit().iter_mut() {
            let device = live.device();
            let ranges = self.state.books.ranges_of(live.context());
            live.enter(driver, |live| {
                let Some(stream) = live.stream(driver) else { return };
                for (address, size) in ranges {
                    let asked = self.state.books.while_it_stays(address, || {
                        // SAFETY: the range is ours, and whoever frees it waits.
                        unsafe { (driver.mem_prefetch_async)(address, size.0 as usize, device, stream) }
                    });
                    if asked == Some(CUDA_SUCCESS) {
                        moved += size;
                    }
                }
            });
        }
        moved
    }

    /// Whether it was right to give the lock back, now that it is here again.
    fn judge_idleness(&mut self) {
        self.grace.judge(Nanos(self.state.waiting.came.load(Ordering::Relaxed)));
    }

    fn watch_idle(&mut self, page: &'static Page, word: GateWord) {
        self.judge_idleness();
        let entries = GATE.entries();
        rest(page, word, self.grace.span().into());
        let quiet = load(page) == word && GATE.entries() == entries && GATE.is_empty();
        if !quiet || self.state.is_capturing() {
            return;
        }
        let (idle, since) = (word.with(GateState::Idle), Instant::now());
        if !exchange(page, word, idle) || !self.drained(page, idle) {
            // A thread arrived and took the gate back, or the daemon changed its mind.
            self.grace.regret();
            return;
        }
        let closed = word.with(GateState::Closed);
        if exchange(page, idle, closed) {
            self.grace.gave_back(clock::monotonic());
            self.state.let_go.note(page, closed);
            self.tell(&TenantRequest::Released { word, drain: since.elapsed().into() });
        }
    }

    /// Waits until nobody is inside, no capture runs and nothing is in flight; `false` if the word changed first.
    fn drained(&self, page: &Page, word: GateWord) -> bool {
        poll(page, word, || GATE.is_empty() && !self.state.is_capturing() && GATE.is_empty())
            && self.in_flight_done(page, word)
    }

    /// Waits for everything in flight in every context; `false` if the word changed first.
    fn in_flight_done(&self, page: &Page, word: GateWord) -> bool {
        let mut marks = None;
        poll(page, word, || {
            marks = marks.take().or_else(|| self.mark());
            let Some(marks) = &mut marks else { return false };
            let live = self.state.contexts.visit();
            marks.retain(|mark| self.is_pending(&live, *mark));
            marks.is_empty()
        })
    }

    /// Marks the present end of each context's work; `None` while a capture runs, which a mark would break.
    fn mark(&self) -> Option<Vec<Mark>> {
        let driver = &self.state.driver;
        let mut marks = Vec::new();
        let mut contexts = self.state.contexts.visit();
        // Captures begin under the same lock, and the one that begins now had not been seen.
        if self.state.captures.any() {
            return None;
        }
        for live in contexts.iter_mut() {
            let context = live.context();
            let event = live.enter(driver, |live| match (driver.ctx_record_event, live.event(driver)) {
                // SAFETY: both are alive and belong together.
                (Some(record), Some(event)) if unsafe { record(context, event) } == CUDA_SUCCESS => {
                    Some(event)
                }
                _ => {
                    // SAFETY: waits; has no arguments. An error means that nothing more will run there.
                    unsafe { (driver.ctx_synchronize)() };
                    None
                }
            });
            marks.extend(event.flatten().map(|event| Mark { context: context.addr(), event }));
        }
        Some(marks)
    }

    fn is_pending(&self, live: &List, mark: Mark) -> bool {
        // A context that was destroyed meanwhile took its work and its event along.
        let alive = live.iter().any(|known| known.context().addr() == mark.context);
        // SAFETY: the event lives as long as its context, which the caller's lock keeps. Anything but
        // "not ready" ends the wait: a context with a sticky error runs nothing more.
        alive && unsafe { (self.state.driver.event_query)(mark.event) } == CUDA_ERROR_NOT_READY
    }

    fn tell(&self, request: &TenantRequest) {
        if let Some(link) = self.state.link() {
            link.tell(request);
        }
    }
}

/// The end of a context's work at some moment.
#[derive(Clone, Copy)]
struct Mark {
    context: usize,
    event: CUevent,
}

fn load(page: &Page) -> GateWord {
    GateWord(page.gate.load(Ordering::Acquire))
}

fn exchange(page: &Page, from: GateWord, to: GateWord) -> bool {
    page.gate
        .compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

fn rest(page: &Page, word: GateWord, span: Duration) {
    // Whatever ends the sleep, the caller looks at the word again.
    let _ = futex::wait(&page.gate, word.0, Some(span));
}

/// Repeats `done` with growing pauses until it says yes; `false` if the word changed first.
fn poll(page: &Page, word: GateWord, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if load(page) != word || !std::ptr::eq(page, crate::process::page()) {
            return false;
        }
        if done() {
            return true;
        }
        let pause = began.elapsed() / POLL_PART;
        rest(page, word, pause.clamp(POLL_MIN, POLL_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: GateWord = GateWord::new(4, GateState::Closed);

    #[test]
    fn each_word_asks_for_one_thing() {
        assert_eq!(duty(CLOSED, false, 0), Duty::Drain);
        assert_eq!(duty(CLOSED, true, 0), Duty::Rest);
        assert_eq!(duty(CLOSED.with(GateState::Moving), false, 0), Duty::BringIn);
        assert_eq!(duty(CLOSED.with(GateState::Open), false, 0), Duty::Rest);
        assert_eq!(duty(CLOSED.with(GateState::Open), false, FLAG_WANTED), Duty::WatchIdle);
    }

    #[test]
    fn a_closed_word_is_answered_once_and_its_successor_again() {
        let (page, let_go) = (Page::new(GateState::Closed), LetGo::default());
        assert!(!let_go.under(&page, CLOSED));
        let_go.note(&page, CLOSED);
        assert!(let_go.under(&page, CLOSED));
        assert!(!let_go.under(&page, CLOSED.next(GateState::Closed)));
    }

    #[test]
    fn the_same_word_of_a_returned_daemon_is_answered_again() {
        let pages = [Page::new(GateState::Closed), Page::new(GateState::Closed)];
        let let_go = LetGo::default();
        let_go.note(&pages[0], CLOSED);
        assert!(!let_go.under(&pages[1], CLOSED));
    }

    #[test]
    fn a_process_that_was_never_granted_has_nothing_to_give_back() {
        assert!(LetGo::default().under(&Page::new(GateState::Closed), GateWord::new(0, GateState::Closed)));
    }
}
