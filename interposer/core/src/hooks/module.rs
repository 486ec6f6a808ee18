//! Code comes onto the card: for itself, for the stacks of its kernels, for what the libraries that brought it keep.

use super::allocation::shared;
use crate::driver::types::CUresult;
use crate::process::State;
use crate::room;

/// `cuModuleLoad…`: into the current context.
pub fn load(mut real: impl FnMut() -> CUresult) -> CUresult {
    match shared() {
        Some((state, device)) => state.ask_and_try(device, room::MODULE, real),
        None => real(),
    }
}

/// `cuLibraryLoad…`: into no context in particular, and often only noted until a kernel is asked for. So nobody is asked before.
pub fn load_library(mut real: impl FnMut() -> CUresult) -> CUresult {
    let device = State::existing().and_then(|state| Some((state, state.driver.current_device()?)));
    match device {
        Some((state, device)) => state.with_room(device, room::MODULE, real),
        None => real(),
    }
}
