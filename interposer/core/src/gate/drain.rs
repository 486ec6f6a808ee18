//! The drainer: a thread that waits for the process's work in flight, brings its memory to the card, or
//! checks for idleness, as the gate word demands.
//!
//! The drainer is level-triggered: it reads the word, performs its task, and gives up at once when the word
//! changes. So a drop can be undone and a grant taken away at any moment:
//!
//! ```text
//!   closed          drain: the end is near                                   → NearlyDrained{word}
//!                          no thread inside, no capture, nothing in flight   → Released{word}
//!   moving          bring the memory in                                      → open the gate, Entered{word}
//!   closed, drained remapped memory leaves as the goal in the page says, by threads of its own (remap/)
//!                   managed memory leaves as far as a goal asks, while it does (move_out)
//!                   no proof for this word, as on a new page → proves again, without a message
//!   open, wanted    quiet for the idle grace? prove it (word = idle)          → close it, Released{open word}
//!                   the program gives the card back: as wanted, without the grace
//!   open            rest
//! ```
//!
//! The drainer reads the page's bell before it looks at the word and the flags, and sleeps only while the
//! bell has not rung since. So no change of the page waits for the end of a sleep.
//!
//! Work in flight is polled by events, never waited for by a blocking call. So a drop can be undone at any
//! moment if the work waits for a thread at the gate.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gpushare_proto::page::{FLAG_MAPPED, FLAG_OVERLAPPING, FLAG_WANTED, Page};
use gpushare_proto::tenant::{NEARLY_DRAINED, TenantRequest};
use gpushare_proto::{GateState, GateWord, Nanos};
use gpushare_sys::{bell, clock};

use super::in_flight::{Failed, InFlight};
pub(crate) use super::move_out::WayOut;
use super::moves::{Moves, Way};
use super::noted::load;
use super::wait::{EXCUSED, Gatekeeper};
use super::{GATE, idle::Grace, listen};
use crate::daemon::Daemon;
use crate::driver::{Driver, contexts::Contexts, types::CAPTURE_MODE_RELAXED};
use crate::freeze::hold::ACTS;
use crate::freeze::park::LOOK;
use crate::memory::Memory;
use crate::process::is_exiting;
use crate::remap::Proof;
use crate::window::{driver::OnDriver, process::ProcessWindow};

/// Divisor that gives the pause between two looks at work in flight from the time waited so far. Between the
/// end of the work and the look the card is idle, and the session is charged for holding the lock.
const POLL_PART: u32 = 64;
const POLL_MIN: Duration = Duration::from_micros(20);
const POLL_MAX: Duration = Duration::from_millis(1);
/// Pause between two looks at frees in stream order.
const FREES_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two looks at the room in the control groups of a process that cannot be frozen for lack of it.
const ROOM_PAUSE: Duration = Duration::from_secs(10);
/// Longest pause between two looks at work for whose end a thread waits: a move of memory, or where switches
/// overlap, the work in flight, at whose end the next session begins.
const AWAITED_POLL_MAX: Duration = Duration::from_micros(100);
/// Longest wait for room on the card for memory that work can also reach in host memory.
const PROMOTION: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Rest,
    Drain,
    BringIn,
    WatchIdle,
}

fn task(word: GateWord, proved: bool, wanted: bool) -> Task {
    match word.state() {
        GateState::Closed if proved => Task::Rest,
        GateState::Closed => Task::Drain,
        GateState::Moving => Task::BringIn,
        GateState::Open if wanted => Task::WatchIdle,
        // The drainer itself sets idle, which never outlives `watch_idle`.
        GateState::Open | GateState::Idle => Task::Rest,
    }
}

#[derive(Debug)]
pub(crate) struct Drainer {
    pub(crate) driver: &'static Driver,
    pub(crate) daemon: &'static Daemon,
    pub(crate) contexts: &'static Contexts,
    pub(crate) memory: &'static Memory,
    pub(crate) gate: &'static Gatekeeper,
    pub(crate) window: &'static ProcessWindow,
    pub(crate) graces: Graces,
    pub(crate) way_out: WayOut,
}

/// Idle graces of the process, which are learned apart.
#[derive(Debug)]
pub(crate) struct Graces {
    usual: Grace,
    /// Where switches overlap, so that a wrong release costs little.
    overlapping: Grace,
}

impl Default for Graces {
    fn default() -> Self {
        Self { usual: Grace::default(), overlapping: Grace::overlapping() }
    }
}

impl Graces {
    /// Judges the last release by the point in time at which a thread `wanted` the lock again.
    fn judge(&mut self, wanted: Nanos) {
        self.usual.judge(wanted);
        self.overlapping.judge(wanted);
    }

    fn under(&mut self, flags: u32) -> &mut Grace {
        if flags & FLAG_OVERLAPPING == 0 {
            &mut self.usual
        } else {
            &mut self.overlapping
        }
    }
}

impl Drainer {
    pub(crate) fn run(mut self) {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges one integer. Our event queries must not break a capture of the application.
        unsafe { (self.driver.thread_exchange_capture_mode)(&raw mut mode) };
        loop {
            self.step();
        }
    }

    fn step(&mut self) {
        let (page, heard) = listen();
        // Nobody rings when a process that is to park may go on with that.
        let (is_held, soon) = ACTS.get().map_or((false, false), |acts| (acts.serve)(page));
        if is_held {
            let _ = bell::sleep(page, heard, soon.then_some(LOOK));
            return;
        }
        self.memory.follow_daemon(page);
        // An open gate is *moving* while memory is away.
        let acts = GateWord(page.gate.load(Ordering::Acquire));
        let word = acts.plain();
        let answered = self.gate.answered.covers(page, word);
        let needs_proof = || self.memory.remap.needs_proof(page, word) && !self.gate.unproved.is(page, word);
        let proved = answered && !needs_proof();
        let flags = page.flags.load(Ordering::Acquire);
        // Chunks that are mapped from the host change places only behind a closed gate.
        let is_wanted = flags & (FLAG_WANTED | FLAG_MAPPED) != 0;
        match task(acts, proved, is_wanted || self.gate.gives_back.is_asked(page, word)) {
            Task::Rest => {
                if acts.state() == GateState::Open {
                    self.memory.remap.open();
                }
                let awaits_room = ACTS.get().is_some_and(|acts| (acts.report)(page));
                let frees = self.memory.has_frees();
                let moves = !frees && self.move_out(page, acts);
                let _ = bell::sleep(page, heard, pause_of_rest(frees, moves, soon, awaits_room));
                if frees {
                    self.collect_frees(page);
                }
            }
            Task::Drain if answered => self.prove_again(page, word),
            Task::Drain => self.drain(page, word),
            Task::BringIn => self.bring_in(page, word),
            Task::WatchIdle => self.watch_idle(page, word),
        }
    }

    fn drain(&mut self, page: &'static Page, word: GateWord) {
        let since = Instant::now();
        let (collectives, entries) = (&self.gate.collectives, GATE.entries());
        let excused = EXCUSED.load(Ordering::SeqCst);
        let target = Nanos(u64::from(page.drain_target.load(Ordering::Relaxed)) * 1_000);
        collectives.admit(word, clock::monotonic(), target);
        let mut told = false;
        let mut drained = self.drained(page, word, || {
            // An older daemon does not know the report, and shows no overlapping switches either.
            if !told && overlaps(page) && self.ends_soon(target) {
                told = true;
                self.send(page, &TenantRequest::NearlyDrained { word });
            }
        });
        collectives.end_admission();
        // A thread that entered after the gate had closed launched behind the marks.
        if drained.is_some() && GATE.entries() != entries {
            drained = self.drained(page, word, || ());
        }
        if let Some(failed) = drained {
            self.gate.answered.note(page, word);
            self.send(page, &TenantRequest::Released { word, drain: since.elapsed().into() });
            self.note_drained(page, word, excused, &failed);
        }
    }

    /// Proves for remapped memory that nothing is in flight, under a closed word that needs no answer.
    fn prove_again(&self, page: &Page, word: GateWord) {
        let excused = EXCUSED.load(Ordering::SeqCst);
        if let Some(failed) = self.drained(page, word, || ()) {
            self.note_drained(page, word, excused, &failed);
        }
    }

    /// Lets remapped memory leave under a closed word, unless a context has failed. `excused` is the number
    /// of threads that had passed the closed gate before.
    fn note_drained(&self, page: &Page, word: GateWord, excused: u64, failed: &[Failed]) {
        let remap = &self.memory.remap;
        if failed.is_empty() {
            return remap.drained(Proof::new(page, word, excused));
        }
        self.gate.unproved.note(page, word);
        for &Failed { device, result } in failed {
            remap.fail(device, result);
        }
    }

    /// Lets managed memory leave under a closed word that was answered, as far as a goal in the page asks.
    /// Returns whether memory moves.
    fn move_out(&mut self, page: &Page, word: GateWord) -> bool {
        // A page begins with a word under which nothing was drained. The goal of a dead daemon is never
        // lifted.
        let is_called_off = word.change() == 0 || is_exiting() || !self.daemon.is_connected();
        if is_called_off || self.is_capturing() {
            self.way_out.abandon();
            return false;
        }
        let memory = self.memory;
        let parts = (self.driver, self.contexts, memory);
        self.way_out
            .advance((page, word), parts, |device| memory.managed_goal(page, device))
    }

    fn bring_in(&mut self, page: &'static Page, word: GateWord) {
        let since = Instant::now();
        self.graces.judge(self.gate.waiters.since());
        self.way_out.abandon();
        let (memory, parts) = (self.memory, (self.driver, self.contexts, self.memory));
        let mut moving = Moves::new(Way::In, self.driver, self.contexts, memory);
        let mut advance = || moving.advance(parts, |device| memory.capacity(page, device));
        // The driver forbids moves during a capture. A process that met its daemon again may be in one.
        let moved = self.is_capturing() || poll(page, word, AWAITED_POLL_MAX, &mut advance);
        let hosted = self.memory.remap.hosted();
        let open = word.with(GateState::Open);
        if moved && self.return_remapped(page, word) && exchange(page, word, open) {
            bell::ring(page);
            if word == open {
                return;
            }
            // Memory that never had bytes is made, and crosses no bus.
            let moved = moving.moved() + (hosted - self.memory.remap.hosted());
            self.gate.moved.fetch_add(moved.0, Ordering::Relaxed);
            self.send(page, &TenantRequest::Entered { word, moved, took: since.elapsed().into() });
        }
    }

    /// Brings remapped memory in, until no address is a hole. Returns `false` if the gate word changes first.
    fn return_remapped(&self, page: &'static Page, word: GateWord) -> bool {
        let remap = &self.memory.remap;
        // Without the mark nothing is away. Memory that is mapped from the host may have room on the card by
        // now.
        let promotes = || !self.is_capturing() && remap.awaits_room() && remap.is_still_idle(page, word);
        if remap.is_evicting() || promotes() {
            remap.enter();
            let began = Instant::now();
            let is_back = poll(page, word, AWAITED_POLL_MAX, || {
                self.memory.follow_daemon(page);
                remap.can_open() && (!remap.awaits_room() || began.elapsed() >= PROMOTION)
            });
            if !is_back {
                remap.stop_entering();
                return false;
            }
        }
        remap.open();
        true
    }

    fn watch_idle(&mut self, page: &'static Page, word: GateWord) {
        self.graces.judge(self.gate.waiters.since());
        let flags = page.flags.load(Ordering::Acquire);
        self.memory.remap.open();
        let entries = GATE.entries();
        let gives_back = self.gate.gives_back.take(page, word);
        let span = if gives_back { Nanos::ZERO } else { self.graces.under(flags).span() };
        let quiet = stays(page, word, span.into());
        let quiet = quiet && GATE.entries() == entries && GATE.is_empty();
        if !quiet || self.is_capturing() {
            return;
        }
        let (idle, since) = (word.with(GateState::Idle), Instant::now());
        let excused = EXCUSED.load(Ordering::SeqCst);
        let drained = if exchange(page, word, idle) { self.drained(page, idle, || ()) } else { None };
        let Some(failed) = drained else {
            // A thread reopened the gate, or the daemon closed it.
            if !gives_back {
                self.graces.under(flags).extend();
            }
            return;
        };
        let (closed, drain) = (word.with(GateState::Closed), Nanos::from(since.elapsed()));
        let pause = if gives_back {
            Nanos::ZERO
        } else {
            self.graces.under(flags).pause_after(drain)
        };
        if stays(page, idle, pause.into()) && exchange(page, idle, closed) {
            if !gives_back {
                self.graces.under(flags).note_release(clock::monotonic());
            }
            self.gate.answered.note(page, closed);
            self.send(page, &TenantRequest::Released { word, drain });
            self.note_drained(page, closed, excused, &failed);
        }
    }

    /// Whether the program's launches in flight are expected to end within [`NEARLY_DRAINED`].
    fn ends_soon(&self, target: Nanos) -> bool {
        let card = OnDriver::new(self.driver, &self.gate.captures);
        self.window
            .get()
            .is_some_and(|window| window.ends_within(NEARLY_DRAINED, target, &card))
    }

    /// Waits until no thread is inside the gate, no capture runs and no work is in flight, and calls
    /// `meanwhile` at each look at work in flight. Returns the contexts that have failed; `None` if the gate
    /// word changes first.
    fn drained(&self, page: &Page, word: GateWord, meanwhile: impl FnMut()) -> Option<Vec<Failed>> {
        let left = || GATE.is_empty() && !self.is_capturing() && GATE.is_empty();
        let has_left = poll(page, word, POLL_MAX, left);
        has_left.then(|| self.in_flight_done(page, word, meanwhile)).flatten()
    }

    /// Waits for the work in flight in every context. Returns the contexts that have failed; `None` if the
    /// gate word changes first.
    fn in_flight_done(
        &self,
        page: &Page,
        word: GateWord,
        mut meanwhile: impl FnMut(),
    ) -> Option<Vec<Failed>> {
        let (driver, contexts) = (self.driver, self.contexts);
        let mut marks = None;
        let captures = &self.gate.captures;
        let longest = if overlaps(page) { AWAITED_POLL_MAX } else { POLL_MAX };
        let is_done = poll(page, word, longest, || {
            // Until somebody looks, an invalidated capture counts as a running one, which marks nothing.
            if self.is_capturing() {
                return false;
            }
            marks = marks.take().or_else(|| InFlight::mark(driver, contexts, captures));
            let done = marks.as_mut().is_some_and(|marks| marks.is_done(driver, contexts, captures));
            if !done {
                meanwhile();
            }
            done
        });
        marks.filter(|_| is_done).map(InFlight::failed)
    }

    /// Sends a message about the gate of `page`, unless another daemon's page is in force by now. The words
    /// of both count from zero, so that daemon would take the message for one about its own gate.
    fn send(&self, page: &'static Page, request: &TenantRequest) {
        self.daemon.send_if(request, || std::ptr::eq(page, super::page()));
    }

    /// Frees what the program freed in stream order, since an idle program would not come to it. The driver
    /// may wait for other work in a free, so none may be in flight.
    fn collect_frees(&self, page: &Page) {
        let (driver, contexts, captures) = (self.driver, self.contexts, &self.gate.captures);
        let aside = self.memory.next_aside();
        // Without marks the proof of idleness is a wait.
        let marks = driver.ctx_record_event.and_then(|_| InFlight::mark(driver, contexts, captures));
        let Some(mut marks) = marks else { return };
        let _ = bell::sleep(page, bell::heard(page), Some(POLL_MAX));
        if marks.is_done(driver, contexts, captures) {
            let mut contexts = contexts.visit();
            // Captures begin under the same lock.
            if !captures.any() {
                contexts.iter_mut().for_each(|live| {
                    live.enter(driver, |_| self.memory.collect_frees());
                });
                self.memory.end_aside(aside);
            }
        }
    }

    fn is_capturing(&self) -> bool {
        self.gate.captures.is_capturing(self.driver, self.contexts)
    }
}

/// Returns the pause of a drainer that rests until it looks again; `None` if that waits for the bell. It
/// looks `soon` if the process is to park.
fn pause_of_rest(frees: bool, moves: bool, soon: bool, awaits_room: bool) -> Option<Duration> {
    let pauses = [(frees, FREES_PAUSE), (moves, AWAITED_POLL_MAX), (soon, LOOK), (awaits_room, ROOM_PAUSE)];
    pauses.into_iter().filter_map(|(waits, pause)| waits.then_some(pause)).min()
}

fn exchange(page: &Page, from: GateWord, to: GateWord) -> bool {
    let exchanged = page.gate.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst);
    exchanged.is_ok()
}

/// Returns whether `page` is in force and its gate word is `word`.
fn stands(page: &Page, word: GateWord) -> bool {
    load(page) == word && std::ptr::eq(page, super::page())
}

/// Sleeps for `span`; returns `false` at once when the gate word changes.
fn stays(page: &Page, word: GateWord, span: Duration) -> bool {
    let until = Instant::now() + span;
    loop {
        let heard = bell::heard(page);
        let left = until.saturating_duration_since(Instant::now());
        if !stands(page, word) || left.is_zero() {
            return stands(page, word);
        }
        let _ = bell::sleep(page, heard, Some(left));
    }
}

/// Whether the next session may begin beside the drain.
fn overlaps(page: &Page) -> bool {
    page.flags.load(Ordering::Acquire) & FLAG_OVERLAPPING != 0
}

/// Calls `done` with growing pauses until it returns `true`; returns `false` if the gate word changes first.
fn poll(page: &Page, word: GateWord, longest: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        let heard = bell::heard(page);
        if !stands(page, word) {
            return false;
        }
        if done() {
            return true;
        }
        let pause = (began.elapsed() / POLL_PART).clamp(POLL_MIN, longest);
        let _ = bell::sleep(page, heard, Some(pause));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::driver::fake::driver;

    const CLOSED: GateWord = GateWord::new(4, GateState::Closed);

    #[test]
    fn each_word_sets_one_task() {
        assert_eq!(task(CLOSED, false, false), Task::Drain);
        assert_eq!(task(CLOSED, true, false), Task::Rest);
        assert_eq!(task(CLOSED.with(GateState::Moving), false, false), Task::BringIn);
        assert_eq!(task(CLOSED.with(GateState::Open), false, false), Task::Rest);
        assert_eq!(task(CLOSED.with(GateState::Open), false, true), Task::WatchIdle);
    }

    #[test]
    fn a_drainer_that_rests_looks_again_while_the_process_is_to_park() {
        assert_eq!(pause_of_rest(false, false, false, false), None);
        assert_eq!(pause_of_rest(false, false, true, false), Some(LOOK));
        assert_eq!(pause_of_rest(true, false, true, false), Some(LOOK));
        assert_eq!(pause_of_rest(true, false, false, false), Some(FREES_PAUSE));
        assert_eq!(pause_of_rest(false, true, true, false), Some(AWAITED_POLL_MAX));
        assert_eq!(pause_of_rest(false, false, false, true), Some(ROOM_PAUSE));
    }

    #[test]
    fn a_context_that_has_failed_proves_nothing_for_remapped_memory() {
        let (driver, daemon): (&Driver, &Daemon) = (leak(driver()), leak(Daemon::default()));
        let memory: &Memory = leak(Memory::new(*driver, Arc::default()));
        let drainer = Drainer {
            driver,
            daemon,
            contexts: leak(Contexts::default()),
            memory,
            gate: leak(Gatekeeper::default()),
            window: leak(ProcessWindow::default()),
            graces: Graces::default(),
            way_out: WayOut::default(),
        };
        let page = Page::new(GateState::Closed);
        memory.remap.use_without_card();
        drainer.note_drained(&page, CLOSED, 0, &[Failed { device: 0, result: 700 }]);
        assert!(memory.remap.needs_proof(&page, CLOSED));
        assert!(drainer.gate.unproved.is(&page, CLOSED), "it is not asked in a loop");
        drainer.note_drained(&page, CLOSED, 0, &[]);
        assert!(!memory.remap.needs_proof(&page, CLOSED));
    }

    fn leak<T>(value: T) -> &'static T {
        Box::leak(Box::new(value))
    }

    #[test]
    fn a_task_ends_when_the_gate_word_changes() {
        let page = super::super::page();
        let word = load(page);
        let other = word.next(GateState::Closed);
        let change_to = |word: GateWord| {
            page.gate.store(word.0, Ordering::SeqCst);
            bell::ring(page);
        };
        assert!(stays(page, word, Duration::from_millis(1)));
        let mut looks = 0;
        let done = poll(page, word, POLL_MAX, || {
            looks += 1;
            if looks == 3 {
                change_to(other);
            }
            false
        });
        assert_eq!((done, looks), (false, 3));
        assert!(!stays(page, word, Duration::from_secs(3600)));
        assert!(poll(page, other, POLL_MAX, || true));
        change_to(word);
    }
}
