//! Structures that the driver's memory functions take, with the layout of its headers.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::str::FromStr;

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

/// `CUipcMemHandle`, which is passed by value. As text it is 128 hex digits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle(pub(crate) [u8; 64]);

/// A text that is no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a handle has 128 hex digits")]
pub struct NoHandle;

impl fmt::Display for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for IpcHandle {
    type Err = NoHandle;

    fn from_str(text: &str) -> Result<Self, NoHandle> {
        let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(NoHandle)
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
