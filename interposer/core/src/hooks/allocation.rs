//! Memory comes and goes: reserve in the books first, then call the driver, then commit or give back.

use std::ffi::c_uint;

use gpushare_proto::{Backend, Bytes};

use crate::driver::types::{CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult, MEM_ATTACH_GLOBAL};
use crate::memory::Table;
use crate::memory::allocations::Origin;
use crate::state::State;

/// What the hardware aligns rows to: the pitch that `cuMemAllocPitch` gives on every card since Pascal.
const PITCH_ALIGNMENT: usize = 512;

/// `cuMemAlloc`: managed memory instead of device memory.
///
/// # Safety
/// `address` is null or writable, as the driver's function demands.
pub unsafe fn alloc(address: *mut CUdeviceptr, size: usize, mut real: impl FnMut() -> CUresult) -> CUresult {
    let Some((state, device)) = shared() else { return real() };
    if address.is_null() || size == 0 {
        return real();
    }
    // SAFETY: `address` is writable.
    unsafe {
        match state.memory.backend() {
            Backend::Managed => {
                charged(state, device, address, size, Origin::Rewritten, || managed(state, address, size))
            }
            Backend::Native => charged(state, device, address, size, Origin::Native, real),
        }
    }
}

/// `cuMemAlloc` of CUDA 2, with addresses of 32 bits: they cannot be those of managed memory.
///
/// # Safety
/// `address` is null or writable, as the driver's function demands.
pub unsafe fn alloc_narrow(address: *mut u32, size: c_uint, mut real: impl FnMut() -> CUresult) -> CUresult {
    let Some((state, device)) = shared().filter(|_| !address.is_null() && size > 0) else {
        return real();
    };
    // SAFETY: `address` is writable.
    unsafe { charged(state, device, address, size as usize, Origin::Native, real) }
}

/// `cuMemAllocPitch` of CUDA 2. What it takes is known when it has taken it.
///
/// # Safety
/// `address` and `pitch` are null or writable, as the driver's function demands.
pub unsafe fn alloc_pitch_narrow(
    address: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let row = (width as usize).next_multiple_of(PITCH_ALIGNMENT);
    let ready = !address.is_null() && !pitch.is_null() && width > 0 && height > 0;
    let Some((state, device)) = shared().filter(|_| ready) else { return real() };
    // SAFETY: `address` is writable.
    unsafe { charged(state, device, address, row.saturating_mul(height as usize), Origin::Native, real) }
}

/// `cuMemAllocPitch`: rows of managed memory.
///
/// # Safety
/// `address` and `pitch` are null or writable, as the driver's function demands.
pub unsafe fn alloc_pitch(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let Some((state, device)) = shared() else { return real() };
    let row = width.checked_next_multiple_of(PITCH_ALIGNMENT);
    let size = row.and_then(|row| row.checked_mul(height));
    match (row, size) {
        (Some(row), Some(size)) if size > 0 && !address.is_null() && !pitch.is_null() => {
            if state.memory.backend() == Backend::Native {
                // SAFETY: `address` is writable.
                return unsafe { charged(state, device, address, size, Origin::Native, real) };
            }
            // SAFETY: `address` is writable.
            let result = unsafe {
                charged(state, device, address, size, Origin::Rewritten, || managed(state, address, size))
            };
            if result == CUDA_SUCCESS {
                // SAFETY: `pitch` is writable.
                unsafe { pitch.write(row) };
            }
            result
        }
        // Nonsense: the driver knows the right error for it.
        _ => real(),
    }
}

/// `cuMemAllocManaged`: what the application itself manages is charged like the rest.
///
/// # Safety
/// `address` is null or writable, as the driver's function demands.
pub unsafe fn alloc_managed(
    address: *mut CUdeviceptr,
    size: usize,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let Some((state, device)) = shared() else { return real() };
    if address.is_null() || size == 0 {
        return real();
    }
    // SAFETY: `address` is writable.
    unsafe { charged(state, device, address, size, Origin::Managed, real) }
}

/// `cuMemFree`. An address that is not in the books goes to the driver untouched.
pub fn free(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    match State::existing() {
        Some(state) => state.memory.free(Table::Blocks, address, |_| real()),
        None => real(),
    }
}

pub(super) fn shared() -> Option<(&'static State, CUdevice)> {
    let state = State::get()?;
    Some((state, state.shared_device()?))
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

/// Allocates managed memory instead of device memory.
///
/// # Safety
/// `address` is writable.
unsafe fn managed(state: &State, address: *mut CUdeviceptr, size: usize) -> CUresult {
    let flags: c_uint = MEM_ATTACH_GLOBAL;
    // SAFETY: the caller says so.
    unsafe { (state.driver.mem_alloc_managed)(address, size, flags) }
}
