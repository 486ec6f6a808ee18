//! Slot of one stream in the table of [`Markers`](super::markers::Markers): the launch markers of the stream and
//! the counts of its launches.
//!
//! A thread holds the slot while it works on its ring of events. One that finds it held goes on without it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpushare_proto::Nanos;

use super::Card;
use super::costs::{Costs, Interval, Known};
use super::held::Held;
use super::spare_events::SpareEvents;
use super::stream::Stream;
use crate::driver::types::CUevent;

/// Largest number of pending markers of one stream. A full window has sixteen, and up to twice as many with kernels
/// of known cost. Launches beyond these get their marker later.
const RING: usize = 32;
/// Number of launches for which a stream is not watched after the driver failed to record a marker.
const BLIND: u32 = 1024;

/// Divisor for precision: an end is known exactly if the marker was pending at most `took` ÷ 8 before.
const SHARP: u64 = 8;

/// Slot of one stream in the table: counters and launch markers (events between launches).
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Slot {
    /// Number of the slot in the table.
    number: usize,
    used: AtomicBool,
    name: AtomicUsize,
    of: AtomicUsize,
    /// Address of the context to which the stream's events belong.
    context: AtomicUsize,
    held: AtomicBool,
    /// Number of launches for which the stream is not watched, since the driver failed to record a marker.
    blind: AtomicU32,
    /// Number of launches on the stream since the slot was taken.
    submitted: AtomicU64,
    /// Number of launches on the stream that have a launch marker behind them.
    covered: AtomicU64,
    /// Number of launches on the stream that are known to be completed.
    done: AtomicU64,
    /// Launches on the stream without a launch marker behind them, by kernel.
    bare: Interval,
    /// Event of the last launch marker that was found completed; 0 if none.
    last: AtomicUsize,
    /// Point in time of the first launch without a marker behind it, on the window's clock in nanoseconds.
    began: AtomicU64,
    /// Point in time of the last look that found a launch completed, on the window's clock in nanoseconds.
    reaped_at: AtomicU64,
    /// Point in time after which the launches completed that the last look found completed, on the window's
    /// clock in nanoseconds.
    reaped_after: AtomicU64,
    /// Point in time of the last look that found the oldest marker pending, on the window's clock in
    /// nanoseconds.
    pending_at: AtomicU64,
    /// Index of the oldest launch marker in the ring.
    first: AtomicU32,
    /// Number of the stream's launch markers that are not known to be completed.
    markers: AtomicU32,
    ring: [Marker; RING],
}

#[derive(Debug, Default)]
struct Marker {
    event: AtomicUsize,
    covers: AtomicU64,
    /// Launches between the marker before and this one, by kernel.
    interval: Interval,
    /// Point in time of the first launch that the marker covers, on the window's clock in nanoseconds.
    began: AtomicU64,
    /// Point in time when the marker was recorded, on the window's clock in nanoseconds.
    placed: AtomicU64,
    /// Whether an earlier marker was pending at `placed`, so that the stream was never idle in between.
    behind: AtomicBool,
}

/// Launches of one stream that a look found completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Number of launches that completed since the last look.
    pub launches: u64,
    /// Upper bound of the duration of these launches.
    pub took: Nanos,
    /// Whether the card worked on these launches for all of `took`.
    pub exact: bool,
    /// Number of the stream's launches in flight before the look, completed ones included.
    pub in_flight: u64,
}

impl Slot {
    /// Creates a free slot at this place in the table.
    pub(super) fn new(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    /// Returns the word and the bit of the slot in a row of words.
    pub(super) fn bit(&self) -> (usize, u64) {
        (self.number / 64, 1 << (self.number % 64))
    }

    /// Gives the slot to a stream by its key. The caller holds the slot.
    pub(super) fn assign(&self, (name, of): (usize, usize), context: usize) {
        self.name.store(name, Ordering::Relaxed);
        self.of.store(of, Ordering::Relaxed);
        self.context.store(context, Ordering::Relaxed);
        self.used.store(true, Ordering::Release);
    }

    /// Returns whether the slot belongs to a stream.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns the address of the context to which the stream's events belong.
    pub(super) fn context(&self) -> usize {
        self.context.load(Ordering::Relaxed)
    }

    /// Returns whether the next launch of the stream is watched, and counts it if not.
    pub(super) fn is_watched(&self) -> bool {
        self.blind.load(Ordering::Relaxed) == 0 || !self.stays_blind()
    }

    /// Holds the slot; `None` while another thread does.
    pub(super) fn hold(&self) -> Option<Held<'_>> {
        Held::take(&self.held)
    }

    /// Holds the slot as soon as no other thread does.
    pub(super) fn wait_for(&self) -> Held<'_> {
        Held::wait_for(&self.held)
    }

    /// Records a launch marker behind all present launches of the stream. Returns 0, or after a failure of the
    /// driver the launches in flight; then the stream is not watched for a while.
    pub(super) fn place(&self, stream: Stream, spare: &SpareEvents, card: &impl Card) -> u64 {
        let Some(_held) = self.hold() else { return 0 };
        let (first, markers) = self.ends();
        // Read before the event is recorded, which covers nothing that comes meanwhile.
        let covers = self.submitted.load(Ordering::Acquire);
        if markers == RING || covers == self.covered.load(Ordering::Relaxed) {
            return 0;
        }
        let context = self.context.load(Ordering::Relaxed);
        let event = spare
            .take(context)
            .or_else(|| card.create(std::ptr::with_exposed_provenance_mut(context)));
        let Some(event) = event.filter(|&event| {
            let marked = card.mark(stream, event);
            if !marked {
                spare.put(context, event, card);
            }
            marked
        }) else {
            self.drop_markers(|event| spare.put(context, event, card));
            self.blind.store(BLIND, Ordering::Relaxed);
            return self.take_for_done();
        };
        let marker = &self.ring[(first + markers) % RING];
        marker.event.store(event.expose_provenance(), Ordering::Relaxed);
        marker.covers.store(covers, Ordering::Relaxed);
        marker.interval.take(&self.bare);
        marker.began.store(self.began.load(Ordering::Relaxed), Ordering::Relaxed);
        marker.placed.store(card.now().0, Ordering::Relaxed);
        marker.behind.store(markers > 0, Ordering::Relaxed);
        self.covered.store(covers, Ordering::Release);
        self.markers.store(u32::try_from(markers + 1).unwrap_or(0), Ordering::Release);
        0
    }

    /// Returns the launches of the stream that completed since the last look.
    ///
    /// The duration is exact if its beginning and its end are known. The beginning is known if the stream was
    /// never idle since the last look, or if the marker existed for at least half of the duration. The end is
    /// known if work is left, or if a recent look found the marker pending.
    ///
    /// Passes the launches between two markers to `learn`, with the time from the one event to the other, if the
    /// stream was never idle in between.
    #[must_use]
    pub(super) fn reap(
        &self,
        spare: &SpareEvents,
        card: &impl Card,
        learn: impl Fn(&Interval, Nanos),
    ) -> Reaped {
        let Some(_held) = self.hold() else { return Reaped::default() };
        let (mut first, mut markers) = self.ends();
        if markers == 0 {
            return Reaped::default();
        }
        let oldest = &self.ring[first];
        let (began, placed) = (oldest.began.load(Ordering::Relaxed), oldest.placed.load(Ordering::Relaxed));
        let behind = oldest.behind.load(Ordering::Relaxed);
        let (before, in_flight) = (self.done.load(Ordering::Relaxed), self.in_flight());
        let (mut done, mut last_placed) = (before, 0);
        while markers > 0 {
            let marker = &self.ring[first];
            let event = std::ptr::with_exposed_provenance_mut(marker.event.load(Ordering::Relaxed));
            if !card.is_done(event) {
                break;
            }
            done = marker.covers.load(Ordering::Relaxed);
            last_placed = marker.placed.load(Ordering::Relaxed);
            (first, markers) = ((first + 1) % RING, markers - 1);
            self.first.store(u32::try_from(first).unwrap_or(0), Ordering::Relaxed);
            self.markers.store(u32::try_from(markers).unwrap_or(0), Ordering::Release);
            let last = self.last.swap(event.expose_provenance(), Ordering::Relaxed);
            if last != 0 {
                let last = std::ptr::with_exposed_provenance_mut(last);
                if marker.behind.load(Ordering::Relaxed)
                    && let Some(took) = card.elapsed(last, event)
                {
                    learn(&marker.interval, took);
                }
                spare.put(self.context.load(Ordering::Relaxed), last, card);
            }
        }
        let now = card.now().0;
        let seen_pending = match markers {
            0 => self.pending_at.load(Ordering::Relaxed),
            _ => self.pending_at.swap(now, Ordering::Relaxed),
        };
        if done == before {
            return Reaped::default();
        }
        self.done.store(done, Ordering::Release);
        self.reaped_after.store(seen_pending.max(last_placed), Ordering::Relaxed);
        let last = self.reaped_at.swap(now, Ordering::Relaxed);
        let took = now.saturating_sub(last.max(began));
        let from = behind || now.saturating_sub(placed) >= took / 2;
        let to = (behind && markers > 0) || now.saturating_sub(seen_pending) <= took / SHARP;
        Reaped { launches: done - before, took: Nanos(took), exact: from && to, in_flight }
    }

    /// Counts launches without a marker before `since` as completed, and returns their number.
    #[must_use]
    pub fn expire(&self, since: Nanos) -> u64 {
        let Some(_held) = self.hold() else { return 0 };
        if self.ends().1 > 0 || self.began.load(Ordering::Relaxed) > since.0 {
            return 0;
        }
        self.take_for_done()
    }

    /// Returns whether the slot belongs to the stream with this key.
    pub(super) fn is(&self, key: (usize, usize)) -> bool {
        self.is_used()
            && self.name.load(Ordering::Relaxed) == key.0
            && self.of.load(Ordering::Relaxed) == key.1
    }

    /// Counts one launch that is not watched; returns whether the stream is not watched for it.
    #[cold]
    fn stays_blind(&self) -> bool {
        let less = |blind: u32| blind.checked_sub(1);
        self.blind.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Returns whether nothing of the stream is known to be in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.ends().1 == 0
    }

    fn ends(&self) -> (usize, usize) {
        (self.first.load(Ordering::Relaxed) as usize, self.markers.load(Ordering::Acquire) as usize)
    }

    /// Returns the number of the stream's launches that are not known to be completed.
    pub fn in_flight(&self) -> u64 {
        let done = self.done.load(Ordering::Acquire);
        self.submitted.load(Ordering::Acquire).saturating_sub(done)
    }

    /// Returns whether the next marker is due, at one marker every `stride` launches. The first is due at
    /// once, so that the cost is known early.
    pub fn is_due(&self, stride: u32) -> bool {
        let bare = self
            .submitted
            .load(Ordering::Relaxed)
            .saturating_sub(self.covered.load(Ordering::Relaxed));
        bare >= u64::from(stride) || (bare > 0 && !self.is_marked())
    }

    /// Returns whether the stream has a marker that is not known to be completed.
    pub fn is_marked(&self) -> bool {
        self.markers.load(Ordering::Acquire) > 0
    }

    /// Returns the number of launches that the oldest launch marker covers.
    pub fn oldest(&self) -> u64 {
        let (first, markers) = self.ends();
        let covers = self.ring[first % RING].covers.load(Ordering::Relaxed);
        if markers == 0 {
            0
        } else {
            covers.saturating_sub(self.done.load(Ordering::Relaxed))
        }
    }

    /// Returns the expected time of the launches that the oldest launch marker covers; zero without a marker.
    pub fn expected_oldest(&self, costs: &Costs, usual: Nanos) -> Nanos {
        match self.ends() {
            (_, 0) => Nanos::ZERO,
            (first, _) => costs.expected(&self.ring[first % RING].interval, usual),
        }
    }

    /// Returns the expected time of the stream's launches in flight: of those that the card may have begun, and of
    /// all. The oldest launch marker covers those that it may have begun.
    pub fn expected(&self, costs: &Costs, usual: Nanos) -> [Nanos; 2] {
        let bare = costs.expected(&self.bare, usual);
        let (first, markers) = self.ends();
        let marked = (0..markers).map(|step| {
            let marker = &self.ring[(first + step) % RING];
            costs.expected(&marker.interval, usual)
        });
        let (mut begun, mut all) = (None, Nanos::ZERO);
        for expected in marked.chain([bare]) {
            begun.get_or_insert(expected);
            all += expected;
        }
        [begun.unwrap_or_default(), all]
    }

    /// Returns the earliest point in time at which the card may have begun the stream's oldest work in flight;
    /// `None` if that has no launch marker.
    pub fn began_oldest(&self) -> Option<Nanos> {
        self.is_marked().then(|| self.working_since()[0])
    }

    /// Returns the earliest and the latest point in time since which the card may have worked on the stream's
    /// oldest work in flight.
    pub fn working_since(&self) -> [Nanos; 2] {
        let of = if self.is_marked() {
            &self.ring[self.ends().0 % RING].began
        } else {
            &self.began
        };
        let began = of.load(Ordering::Relaxed);
        [&self.reaped_after, &self.reaped_at].map(|reaped| Nanos(reaped.load(Ordering::Relaxed).max(began)))
    }

    /// Returns whether a launch on the stream has been the first without a marker since a point in time.
    pub fn launched_since(&self, since: Nanos) -> bool {
        self.began.load(Ordering::Relaxed) >= since.0
    }

    /// Adds `launches` that were given to the driver. Reads the clock if no launch without a marker came
    /// before.
    pub fn submitted(&self, launches: u64, kernel: Option<Known>, now: impl FnOnce() -> Nanos) {
        if self.submitted.load(Ordering::Relaxed) == self.covered.load(Ordering::Relaxed) {
            self.began.store(now().0, Ordering::Relaxed);
        }
        self.bare.add(kernel, launches);
        self.submitted.fetch_add(launches, Ordering::AcqRel);
    }

    /// Counts all launches as completed, and returns how many were in flight. The caller holds the slot.
    pub(super) fn take_for_done(&self) -> u64 {
        let submitted = self.submitted.load(Ordering::Acquire);
        let done = self.done.swap(submitted, Ordering::AcqRel);
        self.covered.store(submitted, Ordering::Release);
        self.bare.clear();
        submitted.saturating_sub(done)
    }

    /// Forgets all markers and passes their events to `put`. The caller holds the slot.
    fn drop_markers(&self, put: impl Fn(CUevent)) {
        let (first, markers) = self.ends();
        for step in 0..markers {
            let marker = &self.ring[(first + step) % RING];
            put(std::ptr::with_exposed_provenance_mut(marker.event.load(Ordering::Relaxed)));
        }
        self.markers.store(0, Ordering::Release);
        match self.last.swap(0, Ordering::Relaxed) {
            0 => {}
            last => put(std::ptr::with_exposed_provenance_mut(last)),
        }
    }

    /// Frees the slot and passes its events to `put`. The caller holds the slot.
    pub(super) fn clear(&self, put: impl Fn(CUevent)) {
        self.used.store(false, Ordering::Release);
        self.drop_markers(put);
        self.blind.store(0, Ordering::Relaxed);
        self.reaped_at.store(0, Ordering::Relaxed);
        self.reaped_after.store(0, Ordering::Relaxed);
        self.pending_at.store(0, Ordering::Relaxed);
        self.take_for_done();
    }
}
