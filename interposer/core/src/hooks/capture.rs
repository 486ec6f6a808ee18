//! Begin and end of stream captures.

use std::ffi::c_int;

use crate::driver::Driver;
use crate::driver::types::{
    CAPTURE_STATUS_ACTIVE, CAPTURE_STATUS_INVALIDATED, CAPTURE_STATUS_NONE,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUDA_SUCCESS, CUcontext,
    CUresult, CUstream, STREAM_PER_THREAD,
};
use crate::hooks::work;
use crate::process::State;

/// A capture begins: with the lock held, and it stays held until the capture ends.
pub fn begin(stream: CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::get() else { return real() };
    let _pass = work::pass();
    let context = state.driver.context_of(stream);
    // Movers mark the end of a context's work under this lock, which would break a capture that they do not know of yet.
    // Without marks (an older driver) they may hold it for as long as work runs, which may wait for this thread.
    let _no_marks = state.driver.ctx_record_event.is_some().then(|| state.contexts.visit());
    let _beginning = state.captures.beginning();
    let result = real();
    if result == CUDA_SUCCESS {
        state.captures.begin(stream, context);
    }
    result
}

/// A capture ends, well or badly. The driver knows: an attempt by the wrong thread or on a stream that only joined ends
/// nothing.
pub fn end(stream: CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if let Some(state) = State::existing()
        && has_ended(result, || state.driver.capture_status(stream))
    {
        state.captures.end(stream);
    }
    result
}

/// A stream is destroyed, and with it a capture in it.
pub fn destroy(stream: CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    // Before the driver forgets the stream: from here on nobody asks it about the capture.
    let running = state.captures.take(stream);
    state.stream_is_gone(stream);
    // Afterwards the handle may be another thread's new stream.
    let mark = state.marked.unmark(stream);
    let result = real();
    if result != CUDA_SUCCESS {
        running.into_iter().for_each(|running| state.captures.put_back(running));
        mark.into_iter().for_each(|mark| state.marked.put_back(mark));
    }
    result
}

/// Whether a capture is over after `result`; `status` asks the driver, if it can say so.
fn has_ended(result: CUresult, status: impl FnOnce() -> Option<c_int>) -> bool {
    match result {
        CUDA_SUCCESS => true,
        _ => match status() {
            Some(status) => status == CAPTURE_STATUS_NONE,
            None => !matches!(
                result,
                CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD | CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            ),
        },
    }
}

impl State {
    /// Whether a capture runs that a wait of ours could break. Asks the driver about those that seem to.
    pub fn is_capturing(&self) -> bool {
        if self.captures.any() {
            for live in self.contexts.visit().iter_mut() {
                let context = live.context();
                live.enter(&self.driver, |_| {
                    let invalidated =
                        |stream| self.driver.capture_status(stream) == Some(CAPTURE_STATUS_INVALIDATED);
                    self.captures.look_at(context, invalidated);
                });
            }
        }
        self.captures.any()
    }
}

impl Driver {
    /// `CUstreamCaptureStatus` of a stream that is not the legacy one; `None` where the driver does not say.
    fn capture_status(&self, stream: CUstream) -> Option<c_int> {
        let named = if stream.is_null() {
            std::ptr::without_provenance_mut(STREAM_PER_THREAD)
        } else {
            stream
        };
        let mut status = CAPTURE_STATUS_ACTIVE;
        // SAFETY: writes one integer; the stream is the application's, and alive.
        let asked = unsafe { self.stream_is_capturing?(named, &raw mut status) };
        (asked == CUDA_SUCCESS).then_some(status)
    }

    /// The context of a stream; the current one where the driver does not say.
    pub(crate) fn context_of(&self, stream: CUstream) -> CUcontext {
        // A thread's own stream is in its current context.
        let ask = self.stream_get_ctx.filter(|_| stream.addr() > STREAM_PER_THREAD);
        let told = ask.and_then(|ask| {
            let mut context = std::ptr::null_mut();
            // SAFETY: writes one handle; the stream is the application's.
            (unsafe { ask(stream, &raw mut context) } == CUDA_SUCCESS).then_some(context)
        });
        told.unwrap_or_else(|| self.current_context())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_over_when_the_driver_says_so() {
        let status = |status| move || Some(status);
        assert!(has_ended(CUDA_SUCCESS, || None));
        assert!(has_ended(901, status(CAPTURE_STATUS_NONE)), "it was invalidated");
        assert!(has_ended(904, || None), "what had joined it was left behind");
        for wrong in [CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED] {
            assert!(!has_ended(wrong, status(CAPTURE_STATUS_ACTIVE)));
            assert!(!has_ended(wrong, || None));
        }
    }
}
