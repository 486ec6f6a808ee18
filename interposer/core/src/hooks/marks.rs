//! Streams that the program marks as carrying communication with other cards (`gpushare_mark_communication`).

use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUresult,
    CUstream,
};
use crate::gate::communication::is_default;
use crate::state::State;

/// Marks or unmarks `stream` for the program.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a default stream, `CUDA_ERROR_OUT_OF_MEMORY` if 64 are marked already,
/// `CUDA_ERROR_NOT_INITIALIZED` before the first context, when there is no stream yet.
pub fn mark(stream: CUstream, on: bool) -> CUresult {
    if is_default(stream) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let Some(state) = State::existing() else { return CUDA_ERROR_NOT_INITIALIZED };
    let marked = &state.gate.marked;
    if !on {
        marked.unmark(stream);
    } else if !marked.mark(stream, state.driver.context_of(stream)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUDA_SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_stream_cannot_be_marked() {
        for stream in (0..=2).map(std::ptr::without_provenance_mut) {
            assert_eq!([true, false].map(|on| mark(stream, on)), [CUDA_ERROR_INVALID_VALUE; 2]);
        }
    }

    #[test]
    fn before_the_first_context_no_stream_can_be_marked() {
        assert_eq!(mark(std::ptr::without_provenance_mut(64), true), CUDA_ERROR_NOT_INITIALIZED);
    }
}
