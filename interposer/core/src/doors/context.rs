//! Contexts come and go. The first one brings the process to its daemon; a dead one takes its blocks along.

use std::sync::MutexGuard;
use std::time::Instant;

use crate::contexts::{Kind, Live, count, primary, remove};
use crate::cuda::{CUDA_SUCCESS, CUcontext, CUdevice, CUresult};
use crate::process::State;

/// A context is made on `device`, or its primary one retained; `made` is where the driver writes it.
///
/// # Safety
/// `made` is null or writable, as the driver's function demands.
pub unsafe fn create(
    kind: Kind,
    made: *mut CUcontext,
    device: CUdevice,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let begun = Instant::now();
    let Some(state) = State::get() else { return real() };
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    let before = begun.elapsed();
    let result = real();
    let made_at = Instant::now();
    if result == CUDA_SUCCESS && !made.is_null() {
        // SAFETY: the driver just wrote the handle there.
        let context = unsafe { made.read() };
        if let Some(live) = state.contexts.created(context, device, kind) {
            state.tell_contexts(device, live);
        }
        state.note_first_context(before + made_at.elapsed());
    }
    result
}

/// `context` is destroyed, with everything in it.
pub fn destroy(context: CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    let live = state.contexts.visit();
    let result = real();
    if result == CUDA_SUCCESS {
        bury(state, live, context);
    }
    result
}

/// The primary context of `device` is released or reset: dead if the driver says so afterwards.
pub fn release_primary(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    let live = state.contexts.visit();
    let result = real();
    let (mut flags, mut active) = (0, 1);
    // SAFETY: writes two integers.
    let asked = unsafe { (state.driver.primary_ctx_get_state)(device, &raw mut flags, &raw mut active) };
    let dead = result == CUDA_SUCCESS && asked == CUDA_SUCCESS && active == 0;
    if let Some(context) = primary(&live, device).filter(|_| dead) {
        bury(state, live, context);
    }
    result
}

fn bury(state: &'static State, mut live: MutexGuard<'_, Vec<Live>>, context: CUcontext) {
    let Some(device) = remove(&mut live, context) else { return };
    let left = count(&live, device);
    drop(live);
    state.captures.end_context(context);
    for block in state.books.strike_context(context) {
        state.give_back(block.device, block.size, block.origin.kind());
    }
    state.look_at_pools(device);
    state.tell_contexts(device, left);
}
