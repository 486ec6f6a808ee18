//! Hooks that describe memory. Managed memory in place of device memory ("rewritten") and remapped memory are
//! described as device memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::slice::from_raw_parts;

use super::addresses::look;
use super::mapping::is_adopted;
use crate::driver::types::{
    ACCESS_READ_WRITE, ATTRIBUTE_ACCESS_FLAGS, ATTRIBUTE_BUFFER_ID, ATTRIBUTE_CONTEXT,
    ATTRIBUTE_DEVICE_ORDINAL, ATTRIBUTE_DEVICE_POINTER, ATTRIBUTE_HANDLE_TYPES, ATTRIBUTE_HOST_POINTER,
    ATTRIBUTE_IS_IPC_CAPABLE, ATTRIBUTE_IS_MANAGED, ATTRIBUTE_MAPPED, ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE_POOL,
    ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_RANGE_START, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdeviceptr,
    CUpointerAttribute, CUresult, MEMORYTYPE_DEVICE,
};
use crate::memory::allocations::{Block, Origin};
use crate::state::State;

/// Bits of an address below the alignment of a block.
const BUFFER_SHIFT: u32 = 9;

/// `cuPointerGetAttribute`: describes rewritten memory (managed in place of device memory) as device memory.
pub unsafe fn attribute(
    data: *mut c_void,
    attribute: CUpointerAttribute,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some((start, block)) = moves(address).filter(|_| !data.is_null()) else {
        return look_at(address, real);
    };
    if attribute == ATTRIBUTE_HOST_POINTER {
        // Device memory has no address on the host.
        return CUDA_ERROR_INVALID_VALUE;
    }
    if block.origin.is_by_handle() && DESCRIBED.contains(&attribute) {
        // The driver writes all bytes of a boolean, however many those are. It does not know an address whose memory is
        // away, so its result does not count.
        real();
        // SAFETY: writable for the attribute's type, as the driver's function demands.
        unsafe { describe(data, attribute, address, start, block) };
        return CUDA_SUCCESS;
    }
    let result = look(real);
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
    let Some((start, block)) = moves(address) else { return look_at(address, real) };
    if count == 0 || wanted.is_null() || data.is_null() {
        return real();
    }
    // SAFETY: both arrays have `count` elements, as the driver's function demands.
    let (wanted, slots) =
        unsafe { (from_raw_parts(wanted, count as usize), from_raw_parts(data, count as usize)) };
    let is_remapped = block.origin.is_by_handle();
    let is_described = |attribute: &CUpointerAttribute| is_remapped && DESCRIBED.contains(attribute);
    let is_answered =
        |attribute: &CUpointerAttribute| *attribute == ATTRIBUTE_HOST_POINTER || is_described(attribute);
    // Of an address whose memory is away, the driver says that each attribute is zero.
    let result = if wanted.iter().all(is_answered) { real() } else { look(real) };
    if result != CUDA_SUCCESS {
        return result;
    }
    for (&attribute, &slot) in wanted.iter().zip(slots).filter(|(_, slot)| !slot.is_null()) {
        // SAFETY: the slot is writable for its attribute's type.
        unsafe {
            if attribute == ATTRIBUTE_HOST_POINTER {
                slot.cast::<*mut c_void>().write(null_mut());
            } else if is_described(&attribute) {
                describe(slot, attribute, address, start, block);
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
    let Some((start, block)) = moves(address) else { return look_at(address, real) };
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
    if moves(address).is_some() { CUDA_ERROR_INVALID_VALUE } else { real() }
}

/// Asks the driver about an address. Where the application has mapped memory itself, only the driver knows the answer, and
/// only while the memory is on the card.
fn look_at(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    if is_adopted(address) { look(real) } else { real() }
}

/// Returns the block around an address, if the block is managed memory in place of device memory.
pub(super) fn rewritten(address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
    State::existing()?
        .memory
        .blocks
        .around(address)
        .filter(|(_, block)| block.origin == Origin::Rewritten)
}

/// Returns the block around an address, if the application knows it as device memory and it is not the driver's own
/// kind: managed memory in place of device memory, remapped memory, or memory of another process.
pub(super) fn moves(address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
    State::existing()?
        .memory
        .blocks
        .around(address)
        .filter(|(_, block)| block.origin == Origin::Rewritten || block.origin.is_by_handle())
}

/// Attributes of remapped memory that [`describe`] writes. Others only the driver knows, and only while the memory is on
/// the card. Whether copies are synchronous is among those, since the program may have changed it.
const DESCRIBED: [CUpointerAttribute; 13] = [
    ATTRIBUTE_CONTEXT,
    ATTRIBUTE_MEMORY_TYPE,
    ATTRIBUTE_DEVICE_POINTER,
    ATTRIBUTE_BUFFER_ID,
    ATTRIBUTE_IS_MANAGED,
    ATTRIBUTE_DEVICE_ORDINAL,
    ATTRIBUTE_IS_IPC_CAPABLE,
    ATTRIBUTE_RANGE_START,
    ATTRIBUTE_RANGE_SIZE,
    ATTRIBUTE_MAPPED,
    ATTRIBUTE_HANDLE_TYPES,
    ATTRIBUTE_ACCESS_FLAGS,
    ATTRIBUTE_POOL,
];

/// Writes one of the attributes in [`DESCRIBED`] of remapped memory, wherever its bytes are.
///
/// # Safety
/// `data` is writable for the attribute's type.
unsafe fn describe(
    data: *mut c_void,
    attribute: CUpointerAttribute,
    address: CUdeviceptr,
    start: CUdeviceptr,
    block: Block,
) {
    // SAFETY: the types are those of the CUDA driver API for each attribute.
    unsafe {
        match attribute {
            ATTRIBUTE_DEVICE_POINTER => data.cast::<CUdeviceptr>().write(address),
            // Unique among live blocks, and the same after a move.
            ATTRIBUTE_BUFFER_ID => data.cast::<u64>().write(start >> BUFFER_SHIFT),
            ATTRIBUTE_MAPPED => data.cast::<u8>().write(1),
            ATTRIBUTE_HANDLE_TYPES | ATTRIBUTE_POOL => data.cast::<u64>().write(0),
            ATTRIBUTE_ACCESS_FLAGS => data.cast::<c_int>().write(ACCESS_READ_WRITE),
            _ => amend(data, attribute, start, block),
        }
    }
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
