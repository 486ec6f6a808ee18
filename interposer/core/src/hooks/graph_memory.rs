//! Memory that graphs allocate for themselves. It is there while a graph runs and kept by the driver for the next run:
//! charged by what that has taken from the card, after each launch of a process that has ever made such a node.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use gpushare_proto::Bytes;

use super::allocation::shared;
use super::location::Location;
use crate::driver::types::{CUDA_SUCCESS, CUdevice, CUresult, NODE_MEM_ALLOC};
use crate::guest::guest_or;
use crate::leases::Kind;
use crate::pools::{Held, Source};
use crate::process::State;

/// Whether graphs of this process have memory of their own. One that never made such a node pays one load a launch.
#[derive(Debug, Default)]
pub struct GraphMemory(AtomicBool);

impl GraphMemory {
    /// A node that allocates was made.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[inline]
    fn is_used(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
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

/// `CUgraphNodeParams`, of a node that allocates.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AnyNode {
    kind: c_int,
    reserved: [c_int; 3],
    allocation: NodeParameters,
}

/// `cuGraphAddMemAllocNode`: takes no memory yet, and is refused if there is no quota for what it will take.
///
/// # Safety
/// `parameters` is null or readable, as the driver's function demands.
pub unsafe fn add_alloc_node(parameters: *const NodeParameters, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some((state, current)) = shared().filter(|_| !parameters.is_null()) else {
        return real();
    };
    // SAFETY: readable.
    let NodeParameters { location, bytes, .. } = unsafe { parameters.read() };
    let device = location.device().unwrap_or(current);
    let bytes = Bytes(bytes as u64);
    if state.gpu(device).is_some() {
        if let Err(refused) = state.reserve(device, bytes, Kind::Fixed) {
            return refused;
        }
        state.give_back(device, bytes, Kind::Fixed);
    }
    let result = real();
    if result == CUDA_SUCCESS {
        state.graph_memory.note();
    }
    result
}

/// `cuGraphAddNode`: it may be one of those.
///
/// # Safety
/// `parameters` is null or readable, as the driver's function demands.
pub unsafe fn add_node(parameters: *const AnyNode, real: impl FnOnce() -> CUresult) -> CUresult {
    // SAFETY: readable; every kind begins alike, and what follows is read for this one only.
    unsafe {
        if parameters.is_null() || (*parameters).kind != NODE_MEM_ALLOC {
            return real();
        }
        add_alloc_node(&raw const (*parameters).allocation, real)
    }
}

/// A graph was launched or uploaded.
#[inline]
pub fn after_launch() {
    if let Some(state) = State::existing().filter(|state| state.graph_memory.is_used()) {
        guest_or(|| charge(state), || ());
    }
}

#[cold]
fn charge(state: &'static State) {
    let Some(device) = state.driver.current_device().filter(|&device| state.gpu(device).is_some()) else {
        return;
    };
    let source = Source::Graphs(device);
    let pool = state.pools.know(source, device, Kind::Fixed);
    Held::new(state, source, &pool).accept();
}

/// `cuDeviceGraphMemTrim`: the driver gives unused memory of graphs back.
pub fn trim(device: CUdevice, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = real();
    if let Some(state) = State::existing() {
        state.look_at_pools(device);
    }
    result
}
