//! Launch markers: events that the library records between a stream's launches. They tell how many launches
//! are completed.
//!
//! ```text
//!   launches of a stream   1 2 3 4 5 6 7 8 9 …
//!   markers                  ▲               ▲          each covers all before it
//!                        ├ done ┤├ in flight ──┤
//! ```
//!
//! Streams have slots in a table of fixed size, found by a hash without a lock. A thread holds a slot while
//! it works on the slot's ring of events. A thread that finds the slot held goes on without it, so a launch
//! never waits. Only the destruction of a stream or context waits for the holding thread.
//!
//! A marker comes *before* a launch and covers the earlier launches. So a launch with programmatic dependence
//! can go without a marker, which would prevent its overlap. A stream with only such launches has no markers
//! and is never delayed.
//!
//! Before CUDA 12.5 a marker in the legacy stream orders all blocking streams. There the library records one
//! only while the last launch of the process was on that stream too.
//!
//! The last launches of an unused stream have no marker behind them. When the window is full, they count as
//! completed after a while ([`Markers::expire`]).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpushare_proto::Nanos;

use super::Card;
use super::costs::{Costs, Interval, Known};
use super::held::Held;
use super::spare_events::SpareEvents;
use crate::driver::types::{CUcontext, CUevent};

/// Number of streams that can be watched at the same time.
const SLOTS: usize = 256;
/// Number of places in the table where a stream's slot may be.
const PROBES: usize = 16;
/// Largest number of pending markers of one stream. A full window has sixteen, and up to twice as many with kernels
/// of known cost. Launches beyond these get their marker later.
const RING: usize = 32;
/// Number of launches for which a stream is not watched after the driver failed to record a marker.
const BLIND: u32 = 1024;

/// Identity of a CUDA stream in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Stream that the application created, by its handle.
    Own(usize),
    /// Legacy default stream of the context at this address.
    Legacy(usize),
    /// Default stream of one thread: the address of its context, then the thread's number.
    PerThread(usize, usize),
}

impl Stream {
    /// Returns the stream's identity as two integers. The second is zero for a stream that the application
    /// created.
    fn key(self) -> (usize, usize) {
        match self {
            Self::Own(handle) => (handle, 0),
            Self::Legacy(context) => (1, context),
            Self::PerThread(context, thread) => (2 | thread << 2, context),
        }
    }
}

/// Table of the streams whose launches the launch window watches.
#[derive(Debug)]
pub struct Markers {
    slots: Box<[Slot]>,
    /// One bit for each slot that belongs to a stream, so that a look at all streams reads no free slot.
    taken: [AtomicU64; SLOTS / 64],
    spare: SpareEvents,
    /// Held while a stream gets a slot, so that no stream gets two.
    claiming: AtomicBool,
}

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

/// Iterates over the numbers of the bits that are 1.
fn ones(bits: u64) -> impl Iterator<Item = usize> {
    let rest = std::iter::successors(Some(bits), |rest| rest.checked_sub(1).map(|less| rest & less));
    rest.take_while(|rest| *rest != 0).map(|rest| rest.trailing_zeros() as usize)
}

/// Divisor for precision: an end is known exactly if the marker was pending at most `took` ÷ 8 before.
const SHARP: u64 = 8;

impl Default for Markers {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|number| Slot { number, ..Slot::default() }).collect(),
            taken: std::array::from_fn(|_| AtomicU64::new(0)),
            spare: SpareEvents::default(),
            claiming: AtomicBool::new(false),
        }
    }
}

impl Markers {
    /// Returns the slot of a stream, or takes a free or idle slot for it. Returns `None` if all slots are in
    /// use, another thread takes one now, or the stream is not watched.
    #[must_use]
    pub fn slot(&self, stream: Stream, card: &impl Card) -> Option<&Slot> {
        let key = stream.key();
        let slot = self
            .find(key)
            .or_else(|| self.claim(key, card.context_of(stream).addr(), card))?;
        (slot.blind.load(Ordering::Relaxed) == 0 || !slot.stays_blind()).then_some(slot)
    }

    /// Iterates over the slots that belong to a stream.
    pub fn all(&self) -> impl Iterator<Item = &Slot> {
        let taken = self.taken.iter().map(|word| word.load(Ordering::Acquire));
        let numbers = taken
            .enumerate()
            .flat_map(|(word, bits)| ones(bits).map(move |bit| 64 * word + bit));
        numbers
            .map(|number| &self.slots[number])
            .filter(|slot| slot.used.load(Ordering::Acquire))
    }

    fn near(&self, key: (usize, usize)) -> impl Iterator<Item = &Slot> {
        let hash = (key.0 as u64 ^ (key.1 as u64).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let from = (hash >> 40) as usize;
        (0..PROBES).map(move |step| &self.slots[(from + step) % SLOTS])
    }

    fn find(&self, key: (usize, usize)) -> Option<&Slot> {
        self.near(key).find(|slot| slot.is(key))
    }

    #[cold]
    fn claim(&self, key: (usize, usize), context: usize, card: &impl Card) -> Option<&Slot> {
        let _claiming = Held::take(&self.claiming)?;
        if let Some(slot) = self.find(key) {
            return Some(slot);
        }
        let free = self.near(key).find(|slot| !slot.used.load(Ordering::Acquire));
        let slot = free.or_else(|| self.near(key).find(|slot| slot.is_idle()))?;
        let _held = Held::take(&slot.held)?;
        // An idle slot keeps the event of its last marker, which belongs to the context of the stream before.
        let before = slot.context.load(Ordering::Relaxed);
        slot.clear(|event| self.spare.put(before, event, card));
        slot.name.store(key.0, Ordering::Relaxed);
        slot.of.store(key.1, Ordering::Relaxed);
        slot.context.store(context, Ordering::Relaxed);
        slot.used.store(true, Ordering::Release);
        self.taken[slot.number / 64].fetch_or(1 << (slot.number % 64), Ordering::Release);
        Some(slot)
    }

    /// Frees a slot and passes its events to `put`. The caller holds the slot.
    fn clear(&self, slot: &Slot, put: impl Fn(CUevent)) {
        slot.clear(put);
        self.taken[slot.number / 64].fetch_and(!(1 << (slot.number % 64)), Ordering::Release);
    }

    /// Records a launch marker behind all present launches of a stream. Returns 0, or after a failure of the
    /// driver the launches in flight; then the stream is not watched for a while.
    pub fn place(&self, slot: &Slot, stream: Stream, card: &impl Card) -> u64 {
        let Some(_held) = Held::take(&slot.held) else { return 0 };
        let (first, markers) = slot.ends();
        // Read before the event is recorded, which covers nothing that comes meanwhile.
        let covers = slot.submitted.load(Ordering::Acquire);
        if markers == RING || covers == slot.covered.load(Ordering::Relaxed) {
            return 0;
        }
        let context = slot.context.load(Ordering::Relaxed);
        let event = self
            .spare
            .take(context)
            .or_else(|| card.create(std::ptr::with_exposed_provenance_mut(context)));
        let Some(event) = event.filter(|&event| {
            let marked = card.mark(stream, event);
            if !marked {
                self.spare.put(context, event, card);
            }
            marked
        }) else {
            slot.drop_markers(|event| self.spare.put(context, event, card));
            slot.blind.store(BLIND, Ordering::Relaxed);
            return slot.take_for_done();
        };
        let marker = &slot.ring[(first + markers) % RING];
        marker.event.store(event.expose_provenance(), Ordering::Relaxed);
        marker.covers.store(covers, Ordering::Relaxed);
        marker.interval.take(&slot.bare);
        marker.began.store(slot.began.load(Ordering::Relaxed), Ordering::Relaxed);
        marker.placed.store(card.now().0, Ordering::Relaxed);
        marker.behind.store(markers > 0, Ordering::Relaxed);
        slot.covered.store(covers, Ordering::Release);
        slot.markers.store(u32::try_from(markers + 1).unwrap_or(0), Ordering::Release);
        0
    }

    /// Returns the launches of a stream that completed since the last look.
    ///
    /// The duration is exact if its beginning and its end are known. The beginning is known if the stream was
    /// never idle since the last look, or if the marker existed for at least half of the duration. The end is
    /// known if work is left, or if a recent look found the marker pending.
    ///
    /// Passes the launches between two markers to `learn`, with the time from the one event to the other, if the
    /// stream was never idle in between.
    #[must_use]
    pub fn reap(&self, slot: &Slot, card: &impl Card, learn: impl Fn(&Interval, Nanos)) -> Reaped {
        let Some(_held) = Held::take(&slot.held) else { return Reaped::default() };
        let (mut first, mut markers) = slot.ends();
        if markers == 0 {
            return Reaped::default();
        }
        let oldest = &slot.ring[first];
        let (began, placed) = (oldest.began.load(Ordering::Relaxed), oldest.placed.load(Ordering::Relaxed));
        let behind = oldest.behind.load(Ordering::Relaxed);
        let (before, in_flight) = (slot.done.load(Ordering::Relaxed), slot.in_flight());
        let (mut done, mut last_placed) = (before, 0);
        while markers > 0 {
            let marker = &slot.ring[first];
            let event = std::ptr::with_exposed_provenance_mut(marker.event.load(Ordering::Relaxed));
            if !card.is_done(event) {
                break;
            }
            done = marker.covers.load(Ordering::Relaxed);
            last_placed = marker.placed.load(Ordering::Relaxed);
            (first, markers) = ((first + 1) % RING, markers - 1);
            slot.first.store(u32::try_from(first).unwrap_or(0), Ordering::Relaxed);
            slot.markers.store(u32::try_from(markers).unwrap_or(0), Ordering::Release);
            let last = slot.last.swap(event.expose_provenance(), Ordering::Relaxed);
            if last != 0 {
                let last = std::ptr::with_exposed_provenance_mut(last);
                if marker.behind.load(Ordering::Relaxed)
                    && let Some(took) = card.elapsed(last, event)
                {
                    learn(&marker.interval, took);
                }
                self.spare.put(slot.context.load(Ordering::Relaxed), last, card);
            }
        }
        let now = card.now().0;
        let seen_pending = match markers {
            0 => slot.pending_at.load(Ordering::Relaxed),
            _ => slot.pending_at.swap(now, Ordering::Relaxed),
        };
        if done == before {
            return Reaped::default();
        }
        slot.done.store(done, Ordering::Release);
        slot.reaped_after.store(seen_pending.max(last_placed), Ordering::Relaxed);
        let last = slot.reaped_at.swap(now, Ordering::Relaxed);
        let took = now.saturating_sub(last.max(began));
        let from = behind || now.saturating_sub(placed) >= took / 2;
        let to = (behind && markers > 0) || now.saturating_sub(seen_pending) <= took / SHARP;
        Reaped { launches: done - before, took: Nanos(took), exact: from && to, in_flight }
    }

    /// Counts launches without a marker before `since` as completed, and returns their number.
    #[must_use]
    pub fn expire(&self, slot: &Slot, since: Nanos) -> u64 {
        let Some(_held) = Held::take(&slot.held) else { return 0 };
        if slot.ends().1 > 0 || slot.began.load(Ordering::Relaxed) > since.0 {
            return 0;
        }
        slot.take_for_done()
    }

    /// Frees the slot of a destroyed stream, and returns the number of its launches in flight.
    pub fn end_stream(&self, stream: usize, card: &impl Card) -> u64 {
        let Some(slot) = self.find(Stream::Own(stream).key()) else { return 0 };
        let _held = Held::wait_for(&slot.held);
        let context = slot.context.load(Ordering::Relaxed);
        let left = slot.take_for_done();
        self.clear(slot, |event| self.spare.put(context, event, card));
        left
    }

    /// Keeps other threads off all streams of a context that is about to be destroyed, during the guard's
    /// lifetime.
    pub fn freeze(&self, context: CUcontext) -> Frozen<'_> {
        let context = context.addr();
        let of_context = self.all().filter(|slot| slot.context.load(Ordering::Relaxed) == context);
        Frozen {
            markers: self,
            context,
            held: of_context.map(|slot| (slot, Held::wait_for(&slot.held))).collect(),
        }
    }
}

impl Slot {
    fn is(&self, key: (usize, usize)) -> bool {
        self.used.load(Ordering::Acquire)
            && self.name.load(Ordering::Relaxed) == key.0
            && self.of.load(Ordering::Relaxed) == key.1
    }

    /// Counts one launch that is not watched; returns whether the stream is not watched for it.
    #[cold]
    fn stays_blind(&self) -> bool {
        let less = |blind: u32| blind.checked_sub(1);
        self.blind.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn is_idle(&self) -> bool {
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
    fn take_for_done(&self) -> u64 {
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
    fn clear(&self, put: impl Fn(CUevent)) {
        self.used.store(false, Ordering::Release);
        self.drop_markers(put);
        self.blind.store(0, Ordering::Relaxed);
        self.reaped_at.store(0, Ordering::Relaxed);
        self.reaped_after.store(0, Ordering::Relaxed);
        self.pending_at.store(0, Ordering::Relaxed);
        self.take_for_done();
    }
}

/// Guard that keeps other threads off the streams of one context.
#[derive(Debug)]
pub struct Frozen<'a> {
    markers: &'a Markers,
    context: usize,
    held: Vec<(&'a Slot, Held<'a>)>,
}

impl Frozen<'_> {
    /// Forgets the events, which were destroyed with the context, and returns the number of launches in
    /// flight.
    pub fn end_context(&self) -> u64 {
        self.markers.spare.forget(self.context);
        let left = self.held.iter().map(|(slot, _)| {
            let left = slot.take_for_done();
            self.markers.clear(slot, |_| ());
            left
        });
        left.sum()
    }
}
