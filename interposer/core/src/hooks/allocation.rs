//! Hooks of plain device memory, charged to the session's quota. Under the managed memory backend,
//! `cuMemAlloc` and `cuMemAllocPitch` allocate managed memory instead, which can leave the card. Under the
//! backend `remap` they allocate device memory that gpushare itself moves (`remap/`).

use std::ffi::c_uint;
use std::time::Duration;

use gpushare_proto::{Backend, Bytes};

use crate::driver::types::{
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult, MEM_ATTACH_GLOBAL,
};
use crate::memory::Table;
use crate::memory::allocations::Origin;
use crate::remap::{NotAllocated, Want};
use crate::state::State;

/// Longest wait of an allocation under an open gate for memory of others to leave the card.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the first goal of a daemon, which has started again and waits for the reports of all
/// processes.
const FIRST_GOAL_PATIENCE: Duration = Duration::from_secs(30);
/// Wait after which the daemon hears that the card has no memory, and pause until it hears so again. Memory
/// of a dead process comes back in less.
const FULL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));
/// Alignment of rows in bytes: the pitch of `cuMemAllocPitch` on every card since Pascal.
const PITCH_ALIGNMENT: usize = 512;

/// `cuMemAlloc`: charges the session. Allocates managed memory under the managed memory backend.
pub unsafe fn alloc(address: *mut CUdeviceptr, size: usize, mut real: impl FnMut() -> CUresult) -> CUresult {
    let Some((state, device)) = sharing(address, size) else { return real() };
    // SAFETY: `address` is writable, as the caller promises.
    unsafe {
        match state.memory.backend_on(device) {
            Backend::Managed => charged_managed(state, device, address, size),
            Backend::Native => charged(state, device, address, size, Origin::Native, real),
            Backend::Remap => charged_remapped(state, device, address, size),
        }
    }
}

/// `cuMemAllocManaged`, and `cuMemAlloc` of CUDA 2: charges the session. The 32-bit addresses of CUDA 2
/// cannot be those of managed memory.
pub unsafe fn alloc_as<Address: Copy + Into<CUdeviceptr>>(
    address: *mut Address,
    size: usize,
    origin: Origin,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let Some((state, device)) = sharing(address, size) else { return real() };
    let origin = match (origin, state.memory.backend_on(device)) {
        (Origin::Managed, Backend::Remap) => Origin::FixedManaged,
        _ => origin,
    };
    // SAFETY: `address` is writable, as the caller promises.
    unsafe { charged(state, device, address, size, origin, real) }
}

/// `cuMemAllocPitch` of CUDA 2: charges the session, like [`alloc_as`].
pub unsafe fn alloc_pitch_narrow(
    address: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let size = (width as usize)
        .next_multiple_of(PITCH_ALIGNMENT)
        .saturating_mul(height as usize);
    let Some((state, device)) = sharing(address, size).filter(|_| !pitch.is_null()) else {
        return real();
    };
    // SAFETY: `address` is writable, as the caller promises.
    unsafe { charged(state, device, address, size, Origin::Native, real) }
}

/// `cuMemAllocPitch`: charges the session. Allocates rows of managed memory under the managed memory backend.
pub unsafe fn alloc_pitch(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let row = width.checked_next_multiple_of(PITCH_ALIGNMENT).unwrap_or(0);
    // A size that overflows is left to the driver, which knows the right error.
    let size = row.checked_mul(height).unwrap_or(0);
    let Some((state, device)) = sharing(address, size).filter(|_| !pitch.is_null()) else {
        return real();
    };
    // SAFETY: both pointers are writable, as the caller promises.
    unsafe {
        let result = match state.memory.backend_on(device) {
            Backend::Native => return charged(state, device, address, size, Origin::Native, real),
            Backend::Managed => charged_managed(state, device, address, size),
            Backend::Remap => charged_remapped(state, device, address, size),
        };
        if result == CUDA_SUCCESS {
            pitch.write(row);
        }
        result
    }
}

/// `cuMemFree`: frees a recorded block and gives its quota back.
pub fn free(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    if state.memory.remap.is_used()
        && let Some(result) = free_remapped(state, address)
    {
        return result;
    }
    state.memory.free(Table::Blocks, address, real)
}

/// Frees a remapped block; `None` for other memory. Out of line, so that the free of other memory stays
/// short.
#[cold]
#[inline(never)]
fn free_remapped(state: &State, address: CUdeviceptr) -> Option<CUresult> {
    state.memory.free_remapped(address, state.gate.captures.any())
}

/// Returns the process's state and the current device, if the process shares that device.
pub(super) fn shared() -> Option<(&'static State, CUdevice)> {
    let state = State::get()?;
    Some((state, state.shared_device()?))
}

/// Returns the same as [`shared`] for an allocation of `size` bytes; `None` for arguments that the driver
/// refuses.
fn sharing<Address>(address: *mut Address, size: usize) -> Option<(&'static State, CUdevice)> {
    shared().filter(|_| !address.is_null() && size > 0)
}

/// Runs `allocate`, which allocates `size` bytes, within the quota, and records the block.
///
/// # Safety
/// `allocate` writes `address` when it succeeds.
unsafe fn charged<Address: Copy + Into<CUdeviceptr>>(
    state: &'static State,
    device: CUdevice,
    address: *mut Address,
    size: usize,
    origin: Origin,
    allocate: impl FnMut() -> CUresult,
) -> CUresult {
    // SAFETY: written by `allocate`.
    let key = || unsafe { address.read() }.into();
    state
        .memory
        .allocate(Table::Blocks, device, Bytes(size as u64), origin, allocate, key)
}

/// Allocates device memory at an address that gpushare has reserved, like [`charged`]. While the card has no
/// room for the process, the thread waits at the gate, and then for memory of others that leaves the card.
///
/// # Safety
/// `address` is writable.
#[cold]
#[inline(never)]
unsafe fn charged_remapped(
    state: &'static State,
    device: CUdevice,
    address: *mut CUdeviceptr,
    size: usize,
) -> CUresult {
    if state.gate.captures.any()
        && let Err(refused) = state.driver.allowed_beside_capture()
    {
        return refused;
    }
    let size = Bytes(size as u64);
    let allocate = || {
        let made = await_room(state, device, |want| {
            let parts = (&state.driver, &state.contexts);
            state.memory.allocate_remapped(parts, device, size, want)
        });
        match made {
            Ok(made) => {
                // SAFETY: writable, as the caller promises.
                unsafe { address.write(made) };
                CUDA_SUCCESS
            }
            Err(error) => error,
        }
    };
    // SAFETY: `allocate` writes `address` when it succeeds.
    unsafe { charged(state, device, address, size.0 as usize, Origin::Remapped, allocate) }
}

/// Runs `allocate` until the card has room for the memory. Meanwhile the thread waits at the gate, and then
/// for memory of others that leaves the card.
///
/// # Errors
/// Result for the application.
pub(super) fn await_room<T>(
    state: &'static State,
    device: CUdevice,
    mut allocate: impl FnMut(&mut Option<Want>) -> Result<T, NotAllocated>,
) -> Result<T, CUresult> {
    let (mut waited, mut want, mut tells_at) = (Duration::ZERO, None, FULL.0);
    loop {
        let made = allocate(&mut want);
        // If it cannot start now, a later call or message starts it.
        state.start_drainer();
        match made {
            Ok(made) => return Ok(made),
            Err(NotAllocated::Failed(result)) => return Err(result),
            Err(no @ (NotAllocated::NotNow(bytes) | NotAllocated::CardFull(bytes))) => {
                drop(want.take());
                want = state.memory.remap.want(device, bytes);
                // A program that waits for its turn needs no room before.
                match super::work::pass() {
                    Ok(pass) => drop(pass),
                    Err(interrupted) => return Err(interrupted),
                }
                let is_full = matches!(no, NotAllocated::CardFull(_));
                let patience = match state.memory.remap.has_goal(device) {
                    true => ROOM_PATIENCE,
                    false => FIRST_GOAL_PATIENCE,
                };
                if waited >= patience {
                    return Err(CUDA_ERROR_OUT_OF_MEMORY);
                }
                if is_full && waited >= tells_at {
                    tells_at = waited + FULL.1;
                    // Whatever the answer is, the daemon knows now, and another one may give.
                    state.memory.ask_headroom(device, bytes);
                }
                waited += state.memory.wait_for_room();
            }
        }
    }
}

/// Allocates managed memory in place of device memory, like [`charged`].
///
/// # Safety
/// `address` is writable.
unsafe fn charged_managed(
    state: &'static State,
    device: CUdevice,
    address: *mut CUdeviceptr,
    size: usize,
) -> CUresult {
    // SAFETY: `address` is writable, as the caller promises, and the driver writes it when it succeeds.
    unsafe {
        let allocate = || (state.driver.mem_alloc_managed)(address, size, MEM_ATTACH_GLOBAL);
        let result = charged(state, device, address, size, Origin::Rewritten, allocate);
        if result == CUDA_SUCCESS {
            state.memory.advise(device, address.read(), Bytes(size as u64));
        }
        result
    }
}
