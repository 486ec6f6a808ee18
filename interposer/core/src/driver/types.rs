//! The few types and values of the CUDA driver API that we look at (CUDA driver API reference,
//! "Data types used by CUDA driver"). Enums that come from C are integers here: a value that we do not know
//! must not be undefined behaviour.

use std::ffi::{c_int, c_uint, c_void};

/// `CUresult`.
pub type CUresult = c_int;
/// `CUdevice`: an ordinal.
pub type CUdevice = c_int;
/// `CUdeviceptr`: an address on the card.
pub type CUdeviceptr = u64;
/// `CUcontext`.
pub type CUcontext = *mut c_void;
/// `CUstream`.
pub type CUstream = *mut c_void;
/// `CUevent`.
pub type CUevent = *mut c_void;
/// `CUfunction`.
pub type CUfunction = *mut c_void;
/// `CUarray`.
pub type CUarray = *mut c_void;
/// `CUgraph`.
pub type CUgraph = *mut c_void;
/// `CUgraphNode`.
pub type CUgraphNode = *mut c_void;
/// `CUgraphExec`.
pub type CUgraphExec = *mut c_void;
/// `CUgreenCtx`.
pub type CUgreenCtx = *mut c_void;
/// `CUmemGenericAllocationHandle`.
pub type CUmemHandle = u64;
/// `CUmemoryPool`.
pub type CUmemoryPool = *mut c_void;
/// `CUpointer_attribute`.
pub type CUpointerAttribute = c_uint;

/// Default stream that a call without a stream argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The legacy default stream, which orders all blocking streams of its context.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
}

/// No error.
pub const CUDA_SUCCESS: CUresult = 0;
/// An argument is out of range.
pub const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
/// The allocation does not fit: also what a quota answers.
pub const CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
/// Nothing of CUDA was begun.
pub const CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
/// No context is current, or a handle is none.
pub const CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
/// The driver lacks the symbol.
pub const CUDA_ERROR_NOT_FOUND: CUresult = 500;
/// Work is still in flight.
pub const CUDA_ERROR_NOT_READY: CUresult = 600;
/// The card or the kind of memory cannot do it.
pub const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
/// A system service is not there: our daemon, for a process that must not run without it.
pub const CUDA_ERROR_SYSTEM_NOT_READY: CUresult = 802;
/// A capture cannot be ended on a stream that only joined it.
pub const CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: CUresult = 903;
/// A capture cannot be ended by a thread that did not begin it.
pub const CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: CUresult = 908;
/// Something of ours went wrong inside a hook.
pub const CUDA_ERROR_UNKNOWN: CUresult = 999;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
pub const POOL_RESERVED: c_int = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
pub const POOL_USED: c_int = 7;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
pub const GRAPH_MEM_RESERVED: c_int = 2;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
pub const ALLOCATION_MANAGED: c_int = 2;
/// `CU_GRAPH_NODE_TYPE_KERNEL`.
pub const NODE_KERNEL: c_int = 0;
/// `CU_GRAPH_NODE_TYPE_GRAPH`.
pub const NODE_GRAPH: c_int = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
pub const NODE_MEM_ALLOC: c_int = 10;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`. CUDA 13.5.
pub const LOCATION_PART_OF_DEVICE: c_int = 6;
/// `CU_MEM_OPERATION_TYPE_MAP`.
pub const MEM_OPERATION_MAP: c_int = 1;
/// `CUDA_ARRAY3D_LAYERED`.
pub const ARRAY_LAYERED: c_uint = 0x01;
/// `CUDA_ARRAY3D_CUBEMAP`.
pub const ARRAY_CUBEMAP: c_uint = 0x04;
/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: arrays without memory of their own.
pub const ARRAY_WITHOUT_MEMORY: c_uint = 0xc0;
/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL`.
pub const ARRAY_PART_TAIL: c_uint = 1;
/// `CU_MEM_ATTACH_GLOBAL`.
pub const MEM_ATTACH_GLOBAL: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_LEGACY`, as an address.
pub const STREAM_LEGACY: usize = 1;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub const LAUNCH_PROGRAMMATIC: c_uint = 6;
/// `CU_STREAM_PER_THREAD`, as an address.
pub const STREAM_PER_THREAD: usize = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub const CAPTURE_STATUS_NONE: c_int = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub const CAPTURE_STATUS_ACTIVE: c_int = 1;
/// `CU_STREAM_CAPTURE_STATUS_INVALIDATED`.
pub const CAPTURE_STATUS_INVALIDATED: c_int = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub const CAPTURE_MODE_RELAXED: c_int = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
pub const PROC_PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`.
pub const ATTRIBUTE_CONTEXT: CUpointerAttribute = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub const ATTRIBUTE_MEMORY_TYPE: CUpointerAttribute = 2;
/// `CU_POINTER_ATTRIBUTE_HOST_POINTER`.
pub const ATTRIBUTE_HOST_POINTER: CUpointerAttribute = 4;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
pub const ATTRIBUTE_IS_MANAGED: CUpointerAttribute = 8;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub const ATTRIBUTE_DEVICE_ORDINAL: CUpointerAttribute = 9;
/// `CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE`.
pub const ATTRIBUTE_IS_IPC_CAPABLE: CUpointerAttribute = 10;
/// `CU_POINTER_ATTRIBUTE_RANGE_START_ADDR`.
pub const ATTRIBUTE_RANGE_START: CUpointerAttribute = 11;
/// `CU_POINTER_ATTRIBUTE_RANGE_SIZE`.
pub const ATTRIBUTE_RANGE_SIZE: CUpointerAttribute = 12;
/// `CU_MEMORYTYPE_DEVICE`.
pub const MEMORYTYPE_DEVICE: c_uint = 2;

/// `CUDA_KERNEL_NODE_PARAMS` since CUDA 12: a function, or a kernel of a library in its place.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelNode {
    /// Null if it is a kernel.
    pub function: CUfunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut c_void,
    extra: *mut c_void,
    /// Null if it is a function.
    pub kernel: CUfunction,
    context: CUcontext,
}

impl Default for KernelNode {
    fn default() -> Self {
        use std::ptr::null_mut;
        Self {
            function: null_mut(),
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            parameters: null_mut(),
            extra: null_mut(),
            kernel: null_mut(),
            context: null_mut(),
        }
    }
}
