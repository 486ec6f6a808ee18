//! Hooks that load code. It takes memory for itself, for the stacks of its kernels, and for data of its
//! libraries.

use super::allocation::shared;
use crate::driver::types::CUresult;
use crate::memory::headroom;
use crate::state::State;

/// `cuModuleLoad…`: asks for headroom before code is loaded into the current context.
pub fn load(mut real: impl FnMut() -> CUresult) -> CUresult {
    match shared() {
        Some((state, device)) => state.memory.ask_and_call(device, headroom::MODULE, real),
        None => real(),
    }
}

/// `cuLibraryLoad…`: asks for headroom only if the driver is out of memory, because it often loads the code
/// later.
pub fn load_library(mut real: impl FnMut() -> CUresult) -> CUresult {
    let device = State::existing().and_then(|state| Some((state, state.driver.current_device()?)));
    match device {
        Some((state, device)) => state.memory.call_with_headroom(device, headroom::MODULE, real),
        None => real(),
    }
}
