//! Hooks of context creation and destruction. The first context connects the process to its daemon.
//! Destruction gives the quota of the context's memory back.

use std::cell::Cell;
use std::ptr::null_mut;
use std::time::Instant;

use super::mapping::{end_last_context, visit_to_end};
use crate::driver::answer;
use crate::driver::contexts::{Kind, Visit};
use crate::driver::types::{CUDA_SUCCESS, CUcontext, CUdevice, CUgreenCtx, CUresult};
use crate::state::{State, without_state};
use crate::window::markers::Frozen;

thread_local! {
    /// Whether the thread destroys a context, with the list of contexts locked.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of the driver that may destroy a context. A profiler's callback inside may call the driver
/// again in the same thread: such a call must not lock the list again.
fn ending(real: impl FnOnce() -> CUresult) -> CUresult {
    /// Guard that ends the state even if a callback unwinds.
    struct Ending;
    impl Drop for Ending {
        fn drop(&mut self) {
            ENDING.set(false);
        }
    }
    ENDING.set(true);
    let _ending = Ending;
    real()
}

fn is_ending() -> bool {
    ENDING.get()
}

/// Returns the process's state, except inside the destruction of a context.
pub(super) fn known() -> Option<&'static State> {
    State::existing().filter(|_| !is_ending())
}

/// `cuCtxCreate`, `cuDevicePrimaryCtxRetain` and their variants: connects to the daemon, and
/// records the context.
pub unsafe fn create(
    kind: Kind,
    made: *mut CUcontext,
    device: CUdevice,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let begun = Instant::now();
    let Some(state) = State::get() else { return without_state(real) };
    // Before `cuInit` the driver refuses the call, and does not say what the cards can do.
    if is_ending() || !state.driver.is_initialized() {
        return real();
    }
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    let creation = match kind {
        // The context exists already and only gets one more user.
        Kind::Primary if state.contexts.visit().primary(device).is_some() => None,
        // Until the daemon was told of the context.
        _ => Some(state.begin_creation(device)),
    };
    let called = Instant::now();
    let result = match &creation {
        None => real(),
        Some(_) => state.memory.call_for_the_driver(device, &mut real),
    };
    let theirs = called.elapsed();
    if result == CUDA_SUCCESS && !made.is_null() {
        // SAFETY: the driver just wrote the handle there.
        let context = unsafe { made.read() };
        if let Some(live) = state.contexts.created(context, device, kind) {
            state.send_contexts(device, live);
        }
        state.note_first_context(begun.elapsed().saturating_sub(theirs));
    }
    result
}

/// `cuCtxDestroy`: removes the context with all its memory.
pub fn destroy(context: CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = known() else { return real() };
    let (_pass, live) = visit_to_end(state, |live| live.device_of(context));
    let frozen = state.window.freeze(context);
    let result = ending(real);
    if result == CUDA_SUCCESS {
        remove(state, live, context, frozen);
    }
    result
}

/// `cuDevicePrimaryCtxRelease`, `cuDevicePrimaryCtxReset`: removes the primary context from the list if the
/// call destroyed it.
pub fn release_primary(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = known() else { return real() };
    let (_pass, live) = visit_to_end(state, |live| live.primary(device).map(|_| device));
    let frozen = live.primary(device).and_then(|context| state.window.freeze(context));
    let result = ending(real);
    if result == CUDA_SUCCESS {
        remove_primary_if_dead(state, live, device, frozen);
    }
    result
}

/// `cuCtxAttach`: counts one more user of the current context.
pub unsafe fn attach(made: *mut CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if let (CUDA_SUCCESS, Some(state), false) = (result, known(), made.is_null()) {
        // SAFETY: the driver just wrote the handle there.
        state.contexts.visit().attach(unsafe { made.read() });
    }
    result
}

/// `cuCtxDetach`: counts one user less. Without a user the context is destroyed.
pub fn detach(context: CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = known() else { return real() };
    // This user may be the last one, so everything is prepared for destruction.
    let (_pass, mut live) = visit_to_end(state, |live| live.device_of(context));
    let frozen = state.window.freeze(context);
    let result = ending(real);
    if result == CUDA_SUCCESS {
        match live.primary_of(context) {
            Some(device) => remove_primary_if_dead(state, live, device, frozen),
            None if live.detach(context) => remove(state, live, context, frozen),
            None => {}
        }
    }
    result
}

/// `cuGreenCtxCreate`: records the green context (a part of a device) and its primary context. A green
/// context has streams of its own, so it is drained as a context.
pub unsafe fn create_green(
    made: *mut CUgreenCtx,
    device: CUdevice,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let Some(state) = State::get() else { return without_state(real) };
    if is_ending() {
        return real();
    }
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    let has_primary = || state.contexts.visit().primary(device).is_some();
    let _creation = state.begin_creation(device);
    let result = state.memory.call_for_the_driver(device, real);
    if let (CUDA_SUCCESS, Some(convert), false) = (result, state.driver.ctx_from_green_ctx, made.is_null()) {
        if !has_primary() {
            note_primary(state, device);
        }
        // SAFETY: the driver just wrote the handle there.
        let part = unsafe { made.read() };
        // SAFETY: writes one pointer.
        if let Some(context) = answer(null_mut(), |context| unsafe { convert(context, part) }) {
            state.contexts.created(context, device, Kind::Green(part.addr()));
        }
    }
    result
}

/// `cuGreenCtxDestroy`: removes the green context. Its memory remains with the primary context, if that still
/// lives.
pub fn destroy_green(part: CUgreenCtx, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = known() else { return real() };
    let (_pass, mut live) = visit_to_end(state, |live| live.device_of(live.green(part.addr())?));
    let context = live.green(part.addr());
    let frozen = context.and_then(|context| state.window.freeze(context));
    let of_primary = context.and_then(|context| state.window.freeze(live.primary(live.device_of(context)?)?));
    let result = ending(real);
    let Some(context) = context.filter(|_| result == CUDA_SUCCESS) else { return result };
    let Some(device) = live.remove(context) else { return result };
    if let Some(primary) = live.primary(device) {
        state.memory.move_context(context, primary);
    }
    end(state, context);
    state.window.end_context(frozen);
    remove_primary_if_dead(state, live, device, of_primary);
    result
}

/// Records the primary context of a device, which a green context brought to life and keeps alive.
fn note_primary(state: &State, device: CUdevice) {
    // SAFETY: writes one pointer.
    let retain = |context: &mut _| unsafe { (state.driver.primary_ctx_retain)(context, device) };
    let Some(context) = answer(null_mut(), retain) else { return };
    // SAFETY: releases what was retained above.
    unsafe { (state.driver.primary_ctx_release)(device) };
    if let Some(live) = state.contexts.created(context, device, Kind::Primary) {
        state.send_contexts(device, live);
    }
}

/// Removes the primary context of a device if the driver says that it is dead.
fn remove_primary_if_dead(
    state: &'static State,
    live: Visit<'_>,
    device: CUdevice,
    frozen: Option<Frozen<'_>>,
) {
    let (mut flags, mut active) = (0, 1);
    // SAFETY: writes two integers.
    let asked = unsafe { (state.driver.primary_ctx_get_state)(device, &raw mut flags, &raw mut active) };
    let dead = asked == CUDA_SUCCESS && active == 0;
    if let Some(context) = live.primary(device).filter(|_| dead) {
        remove(state, live, context, frozen);
    }
}

fn remove(state: &'static State, mut live: Visit<'_>, context: CUcontext, frozen: Option<Frozen<'_>>) {
    state.window.end_context(frozen);
    let Some(device) = live.remove(context) else { return };
    let left = live.count(device);
    // Before another thread can record a new context at the same address.
    end(state, context);
    state.memory.end_context(context, device, left == 0);
    drop(live);
    if left == 0 {
        // Without the list of contexts, which steps of a move need.
        end_last_context(state, device);
    }
    state.send_contexts(device, left);
}

/// Forgets the streams of a dead context.
fn end(state: &State, context: CUcontext) {
    state.contexts.end_streams(context);
    state.gate.captures.end_context(context);
    state.gate.marked.end_context(context);
}
