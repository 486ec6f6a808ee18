//! Hook of calls that load code. The driver takes memory for the code, for the stacks of its kernels, and
//! for its data.

use crate::driver::types::CUresult;
use crate::state::State;

/// `cuModuleLoad…`, `cuLibraryLoad…`: repeats the call for a while if the driver has no memory.
pub fn load(mut real: impl FnMut() -> CUresult) -> CUresult {
    let device = State::existing().and_then(|state| Some((state, state.driver.current_device()?)));
    match device {
        Some((state, device)) => state.memory.call_for_the_driver(device, real),
        None => real(),
    }
}
