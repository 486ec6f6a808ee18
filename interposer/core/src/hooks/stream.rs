//! Hooks of the creation and destruction of streams. The drain may have to ask about each stream by itself
//! (`gate/in_flight.rs`).

use super::context::known;
use crate::driver::types::{CAPTURE_STATUS_NONE, CUDA_SUCCESS, CUcontext, CUgreenCtx, CUresult, CUstream};
use crate::state::State;
use crate::window::driver::OnDriver;

/// `cuStreamCreate`, `cuStreamCreateWithPriority`: records the stream with the current context.
pub unsafe fn create(made: *mut CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { record_stream(made, real, |state| Some(state.driver.current_context())) }
}

/// `cuGreenCtxStreamCreate`: records the stream with the context of the part of a card.
pub unsafe fn create_in_part(
    made: *mut CUstream,
    part: CUgreenCtx,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { record_stream(made, real, |state| state.contexts.visit().green(part.addr())) }
}

/// # Safety
/// The driver writes `made` when it succeeds.
unsafe fn record_stream(
    made: *mut CUstream,
    real: impl FnOnce() -> CUresult,
    context: impl FnOnce(&State) -> Option<CUcontext>,
) -> CUresult {
    let result = real();
    if let (CUDA_SUCCESS, Some(state), false) = (result, known(), made.is_null())
        && let Some(context) = context(state)
    {
        // SAFETY: the driver just wrote the handle there.
        state.contexts.add_stream(unsafe { made.read() }, context.addr());
    }
    result
}

/// `cuStreamDestroy`: removes the stream and the capture on that stream.
pub fn destroy(stream: CUstream, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    // Before the driver forgets the stream, so that no thread asks it about the capture afterwards.
    let running = state.gate.captures.take(stream);
    let context = state.contexts.take_stream(stream);
    if let Some(context) = context {
        leave_work_behind(state, stream, context);
    }
    state
        .window
        .end_stream(stream, &OnDriver::new(&state.driver, &state.gate.captures));
    // After the driver's call the handle may be another thread's new stream.
    let mark = state.gate.marked.unmark(stream);
    let result = real();
    if result != CUDA_SUCCESS {
        running.into_iter().for_each(|running| state.gate.captures.put_back(running));
        context
            .into_iter()
            .for_each(|context| state.contexts.add_stream(stream, context));
        mark.into_iter().for_each(|mark| state.gate.marked.put_back(mark));
    }
    result
}

/// Records that work of a context is in flight in no stream, if `stream` is destroyed with such work and a
/// capture keeps the drain from marking the context.
fn leave_work_behind(state: &State, stream: CUstream, context: usize) {
    let (driver, captures) = (&state.driver, &state.gate.captures);
    if !captures.has(context) || driver.capture_status(stream) != Some(CAPTURE_STATUS_NONE) {
        return;
    }
    // SAFETY: the stream is the application's, which destroys it only afterwards.
    if driver.relaxed(|| unsafe { (driver.stream_query)(stream) }) != CUDA_SUCCESS {
        captures.uncover(context);
    }
}
