//! Hooks of sparse arrays, into parts of which the application maps memory by handle. Such memory never
//! moves.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};

use super::handles::{at_driver_with, known};
use super::work;
use crate::driver::types::{
    ARRAY_PART_TAIL, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUmemHandle, CUresult, MEM_OPERATION_MAP,
};
use crate::memory::handles::{Handles, Tile};
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

/// `cuMemMapArrayAsync`: maps memory into sparse arrays or removes mappings, in stream order. The quota of
/// unmapped memory is given back at the call.
pub unsafe fn map_arrays(
    count: c_uint,
    parts: *mut ArrayMap,
    real: impl FnOnce(*mut ArrayMap) -> CUresult,
) -> CUresult {
    // Before the lock of the handles, so that a thread that waits at the gate delays no other.
    let pass = match work::pass() {
        Ok(pass) => pass,
        Err(interrupted) => return interrupted,
    };
    let Some(state) = known().filter(|_| !parts.is_null()) else {
        return real(parts);
    };
    // SAFETY: readable, as the driver's function demands.
    let given: Vec<ArrayMap> = (0..count as usize).map(|index| unsafe { parts.add(index).read() }).collect();
    // A handle may be mapped into several parts.
    let named: BTreeSet<_> = given.iter().filter_map(ArrayMap::mapped).collect();
    let meant = |handles: &Handles| named.iter().flat_map(|&handle| handles.adopted_of(handle)).collect();
    let mut there = match at_driver_with(state, Some(pass), meant) {
        Ok(there) => there,
        Err(error) => return error,
    };
    let translate = |part: &ArrayMap| match part.mapped() {
        Some(handle) => Some(ArrayMap { handle: there.handles.with_driver(handle)?, ..*part }),
        None => Some(*part),
    };
    let translated: Option<Vec<_>> = given.iter().map(translate).collect();
    let result = there.run(|| match translated {
        Some(mut translated) => real(translated.as_mut_ptr()),
        None => CUDA_ERROR_INVALID_VALUE,
    });
    if result != CUDA_SUCCESS {
        return result;
    }
    named.iter().for_each(|&handle| there.handles.keep_named(handle));
    let tile = |part: ArrayMap| there.handles.tile(part.tile(), part.mapped());
    let free: Vec<_> = given.into_iter().flat_map(tile).collect();
    drop(there);
    state.memory.end_pieces(free);
    result
}

/// Calls the driver to destroy an array, and gives back the quota of memory that was mapped only there. The
/// mappings are removed first, because the driver may reuse the array's handle.
pub(super) fn end_array(state: &State, resource: u64, real: impl FnOnce() -> CUresult) -> CUresult {
    if known().is_none() {
        return real();
    }
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
    state.memory.end_pieces(free);
    result
}

impl ArrayMap {
    /// Returns the handle of the memory that is to be mapped; `None` where a mapping is to be removed.
    fn mapped(&self) -> Option<CUmemHandle> {
        (self.operation == MEM_OPERATION_MAP).then_some(self.handle)
    }

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
