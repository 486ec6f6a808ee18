//! Hooks of virtual memory management, in which the application creates memory by handle and maps it. The
//! session is charged from the creation until the last use of a handle or mapping (`memory/handles.rs`). Such
//! memory never leaves the card.

use std::ffi::{c_int, c_uint};

use gpushare_proto::Bytes;

use super::location::Properties;
use super::work;
use crate::daemon::MemoryKind;
use crate::driver::types::{
    ARRAY_PART_TAIL, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdeviceptr, CUmemHandle, CUresult,
    MEM_OPERATION_MAP,
};
use crate::freeze::facts::{NOTED, Noted};
use crate::memory::handles::{Charge, Handles, Tile};
use crate::state::State;

/// Mapping of a part of a sparse array (`CUarrayMapInfo`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArrayMap {
    resource_kind: c_int,
    resource: u64,
    part_kind: c_uint,
    /// Level, layer, offsets and extents of a level; or layer, offset and size of a mip tail.
    part: [u64; 4],
    operation: c_int,
    handle_kind: c_int,
    handle: CUmemHandle,
    offset: u64,
    devices: c_uint,
    flags: c_uint,
    reserved: [c_uint; 2],
}

/// `cuMemCreate`: charges the session on the device in the memory's properties.
pub unsafe fn create(
    handle: *mut CUmemHandle,
    size: usize,
    properties: *const Properties,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    if handle.is_null() || properties.is_null() {
        return real();
    }
    // SAFETY: readable, as the driver's function demands.
    let Properties { location, .. } = unsafe { properties.read() };
    if location.device().is_none() {
        NOTED.note(Noted::HostHandles);
    }
    let (Some(state), Some(device)) = (State::get(), location.device()) else {
        return real();
    };
    // The call may come before any context.
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    if state.memory.lease.gpu(device).is_none() {
        return real();
    }
    let charge = Charge { device, bytes: Bytes(size as u64) };
    let call = || {
        // The lock is not held while the daemon is asked, which may not answer.
        let mut handles = state.memory.handles();
        let result = real();
        if result == CUDA_SUCCESS {
            // SAFETY: written by the driver.
            handles.create(unsafe { handle.read() }, charge);
        }
        result
    };
    state
        .memory
        .reserve_and_call(charge.device, charge.bytes, MemoryKind::Fixed, call)
}

/// `cuMemRelease`: removes a handle. Mapped memory lives on and stays charged.
pub fn release(handle: CUmemHandle, real: impl FnOnce() -> CUresult) -> CUresult {
    after(real, |handles| handles.release(handle))
}

/// `cuMemMap`: records one more use of the memory.
pub fn map(
    address: CUdeviceptr,
    size: usize,
    handle: CUmemHandle,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    after(real, |handles| {
        handles.map(address, Bytes(size as u64), handle);
        None
    })
}

/// `cuMemUnmap`: gives quota back for memory without further use.
pub fn unmap(address: CUdeviceptr, size: usize, real: impl FnOnce() -> CUresult) -> CUresult {
    // As the driver answers for memory of `cuMemAlloc`.
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    after(real, |handles| handles.unmap(address, Bytes(size as u64)))
}

/// `cuMemSetAccess`, `cuMemAddressFree`, `cuMulticastBindAddr`: refuses memory that gpushare can move, as the driver
/// does for memory of `cuMemAlloc`.
pub fn change(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    real()
}

/// `cuMemRetainAllocationHandle`: adds a use of mapped memory. Managed memory in place of device memory has
/// no handle, since a peer that maps the handle would see other data.
pub unsafe fn retain(
    handle: *mut CUmemHandle,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    after(real, |handles| {
        if !handle.is_null() {
            // SAFETY: the driver just wrote it.
            handles.retain(unsafe { handle.read() }, address);
        }
        None
    })
}

/// `cuMemMapArrayAsync`: maps memory into sparse arrays or removes mappings, in stream order. The quota of
/// unmapped memory is given back at the call.
pub unsafe fn map_arrays(parts: *const ArrayMap, count: c_uint, real: impl FnOnce() -> CUresult) -> CUresult {
    // Before the lock of the handles, so that a thread that waits at the gate delays no other.
    let _pass = match work::pass() {
        Ok(pass) => pass,
        Err(interrupted) => return interrupted,
    };
    after(real, |handles| {
        let count = if parts.is_null() { 0 } else { count as usize };
        let mut free = Vec::new();
        for index in 0..count {
            // SAFETY: the driver just read it.
            let part = unsafe { parts.add(index).read() };
            let handle = (part.operation == MEM_OPERATION_MAP).then_some(part.handle);
            free.extend(handles.tile(part.tile(), handle));
        }
        free
    })
}

/// Calls the driver to destroy an array, and gives back the quota of memory that was mapped only there. The
/// mappings are removed first, because the driver may reuse the array's handle.
pub(super) fn end_array(state: &State, resource: u64, real: impl FnOnce() -> CUresult) -> CUresult {
    let parts = state.memory.handles().take_parts(resource);
    let result = real();
    if parts.is_empty() {
        return result;
    }
    let mut handles = state.memory.handles();
    if result != CUDA_SUCCESS {
        handles.put_back(parts);
        return result;
    }
    let free = handles.end(parts);
    drop(handles);
    state.memory.give_back_pieces(free);
    result
}

/// Calls the driver while the table of handles is locked. After a success runs `note`, and gives back the
/// charges that `note` returns.
fn after<I: IntoIterator<Item = Charge>>(
    real: impl FnOnce() -> CUresult,
    note: impl FnOnce(&mut Handles) -> I,
) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    let mut handles = state.memory.handles();
    let result = real();
    if result != CUDA_SUCCESS {
        return result;
    }
    let free = note(&mut handles);
    drop(handles);
    state.memory.give_back_pieces(free);
    result
}

impl ArrayMap {
    fn tile(&self) -> Tile {
        let [a, b, c, d] = self.part;
        let half = |value: u64| [value & u64::from(u32::MAX), value >> 32];
        let (plane, from, size) = match self.part_kind {
            // The bytes after the layer are padding.
            ARRAY_PART_TAIL => ([0, a as u32], [b, 0, 0], [c, 0, 0]),
            _ => {
                let ([x, y], [z, width], [height, depth]) = (half(b), half(c), half(d));
                ([a as u32, (a >> 32) as u32], [x, y, z], [width, height, depth])
            }
        };
        Tile { resource: self.resource, kind: self.part_kind, plane, from, size }
    }
}

const _: () = assert!(size_of::<ArrayMap>() == 96, "the size in the driver's headers");

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: ArrayMap = ArrayMap {
        resource_kind: 0,
        resource: 5,
        part_kind: 0,
        part: [(2 << 32) | 1, (4 << 32) | 3, (6 << 32) | 5, (8 << 32) | 7],
        operation: MEM_OPERATION_MAP,
        handle_kind: 0,
        handle: 9,
        offset: 0,
        devices: 1,
        flags: 0,
        reserved: [0; 2],
    };

    #[test]
    fn a_part_of_a_level_is_where_the_header_says() {
        let Tile { plane, from, size, .. } = LEVEL.tile();
        assert_eq!((plane, from, size), ([1, 2], [3, 4, 5], [6, 7, 8]));
    }

    #[test]
    fn a_part_of_a_tail_is_the_same_whatever_lies_between_its_fields() {
        let tail = |padding: u64| ArrayMap {
            part_kind: ARRAY_PART_TAIL,
            part: [(padding << 32) | 2, 64, 32, padding],
            ..LEVEL
        };
        assert_eq!(tail(0).tile(), tail(7).tile());
        let Tile { plane, from, size, .. } = tail(0).tile();
        assert_eq!((plane, from, size), ([0, 2], [64, 0, 0], [32, 0, 0]));
    }
}
