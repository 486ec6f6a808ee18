//! Hooks of stream-ordered memory and its pools. The driver owns the pools, so their memory never leaves the
//! card, except in pools of managed memory.
//!
//! ```text
//!   quota for all of it at hand? ─ no ─▶ has the pool so much unused? ─ no ─▶ ask for the rest ─▶ refused
//!        │ yes                               │ yes                                │
//!        └──────────────▶ the driver ◀───────┴────────────────────────────────────┘
//!                             │
//!              what did the pool take? ── more than there is quota for ──▶ freed and trimmed, refused
//! ```
//!
//! Inside a capture the call allocates nothing. It becomes a node of a graph, which takes memory when the
//! graph is launched.

use std::ffi::c_int;
use std::ptr::null_mut;

use gpushare_proto::Bytes;
use gpushare_sys::bell;

use super::allocation::shared;
use super::location::{Location, Properties};
use crate::daemon::MemoryKind;
use crate::driver::answer;
use crate::driver::contexts::Live;
use crate::driver::types::{
    ALLOCATION_MANAGED, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUmemoryPool, CUresult, CUstream, DefaultStream,
    STREAM_PER_THREAD,
};
use crate::freeze::facts::{NOTED, Noted};
use crate::gate::page;
use crate::memory::Table;
use crate::memory::pools::{Pool, PoolId};
use crate::state::State;

/// `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`: charges the session for the pool's growth. Without a pool
/// argument, the current pool of the stream's device is meant.
pub unsafe fn alloc_async(
    address: *mut CUdeviceptr,
    size: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    default: DefaultStream,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some((state, current)) = shared() else { return real() };
    let stream = named(stream, default);
    if records(state, stream) {
        state.memory.note_graph_memory(device_of(state, stream, current));
        return real();
    }
    let device = if pool.is_some() { current } else { device_of(state, stream, current) };
    let Some(handle) = pool.or_else(|| current_pool(state, device)) else { return real() };
    let pool = state.memory.register_pool(PoolId::of(handle), device, MemoryKind::Fixed);
    if address.is_null() || size == 0 || pool.device == ELSEWHERE {
        return real();
    }
    // The pool may lie on a card where the process has no context.
    if let Err(refused) = state.admit(pool.device) {
        return refused;
    }
    let pledge = match state.memory.pledge(&pool, Bytes(size as u64)) {
        Ok(pledge) => pledge,
        Err(refused) => return refused,
    };
    let result = real();
    if result != CUDA_SUCCESS {
        return result;
    }
    let Err(refused) = pledge.cover() else { return result };
    // SAFETY: written by the driver.
    undo(state, &pool, handle, unsafe { address.read() }, stream);
    // SAFETY: writable, as the caller promises.
    unsafe { address.write(0) };
    refused
}

/// `cuMemFreeAsync`: frees memory of a pool, and gives the quota back for what the pool returns to the card.
/// Other memory is freed when the stream comes to the call.
pub fn free_async(
    address: CUdeviceptr,
    stream: CUstream,
    default: DefaultStream,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    let stream = named(stream, default);
    // The driver refuses a block that is no pool's, and in a capture the driver's answer is the right one.
    let ours = if records(state, stream) {
        None
    } else {
        state.memory.free_in_order(address, stream)
    };
    if ours == Some(CUDA_SUCCESS) {
        // The drainer looks after it.
        bell::ring(page());
    }
    ours.unwrap_or_else(|| state.memory.free(Table::Blocks, address, real))
}

/// `cuMemPoolCreate`: creates a pool and records it.
pub unsafe fn create(
    pool: *mut CUmemoryPool,
    properties: *const Properties,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if !properties.is_null() {
        // SAFETY: the driver reads the properties too.
        let properties = unsafe { properties.read() };
        note_place(properties.location, properties.kind);
    }
    let result = real();
    if let (CUDA_SUCCESS, Some(state), false) = (result, State::get(), properties.is_null()) {
        // SAFETY: the driver read the properties and wrote the handle.
        let (pool, properties) = unsafe { (pool.read(), properties.read()) };
        let (device, kind) = place(state, properties.location, properties.kind);
        state.memory.register_own_pool(PoolId::of(pool), device, kind);
    }
    result
}

/// `cuMemPoolDestroy`: destroys a pool, which stays charged until its memory is back on the card.
pub fn destroy(pool: CUmemoryPool, real: impl FnOnce() -> CUresult) -> CUresult {
    match State::existing() {
        Some(state) => state.memory.destroy_pool(PoolId::of(pool), real),
        None => real(),
    }
}

/// `cuMemPoolTrimTo`, `cuMemPoolSetAttribute`: gives the quota back for what the pool returns to the card.
pub fn shrinks(pool: CUmemoryPool, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if let Some(state) = State::existing() {
        state.memory.shrink_pool(PoolId::of(pool));
    }
    result
}

/// `cuDeviceGetMemPool`, `cuDeviceGetDefaultMemPool`: records a pool that the application may allocate from.
pub unsafe fn named_by_device(
    pool: *mut CUmemoryPool,
    device: CUdevice,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    if let (CUDA_SUCCESS, Some(state), false) = (result, State::get(), pool.is_null()) {
        // SAFETY: the driver just wrote the handle.
        state
            .memory
            .register_pool(PoolId::of(unsafe { pool.read() }), device, MemoryKind::Fixed);
    }
    result
}

/// `cuMemGetMemPool`, `cuMemGetDefaultMemPool`: records a pool that the application may allocate from.
pub unsafe fn named_by_location(
    pool: *mut CUmemoryPool,
    location: *const Location,
    kind: c_int,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if !location.is_null() {
        // SAFETY: the driver reads the location too.
        note_place(unsafe { location.read() }, kind);
    }
    let result = real();
    if let (CUDA_SUCCESS, Some(state), false, false) =
        (result, State::get(), pool.is_null(), location.is_null())
    {
        // SAFETY: the driver read the location and wrote the handle.
        let (pool, location) = unsafe { (pool.read(), location.read()) };
        let (device, kind) = place(state, location, kind);
        state.memory.register_pool(PoolId::of(pool), device, kind);
    }
    result
}

/// Notes a pool whose memory is on the host, or managed, with which no process comes back from a freeze. A process that
/// is to be frozen looks for such facts after its calls began to wait, so the fact comes before the driver's call. It
/// stays if the driver refuses the call.
fn note_place(location: Location, kind: c_int) {
    if kind == ALLOCATION_MANAGED || location.device().is_none() {
        NOTED.note(Noted::HostHandles);
    }
}

/// Returns the device to which a pool is charged, and the kind of its memory. A pool outside the cards is not
/// charged. A managed pool without a device is charged to the calling thread's device.
fn place(state: &State, location: Location, kind: c_int) -> (CUdevice, MemoryKind) {
    let kind = if kind == ALLOCATION_MANAGED { MemoryKind::Movable } else { MemoryKind::Fixed };
    let device = location.device().or_else(|| match kind {
        MemoryKind::Movable => state.driver.current_device(),
        MemoryKind::Fixed => None,
    });
    (device.unwrap_or(ELSEWHERE), kind)
}

/// Device ordinal that stands for memory on no card.
const ELSEWHERE: CUdevice = -1;

/// Frees an allocation for which the pool took more than the quota allows.
#[cold]
fn undo(state: &State, pool: &Pool, handle: CUmemoryPool, address: CUdeviceptr, stream: CUstream) {
    if let (Some(free), Some(trim)) = (state.driver.mem_free_async, state.driver.mem_pool_trim_to) {
        // SAFETY: frees what was just allocated, in the order of the same stream; the pool is alive.
        unsafe {
            free(address, stream);
            // A wait would invalidate a capture. Then the excess is owed until the pool returns it.
            if !state.gate.captures.any() {
                (state.driver.stream_synchronize)(stream);
                trim(handle, 0);
            }
        }
    }
    state.memory.charge_pool(pool);
}

/// Replaces a null stream by the per-thread default stream for a call of that kind.
fn named(stream: CUstream, default: DefaultStream) -> CUstream {
    match default {
        DefaultStream::PerThread if stream.is_null() => std::ptr::without_provenance_mut(STREAM_PER_THREAD),
        _ => stream,
    }
}

/// Returns whether a capture records a call on `stream`.
fn records(state: &State, stream: CUstream) -> bool {
    if !state.gate.captures.any() {
        return false;
    }
    let Some(ask) = state.driver.stream_is_capturing else { return false };
    // SAFETY: writes one integer; it may be called at any time.
    answer(0, |status| unsafe { ask(stream, status) }).is_some_and(|status| status != 0)
}

fn device_of(state: &State, stream: CUstream, current: CUdevice) -> CUdevice {
    if stream.addr() <= STREAM_PER_THREAD {
        return current;
    }
    let context = state.driver.context_of(stream);
    if context == state.driver.current_context() {
        return current;
    }
    let live = state.contexts.visit();
    live.iter().find(|live| live.context() == context).map_or(current, Live::device)
}

fn current_pool(state: &State, device: CUdevice) -> Option<CUmemoryPool> {
    let ask = state.driver.device_get_mem_pool?;
    // SAFETY: writes one pointer.
    answer(null_mut(), |pool| unsafe { ask(pool, device) }).filter(|pool| !pool.is_null())
}
