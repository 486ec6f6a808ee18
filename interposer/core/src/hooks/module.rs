//! Hook of calls that load code. The driver takes memory for the code, for the stacks of its kernels, and
//! for its data.

use crate::driver::types::CUresult;
use crate::memory::headroom;
use crate::state::State;

/// `cuModuleLoad…`, `cuLibraryLoad…`: repeats the call once if the driver found no memory and the daemon says
/// that the card has some.
pub fn load(mut real: impl FnMut() -> CUresult) -> CUresult {
    let device = State::existing().and_then(|state| Some((state, state.driver.current_device()?)));
    match device {
        Some((state, device)) => state.memory.call_with_headroom(device, headroom::DRIVER, real),
        None => real(),
    }
}
