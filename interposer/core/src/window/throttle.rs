//! How a launch that finds the window full is held back: for a while, and never for good.
//!
//! ```text
//!   in flight + its own ≤ W                  go on
//!   nothing in flight on its stream          go on     a launch of any size; also what another stream waits for
//!   else wait for the oldest marker of its own stream, then look again
//!     after 4 × target                       go on     whatever it is, work in flight may be waiting for this very launch
//! ```
//!
//! It waits before the gate, so that a thread which is held back holds up no drop. It asks in short pauses rather than by a call
//! that blocks, since that would have no end of its own.
//!
//! Where what it waits for takes longer than the target by measurement, patience is four times that instead, up to a hundred targets:
//! kernels of 50 ms would else go through faster than they end. If nothing at all completed while a thread waited, the program may be one that launches far ahead
//! of what releases it: the next launches go through as well, a marker's worth at first and twice as many each time, up to
//! [`START`]; a completion ends that. What completes right after a launch was let through waited for it, and says nothing
//! about the card's rate.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpushare_proto::Nanos;

use super::Card;
use super::aimd::{Aimd, Completion, DRAIN_TARGET, START};
use super::markers::{Markers, Reaped, Slot, Stream};

/// Pauses between two looks at a marker: short at first, for it may be nearly done.
const PAUSE_MIN: Nanos = Nanos(20_000);
const PAUSE_MAX: Nanos = Nanos(200_000);
/// How long a launch is held back, in targets, and in the time that its oldest marker should take.
const PATIENCE: u64 = 4;
/// The most of it, in targets.
const PATIENCE_MOST: u64 = 100;
/// What completes within this part of the patience after a launch was let through had waited for it.
const SOON: u64 = 16;
/// After how many looks at its own stream a thread looks at all others.
const LOOKS: u32 = 8;

/// The window of a process.
#[derive(Debug, Default)]
pub struct Window {
    markers: Markers,
    /// Launches in flight on all streams, as far as is known.
    in_flight: AtomicU64,
    controller: Controller,
    /// The slot of the last launch of all.
    last: AtomicUsize,
    /// Launches that go through because nothing completed, and how often that was so in a row.
    spare: AtomicU32,
    fruitless: AtomicU32,
    /// When a launch was last let through.
    let_through_at: AtomicU64,
    counters: Counters,
}

/// What a window did.
#[derive(Debug, Default)]
pub struct Counters {
    /// Launches that were counted.
    pub launches: AtomicU64,
    /// The most that were in flight at once.
    pub most: AtomicU64,
    /// Launches that were held back.
    pub held_back: AtomicU64,
    /// Those of them that went through although the window was full.
    pub let_through: AtomicU64,
}

/// The controller, shared. Who finds it held goes on without: another stream's completion is as good.
#[derive(Debug)]
struct Controller {
    held: AtomicBool,
    window: AtomicU32,
    nanos: AtomicU64,
    launches: AtomicU64,
}

impl Default for Controller {
    fn default() -> Self {
        let (window, nanos, launches) = Aimd::default().parts();
        Self {
            held: AtomicBool::new(false),
            window: AtomicU32::new(window),
            nanos: AtomicU64::new(nanos),
            launches: AtomicU64::new(launches),
        }
    }
}

/// A launch, as the window sees it.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Where.
    pub stream: Stream,
    /// How many launches it is worth: a graph counts as its kernel nodes.
    pub size: u64,
    /// Whether it may begin before the one ahead of it ends: a marker between the two would keep it from that.
    pub programmatic: bool,
}

impl Window {
    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Launches in flight, as far as is known.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many may be, and what they take.
    #[must_use]
    pub fn aimd(&self) -> Aimd {
        self.controller.load()
    }

    /// Its markers, for who ends streams and contexts.
    #[must_use]
    pub fn markers(&self) -> &Markers {
        &self.markers
    }

    /// So many launches are gone with a stream or a context.
    pub fn forget(&self, launches: u64) {
        self.less(launches);
    }

    /// Comes before a launch: places a marker if one is due, waits while the window is full, and counts it. A launch that the driver then
    /// refuses, or that another thread overtakes on the same stream, is done one marker early; nothing depends on that.
    pub fn admit(&self, launch: Launch, target: Nanos, card: &impl Card) {
        let target = if target == Nanos::ZERO { DRAIN_TARGET } else { target };
        // A capture records and does not execute.
        if card.is_capturing() {
            return;
        }
        let Some(slot) = self.markers.slot(launch.stream, card) else { return };
        let aimd = self.aimd();
        if slot.is_due(aimd.stride()) {
            card.undisturbed(|| {
                self.look(slot, target, card);
                self.mark(slot, launch, card);
            });
        }
        if !self.fits(slot, launch) {
            self.hold_back(slot, launch, target, card);
        }
        self.count(slot, launch.size, card);
    }

    fn count(&self, slot: &Slot, size: u64, card: &impl Card) {
        slot.submitted(size, || card.now());
        self.last.store(std::ptr::from_ref(slot).addr(), Ordering::Relaxed);
        let in_flight = self.in_flight.fetch_add(size, Ordering::Relaxed) + size;
        self.counters.launches.fetch_add(1, Ordering::Relaxed);
        if in_flight > self.counters.most.load(Ordering::Relaxed) {
            self.counters.most.fetch_max(in_flight, Ordering::Relaxed);
        }
    }

    fn fits(&self, slot: &Slot, launch: Launch) -> bool {
        let window = u64::from(self.controller.window.load(Ordering::Relaxed));
        self.in_flight().saturating_add(launch.size) <= window || slot.in_flight() == 0
    }

    #[cold]
    fn hold_back(&self, slot: &Slot, launch: Launch, target: Nanos, card: &impl Card) {
        card.undisturbed(|| self.look_at_all(slot, target, card));
        if self.fits(slot, launch) || self.use_spare() {
            return;
        }
        self.counters.held_back.fetch_add(1, Ordering::Relaxed);
        let since = card.now();
        let (mut pause, mut looks, mut completed) = (PAUSE_MIN, 0, false);
        loop {
            card.undisturbed(|| self.mark(slot, launch, card));
            // A launch with programmatic dependence places no marker, and without one there is nothing to wait for.
            if !slot.is_marked() || !card.pause(pause) {
                return;
            }
            pause = Nanos((pause.0 * 2).min(PAUSE_MAX.0));
            looks += 1;
            let looked = card.undisturbed(|| {
                if self.look(slot, target, card) {
                    (completed, pause) = (true, PAUSE_MIN);
                }
                if looks % LOOKS == 0 {
                    completed |= self.look_at_all(slot, target, card);
                }
            });
            // Nobody waits while the process captures.
            if looked.is_none() || self.fits(slot, launch) || self.use_spare() {
                return;
            }
            let (patience, overdue) = self.patience(slot, target);
            if card.now().saturating_sub(since) >= patience {
                return self.let_through(overdue && !completed, card);
            }
        }
    }

    /// How long a launch is held back, and whether what it waits for should have completed long before.
    fn patience(&self, slot: &Slot, target: Nanos) -> (Nanos, bool) {
        let long = target.max(self.aimd().drain(slot.oldest())).0.saturating_mul(PATIENCE);
        let most = target.0.saturating_mul(PATIENCE_MOST);
        (Nanos(long.min(most)), long <= most)
    }

    fn let_through(&self, overdue: bool, card: &impl Card) {
        self.counters.let_through.fetch_add(1, Ordering::Relaxed);
        self.let_through_at.store(card.now().0.max(1), Ordering::Relaxed);
        if overdue {
            let times = self.fruitless.fetch_add(1, Ordering::Relaxed).min(START.ilog2());
            let more = self.aimd().stride().saturating_mul(1 << times).min(START) - 1;
            self.spare.store(more, Ordering::Relaxed);
        }
    }

    fn use_spare(&self) -> bool {
        let take = |spare: u32| spare.checked_sub(1);
        self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn mark(&self, slot: &Slot, launch: Launch, card: &impl Card) {
        let due = slot.is_due(self.aimd().stride());
        // A marker that orders other streams orders nothing new right after a launch of its own.
        let is_last = || self.last.load(Ordering::Relaxed) == std::ptr::from_ref(slot).addr();
        if due && !launch.programmatic && (!card.orders_others(launch.stream) || is_last()) {
            self.less(self.markers.place(slot, launch.stream, card));
        }
    }

    /// Notes what is done of a stream; whether anything was.
    fn look(&self, slot: &Slot, target: Nanos, card: &impl Card) -> bool {
        let reaped = self.markers.reap(slot, card);
        if reaped.launches == 0 {
            return false;
        }
        self.fruitless.store(0, Ordering::Relaxed);
        self.spare.store(0, Ordering::Relaxed);
        let soon = target.0 * PATIENCE / SOON;
        let let_through = self.let_through_at.load(Ordering::Relaxed);
        let released = let_through > 0 && card.now().0 < let_through.saturating_add(soon);
        let in_flight = self.in_flight().max(reaped.in_flight);
        self.less(reaped.launches);
        self.controller.update(|aimd| {
            if released {
                aimd.released(in_flight, target);
            } else {
                aimd.completed(completion(reaped, in_flight), target);
            }
        });
        true
    }

    /// Looks at the other streams too: who used them may have gone, and what they had in flight fills the window.
    fn look_at_all(&self, own: &Slot, target: Nanos, card: &impl Card) -> bool {
        let mut any = false;
        let now = card.now();
        for slot in self.markers.all().filter(|slot| slot.in_flight() > 0) {
            any |= self.look(slot, target, card);
            if !std::ptr::eq(slot, own) && !slot.is_marked() {
                let long_ago = now.saturating_sub(self.patience(slot, target).0);
                self.less(self.markers.forgive(slot, long_ago));
            }
        }
        any
    }

    fn less(&self, launches: u64) {
        if launches > 0 {
            let less = |in_flight: u64| Some(in_flight.saturating_sub(launches));
            // Always succeeds.
            let _ = self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

impl Controller {
    fn load(&self) -> Aimd {
        let sums = (self.nanos.load(Ordering::Relaxed), self.launches.load(Ordering::Relaxed));
        Aimd::from_parts(self.window.load(Ordering::Relaxed), sums.0, sums.1)
    }

    fn update(&self, change: impl FnOnce(&mut Aimd)) {
        if self.held.swap(true, Ordering::Acquire) {
            return;
        }
        let mut aimd = self.load();
        change(&mut aimd);
        let (window, nanos, launches) = aimd.parts();
        self.window.store(window, Ordering::Relaxed);
        self.nanos.store(nanos, Ordering::Relaxed);
        self.launches.store(launches, Ordering::Relaxed);
        self.held.store(false, Ordering::Release);
    }
}

/// What a stream did counts by its share of all that was in flight: of four streams that take turns each takes four times as long,
/// and one with little to do says little.
fn completion(reaped: Reaped, in_flight: u64) -> Completion {
    let Reaped { launches, took, exact, in_flight: of_stream } = reaped;
    let share = u128::from(took.0) * u128::from(of_stream) / u128::from(in_flight.max(1));
    Completion {
        launches,
        took: Nanos(u64::try_from(share).unwrap_or(u64::MAX)),
        exact,
        in_flight,
    }
}
