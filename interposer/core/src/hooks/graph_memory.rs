//! Hooks of memory that graphs allocate themselves and that the driver keeps from one run to the next. The
//! session is charged after each launch for the bytes that the driver took from the card. This begins with
//! the first node that allocates.

use std::ffi::{c_int, c_void};

use gpushare_proto::Bytes;

use super::addresses::look;
use super::allocation::shared;
use super::location::Location;
use crate::daemon::MemoryKind;
use crate::driver::types::{CUDA_SUCCESS, CUdevice, CUresult, NODE_MEM_ALLOC};
use crate::process::panics::guest_or;
use crate::state::State;

/// Parameters of a graph node that allocates (`CUDA_MEM_ALLOC_NODE_PARAMS`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NodeParameters {
    kinds: [u32; 2],
    location: Location,
    rest_of_pool: [u64; 9],
    access: *mut c_void,
    access_count: usize,
    bytes: usize,
    address: u64,
}

/// Parameters of any graph node (`CUgraphNodeParams`), read for a node that allocates.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AnyNode {
    kind: c_int,
    reserved: [c_int; 3],
    allocation: NodeParameters,
}

/// `cuGraphAddMemAllocNode`: refuses a node whose memory exceeds the quota. The node takes memory only when
/// its graph runs.
pub unsafe fn add_alloc_node(parameters: *const NodeParameters, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some((state, current)) = shared().filter(|_| !parameters.is_null()) else {
        return real();
    };
    // SAFETY: not null, so readable.
    let NodeParameters { location, bytes, .. } = unsafe { parameters.read() };
    let device = location.device().unwrap_or(current);
    let bytes = Bytes(bytes as u64);
    // The memory may lie on a card where the process has no context.
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    if state.memory.lease.gpu(device).is_some() {
        if let Err(refused) = state.memory.reserve(device, bytes, MemoryKind::Fixed) {
            return refused;
        }
        state.memory.give_back(device, bytes, MemoryKind::Fixed);
    }
    let result = real();
    if result == CUDA_SUCCESS {
        state.memory.note_graph_memory(device);
    }
    result
}

/// `cuGraphAddNode`: treats a node that allocates like [`add_alloc_node`]. In others the driver may look at addresses.
pub unsafe fn add_node(parameters: *const AnyNode, real: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: readable if not null. All kinds have the same beginning; the rest is read only for this kind.
    unsafe {
        if parameters.is_null() || (*parameters).kind != NODE_MEM_ALLOC {
            return look(real);
        }
        add_alloc_node(&raw const (*parameters).allocation, real)
    }
}

/// Charges the session for the memory of graphs after a launch or an upload.
#[inline]
pub fn after_launch() {
    if let Some(state) = State::existing().filter(|state| state.memory.has_graph_memory()) {
        guest_or(|| state.memory.charge_graphs(), || ());
    }
}

/// `cuDeviceGraphMemTrim`: returns unused memory of graphs to the card and gives its quota back.
pub fn trim(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if let Some(state) = State::existing() {
        state.memory.shrink_pools(device);
    }
    result
}
