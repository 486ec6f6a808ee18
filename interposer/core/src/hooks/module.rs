//! Code comes onto the card: for itself, for the stacks of its kernels, for what the libraries that brought it keep.

use super::allocation::shared;
use crate::driver::types::CUresult;
use crate::memory::headroom;
use crate::state::State;

/// `cuModuleLoad…`: into the current context.
pub fn load(mut real: impl FnMut() -> CUresult) -> CUresult {
    match shared() {
        Some((state, device)) => state.memory.ask_and_call(device, headroom::MODULE, real),
        None => real(),
    }
}

/// `cuLibraryLoad…`: into no context in particular, and often only noted until a kernel is asked for. So nobody is asked before.
pub fn load_library(mut real: impl FnMut() -> CUresult) -> CUresult {
    let device = State::existing().and_then(|state| Some((state, state.driver.current_device()?)));
    match device {
        Some((state, device)) => state.memory.call_with_headroom(device, headroom::MODULE, real),
        None => real(),
    }
}
