//! Stream captures that are running. While one runs, the process holds its lock and nothing synchronises:
//! what is launched into a capture is recorded, not executed, and any wait of ours would break it.
//!
//! What counts is the stream in which a capture began. Streams that join it by an event are part of it and end with it. A
//! capture that something has invalidated still has to be ended by the application, which may never do
//! so; but there is nothing left in it that a wait could break, so it holds no lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::driver::types::{CUcontext, CUstream, STREAM_PER_THREAD};
use crate::lock;

/// The captures that were begun and not ended.
#[derive(Debug, Default)]
pub struct Captures {
    running: Mutex<Vec<Running>>,
    /// How many of them are worth holding a lock for.
    count: AtomicUsize,
    /// How many are being begun just now.
    beginning: AtomicUsize,
    /// Threads that ask the driver what a capture would not survive.
    asking: AtomicUsize,
}

/// One more somewhere while it lives.
#[derive(Debug)]
pub struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::SeqCst);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A capture.
#[derive(Debug)]
pub struct Running {
    stream: usize,
    /// The context that it dies with.
    context: usize,
    /// Whether it was invalidated.
    broken: bool,
}

impl Captures {
    /// A capture began on `stream` in `context`.
    pub fn begin(&self, stream: CUstream, context: CUcontext) {
        let running = Running { stream: name(stream), context: context.addr(), broken: false };
        self.update(|captures| captures.push(running));
    }

    /// The capture on `stream` ended, well or badly. Unknown streams are ignored.
    pub fn end(&self, stream: CUstream) {
        drop(self.take(stream));
    }

    /// Takes the capture on `stream` off the list, if there is one. Nobody asks the driver about the stream any more.
    #[must_use]
    pub fn take(&self, stream: CUstream) -> Option<Running> {
        self.update(|captures| {
            let at = captures.iter().position(|running| running.stream == name(stream))?;
            Some(captures.swap_remove(at))
        })
    }

    /// Takes that back: the stream is still there.
    pub fn put_back(&self, running: Running) {
        self.update(|captures| captures.push(running));
    }

    /// A context is gone, and its streams with it.
    pub fn end_context(&self, context: CUcontext) {
        self.update(|captures| captures.retain(|running| running.context != context.addr()));
    }

    /// Notes which captures of a context are `invalidated`. A thread's own stream is left out: only that thread
    /// can name it. No stream is destroyed by the application meanwhile.
    pub fn look_at(&self, context: CUcontext, invalidated: impl Fn(CUstream) -> bool) {
        self.update(|captures| {
            let here = captures.iter_mut().filter(|running| {
                !running.broken && running.context == context.addr() && running.stream != STREAM_PER_THREAD
            });
            for running in here {
                running.broken = invalidated(std::ptr::with_exposed_provenance_mut(running.stream));
            }
        });
    }

    /// Whether any capture runs in this process that a wait could break.
    #[must_use]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Runs what would break a capture: events, and questions about them. `None` while one runs or begins. Whoever begins one and
    /// whoever asks each say so before they look at the other (Dekker's argument, as at the gate), so neither needs a lock.
    pub fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        let _asking = Counted::new(&self.asking);
        let quiet = self.beginning.load(Ordering::SeqCst) == 0 && !self.any();
        quiet.then(ask)
    }

    /// Comes before a capture begins, and lives until it is entered here: nobody asks the driver meanwhile. Those that do so now are in
    /// calls that do not wait.
    pub fn beginning(&self) -> Counted<'_> {
        let beginning = Counted::new(&self.beginning);
        while self.asking.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        beginning
    }

    fn update<T>(&self, change: impl FnOnce(&mut Vec<Running>) -> T) -> T {
        let mut running = lock(&self.running);
        let answer = change(&mut running);
        self.count
            .store(running.iter().filter(|running| !running.broken).count(), Ordering::SeqCst);
        answer
    }
}

/// One name for a stream that has two: the null stream of a capture is the thread's own, since the legacy
/// stream cannot be captured.
fn name(stream: CUstream) -> usize {
    match stream.expose_provenance() {
        0 => STREAM_PER_THREAD,
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: CUcontext = std::ptr::without_provenance_mut(0x100);

    #[test]
    fn captures_on_several_streams_are_counted_apart() {
        let (a, b) = (std::ptr::without_provenance_mut(0x10), std::ptr::without_provenance_mut(0x20));
        let captures = Captures::default();
        captures.begin(a, CONTEXT);
        captures.begin(b, CONTEXT);
        captures.end(a);
        captures.end(a);
        assert!(captures.any());
        captures.end(b);
        assert!(!captures.any());
    }

    #[test]
    fn a_capture_on_a_threads_own_stream_ends_under_either_of_its_names() {
        let captures = Captures::default();
        captures.begin(std::ptr::without_provenance_mut(STREAM_PER_THREAD), CONTEXT);
        captures.end(std::ptr::null_mut());
        assert!(!captures.any());
    }

    #[test]
    fn nobody_asks_while_a_capture_begins_or_runs() {
        let captures = Captures::default();
        assert_eq!(captures.undisturbed(|| 7), Some(7));
        let beginning = captures.beginning();
        assert_eq!(captures.undisturbed(|| 7), None);
        captures.begin(std::ptr::without_provenance_mut(0x10), CONTEXT);
        drop(beginning);
        assert_eq!(captures.undisturbed(|| 7), None);
        captures.end(std::ptr::without_provenance_mut(0x10));
        assert_eq!(captures.undisturbed(|| 7), Some(7));
    }

    #[test]
    fn a_capture_that_begins_waits_for_who_asks() {
        use std::sync::atomic::AtomicBool;
        let (captures, inside) = (Captures::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        captures.undisturbed(|| {
                            inside.store(true, Ordering::SeqCst);
                            inside.store(false, Ordering::SeqCst);
                        });
                    }
                });
            }
            for _ in 0..500 {
                let _beginning = captures.beginning();
                assert!(!inside.load(Ordering::SeqCst), "somebody asks while a capture begins");
            }
        });
    }

    #[test]
    fn a_capture_dies_with_its_context() {
        let stream = std::ptr::without_provenance_mut(0x10);
        let captures = Captures::default();
        captures.begin(stream, CONTEXT);
        captures.end_context(std::ptr::without_provenance_mut(0x200));
        assert!(captures.any());
        captures.end_context(CONTEXT);
        assert!(!captures.any());
    }

    #[test]
    fn a_broken_capture_is_worth_no_lock_and_may_still_end() {
        let (a, b) = (std::ptr::without_provenance_mut(0x10), std::ptr::without_provenance_mut(0x20));
        let captures = Captures::default();
        captures.begin(a, CONTEXT);
        captures.look_at(std::ptr::without_provenance_mut(0x200), |_| true);
        assert!(captures.any(), "another context's");
        captures.begin(b, CONTEXT);
        captures.look_at(CONTEXT, |stream| stream == a);
        assert!(captures.any());
        captures.end(b);
        assert!(!captures.any());
        captures.end(a);
        captures.begin(a, CONTEXT);
        assert!(captures.any(), "a new one on the same stream");
    }

    #[test]
    fn a_stream_that_was_not_destroyed_still_captures() {
        let stream = std::ptr::without_provenance_mut(0x10);
        let captures = Captures::default();
        captures.begin(stream, CONTEXT);
        let running = captures.take(stream);
        assert!(!captures.any());
        running.into_iter().for_each(|running| captures.put_back(running));
        assert!(captures.any());
        assert!(captures.take(std::ptr::without_provenance_mut(0x20)).is_none());
    }
}
