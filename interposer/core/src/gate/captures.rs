//! Stream captures of the program. Launches into a capture are recorded and not executed, and a wait of
//! gpushare would break the capture. So during a capture the process keeps its lock, and gpushare waits for
//! no work.
//!
//! A capture is identified by the stream in which it began. Streams that join by an event end with it. A
//! capture that was invalidated does not count, because no wait can break it and the program may never end
//! it. It still keeps its context from being marked or synchronised. So the drain needs to know what may be
//! in flight there (`in_flight.rs`): a capture is *covered* if an event marks all work before it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gpushare_proto::page::FLAG_CAPTURING;

use crate::driver::types::{CAPTURE_STATUS_INVALIDATED, CUcontext, CUstream, STREAM_PER_THREAD};
use crate::driver::{Driver, contexts::Contexts};
use crate::gate::thread_number;
use crate::process::lock;

/// Stream captures (CUDA graphs being recorded) that have begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    running: Mutex<Vec<Running>>,
    /// Number of valid stream captures. A wait at the gate would break them.
    count: AtomicUsize,
    beginning: AtomicUsize,
    /// Number of threads in driver calls that would break a beginning capture.
    asking: Alone,
    /// Whether a thread's own default stream got work since the first of the present captures began. No other
    /// thread can name such a stream.
    unnamed: AtomicBool,
}

/// Counter in a cache line of its own. Launches write it, and read the counters beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone(AtomicUsize);

/// Guard that keeps a counter one higher during its lifetime.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicUsize);

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

#[derive(Debug)]
pub(crate) struct Running {
    stream: Name,
    /// Address of the context with which the capture ends.
    context: usize,
    invalidated: bool,
    /// Whether the event of the context marks all work before the capture, and whether the work since then
    /// can be asked about.
    covered: bool,
}

impl Captures {
    /// Adds a capture that has begun in `stream`. It is `covered` if all earlier work of its context is
    /// marked.
    pub(crate) fn begin(&self, stream: CUstream, context: CUcontext, covered: bool) {
        let (stream, context) = (name(stream), context.addr());
        self.put_back(Running { stream, context, invalidated: false, covered });
    }

    /// Removes the capture on `stream`, which ended with or without an error. Ignores unknown streams.
    pub(crate) fn end(&self, stream: CUstream) {
        self.take(stream);
    }

    /// Removes and returns the capture on `stream`, so that the driver is not asked about the stream any
    /// more.
    pub(crate) fn take(&self, stream: CUstream) -> Option<Running> {
        self.update(|captures| {
            let at = captures.iter().position(|running| running.stream == name(stream))?;
            Some(captures.swap_remove(at))
        })
    }

    /// Restores a capture after the program failed to destroy its stream.
    pub(crate) fn put_back(&self, running: Running) {
        self.update(|captures| captures.push(running));
    }

    pub(crate) fn end_context(&self, context: CUcontext) {
        self.update(|captures| captures.retain(|running| running.context != context.addr()));
    }

    /// Records which captures of a context are `invalidated`. Skips a thread's own default stream, since only
    /// that thread can name it. The caller makes sure that no stream is destroyed meanwhile.
    fn check(&self, context: CUcontext, invalidated: impl Fn(CUstream) -> bool) {
        self.update(|captures| {
            let here = captures.iter_mut().filter(|running| {
                !running.invalidated && running.context == context.addr() && running.stream.thread.is_none()
            });
            for running in here {
                running.invalidated =
                    invalidated(std::ptr::with_exposed_provenance_mut(running.stream.handle));
            }
        });
    }

    /// Returns whether a capture has begun in a context and not ended, even an invalidated one.
    pub(crate) fn has(&self, context: usize) -> bool {
        lock(&self.running).iter().any(|running| running.context == context)
    }

    /// Returns whether a capture began in `stream` and has not ended.
    pub(crate) fn began_in(&self, stream: CUstream) -> bool {
        lock(&self.running).iter().any(|running| running.stream == name(stream))
    }

    /// Returns whether all captures of a context are covered, and all streams with later work have names.
    pub(crate) fn are_covered(&self, context: usize) -> bool {
        let running = lock(&self.running);
        let mut here = running.iter().filter(|running| running.context == context);
        !self.unnamed.load(Ordering::SeqCst) && here.all(|running| running.covered)
    }

    /// Records that work of a context cannot be asked about any more while its present captures last.
    pub(crate) fn uncover(&self, context: usize) {
        self.update(|captures| {
            let here = captures.iter_mut().filter(|running| running.context == context);
            here.for_each(|running| running.covered = false);
        });
    }

    /// Records that a thread's own default stream gets work while a capture has begun and not ended.
    pub(crate) fn note_unnamed(&self) {
        self.unnamed.store(true, Ordering::SeqCst);
    }

    /// Sets the flag in the present page by which launches notice captures, or clears it.
    pub(crate) fn show(&self) {
        self.update(|_| ());
    }

    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Runs driver calls that would break a capture; returns `None` while a capture runs or begins. Both
    /// sides count themselves before they look at the other (Dekker's argument), so neither needs a lock.
    pub(crate) fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        let _asking = Counted::new(&self.asking.0);
        let quiet = self.beginning.load(Ordering::SeqCst) == 0 && !self.any();
        quiet.then(ask)
    }

    /// Prevents new [`Self::undisturbed`] calls until the guard is dropped, and waits for those under way,
    /// which do not block. A capture begins meanwhile. Launches notice it from here on.
    pub(crate) fn beginning(&self) -> Counted<'_> {
        let beginning = Counted::new(&self.beginning);
        self.update(|captures| {
            if captures.is_empty() {
                self.unnamed.store(false, Ordering::SeqCst);
            }
        });
        while self.asking.0.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        beginning
    }

    /// Returns whether a valid capture is under way. The driver says which captures are invalidated.
    pub(crate) fn is_capturing(&self, driver: &Driver, contexts: &Contexts) -> bool {
        if self.any() {
            for live in contexts.visit().iter_mut() {
                let context = live.context();
                live.enter(driver, |_| {
                    let status = |stream| driver.capture_status(stream);
                    self.check(context, |stream| status(stream) == Some(CAPTURE_STATUS_INVALIDATED));
                });
            }
        }
        self.any()
    }

    fn update<T>(&self, change: impl FnOnce(&mut Vec<Running>) -> T) -> T {
        let mut running = lock(&self.running);
        let answer = change(&mut running);
        let valid = running.iter().filter(|running| !running.invalidated).count();
        self.count.store(valid, Ordering::SeqCst);
        let flags = &super::page().flags;
        if running.is_empty() && self.beginning.load(Ordering::SeqCst) == 0 {
            flags.fetch_and(!FLAG_CAPTURING, Ordering::SeqCst);
        } else {
            flags.fetch_or(FLAG_CAPTURING, Ordering::SeqCst);
        }
        answer
    }
}

/// Identity of a stream: its handle, and the thread whose own default stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    handle: usize,
    thread: Option<usize>,
}

/// Returns the identity of a stream that the calling thread names. A null stream in a capture is the thread's
/// own, since the legacy stream cannot be captured.
fn name(stream: CUstream) -> Name {
    match stream.expose_provenance() {
        0 | STREAM_PER_THREAD => Name { handle: STREAM_PER_THREAD, thread: Some(thread_number()) },
        handle => Name { handle, thread: None },
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
        captures.begin(a, CONTEXT, true);
        captures.begin(b, CONTEXT, true);
        captures.end(a);
        captures.end(a);
        assert!(captures.any());
        captures.end(b);
        assert!(!captures.any());
    }

    #[test]
    fn a_capture_on_a_threads_own_stream_ends_under_either_of_its_names() {
        let captures = Captures::default();
        captures.begin(std::ptr::without_provenance_mut(STREAM_PER_THREAD), CONTEXT, true);
        captures.end(std::ptr::null_mut());
        assert!(!captures.any());
    }

    #[test]
    fn a_thread_does_not_end_the_capture_on_another_threads_own_stream() {
        let captures = Captures::default();
        captures.begin(std::ptr::null_mut(), CONTEXT, true);
        std::thread::scope(|scope| scope.spawn(|| captures.end(std::ptr::null_mut())).join().unwrap());
        assert!(captures.any());
        captures.end(std::ptr::null_mut());
        assert!(!captures.any());
    }

    #[test]
    fn no_driver_call_is_made_while_a_capture_begins_or_runs() {
        let captures = Captures::default();
        assert_eq!(captures.undisturbed(|| 7), Some(7));
        let beginning = captures.beginning();
        assert_eq!(captures.undisturbed(|| 7), None);
        captures.begin(std::ptr::without_provenance_mut(0x10), CONTEXT, true);
        drop(beginning);
        assert_eq!(captures.undisturbed(|| 7), None);
        captures.end(std::ptr::without_provenance_mut(0x10));
        assert_eq!(captures.undisturbed(|| 7), Some(7));
    }

    #[test]
    fn a_capture_that_begins_waits_for_a_call_under_way() {
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
        captures.begin(stream, CONTEXT, true);
        captures.end_context(std::ptr::without_provenance_mut(0x200));
        assert!(captures.any());
        captures.end_context(CONTEXT);
        assert!(!captures.any());
    }

    #[test]
    fn an_invalidated_capture_does_not_count_and_may_still_end() {
        let (a, b) = (std::ptr::without_provenance_mut(0x10), std::ptr::without_provenance_mut(0x20));
        let captures = Captures::default();
        captures.begin(a, CONTEXT, true);
        captures.check(std::ptr::without_provenance_mut(0x200), |_| true);
        assert!(captures.any(), "another context's");
        captures.begin(b, CONTEXT, true);
        captures.check(CONTEXT, |stream| stream == a);
        assert!(captures.any());
        captures.end(b);
        assert!(!captures.any());
        captures.end(a);
        captures.begin(a, CONTEXT, true);
        assert!(captures.any(), "a new one on the same stream");
    }

    #[test]
    fn a_context_is_covered_while_all_its_captures_are_and_no_stream_is_without_a_name() {
        let (a, b) = (std::ptr::without_provenance_mut(0x10), std::ptr::without_provenance_mut(0x20));
        let (captures, context) = (Captures::default(), CONTEXT.addr());
        captures.begin(a, CONTEXT, true);
        assert!(captures.has(context) && captures.are_covered(context));
        captures.begin(b, CONTEXT, false);
        assert!(!captures.are_covered(context));
        captures.end(b);
        captures.note_unnamed();
        assert!(!captures.are_covered(context));
        captures.end(a);
        drop(captures.beginning());
        captures.begin(a, CONTEXT, true);
        assert!(captures.are_covered(context), "the next one");
        captures.uncover(context);
        assert!(!captures.are_covered(context));
    }

    #[test]
    fn a_stream_that_was_not_destroyed_still_captures() {
        let stream = std::ptr::without_provenance_mut(0x10);
        let captures = Captures::default();
        captures.begin(stream, CONTEXT, true);
        let running = captures.take(stream);
        assert!(!captures.any());
        running.into_iter().for_each(|running| captures.put_back(running));
        assert!(captures.any());
        assert!(captures.take(std::ptr::without_provenance_mut(0x20)).is_none());
    }
}
