//! Hook of peer access, by which kernels of one device use the memory of another.

use crate::driver::contexts::Live;
use crate::driver::types::{CUDA_SUCCESS, CUcontext, CUresult};
use crate::freeze::facts::{NOTED, Noted};
use crate::state::State;

/// `cuCtxEnablePeerAccess`: maps managed memory in place of device memory for the current context's device.
pub fn enable(peer: CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if result == CUDA_SUCCESS {
        NOTED.note(Noted::Peers);
    }
    if let (CUDA_SUCCESS, Some(state)) = (result, State::existing()) {
        let owner = state
            .contexts
            .visit()
            .iter()
            .find(|live| live.context() == peer)
            .map(Live::device);
        if let Some((owner, current)) = owner.zip(state.driver.current_device()) {
            state.memory.add_peer(owner, current);
        }
    }
    result
}
