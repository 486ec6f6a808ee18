//! Table of memory by handle, as hooks lock it around a call of the driver. In one of those calls, a
//! profiler's callback may call the driver again: such a call knows no state and goes to the driver as it is.

use gpushare_sys::unwind::uncancelled;

use super::work;
use crate::driver::types::{CUDA_SUCCESS, CUresult};
use crate::gate::Pass;
use crate::memory::handles::{Adopted, Ended, Handles, Locked, is_holder};
use crate::state::State;

/// Table of handles, locked while no memory is adopted of what a call is about. The pass keeps that so.
pub(super) struct AtDriver {
    state: &'static State,
    pub(super) handles: Locked<'static>,
    /// Memory that was adopted before the call.
    taken: Vec<Adopted>,
    _pass: Option<Pass<'static>>,
}

impl AtDriver {
    /// Runs the call. If it fails, and so has changed nothing, what was adopted is so again.
    pub(super) fn run(&mut self, real: impl FnOnce() -> CUresult) -> CUresult {
        let result = real();
        if result != CUDA_SUCCESS {
            uncancelled(|| self.state.memory.adopt_again(&mut self.handles, &self.taken));
        }
        result
    }
}

/// Locks the table of handles once the driver has all memory that `meant` returns. If there is some, the
/// thread passes the gate first, so the memory is not away.
///
/// # Errors
/// Result for the application.
pub(super) fn at_driver(
    state: &'static State,
    meant: impl Fn(&Handles) -> Vec<Adopted>,
) -> Result<AtDriver, CUresult> {
    at_driver_with(state, None, meant)
}

/// Does the same as [`at_driver`], for a thread that may have passed the gate already.
pub(super) fn at_driver_with(
    state: &'static State,
    mut pass: Option<Pass<'static>>,
    meant: impl Fn(&Handles) -> Vec<Adopted>,
) -> Result<AtDriver, CUresult> {
    loop {
        let mut handles = state.memory.handles();
        let taken = meant(&handles);
        if taken.is_empty() || pass.is_some() {
            uncancelled(|| state.memory.give_to_driver(&mut handles, &taken))?;
            return Ok(AtDriver { state, handles, taken, _pass: pass });
        }
        drop(handles);
        pass = Some(work::pass()?);
    }
}

/// Returns the state of the process, except in a call of the driver that the thread makes with the table of
/// handles locked.
pub(super) fn known() -> Option<&'static State> {
    State::existing().filter(|_| !is_holder())
}

/// Returns the state of a process in which handles may have names.
pub(super) fn with_names() -> Option<&'static State> {
    known().filter(|state| state.memory.remap.is_used())
}

/// Calls the driver while the table of handles is locked. After a success runs `note`, and gives back what
/// belongs to the pieces that `note` returns.
pub(super) fn after<I: IntoIterator<Item = Ended>>(
    real: impl FnOnce() -> CUresult,
    note: impl FnOnce(&mut Handles) -> I,
) -> CUresult {
    let Some(state) = known() else { return real() };
    let mut handles = state.memory.handles();
    let result = real();
    if result != CUDA_SUCCESS {
        return result;
    }
    let free = note(&mut handles);
    drop(handles);
    state.memory.end_pieces(free);
    result
}
