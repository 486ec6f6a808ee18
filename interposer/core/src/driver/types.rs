//! Types and values of the CUDA driver API that gpushare reads (CUDA driver API reference, "Data types used
//! by CUDA driver"). Enums of C are integers here, because a value unknown to gpushare must not be undefined
//! behaviour.

use std::ffi::{c_int, c_uint, c_void};

/// Result code of a driver call (`CUresult`).
pub type CUresult = c_int;
/// Ordinal of a CUDA device in this process (`CUdevice`).
pub type CUdevice = c_int;
/// Host memory as the target of a prefetch (`CU_DEVICE_CPU`).
pub const DEVICE_CPU: CUdevice = -1;
/// Address in device memory (`CUdeviceptr`).
pub type CUdeviceptr = u64;
/// Handle of memory that the program maps itself (`CUmemGenericAllocationHandle`).
pub type CUmemHandle = u64;
/// Number of a property of an address (`CUpointer_attribute`).
pub type CUpointerAttribute = c_uint;

macro_rules! handles {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: a handle of the driver, opaque to gpushare.")]
            pub type $name = *mut c_void;
        )*
    };
}

handles! {
    CUcontext CUstream CUevent CUfunction CUmodule CUarray CUgraph CUgraphNode CUgraphExec CUgreenCtx CUmemoryPool
}

/// Default stream in which a call without a stream argument runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultStream {
    /// The legacy default stream, which orders all blocking streams of its context.
    Legacy,
    /// The calling thread's own default stream ("per-thread default stream").
    PerThread,
}

/// The call succeeded.
pub const CUDA_SUCCESS: CUresult = 0;
/// An argument of the call is out of range.
pub const CUDA_ERROR_INVALID_VALUE: CUresult = 1;
/// The allocation does not fit on the card or into the session's quota.
pub const CUDA_ERROR_OUT_OF_MEMORY: CUresult = 2;
/// `cuInit` was not called.
pub const CUDA_ERROR_NOT_INITIALIZED: CUresult = 3;
/// The process is ending.
pub const CUDA_ERROR_DEINITIALIZED: CUresult = 4;
/// No context is current, or a handle is invalid.
pub const CUDA_ERROR_INVALID_CONTEXT: CUresult = 201;
/// The memory could not be mapped.
pub const CUDA_ERROR_MAP_FAILED: CUresult = 205;
/// A call of the operating system failed.
pub const CUDA_ERROR_OPERATING_SYSTEM: CUresult = 304;
/// The driver lacks the symbol.
pub const CUDA_ERROR_NOT_FOUND: CUresult = 500;
/// Work on the card has not finished yet.
pub const CUDA_ERROR_NOT_READY: CUresult = 600;
/// The memory of the host is registered already.
pub const CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: CUresult = 712;
/// The memory of the host is not registered.
pub const CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: CUresult = 713;
/// The call is not permitted now. The context stays usable.
pub const CUDA_ERROR_NOT_PERMITTED: CUresult = 800;
/// The card or the kind of memory does not support the operation.
pub const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;
/// A system service is missing: the gpushare daemon, for a process that must not run without it.
pub const CUDA_ERROR_SYSTEM_NOT_READY: CUresult = 802;
/// The call would wait for a stream capture.
pub const CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: CUresult = 900;
/// A capture cannot be ended on a stream that only joined it.
pub const CUDA_ERROR_STREAM_CAPTURE_UNMATCHED: CUresult = 903;
/// A capture cannot be ended by a thread that did not begin it.
pub const CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: CUresult = 908;
/// Results by which the driver refuses a call because of a stream capture, from
/// [`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`] to [`CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`].
pub const REFUSED_FOR_CAPTURE: std::ops::RangeInclusive<CUresult> =
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED..=CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
/// A hook of gpushare panicked.
pub const CUDA_ERROR_UNKNOWN: CUresult = 999;

macro_rules! constants {
    ($($type:ty { $($name:ident = $value:literal, $cuda:ident;)* })*) => {
        $($(
            #[doc = concat!("`", stringify!($cuda), "` of the CUDA driver API.")]
            pub const $name: $type = $value;
        )*)*
    };
}

constants! {
    c_int {
        POOL_RELEASE_THRESHOLD = 4, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        POOL_RESERVED = 5, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        POOL_USED = 7, CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        GRAPH_MEM_RESERVED = 2, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        ALLOCATION_PINNED = 1, CU_MEM_ALLOCATION_TYPE_PINNED;
        HANDLE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        HANDLE_FABRIC = 8, CU_MEM_HANDLE_TYPE_FABRIC;
        ALLOCATION_MANAGED = 2, CU_MEM_ALLOCATION_TYPE_MANAGED;
        ACCESS_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_NONE;
        ACCESS_READ_WRITE = 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        NODE_KERNEL = 0, CU_GRAPH_NODE_TYPE_KERNEL;
        NODE_GRAPH = 4, CU_GRAPH_NODE_TYPE_GRAPH;
        NODE_MEM_ALLOC = 10, CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        LOCATION_DEVICE = 1, CU_MEM_LOCATION_TYPE_DEVICE;
        LOCATION_HOST_NUMA = 3, CU_MEM_LOCATION_TYPE_HOST_NUMA;
        LOCATION_PART_OF_DEVICE = 6, CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
        MEM_OPERATION_MAP = 1, CU_MEM_OPERATION_TYPE_MAP;
        ATTRIBUTE_VIRTUAL_MEMORY = 102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        ATTRIBUTE_HANDLE_DESCRIPTORS = 103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        ATTRIBUTE_HOST_REGISTER = 99, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        ATTRIBUTE_HOST_NODE = 134, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
        ADVISE_PREFERRED_LOCATION = 3, CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
        ADVISE_ACCESSED_BY = 5, CU_MEM_ADVISE_SET_ACCESSED_BY;
        CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_NONE;
        CAPTURE_STATUS_ACTIVE = 1, CU_STREAM_CAPTURE_STATUS_ACTIVE;
        CAPTURE_STATUS_INVALIDATED = 2, CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        CAPTURE_MODE_RELAXED = 2, CU_STREAM_CAPTURE_MODE_RELAXED;
    }
    c_uint {
        ARRAY_LAYERED = 0x01, CUDA_ARRAY3D_LAYERED;
        ARRAY_CUBEMAP = 0x04, CUDA_ARRAY3D_CUBEMAP;
        ARRAY_PART_TAIL = 1, CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
        MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_GLOBAL;
        EVENT_DEFAULT = 0, CU_EVENT_DEFAULT;
        EVENT_DISABLE_TIMING = 2, CU_EVENT_DISABLE_TIMING;
        STREAM_NON_BLOCKING = 1, CU_STREAM_NON_BLOCKING;
        LAUNCH_PROGRAMMATIC = 6, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        IPC_LAZY_PEER_ACCESS = 1, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
        MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_DEVICE;
    }
    usize {
        STREAM_LEGACY = 1, CU_STREAM_LEGACY;
        STREAM_PER_THREAD = 2, CU_STREAM_PER_THREAD;
    }
    u64 {
        PROC_PER_THREAD_DEFAULT_STREAM = 2, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    }
    CUpointerAttribute {
        ATTRIBUTE_CONTEXT = 1, CU_POINTER_ATTRIBUTE_CONTEXT;
        ATTRIBUTE_MEMORY_TYPE = 2, CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        ATTRIBUTE_DEVICE_POINTER = 3, CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
        ATTRIBUTE_HOST_POINTER = 4, CU_POINTER_ATTRIBUTE_HOST_POINTER;
        ATTRIBUTE_BUFFER_ID = 7, CU_POINTER_ATTRIBUTE_BUFFER_ID;
        ATTRIBUTE_IS_MANAGED = 8, CU_POINTER_ATTRIBUTE_IS_MANAGED;
        ATTRIBUTE_DEVICE_ORDINAL = 9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        ATTRIBUTE_IS_IPC_CAPABLE = 10, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
        ATTRIBUTE_RANGE_START = 11, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
        ATTRIBUTE_RANGE_SIZE = 12, CU_POINTER_ATTRIBUTE_RANGE_SIZE;
        ATTRIBUTE_MAPPED = 13, CU_POINTER_ATTRIBUTE_MAPPED;
        ATTRIBUTE_HANDLE_TYPES = 14, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
        ATTRIBUTE_ACCESS_FLAGS = 16, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
        ATTRIBUTE_POOL = 17, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    }
}

/// Flags of arrays that get no memory when they are created: `CUDA_ARRAY3D_SPARSE` and
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`.
pub const ARRAY_WITHOUT_MEMORY: c_uint = 0xc0;

/// Description of memory that is created by handle (`CUmemAllocationProp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    /// Kind and number of the location (`CUmemLocation`).
    location: [c_int; 2],
    security: usize,
    /// Kind of compression, whether other devices of the bus may reach the memory, use (two bytes), and
    /// reserved bytes.
    flags: [u8; 8],
}

impl AllocationProperties {
    /// Returns the description of memory. `handle_types` are the kinds of handles by which other processes
    /// may get it; 0 for none.
    pub const fn new(kind: c_int, handle_types: c_int, location: [c_int; 2]) -> Self {
        Self { kind, handle_types, location, security: 0, flags: [0; 8] }
    }

    /// Returns the kinds of handles by which other processes may get the memory.
    pub const fn handle_types(&self) -> c_int {
        self.handle_types
    }

    /// Returns the kind and the number of the location.
    pub const fn location(&self) -> [c_int; 2] {
        self.location
    }

    /// Returns whether the memory is plain memory of a whole device. Other processes may be able to get it,
    /// and other devices of the bus to reach it.
    pub fn is_plain(&self) -> bool {
        let Self { kind, handle_types, location: [place, _], security, flags } = *self;
        let [compression, _, usage @ ..] = flags;
        let is_known = handle_types & !(HANDLE_DESCRIPTOR | HANDLE_FABRIC) == 0;
        let is_special = security != 0 || compression != 0 || usage != [0; 6];
        (kind, place) == (ALLOCATION_PINNED, LOCATION_DEVICE) && is_known && !is_special
    }

    /// Returns whether other devices of the bus may reach the memory (`gpuDirectRDMACapable`).
    pub const fn is_for_rdma(&self) -> bool {
        self.flags[1] != 0
    }
}

/// Right of a location to use mapped memory (`CUmemAccessDesc`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Access {
    /// Kind and number of the location (`CUmemLocation`).
    pub location: [c_int; 2],
    /// Kind of access (`CUmemAccess_flags`).
    pub flags: c_int,
}

const _: () = assert!(size_of::<AllocationProperties>() == 32 && size_of::<Access>() == 12);

/// Parameters of a kernel node in a graph (`CUDA_KERNEL_NODE_PARAMS` since CUDA 12).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelNode {
    /// Function that the node launches; null if the node launches a kernel of a library.
    pub function: CUfunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut c_void,
    extra: *mut c_void,
    /// Library kernel that the node launches; null if the node launches a function.
    pub kernel: CUfunction,
    context: CUcontext,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_memory_has_no_special_use() {
        let memory = |kind, handle_types, place| AllocationProperties::new(kind, handle_types, [place, 0]);
        for handle_types in [0, HANDLE_DESCRIPTOR, HANDLE_FABRIC, HANDLE_DESCRIPTOR | HANDLE_FABRIC] {
            assert!(memory(ALLOCATION_PINNED, handle_types, LOCATION_DEVICE).is_plain());
        }
        assert!(!memory(ALLOCATION_MANAGED, 0, LOCATION_DEVICE).is_plain());
        assert!(!memory(ALLOCATION_PINNED, 0, LOCATION_HOST_NUMA).is_plain());
        assert!(!memory(ALLOCATION_PINNED, 2, LOCATION_DEVICE).is_plain(), "a handle of Windows");
        let with = |index: usize| {
            let mut flags = [0; 8];
            flags[index] = 1;
            AllocationProperties { flags, ..memory(ALLOCATION_PINNED, 0, LOCATION_DEVICE) }
        };
        assert!(!with(0).is_plain(), "compressed");
        assert!(with(1).is_plain() && with(1).is_for_rdma());
        assert!(!with(2).is_plain(), "for sparse arrays");
    }
}
