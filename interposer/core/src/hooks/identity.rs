//! Hooks that describe memory. Managed memory in place of device memory ("rewritten") is described as device
//! memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::driver::types::{
    ATTRIBUTE_CONTEXT, ATTRIBUTE_DEVICE_ORDINAL, ATTRIBUTE_HOST_POINTER, ATTRIBUTE_IS_IPC_CAPABLE,
    ATTRIBUTE_IS_MANAGED, ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_RANGE_START,
    CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdeviceptr, CUpointerAttribute, CUresult, MEMORYTYPE_DEVICE,
};
use crate::memory::allocations::{Block, Origin};
use crate::state::State;

/// `cuPointerGetAttribute`: describes rewritten memory (managed in place of device memory) as device memory.
pub unsafe fn attribute(
    data: *mut c_void,
    attribute: CUpointerAttribute,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some((start, block)) = rewritten(address).filter(|_| !data.is_null()) else {
        return real();
    };
    if attribute == ATTRIBUTE_HOST_POINTER {
        // Device memory has no address on the host.
        return CUDA_ERROR_INVALID_VALUE;
    }
    let result = real();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver just wrote an answer of this attribute's type there.
        unsafe { amend(data, attribute, start, block) };
    }
    result
}

/// `cuPointerGetAttributes`: describes rewritten memory (managed in place of device memory) as device memory.
pub unsafe fn attributes(
    count: c_uint,
    wanted: *const CUpointerAttribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    let Some((start, block)) = rewritten(address) else { return result };
    if result != CUDA_SUCCESS || wanted.is_null() || data.is_null() {
        return result;
    }
    for i in 0..count as usize {
        // SAFETY: both arrays have `count` elements, and the driver just used each of them.
        let (attribute, slot) = unsafe { (wanted.add(i).read(), data.add(i).read()) };
        if slot.is_null() {
            continue;
        }
        // SAFETY: the slot is writable for its attribute's type.
        unsafe {
            if attribute == ATTRIBUTE_HOST_POINTER {
                slot.cast::<*mut c_void>().write(null_mut());
            } else {
                amend(slot, attribute, start, block);
            }
        }
    }
    result
}

/// `cuMemGetAddressRange`: returns the size that the application asked for, not the allocated size.
pub unsafe fn address_range(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some((start, block)) = rewritten(address) else { return real() };
    // SAFETY: either may be null (the driver allows that), else it is writable.
    unsafe {
        if !base.is_null() {
            base.write(start);
        }
        if !size.is_null() {
            size.write(block.size.0 as usize);
        }
    }
    CUDA_SUCCESS
}

/// `cuMemRangeGetAttribute`, `cuMemRangeGetAttributes`: refuses memory that the application knows as device
/// memory, like the driver.
pub fn range(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    if rewritten(address).is_some() { CUDA_ERROR_INVALID_VALUE } else { real() }
}

/// Returns the block around an address, if the block is managed memory in place of device memory.
pub(super) fn rewritten(address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
    State::existing()?
        .memory
        .blocks
        .around(address)
        .filter(|(_, block)| block.origin == Origin::Rewritten)
}

/// Replaces the driver's answer for the attributes that differ between managed and device memory.
///
/// # Safety
/// The driver has just written its answer to `data`.
unsafe fn amend(data: *mut c_void, attribute: CUpointerAttribute, start: CUdeviceptr, block: Block) {
    // SAFETY: the types are those of the CUDA driver API for each attribute.
    unsafe {
        match attribute {
            ATTRIBUTE_CONTEXT => data.cast::<usize>().write(block.context),
            ATTRIBUTE_MEMORY_TYPE => data.cast::<c_uint>().write(MEMORYTYPE_DEVICE),
            // A boolean of one or four bytes. The driver has written the other bytes.
            ATTRIBUTE_IS_MANAGED | ATTRIBUTE_IS_IPC_CAPABLE => data.cast::<u8>().write(0),
            ATTRIBUTE_RANGE_START => data.cast::<CUdeviceptr>().write(start),
            ATTRIBUTE_RANGE_SIZE => data.cast::<usize>().write(block.size.0 as usize),
            ATTRIBUTE_DEVICE_ORDINAL => data.cast::<c_int>().write(block.device),
            _ => {}
        }
    }
}
