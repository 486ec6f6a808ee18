//! Structures that the driver's memory functions take, with the layout of its headers.

use std::ffi::{c_int, c_uint, c_void};

use super::DevicePtr;

/// `CUmemPoolProps`: pinned memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProperties {
    kind: c_uint,
    handle_types: c_uint,
    location: [c_int; 2],
    rest: [u64; 9],
}

impl PoolProperties {
    pub(crate) fn new(device: c_int) -> Self {
        Self { kind: 1, handle_types: 0, location: [1, device], rest: [0; 9] }
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationNode {
    pool: PoolProperties,
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    pub(crate) address: DevicePtr,
}

impl AllocationNode {
    pub(crate) fn new(device: c_int, bytes: usize) -> Self {
        Self {
            pool: PoolProperties::new(device),
            access: std::ptr::null(),
            access_count: 0,
            bytes,
            address: 0,
        }
    }
}

/// `CUmemAllocationProp`: pinned memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HandleProperties {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: [c_int; 2],
    pub(crate) rest: [u64; 2],
}

/// `CUmemAccessDesc`: a device may read and write.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDescription {
    pub(crate) location: [c_int; 2],
    pub(crate) flags: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

impl Solid {
    /// Rows of 16 KiB.
    pub(crate) fn new(bytes: usize) -> Self {
        const FLOAT: c_int = 0x20;
        Self {
            width: 1024,
            height: bytes.div_ceil(16 << 10),
            depth: 0,
            format: FLOAT,
            channels: 4,
            flags: 0,
        }
    }
}
