//! Hooks of calls that load code. The driver takes memory for the code, for the stacks of its kernels, and
//! for its data.

use super::allocation::shared;
use crate::driver::types::CUresult;
use crate::memory::headroom;
use crate::state::State;

/// `cuModuleLoad…`: asks the daemon for headroom (free memory for the driver) before code is loaded into the
/// current context.
pub fn load(mut real: impl FnMut() -> CUresult) -> CUresult {
    match shared() {
        Some((state, device)) => state.memory.ask_and_call(device, headroom::MODULE, real),
        None => real(),
    }
}

/// `cuLibraryLoad…`: asks the daemon for headroom only if the driver is out of memory, because the driver
/// often loads the code later.
pub fn load_library(mut real: impl FnMut() -> CUresult) -> CUresult {
    let device = State::existing().and_then(|state| Some((state, state.driver.current_device()?)));
    match device {
        Some((state, device)) => state.memory.call_with_headroom(device, headroom::MODULE, real),
        None => real(),
    }
}
