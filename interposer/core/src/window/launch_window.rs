//! Launch window: delays a launch for a limited time while too many launches are in flight.
//!
//! ```text
//!   time in flight + its own ≤ target        go on     (up to 2 × W in flight, at least 16; a kernel of unknown
//!                                                       cost: up to W)
//!   nothing in flight on its stream          go on     (also a launch that another stream waits for)
//!   all work in flight ends in 0.1 ms        go on     (by the measured cost; if it is in one stream, and up to
//!                                                       W + 2 in flight, or as above if its cost is known)
//!   else wait for the oldest marker of its own stream, then look again
//!     after 4 × target, at least 40 ms       go on     (work in flight may wait for this launch)
//! ```
//!
//! The wait comes before the gate, so that a delayed thread delays no drop. The thread polls in short pauses,
//! because a blocking driver call has no time limit.
//!
//! If the awaited work is expected to take longer than the target, the limit is 4 × that time, at most 100 ×
//! target, or 100 times the default target if that is longer. Otherwise kernels of 50 ms would be let through
//! faster than they end.
//!
//! If nothing completed during a wait, the awaited work may need a launch far ahead. Then the next launches
//! go through too: as many as between three markers at first, twice as many each time, up to [`START`]. A
//! completion ends that. Work that completes right after such a launch had waited for it, and does not count
//! for the cost.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpushare_proto::Nanos;

use super::Card;
use super::aimd::{Aimd, Completion, DRAIN_TARGET, MARKERS, START};
use super::costs::{Costs, Kernel, Known};
use super::markers::Markers;
use super::slot::{Reaped, Slot};
use super::stream::Stream;

/// Shortest pause between two looks at a launch marker, in nanoseconds. Pauses double up to [`PAUSE_MAX`], or to
/// a part of a short target: a small window runs dry during a pause.
const PAUSE_MIN: Nanos = Nanos(20_000);
const PAUSE_MAX: Nanos = Nanos(200_000);
/// Divisor of the target that gives its longest pause.
const PAUSES: u64 = 8;
/// Time before the expected end of all work in flight at which the next launch goes on. A thread has to wake up
/// and launch in it, or the card would be idle between two kernels.
const HEAD_START: Nanos = Nanos(100_000);
/// Time for which a launch into another stream keeps launches from going on early.
const OTHERS: Nanos = Nanos::from_secs(1);
/// Largest number of launches in flight beyond the window for which another one goes on early. It is not 0 since a
/// library may launch a very short kernel before each long one.
const AHEAD: u64 = 1;
/// Largest number of launches in flight of known cost, as a multiple of the window and at least [`MARKERS`]. It
/// bounds what a kernel does that becomes longer from one launch to the next.
const KNOWN: u64 = 2;
/// Time limit of a wait, as a multiple of the drain target or of the expected time of the awaited work.
const LIMIT: u64 = 4;
/// Longest time for which a launch is held back, as a multiple of the drain target or its default.
const LIMIT_MOST: u64 = 100;
/// Divisor of the time limit. A completion within limit ÷ 16 after a held launch went through had waited for
/// that launch.
const SOON: u64 = 16;
/// Number of looks at its own stream after which a waiting thread looks at all streams.
const LOOKS: u32 = 8;

/// Launch window of a process: limits the number of its launches in flight.
#[derive(Debug, Default)]
pub struct Window {
    pub(super) markers: Markers,
    costs: Costs,
    controller: Controller,
    /// Number of launches that may still go through a full window because nothing completed.
    spare: AtomicU32,
    fruitless: AtomicU32,
    /// Expected time of the launches that passed the window and wait at the closed gate, in nanoseconds. The driver
    /// lacks them.
    at_gate: AtomicU64,
    /// Point in time when a held launch last went through a full window, on the window's clock in
    /// nanoseconds; 0 if never.
    let_through_at: AtomicU64,
    pub(crate) counters: Counters,
}

/// Counters of a launch window since the process began to share. Each launch writes here. The other fields of
/// the window, which each launch reads, are in other cache lines, so that threads do not take them from each
/// other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Number of launches on all streams that are not known to be completed.
    in_flight: AtomicU64,
    /// Expected time of these launches, in nanoseconds.
    time_in_flight: AtomicU64,
    /// Address of the stream slot of the process's last launch.
    last: AtomicUsize,
    /// Number of launches that passed the launch window.
    pub launches: AtomicU64,
    /// Largest number of launches that were in flight at the same time.
    pub most: AtomicU64,
    /// Number of launches that had to wait because too many were in flight.
    pub held_back: AtomicU64,
    /// Number of launches that went through after the longest wait, while too many were still in flight.
    pub let_through: AtomicU64,
}

/// AIMD controller in atomics. A thread skips its update while another thread updates, because the next
/// completion serves as well.
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

/// Properties of a launch that the launch window needs.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Stream into which the program launches.
    pub stream: Stream,
    /// Kernel or graph that is launched, by which its cost is learned.
    pub kernel: Kernel,
    /// Number of launches that this launch counts as: the number of kernel nodes for a graph.
    pub size: u64,
    /// Whether the launch may begin before the launch ahead of it ends. A marker between the two would
    /// prevent that.
    pub programmatic: bool,
}

/// Guard of launches that passed the window and wait at the closed gate.
#[derive(Debug)]
pub struct AtGate<'a> {
    waiting: &'a AtomicU64,
    time: Nanos,
}

impl Drop for AtGate<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.time.0, Ordering::Relaxed);
    }
}

/// A launch as the window counts it.
#[derive(Clone, Copy, Debug)]
struct Counted {
    size: u64,
    kernel: Option<Known>,
    time: Nanos,
    /// Whether `time` was learned from launches of the same kernel.
    learned: bool,
}

impl Window {
    /// Counts a launch that passed the window as waiting at the closed gate, during the guard's lifetime.
    pub fn wait_at_gate(&self, kernel: Kernel, size: u64) -> AtGate<'_> {
        let time = self.counted(kernel, size).time;
        self.at_gate.fetch_add(time.0, Ordering::Relaxed);
        AtGate { waiting: &self.at_gate, time }
    }

    /// Returns the number of launches that are not known to be completed.
    pub fn in_flight(&self) -> u64 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    /// Returns the expected time of the launches that are not known to be completed.
    fn time_in_flight(&self) -> Nanos {
        Nanos(self.counters.time_in_flight.load(Ordering::Relaxed))
    }

    /// Returns how a launch counts: by its kernel's own cost if that is known, else as an average launch.
    fn counted(&self, kernel: Kernel, size: u64) -> Counted {
        let kernel = self.costs.find(kernel, size);
        let learned = kernel.and_then(|kernel| self.costs.of(kernel));
        let time = learned.unwrap_or_else(|| self.aimd().drain(size));
        Counted { size, kernel, time, learned: learned.is_some() }
    }

    /// Returns the present size of the launch window and the measured cost of a launch.
    pub fn aimd(&self) -> Aimd {
        self.controller.load()
    }

    /// Admits a launch: places a launch marker (an event between launches) if one is due, waits while the
    /// window is full, and counts the launch.
    ///
    /// A launch that the driver refuses, or that another thread overtakes on its stream, counts as completed
    /// one marker early. That does no harm.
    pub fn admit(&self, launch: Launch, target: Nanos, card: &impl Card) {
        let target = or_default(target);
        // A capture records its launches and executes none.
        if card.is_capturing() {
            return;
        }
        let Some(slot) = self.markers.slot(launch.stream, card) else { return };
        if slot.is_due(self.aimd().stride()) {
            card.undisturbed(|| {
                self.look(slot, target, card);
                self.mark(slot, launch, card);
            });
        }
        let counted = self.counted(launch.kernel, launch.size);
        if !self.fits(slot, counted, target) {
            self.hold_back(slot, launch, counted, target, card);
        }
        self.count(slot, counted, card);
    }

    fn count(&self, slot: &Slot, launch: Counted, card: &impl Card) {
        slot.submitted(launch.size, launch.kernel, || card.now());
        self.counters.last.store(std::ptr::from_ref(slot).addr(), Ordering::Relaxed);
        let in_flight = self.counters.in_flight.fetch_add(launch.size, Ordering::Relaxed) + launch.size;
        self.counters.time_in_flight.fetch_add(launch.time.0, Ordering::Relaxed);
        self.counters.launches.fetch_add(1, Ordering::Relaxed);
        if in_flight > self.counters.most.load(Ordering::Relaxed) {
            self.counters.most.fetch_max(in_flight, Ordering::Relaxed);
        }
    }

    fn fits(&self, slot: &Slot, launch: Counted, target: Nanos) -> bool {
        let window = u64::from(self.controller.window.load(Ordering::Relaxed));
        let in_flight = self.in_flight().saturating_add(launch.size);
        let fits = if launch.learned {
            self.time_in_flight() + launch.time <= target && in_flight <= known(window)
        } else {
            in_flight <= window
        };
        fits || slot.in_flight() == 0
    }

    #[cold]
    fn hold_back(&self, slot: &Slot, launch: Launch, counted: Counted, target: Nanos, card: &impl Card) {
        card.undisturbed(|| self.look_at_all(slot, target, card));
        if self.fits(slot, counted, target) || self.use_spare() {
            return;
        }
        self.counters.held_back.fetch_add(1, Ordering::Relaxed);
        let since = card.now();
        let longest = (target.0 / PAUSES).clamp(PAUSE_MIN.0, PAUSE_MAX.0);
        let (mut pause, mut looks, mut completed) = (PAUSE_MIN, 0, false);
        loop {
            card.undisturbed(|| self.mark(slot, launch, card));
            // A launch with programmatic dependence places no marker. Without a marker there is nothing to
            // wait for.
            let dry = self.until_dry(slot, counted, card);
            if !slot.is_marked() || dry == Nanos::ZERO || !card.pause(pause.min(dry.max(PAUSE_MIN))) {
                return;
            }
            pause = Nanos((pause.0 * 2).min(longest));
            looks += 1;
            let looked = card.undisturbed(|| {
                if self.look(slot, target, card) {
                    (completed, pause) = (true, PAUSE_MIN);
                }
                if looks % LOOKS == 0 {
                    completed |= self.look_at_all(slot, target, card);
                }
            });
            // A process that captures does not wait.
            if looked.is_none() || self.fits(slot, counted, target) || self.use_spare() {
                return;
            }
            let (limit, overdue) = self.time_limit(slot, target);
            if card.now().saturating_sub(since) >= limit {
                return self.let_through(overdue && !completed, card);
            }
        }
    }

    /// Returns the time until the next launch on a stream should go on, since the card runs dry soon after.
    /// [`Nanos::MAX`] if that is not known.
    fn until_dry(&self, slot: &Slot, launch: Counted, card: &impl Card) -> Nanos {
        let aimd = self.aimd();
        let in_flight = self.in_flight();
        let window = u64::from(aimd.window());
        let most = if launch.learned { known(window) } else { window + AHEAD };
        // All of it may be one graph that is larger than the window.
        let few = in_flight <= most || in_flight == slot.oldest();
        let began = slot.began_oldest().filter(|_| few && aimd.cost() > Nanos::ZERO);
        let now = card.now();
        // The end of a stream's work is not known while other streams take turns with it on the card.
        let others = || self.markers.all().filter(|other| !std::ptr::eq(*other, slot));
        match began {
            Some(began) if !others().any(|other| other.launched_since(now - OTHERS)) => {
                began + self.time_in_flight() - HEAD_START - now
            }
            _ => Nanos::MAX,
        }
    }

    /// Looks for completed launches, and returns whether those in flight are expected to end within `time`.
    ///
    /// `false` if there are none, if their cost is not known, or if they should have ended long ago: then other
    /// work may be in flight, such as a copy or a kernel of another length. A long kernel among short ones is
    /// noticed only once it is overdue.
    pub fn ends_within(&self, time: Nanos, target: Nanos, card: &impl Card) -> bool {
        let target = or_default(target);
        let with_work = || self.markers.all().filter(|slot| slot.in_flight() > 0);
        let looked = card.undisturbed(|| {
            with_work().for_each(|slot| _ = self.look(slot, target, card));
        });
        if looked.is_none() || self.aimd().cost() == Nanos::ZERO {
            return false;
        }
        let in_flight = self.expected(with_work()) - Nanos(self.at_gate.load(Ordering::Relaxed));
        let usual = self.aimd().cost();
        let begun = with_work()
            .map(|slot| slot.expected(&self.costs, usual)[0])
            .sum::<Nanos>()
            .min(in_flight);
        let since = with_work().map(Slot::working_since);
        let latest = since.reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])]);
        latest.is_some_and(|since| {
            let now = card.now();
            let [earliest, latest] = since.map(|since| since + begun);
            // The rest has not begun, however long the first pending marker has been pending.
            latest.max(now) + in_flight - begun <= now + time && now <= earliest + time
        })
    }

    /// Returns the time limit of a wait, and whether the awaited work is overdue at that time.
    fn time_limit(&self, slot: &Slot, target: Nanos) -> (Nanos, bool) {
        // A short target bounds the work in flight, not the patience with it.
        let usual = target.max(DRAIN_TARGET);
        let oldest = slot.expected_oldest(&self.costs, self.aimd().cost());
        let long = usual.max(oldest).0.saturating_mul(LIMIT);
        let most = usual.0.saturating_mul(LIMIT_MOST);
        (Nanos(long.min(most)), long <= most)
    }

    fn let_through(&self, overdue: bool, card: &impl Card) {
        self.counters.let_through.fetch_add(1, Ordering::Relaxed);
        self.let_through_at.store(card.now().0.max(1), Ordering::Relaxed);
        if overdue {
            let times = self.fruitless.fetch_add(1, Ordering::Relaxed).min(START.ilog2());
            let more = self.aimd().stride().saturating_mul(2 << times).min(START) - 1;
            self.spare.store(more, Ordering::Relaxed);
        }
    }

    fn use_spare(&self) -> bool {
        let take = |spare: u32| spare.checked_sub(1);
        self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn mark(&self, slot: &Slot, launch: Launch, card: &impl Card) {
        let due = slot.is_due(self.aimd().stride());
        // A marker that orders other streams adds no order right after a launch on its own stream.
        let is_last = || self.counters.last.load(Ordering::Relaxed) == std::ptr::from_ref(slot).addr();
        if due && !launch.programmatic && (!card.orders_others(launch.stream) || is_last()) {
            self.subtract(self.markers.place(slot, launch.stream, card));
        }
    }

    /// Removes the completed launches of a stream from the count in flight. Returns whether there were any.
    fn look(&self, slot: &Slot, target: Nanos, card: &impl Card) -> bool {
        let soon = target.0 * LIMIT / SOON;
        let let_through = self.let_through_at.load(Ordering::Relaxed);
        let released = let_through > 0 && card.now().0 < let_through.saturating_add(soon);
        let (of_stream, all) = (slot.in_flight(), self.in_flight());
        let reaped = self.markers.reap(slot, card, |interval, took| {
            if !released {
                self.costs.learn(interval, shared(took, of_stream, all), self.aimd().cost());
            }
        });
        if reaped.launches == 0 {
            return false;
        }
        self.fruitless.store(0, Ordering::Relaxed);
        self.spare.store(0, Ordering::Relaxed);
        let in_flight = all.max(reaped.in_flight);
        self.subtract(reaped.launches);
        self.controller.update(|aimd| {
            if released {
                aimd.released(in_flight, target);
            } else {
                aimd.completed(completion(reaped, in_flight), target);
            }
        });
        true
    }

    /// Looks for completed launches on all streams, since some streams may have no launching thread any more.
    fn look_at_all(&self, own: &Slot, target: Nanos, card: &impl Card) -> bool {
        let mut any = false;
        let now = card.now();
        for slot in self.markers.all().filter(|slot| slot.in_flight() > 0) {
            any |= self.look(slot, target, card);
            if !std::ptr::eq(slot, own) && !slot.is_marked() {
                let long_ago = now.saturating_sub(self.time_limit(slot, target).0);
                self.subtract(slot.expire(long_ago));
            }
        }
        any
    }

    /// Removes launches from the count in flight that completed, or that ended with their stream or context.
    pub(super) fn subtract(&self, launches: u64) {
        if launches > 0 {
            let less = |in_flight: u64| Some(in_flight.saturating_sub(launches));
            // Always succeeds.
            let _ = self.counters.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            self.recount();
        }
    }

    /// Sums up what the launches in flight are expected to take by the present costs. A launch that comes meanwhile
    /// may be missing until the next time. So are streams without a marker: nothing tells when their work ended.
    fn recount(&self) {
        let marked = self.markers.all().filter(|slot| slot.is_marked());
        self.counters.time_in_flight.store(self.expected(marked).0, Ordering::Relaxed);
    }

    /// Returns the expected time of the launches in flight on these streams.
    fn expected<'a>(&self, slots: impl Iterator<Item = &'a Slot>) -> Nanos {
        let usual = self.aimd().cost();
        slots.map(|slot| slot.expected(&self.costs, usual)[1]).sum()
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

/// Returns the largest number of launches in flight for one of known cost. A window of a few long kernels does not
/// bound short ones beside them: their time does.
fn known(window: u64) -> u64 {
    window.saturating_mul(KNOWN).max(u64::from(MARKERS))
}

/// Drain target of a page; a page that was never written has none.
fn or_default(target: Nanos) -> Nanos {
    if target == Nanos::ZERO { DRAIN_TARGET } else { target }
}

fn completion(reaped: Reaped, in_flight: u64) -> Completion {
    let Reaped { launches, took, exact, in_flight: of_stream } = reaped;
    Completion { launches, took: shared(took, of_stream, in_flight), exact, in_flight }
}

/// Scales a duration by a stream's share of the work in flight. Four streams that take turns each take four times
/// as long.
fn shared(took: Nanos, of_stream: u64, all: u64) -> Nanos {
    let share = u128::from(took.0) * u128::from(of_stream) / u128::from(all.max(1).max(of_stream));
    Nanos(u64::try_from(share).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn launches_write_no_cache_line_that_launches_read() {
        const LINE: usize = 128;
        let line = |offset: usize| offset / LINE;
        let written = line(offset_of!(Window, counters));
        assert_eq!((size_of::<Counters>(), offset_of!(Window, counters) % LINE), (LINE, 0));
        for read in [offset_of!(Window, markers), offset_of!(Window, controller), offset_of!(Window, spare)] {
            assert_ne!(line(read), written);
        }
    }
}
