//! Which launches of a stream are known to be done: a ring of events per stream.
//!
//! ```text
//!   launches of a stream   1 2 3 4 5 6 7 8 9 …
//!   markers                  ▲               ▲          each covers all before it
//!                        ├ done ┤├ in flight ──┤
//! ```
//!
//! Streams have slots in a table of fixed size, found by a hash without any lock. Who works on a slot's ring holds it, and who finds
//! it held goes on without: nobody waits for another thread here, except who destroys a stream or a context. A marker comes *before*
//! a launch and covers those that came earlier, so that a launch with programmatic dependence, which would lose its overlap, can be
//! left without one; a stream that has no other launches has no markers, and is never held back. A marker of the legacy stream orders all
//! blocking streams on drivers before CUDA 12.5: there it comes only while the last launch of all was on that stream too.
//!
//! The last launches of a stream that nobody uses any more have no marker behind them. When somebody is short of
//! window they are taken for done after a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use gpushare_proto::Nanos;

use super::Card;
use crate::driver::types::{CUcontext, CUevent};

/// Streams that can be watched at once.
const SLOTS: usize = 256;
/// How far from its own place a stream may be.
const PROBES: usize = 16;
/// Markers of one stream: a window has eight, and graphs and halving add some.
const RING: usize = 16;
/// Contexts with a pool, and spare events of each.
const POOLS: usize = 16;
const SPARE: usize = 64;

/// A stream, by what tells it from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// One that the application made, by its handle.
    Own(usize),
    /// A context's legacy stream.
    Legacy(usize),
    /// A thread's own stream in a context: the thread by its number.
    PerThread(usize, usize),
}

impl Stream {
    /// As two words; the second is zero for what the application made.
    fn key(self) -> (usize, usize) {
        match self {
            Self::Own(handle) => (handle, 0),
            Self::Legacy(context) => (1, context),
            Self::PerThread(context, thread) => (2 | thread << 2, context),
        }
    }
}

/// All streams.
#[derive(Debug)]
pub struct Markers {
    slots: Box<[Slot]>,
    pools: Box<[Pool]>,
    /// Held by who gives out a slot, so that no stream gets two.
    claiming: AtomicBool,
}

/// One stream.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Slot {
    used: AtomicBool,
    name: AtomicUsize,
    of: AtomicUsize,
    /// Where its events live.
    context: AtomicUsize,
    held: AtomicBool,
    /// A marker failed here: not watched any more.
    blind: AtomicBool,
    /// Launches that the driver was given, those that have a marker behind them, and those that are done.
    submitted: AtomicU64,
    covered: AtomicU64,
    done: AtomicU64,
    /// When the first launch without a marker came.
    began: AtomicU64,
    /// When a look found anything done, and when one found the oldest marker pending.
    reaped_at: AtomicU64,
    pending_at: AtomicU64,
    first: AtomicU32,
    markers: AtomicU32,
    ring: [Marker; RING],
}

#[derive(Debug, Default)]
struct Marker {
    event: AtomicUsize,
    covers: AtomicU64,
    /// When the first launch that it covers came, and when it was placed.
    began: AtomicU64,
    placed: AtomicU64,
    /// Whether an earlier one was pending when it came: the stream never ran dry in between.
    behind: AtomicBool,
}

/// Spare events of a context.
#[derive(Debug)]
struct Pool {
    context: AtomicUsize,
    events: [AtomicUsize; SPARE],
}

/// What a look at a stream found done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Launches.
    pub launches: u64,
    /// In what time, at most.
    pub took: Nanos,
    /// Whether the card was at work on them all that time.
    pub exact: bool,
    /// Launches of the stream that were in flight, they among them.
    pub in_flight: u64,
}

/// How much of a completion's time may pass between two looks for it to be known when it was: 1 ÷ this.
const SHARP: u64 = 8;

impl Default for Markers {
    fn default() -> Self {
        let pool = || Pool { context: AtomicUsize::new(0), events: [const { AtomicUsize::new(0) }; SPARE] };
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            pools: (0..POOLS).map(|_| pool()).collect(),
            claiming: AtomicBool::new(false),
        }
    }
}

impl Markers {
    /// The slot of a stream; one that is free, or idle, if it has none. `None` where there is no room, or another thread is
    /// giving out one just now.
    #[must_use]
    pub fn slot(&self, stream: Stream, card: &impl Card) -> Option<&Slot> {
        let key = stream.key();
        let slot = self
            .find(key)
            .or_else(|| self.claim(key, card.context_of(stream).addr(), card))?;
        (!slot.blind.load(Ordering::Relaxed)).then_some(slot)
    }

    /// Every stream that is watched.
    pub fn all(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.used.load(Ordering::Acquire))
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
        slot.clear(|event| self.put(context, event, card));
        slot.name.store(key.0, Ordering::Relaxed);
        slot.of.store(key.1, Ordering::Relaxed);
        slot.context.store(context, Ordering::Relaxed);
        slot.used.store(true, Ordering::Release);
        Some(slot)
    }

    /// Puts a marker behind all launches of a stream so far. If it cannot be marked it is not watched any more: how many were in
    /// flight there.
    pub fn place(&self, slot: &Slot, stream: Stream, card: &impl Card) -> u64 {
        let Some(_held) = Held::take(&slot.held) else { return 0 };
        let (first, markers) = slot.ends();
        // Read before the event is recorded: what comes meanwhile is not covered.
        let covers = slot.submitted.load(Ordering::Acquire);
        if markers == RING || covers == slot.covered.load(Ordering::Relaxed) {
            return 0;
        }
        let context = slot.context.load(Ordering::Relaxed);
        let event = self
            .take(context)
            .or_else(|| card.create(std::ptr::with_exposed_provenance_mut(context)));
        let Some(event) = event.filter(|&event| card.mark(stream, event)) else {
            slot.blind.store(true, Ordering::Relaxed);
            return slot.let_go();
        };
        let marker = &slot.ring[(first + markers) % RING];
        marker.event.store(event.expose_provenance(), Ordering::Relaxed);
        marker.covers.store(covers, Ordering::Relaxed);
        marker.began.store(slot.began.load(Ordering::Relaxed), Ordering::Relaxed);
        marker.placed.store(card.now().0, Ordering::Relaxed);
        marker.behind.store(markers > 0, Ordering::Relaxed);
        slot.covered.store(covers, Ordering::Release);
        slot.markers.store(u32::try_from(markers + 1).unwrap_or(0), Ordering::Release);
        0
    }

    /// What is done of a stream since somebody last looked.
    ///
    /// The time is exact if its beginning and its end are known: the beginning, if the stream had work without a gap since the last
    /// look, or if the marker was there for most of it; the end, if there is work left, or if somebody looked shortly before.
    #[must_use]
    pub fn reap(&self, slot: &Slot, card: &impl Card) -> Reaped {
        let Some(_held) = Held::take(&slot.held) else { return Reaped::default() };
        let (mut first, mut markers) = slot.ends();
        if markers == 0 {
            return Reaped::default();
        }
        let oldest = &slot.ring[first];
        let (began, placed) = (oldest.began.load(Ordering::Relaxed), oldest.placed.load(Ordering::Relaxed));
        let behind = oldest.behind.load(Ordering::Relaxed);
        let (before, in_flight) = (slot.done.load(Ordering::Relaxed), slot.in_flight());
        let mut done = before;
        while markers > 0 {
            let marker = &slot.ring[first];
            let event = std::ptr::with_exposed_provenance_mut(marker.event.load(Ordering::Relaxed));
            if !card.is_done(event) {
                break;
            }
            done = marker.covers.load(Ordering::Relaxed);
            (first, markers) = ((first + 1) % RING, markers - 1);
            slot.first.store(u32::try_from(first).unwrap_or(0), Ordering::Relaxed);
            slot.markers.store(u32::try_from(markers).unwrap_or(0), Ordering::Release);
            self.put(slot.context.load(Ordering::Relaxed), event, card);
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
        let last = slot.reaped_at.swap(now, Ordering::Relaxed);
        let took = now.saturating_sub(last.max(began));
        let from = behind || now.saturating_sub(placed) >= took / 2;
        let to = (behind && markers > 0) || now.saturating_sub(seen_pending) <= took / SHARP;
        Reaped { launches: done - before, took: Nanos(took), exact: from && to, in_flight }
    }

    /// Takes launches for done that came before `since` and have no marker behind them; how many.
    #[must_use]
    pub fn forgive(&self, slot: &Slot, since: Nanos) -> u64 {
        let Some(_held) = Held::take(&slot.held) else { return 0 };
        if slot.ends().1 > 0 || slot.began.load(Ordering::Relaxed) > since.0 {
            return 0;
        }
        slot.let_go()
    }

    /// A stream is destroyed; its launches that were in flight.
    pub fn stream_is_gone(&self, stream: usize, card: &impl Card) -> u64 {
        let Some(slot) = self.find(Stream::Own(stream).key()) else { return 0 };
        let _held = Held::wait_for(&slot.held);
        let context = slot.context.load(Ordering::Relaxed);
        let left = slot.let_go();
        slot.clear(|event| self.put(context, event, card));
        left
    }

    /// Keeps everybody off the streams of a context while the guard lives: whoever destroys the context has it.
    pub fn freeze(&self, context: CUcontext) -> Frozen<'_> {
        let context = context.addr();
        let of_context = self.all().filter(|slot| slot.context.load(Ordering::Relaxed) == context);
        Frozen {
            markers: self,
            context,
            held: of_context.map(|slot| (slot, Held::wait_for(&slot.held))).collect(),
        }
    }

    fn pool(&self, context: usize) -> Option<&Pool> {
        let known = self.pools.iter().find(|pool| pool.context.load(Ordering::Acquire) == context);
        known.or_else(|| {
            self.pools.iter().find(|pool| {
                pool.context
                    .compare_exchange(0, context, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
        })
    }

    fn take(&self, context: usize) -> Option<CUevent> {
        let mut spare = self
            .pool(context)?
            .events
            .iter()
            .filter(|event| event.load(Ordering::Relaxed) != 0);
        let event =
            spare.find_map(|event| Some(event.swap(0, Ordering::AcqRel)).filter(|&event| event != 0))?;
        Some(std::ptr::with_exposed_provenance_mut(event))
    }

    fn put(&self, context: usize, event: CUevent, card: &impl Card) {
        let kept = self.pool(context).is_some_and(|pool| {
            pool.events.iter().any(|place| {
                let address = event.expose_provenance();
                place.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        });
        if !kept {
            card.destroy(event);
        }
    }
}

impl Slot {
    fn is(&self, key: (usize, usize)) -> bool {
        self.used.load(Ordering::Acquire)
            && self.name.load(Ordering::Relaxed) == key.0
            && self.of.load(Ordering::Relaxed) == key.1
    }

    fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.ends().1 == 0
    }

    fn ends(&self) -> (usize, usize) {
        (self.first.load(Ordering::Relaxed) as usize, self.markers.load(Ordering::Acquire) as usize)
    }

    /// Launches that are not known to be done.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let done = self.done.load(Ordering::Acquire);
        self.submitted.load(Ordering::Acquire).saturating_sub(done)
    }

    /// Whether a marker is due when one comes every `stride` launches. The first comes at once, so that something is known early.
    #[must_use]
    pub fn is_due(&self, stride: u32) -> bool {
        let bare = self
            .submitted
            .load(Ordering::Relaxed)
            .saturating_sub(self.covered.load(Ordering::Relaxed));
        bare >= u64::from(stride) || (bare > 0 && !self.is_marked())
    }

    /// Whether any marker is pending, as far as is known.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.markers.load(Ordering::Acquire) > 0
    }

    /// Launches that the oldest marker covers.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        let (first, markers) = self.ends();
        let covers = self.ring[first % RING].covers.load(Ordering::Relaxed);
        if markers == 0 {
            0
        } else {
            covers.saturating_sub(self.done.load(Ordering::Relaxed))
        }
    }

    /// The driver is given `launches` more. `now` is asked for if they are the first without a marker.
    pub fn submitted(&self, launches: u64, now: impl FnOnce() -> Nanos) {
        if self.submitted.load(Ordering::Relaxed) == self.covered.load(Ordering::Relaxed) {
            self.began.store(now().0, Ordering::Relaxed);
        }
        self.submitted.fetch_add(launches, Ordering::AcqRel);
    }

    /// All is done, for who holds it; how much was in flight.
    fn let_go(&self) -> u64 {
        let submitted = self.submitted.load(Ordering::Acquire);
        let done = self.done.swap(submitted, Ordering::AcqRel);
        self.covered.store(submitted, Ordering::Release);
        submitted.saturating_sub(done)
    }

    /// Nobody's, for who holds it. Its events go to `put`.
    fn clear(&self, put: impl Fn(CUevent)) {
        self.used.store(false, Ordering::Release);
        let (first, markers) = self.ends();
        for step in 0..markers {
            let marker = &self.ring[(first + step) % RING];
            put(std::ptr::with_exposed_provenance_mut(marker.event.load(Ordering::Relaxed)));
        }
        self.markers.store(0, Ordering::Release);
        self.blind.store(false, Ordering::Relaxed);
        self.reaped_at.store(0, Ordering::Relaxed);
        self.pending_at.store(0, Ordering::Relaxed);
        self.let_go();
    }
}

/// The streams of a context, held.
#[derive(Debug)]
pub struct Frozen<'a> {
    markers: &'a Markers,
    context: usize,
    held: Vec<(&'a Slot, Held<'a>)>,
}

impl Frozen<'_> {
    /// The context is dead, and the events with it; the launches that were in flight there.
    pub fn bury(&self) -> u64 {
        let pools = self.markers.pools.iter();
        for pool in pools.filter(|pool| pool.context.load(Ordering::Acquire) == self.context) {
            pool.events.iter().for_each(|event| event.store(0, Ordering::Relaxed));
            pool.context.store(0, Ordering::Release);
        }
        let left = self.held.iter().map(|(slot, _)| {
            let left = slot.let_go();
            slot.clear(|_| ());
            left
        });
        left.sum()
    }
}

/// Something that one thread has at a time.
#[derive(Debug)]
struct Held<'a>(&'a AtomicBool);

impl<'a> Held<'a> {
    fn take(flag: &'a AtomicBool) -> Option<Self> {
        let taken = !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Acquire);
        // Only then is there a guard: one that is made and dropped lets go of what another thread holds.
        taken.then(|| Self(flag))
    }

    /// For who is not on the launch path. Whoever has it is in a call of the driver that does not wait.
    fn wait_for(flag: &'a AtomicBool) -> Self {
        loop {
            if let Some(held) = Self::take(flag) {
                return held;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_it_held_leaves_it_held() {
        let flag = AtomicBool::new(false);
        let held = Held::take(&flag);
        assert!(held.is_some());
        assert!(Held::take(&flag).is_none() && Held::take(&flag).is_none());
        drop(held);
        assert!(Held::take(&flag).is_some());
    }
}
