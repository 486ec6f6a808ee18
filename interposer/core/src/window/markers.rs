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
//! completed after a while ([`Slot::expire`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpushare_proto::Nanos;

use super::Card;
use super::costs::Interval;
use super::held::Held;
use super::slot::{Reaped, Slot};
use super::spare_events::SpareEvents;
use super::stream::Stream;
use crate::driver::types::{CUcontext, CUevent};

/// Number of streams that can be watched at the same time.
const SLOTS: usize = 256;
/// Number of places in the table where a stream's slot may be.
const PROBES: usize = 16;

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

impl Default for Markers {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(Slot::new).collect(),
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
        slot.is_watched().then_some(slot)
    }

    /// Iterates over the slots that belong to a stream.
    pub fn all(&self) -> impl Iterator<Item = &Slot> {
        let taken = self.taken.iter().map(|word| word.load(Ordering::Acquire));
        let numbers = taken
            .enumerate()
            .flat_map(|(word, bits)| ones(bits).map(move |bit| 64 * word + bit));
        numbers.map(|number| &self.slots[number]).filter(|slot| slot.is_used())
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
        let free = self.near(key).find(|slot| !slot.is_used());
        let slot = free.or_else(|| self.near(key).find(|slot| slot.is_idle()))?;
        let _held = slot.hold()?;
        // An idle slot keeps the event of its last marker, which belongs to the context of the stream before.
        let before = slot.context();
        slot.clear(|event| self.spare.put(before, event, card));
        slot.assign(key, context);
        let (word, bit) = slot.bit();
        self.taken[word].fetch_or(bit, Ordering::Release);
        Some(slot)
    }

    /// Frees a slot and passes its events to `put`. The caller holds the slot.
    fn clear(&self, slot: &Slot, put: impl Fn(CUevent)) {
        slot.clear(put);
        let (word, bit) = slot.bit();
        self.taken[word].fetch_and(!bit, Ordering::Release);
    }

    /// Records a launch marker, as the slot does, with an event that is left over if there is one.
    pub fn place(&self, slot: &Slot, stream: Stream, card: &impl Card) -> u64 {
        slot.place(stream, &self.spare, card)
    }

    /// Returns the launches of a stream that completed since the last look.
    #[must_use]
    pub fn reap(&self, slot: &Slot, card: &impl Card, learn: impl Fn(&Interval, Nanos)) -> Reaped {
        slot.reap(&self.spare, card, learn)
    }

    /// Frees the slot of a destroyed stream, and returns the number of its launches in flight.
    pub fn end_stream(&self, stream: usize, card: &impl Card) -> u64 {
        let Some(slot) = self.find(Stream::Own(stream).key()) else { return 0 };
        let _held = slot.wait_for();
        let context = slot.context();
        let left = slot.take_for_done();
        self.clear(slot, |event| self.spare.put(context, event, card));
        left
    }

    /// Keeps other threads off all streams of a context that is about to be destroyed, during the guard's
    /// lifetime.
    pub fn freeze(&self, context: CUcontext) -> Frozen<'_> {
        let context = context.addr();
        let of_context = self.all().filter(|slot| slot.context() == context);
        Frozen {
            markers: self,
            context,
            held: of_context.map(|slot| (slot, slot.wait_for())).collect(),
        }
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

/// Iterates over the numbers of the bits that are 1.
fn ones(bits: u64) -> impl Iterator<Item = usize> {
    let rest = std::iter::successors(Some(bits), |rest| rest.checked_sub(1).map(|less| rest & less));
    rest.take_while(|rest| *rest != 0).map(|rest| rest.trailing_zeros() as usize)
}
