//! Questions and requests of the program about its place at the card.

use gpushare_sys::clock;

use crate::driver::types::{CUDA_SUCCESS, CUresult};
use crate::gate::wake_sleepers;
use crate::state::State;

/// Returns for how long a thread of the process has waited at the gate, in nanoseconds; 0 if none waits.
pub fn waiting() -> u64 {
    match State::existing() {
        Some(state) if state.gate.waiters.any() => (clock::monotonic() - state.gate.waiters.since()).0.max(1),
        _ => 0,
    }
}

/// Gives the card back as soon as no work is in flight, without the idle grace. A launch before that keeps
/// it.
pub fn release() -> CUresult {
    if let Some(state) = State::existing() {
        state.gate.give_back();
        wake_sleepers();
    }
    CUDA_SUCCESS
}
