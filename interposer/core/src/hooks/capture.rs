//! Hooks of the begin and end of stream captures.

use std::ffi::c_int;

use crate::driver::contexts::Live;
use crate::driver::types::{
    CAPTURE_STATUS_NONE, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
    CUDA_SUCCESS, CUresult, CUstream,
};
use crate::hooks::work;
use crate::state::State;

/// Begins a capture. Driver calls of gpushare that would break the capture are prevented until its end.
pub fn begin(stream: CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::get() else { return real() };
    let _pass = match work::pass() {
        Ok(pass) => pass,
        Err(interrupted) => return interrupted,
    };
    let context = state.driver.context_of(stream);
    // The drain marks the end of a context's work under this lock, which would invalidate a capture that is
    // not recorded yet. Without marks (older drivers) the drain may hold the lock while work runs that waits
    // for this thread.
    let mut no_marks = state.driver.ctx_record_event.is_some().then(|| state.contexts.visit());
    let beginning = state.gate.captures.beginning();
    let live = no_marks.as_mut().and_then(|live| live.find(context));
    let covered = live.is_some_and(|live| cover(state, live));
    let result = real();
    if result == CUDA_SUCCESS {
        state.gate.captures.begin(stream, context, covered);
    }
    drop(beginning);
    state.gate.captures.show();
    result
}

/// Marks all present work of a context, in which a capture is about to begin. The context may refuse that
/// afterwards (`gate/in_flight.rs`). Returns `false` if the mark would break an earlier capture.
fn cover(state: &State, live: &mut Live) -> bool {
    let (driver, context) = (&state.driver, live.context());
    if state.gate.captures.has(context.addr()) {
        return false;
    }
    let mark = |live: &mut Live| {
        let (record, event) = (driver.ctx_record_event?, live.event(driver)?);
        // SAFETY: both are alive, because the caller has locked the contexts, and belong together.
        Some(unsafe { record(context, event) } == CUDA_SUCCESS)
    };
    driver.relaxed(|| live.enter(driver, mark)).flatten() == Some(true)
}

/// Ends a capture, if the driver agrees. The wrong thread, or a stream that only joined, ends nothing.
pub fn end(stream: CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if let Some(state) = State::existing()
        && has_ended(result, || state.driver.capture_status(stream))
    {
        state.gate.captures.end(stream);
    }
    result
}

/// Returns whether a capture ended, given the call's `result`. `status` asks the driver, if it can answer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::types::CAPTURE_STATUS_ACTIVE;

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
