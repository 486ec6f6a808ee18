//! Streams that the program says carry communication. What kernels of its own are called only the program knows, and a copy between cards
//! has no name at all; so it may mark the stream instead, by `gpushare_mark_communication`.
//!
//! ```text
//!   program ── mark ──▶ a table of 64 streams ◀── one load, and a look if any is marked ── a thread that finds the gate closed
//! ```
//!
//! A launch through an open gate does not come here. Who marks takes a lock and who looks takes none: a mark that comes at the same
//! time as a launch is seen by it or not. A default stream cannot be marked: everything of a program may be in it, and a drain that lets
//! everything in does not end.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext,
    CUresult, CUstream, STREAM_PER_THREAD,
};
use crate::lock;
use crate::process::State;

/// Streams that can be marked at once. A program has a few for each card.
const PLACES: usize = 64;

/// The marked streams of a process.
#[derive(Debug)]
pub struct Marked {
    count: AtomicUsize,
    places: [Place; PLACES],
    /// Held by who marks or unmarks.
    changing: Mutex<()>,
}

/// A stream and the context that it dies with; a null stream for none.
#[derive(Debug)]
struct Place {
    stream: AtomicUsize,
    context: AtomicUsize,
}

/// A stream that was marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    stream: usize,
    context: usize,
}

impl Default for Marked {
    fn default() -> Self {
        let free = || Place { stream: AtomicUsize::new(0), context: AtomicUsize::new(0) };
        Self {
            count: AtomicUsize::new(0),
            places: std::array::from_fn(|_| free()),
            changing: Mutex::default(),
        }
    }
}

impl Marked {
    /// Marks a stream; whether there was room.
    #[must_use]
    pub fn mark(&self, stream: CUstream, context: CUcontext) -> bool {
        self.enter(Mark { stream: stream.addr(), context: context.addr() })
    }

    /// Takes the mark from a stream, if it has one.
    pub fn unmark(&self, stream: CUstream) -> Option<Mark> {
        let _changing = lock(&self.changing);
        let place = self.place(stream.addr()).filter(|_| !is_default(stream))?;
        let context = place.context.load(Ordering::Relaxed);
        self.free(place);
        Some(Mark { stream: stream.addr(), context })
    }

    /// The stream is still there. Its place may have been taken meanwhile.
    pub fn put_back(&self, mark: Mark) {
        self.enter(mark);
    }

    /// A context is dead, and its streams with it: their handles may come again.
    pub fn end_context(&self, context: CUcontext) {
        let _changing = lock(&self.changing);
        let theirs = |place: &&Place| place.context.load(Ordering::Relaxed) == context.addr();
        self.places.iter().filter(theirs).for_each(|place| self.free(place));
    }

    /// Whether a stream is marked.
    #[must_use]
    pub fn has(&self, stream: CUstream) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && !is_default(stream) && self.place(stream.addr()).is_some()
    }

    fn enter(&self, mark: Mark) -> bool {
        let _changing = lock(&self.changing);
        let Some(place) = self.place(mark.stream).or_else(|| self.place(0)) else { return false };
        place.context.store(mark.context, Ordering::Relaxed);
        if place.stream.swap(mark.stream, Ordering::Relaxed) == 0 {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn place(&self, stream: usize) -> Option<&Place> {
        self.places.iter().find(|place| place.stream.load(Ordering::Relaxed) == stream)
    }

    /// For who holds the lock.
    fn free(&self, place: &Place) {
        place.context.store(0, Ordering::Relaxed);
        let taken = place.stream.swap(0, Ordering::Relaxed) != 0;
        self.count.fetch_sub(usize::from(taken), Ordering::Relaxed);
    }
}

/// Null, and the two handles that name a default stream.
fn is_default(stream: CUstream) -> bool {
    stream.addr() <= STREAM_PER_THREAD
}

/// What the program asks for: `stream` carries communication from now on, or no more.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a default stream, `CUDA_ERROR_OUT_OF_MEMORY` if 64 are marked already,
/// `CUDA_ERROR_NOT_INITIALIZED` before the first context, when there is no stream yet.
pub fn mark(stream: CUstream, on: bool) -> CUresult {
    if is_default(stream) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let Some(state) = State::existing() else { return CUDA_ERROR_NOT_INITIALIZED };
    match on {
        true if state.marked.mark(stream, state.driver.context_of(stream)) => CUDA_SUCCESS,
        true => CUDA_ERROR_OUT_OF_MEMORY,
        // One that has no mark is what was asked for.
        false => {
            state.marked.unmark(stream);
            CUDA_SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> CUstream {
        std::ptr::without_provenance_mut(number * 64)
    }

    #[test]
    fn a_stream_is_marked_until_it_is_unmarked() {
        let marked = Marked::default();
        assert!(!marked.has(handle(1)));
        assert!(marked.mark(handle(1), handle(100)) && marked.mark(handle(1), handle(100)));
        assert!(marked.has(handle(1)) && !marked.has(handle(2)));
        let mark = marked.unmark(handle(1));
        assert!(mark.is_some() && !marked.has(handle(1)), "marked twice is marked once");
        assert_eq!(marked.unmark(handle(1)), None);
        assert_eq!(marked.count.load(Ordering::Relaxed), 0);
        mark.into_iter().for_each(|mark| marked.put_back(mark));
        assert!(marked.has(handle(1)), "it could not be destroyed");
    }

    #[test]
    fn the_streams_of_a_dead_context_are_marked_no_more() {
        let marked = Marked::default();
        assert!(marked.mark(handle(1), handle(100)) && marked.mark(handle(2), handle(200)));
        marked.end_context(handle(100));
        assert_eq!([1, 2].map(|number| marked.has(handle(number))), [false, true]);
        assert_eq!(marked.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_table_takes_no_more_until_one_is_unmarked() {
        let marked = Marked::default();
        assert!((1..=PLACES).all(|number| marked.mark(handle(number), handle(100))));
        assert!(!marked.mark(handle(PLACES + 1), handle(100)) && !marked.has(handle(PLACES + 1)));
        assert!(marked.mark(handle(7), handle(100)), "it is there already");
        assert!(marked.unmark(handle(7)).is_some() && marked.mark(handle(PLACES + 1), handle(100)));
    }

    #[test]
    fn no_default_stream_is_a_marked_one() {
        let marked = Marked::default();
        assert!(marked.mark(handle(1), handle(100)));
        let defaults = (0..=STREAM_PER_THREAD).map(std::ptr::without_provenance_mut);
        for stream in defaults {
            assert!(!marked.has(stream));
            assert_eq!([true, false].map(|on| mark(stream, on)), [CUDA_ERROR_INVALID_VALUE; 2]);
        }
    }

    #[test]
    fn before_cuda_was_begun_there_is_nothing_to_mark() {
        assert_eq!(mark(handle(1), true), CUDA_ERROR_NOT_INITIALIZED);
    }
}
