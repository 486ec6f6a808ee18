//! Streams that the program marks as carrying communication with other cards (`gpushare_mark_communication`).
//! Only the program knows the names of its own kernels, and a copy between cards has no name.
//!
//! ```text
//!   program ── mark ──▶ table of 64 streams ◀── one load, and a search if any is marked ── a thread at a closed gate
//! ```
//!
//! A launch through an open gate does not read the table. Only marking takes a lock. A launch that runs
//! during a marking may or may not see the mark. A default stream cannot be marked: it may contain all work
//! of a program, and then a drain would not end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::types::{CUcontext, CUstream, STREAM_PER_THREAD};
use crate::process::lock;

/// Number of streams that can be marked at the same time. A program has a few for each card.
const SLOTS: usize = 64;

#[derive(Debug)]
pub(crate) struct MarkedStreams {
    count: AtomicUsize,
    slots: [Slot; SLOTS],
    changing: Mutex<()>,
}

/// Marked stream and its context, with which the mark ends; a null stream for a free slot.
#[derive(Debug, Default)]
struct Slot {
    stream: AtomicUsize,
    context: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    stream: usize,
    context: usize,
}

impl Default for MarkedStreams {
    fn default() -> Self {
        let slots = std::array::from_fn(|_| Slot::default());
        Self { count: AtomicUsize::new(0), slots, changing: Mutex::default() }
    }
}

impl MarkedStreams {
    /// Marks a stream of `context`; returns `false` if the table is full.
    pub(crate) fn mark(&self, stream: CUstream, context: CUcontext) -> bool {
        self.insert(Mark { stream: stream.addr(), context: context.addr() })
    }

    /// Removes the mark from a stream and returns the mark; `None` if the stream has none.
    pub(crate) fn unmark(&self, stream: CUstream) -> Option<Mark> {
        let _changing = lock(&self.changing);
        let slot = self.slot(stream.addr()).filter(|_| !is_default(stream))?;
        let context = slot.context.load(Ordering::Relaxed);
        self.free(slot);
        Some(Mark { stream: stream.addr(), context })
    }

    /// Restores the mark of a stream that the program failed to destroy, if the table has a free slot.
    pub(crate) fn put_back(&self, mark: Mark) {
        self.insert(mark);
    }

    /// Removes the marks of all streams of a destroyed context, since new streams may get the same handles.
    pub(crate) fn end_context(&self, context: CUcontext) {
        let _changing = lock(&self.changing);
        let of_context = |slot: &&Slot| slot.context.load(Ordering::Relaxed) == context.addr();
        self.slots.iter().filter(of_context).for_each(|slot| self.free(slot));
    }

    pub(crate) fn contains(&self, stream: CUstream) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && !is_default(stream) && self.slot(stream.addr()).is_some()
    }

    fn insert(&self, mark: Mark) -> bool {
        let _changing = lock(&self.changing);
        let Some(slot) = self.slot(mark.stream).or_else(|| self.slot(0)) else { return false };
        slot.context.store(mark.context, Ordering::Relaxed);
        if slot.stream.swap(mark.stream, Ordering::Relaxed) == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn slot(&self, stream: usize) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.stream.load(Ordering::Relaxed) == stream)
    }

    fn free(&self, slot: &Slot) {
        slot.context.store(0, Ordering::Relaxed);
        let taken = slot.stream.swap(0, Ordering::Relaxed) != 0;
        self.count.fetch_sub(usize::from(taken), Ordering::Relaxed);
    }
}

pub(crate) fn is_default(stream: CUstream) -> bool {
    stream.addr() <= STREAM_PER_THREAD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> CUstream {
        std::ptr::without_provenance_mut(number * 64)
    }

    #[test]
    fn a_stream_is_marked_until_it_is_unmarked() {
        let marked = MarkedStreams::default();
        assert!(!marked.contains(handle(1)));
        assert!(marked.mark(handle(1), handle(100)) && marked.mark(handle(1), handle(100)));
        assert!(marked.contains(handle(1)) && !marked.contains(handle(2)));
        let mark = marked.unmark(handle(1));
        assert!(mark.is_some() && !marked.contains(handle(1)), "marked twice is marked once");
        assert_eq!(marked.unmark(handle(1)), None);
        assert_eq!(marked.count.load(Ordering::Relaxed), 0);
        mark.into_iter().for_each(|mark| marked.put_back(mark));
        assert!(marked.contains(handle(1)), "it was not destroyed");
    }

    #[test]
    fn the_streams_of_a_dead_context_are_marked_no_more() {
        let marked = MarkedStreams::default();
        assert!(marked.mark(handle(1), handle(100)) && marked.mark(handle(2), handle(200)));
        marked.end_context(handle(100));
        assert_eq!([1, 2].map(|number| marked.contains(handle(number))), [false, true]);
        assert_eq!(marked.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_table_takes_no_stream_until_one_is_unmarked() {
        let marked = MarkedStreams::default();
        assert!((1..=SLOTS).all(|number| marked.mark(handle(number), handle(100))));
        assert!(!marked.mark(handle(SLOTS + 1), handle(100)) && !marked.contains(handle(SLOTS + 1)));
        assert!(marked.mark(handle(7), handle(100)), "marked already");
        assert!(marked.unmark(handle(7)).is_some() && marked.mark(handle(SLOTS + 1), handle(100)));
    }

    #[test]
    fn a_default_stream_is_never_marked() {
        let marked = MarkedStreams::default();
        assert!(marked.mark(handle(1), handle(100)));
        let defaults = (0..=STREAM_PER_THREAD).map(std::ptr::without_provenance_mut);
        for stream in defaults {
            assert!(!marked.contains(stream));
        }
    }
}
