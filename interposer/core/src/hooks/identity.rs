//! Hooks that describe memory. Managed memory in place of device memory ("rewritten") and remapped memory are
//! described as device memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::slice::from_raw_parts;

use super::addresses::look;
use crate::driver::types::{
    ACCESS_READ_WRITE, ATTRIBUTE_ACCESS_FLAGS, ATTRIBUTE_BUFFER_ID, ATTRIBUTE_CONTEXT,
    ATTRIBUTE_DEVICE_ORDINAL, ATTRIBUTE_DEVICE_POINTER, ATTRIBUTE_HANDLE_TYPES, ATTRIBUTE_HOST_POINTER,
    ATTRIBUTE_IS_IPC_CAPABLE, ATTRIBUTE_IS_MANAGED, ATTRIBUTE_MAPPED, ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE_POOL,
    ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_RANGE_START, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdeviceptr,
    CUpointerAttribute, CUresult, MEMORYTYPE_DEVICE,
};
use crate::memory::allocations::{Block, Origin};
use crate::memory::mapped::Facts;
use crate::remap::vmm::Span;
use crate::state::State;

/// Bits of an address below the alignment of a block.
const BUFFER_SHIFT: u32 = 9;

/// Memory that the application knows as device memory and that may be away, or is not quite what it seems.
struct Known {
    facts: Facts,
    /// Attributes that [`describe`] writes. Others only the driver knows, and only while the memory is on the
    /// card.
    described: &'static [CUpointerAttribute],
    /// Whether the driver's answers are to be amended, since the application has asked for other memory.
    is_amended: bool,
}

impl Known {
    fn describes(&self, attribute: CUpointerAttribute) -> bool {
        self.described.contains(&attribute)
    }
}

/// Returns what is known of the memory around an address; `None` for memory of which the driver knows all.
fn known(address: CUdeviceptr) -> Option<Known> {
    if let Some((start, block)) = moves(address) {
        let described: &[_] = if block.origin.is_by_handle() { &DESCRIBED } else { &[] };
        return Some(Known { facts: Facts::of_block(start, block), described, is_amended: true });
    }
    Some(Known { facts: mapped(address)?, described: &DESCRIBED[..OF_MAPPED], is_amended: false })
}

/// Returns what is known of memory that the application has mapped itself and that may move.
fn mapped(address: CUdeviceptr) -> Option<Facts> {
    State::existing()
        .filter(|state| state.memory.remap.is_used())?
        .memory
        .mapped
        .around(address)
}

/// `cuPointerGetAttribute`: describes memory that moves as device memory, wherever it is.
pub unsafe fn attribute(
    data: *mut c_void,
    attribute: CUpointerAttribute,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(known) = known(address).filter(|_| !data.is_null()) else { return real() };
    if attribute == ATTRIBUTE_HOST_POINTER {
        // Device memory has no address on the host.
        return CUDA_ERROR_INVALID_VALUE;
    }
    if known.describes(attribute) {
        // The driver writes all bytes of a boolean, however many those are. It does not know an address whose
        // memory is away, so its result does not count.
        real();
        // SAFETY: writable for the attribute's type, as the driver's function demands.
        unsafe { describe(data, attribute, address, known.facts) };
        return CUDA_SUCCESS;
    }
    let result = look(real);
    if result == CUDA_SUCCESS && known.is_amended {
        // SAFETY: the driver just wrote an answer of this attribute's type there.
        unsafe { amend(data, attribute, known.facts) };
    }
    result
}

/// `cuPointerGetAttributes`: describes memory that moves as device memory, wherever it is.
pub unsafe fn attributes(
    count: c_uint,
    wanted: *const CUpointerAttribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(known) = known(address) else { return real() };
    if count == 0 || wanted.is_null() || data.is_null() {
        return real();
    }
    // SAFETY: both arrays have `count` elements, as the driver's function demands.
    let (wanted, slots) =
        unsafe { (from_raw_parts(wanted, count as usize), from_raw_parts(data, count as usize)) };
    let is_answered =
        |attribute: &CUpointerAttribute| *attribute == ATTRIBUTE_HOST_POINTER || known.describes(*attribute);
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
            } else if known.describes(attribute) {
                describe(slot, attribute, address, known.facts);
            } else if known.is_amended {
                amend(slot, attribute, known.facts);
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
    let Some((start, block)) = moves(address) else {
        return if mapped(address).is_some() { look(real) } else { real() };
    };
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

/// Returns the block around an address, if the block is managed memory in place of device memory.
pub(super) fn rewritten(address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
    State::existing()?
        .memory
        .blocks
        .around(address)
        .filter(|(_, block)| block.origin == Origin::Rewritten)
}

/// Returns the block around an address, if the application knows it as device memory and it is not the
/// driver's own kind: managed memory in place of device memory, remapped memory, or memory of another
/// process.
pub(super) fn moves(address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
    State::existing()?
        .memory
        .blocks
        .around(address)
        .filter(|(_, block)| block.origin == Origin::Rewritten || block.origin.is_by_handle())
}

/// Attributes of remapped memory that [`describe`] writes, of which the first [`OF_MAPPED`] are also known of
/// memory that the application has mapped itself. Whether copies are synchronous is not among them, since the
/// program may have changed it.
const DESCRIBED: [CUpointerAttribute; 13] = [
    ATTRIBUTE_CONTEXT,
    ATTRIBUTE_MEMORY_TYPE,
    ATTRIBUTE_DEVICE_POINTER,
    ATTRIBUTE_BUFFER_ID,
    ATTRIBUTE_IS_MANAGED,
    ATTRIBUTE_DEVICE_ORDINAL,
    ATTRIBUTE_RANGE_START,
    ATTRIBUTE_RANGE_SIZE,
    ATTRIBUTE_IS_IPC_CAPABLE,
    ATTRIBUTE_MAPPED,
    ATTRIBUTE_HANDLE_TYPES,
    ATTRIBUTE_ACCESS_FLAGS,
    ATTRIBUTE_POOL,
];
const OF_MAPPED: usize = 8;

impl Facts {
    fn of_block(start: CUdeviceptr, block: Block) -> Self {
        Self {
            range: Span { address: start, size: block.size },
            device: block.device,
            context: block.context,
            // Unique among live blocks, and the same after a move.
            buffer: start >> BUFFER_SHIFT,
        }
    }
}

/// Writes one of the attributes in [`DESCRIBED`], wherever the bytes of the memory are.
///
/// # Safety
/// `data` is writable for the attribute's type.
unsafe fn describe(data: *mut c_void, attribute: CUpointerAttribute, address: CUdeviceptr, facts: Facts) {
    // SAFETY: the types are those of the CUDA driver API for each attribute.
    unsafe {
        match attribute {
            ATTRIBUTE_DEVICE_POINTER => data.cast::<CUdeviceptr>().write(address),
            ATTRIBUTE_BUFFER_ID => data.cast::<u64>().write(facts.buffer),
            ATTRIBUTE_MAPPED => data.cast::<u8>().write(1),
            ATTRIBUTE_HANDLE_TYPES | ATTRIBUTE_POOL => data.cast::<u64>().write(0),
            ATTRIBUTE_ACCESS_FLAGS => data.cast::<c_int>().write(ACCESS_READ_WRITE),
            _ => amend(data, attribute, facts),
        }
    }
}

/// Replaces the driver's answer for the attributes that differ between managed and device memory.
///
/// # Safety
/// The driver has just written its answer to `data`.
unsafe fn amend(data: *mut c_void, attribute: CUpointerAttribute, facts: Facts) {
    let Facts { range, device, context, .. } = facts;
    // SAFETY: the types are those of the CUDA driver API for each attribute.
    unsafe {
        match attribute {
            ATTRIBUTE_CONTEXT => data.cast::<usize>().write(context),
            ATTRIBUTE_MEMORY_TYPE => data.cast::<c_uint>().write(MEMORYTYPE_DEVICE),
            // A boolean of one or four bytes. The driver has written the other bytes.
            ATTRIBUTE_IS_MANAGED | ATTRIBUTE_IS_IPC_CAPABLE => data.cast::<u8>().write(0),
            ATTRIBUTE_RANGE_START => data.cast::<CUdeviceptr>().write(range.address),
            ATTRIBUTE_RANGE_SIZE => data.cast::<usize>().write(range.size.0 as usize),
            ATTRIBUTE_DEVICE_ORDINAL => data.cast::<c_int>().write(device),
            _ => {}
        }
    }
}
