//! The driver's entry points that the workload calls: one row per function.
//!
//! A row gives our name, the driver's base name, the suffix of the export, the version by which
//! `cuGetProcAddress` knows that variant, and the arguments as the ABI has them (enums are integers,
//! handles are as wide as a pointer). A function is looked up when the driver is opened, in the way
//! that [`Resolve`] names, so that every entry way of a sharing library can be put under test:
//!
//! ```text
//! dlopen libcuda.so.1 ─┬─ dlsym("cuMemAlloc_v2") ─────────────────────────┐
//!                      └─ dlsym("cuGetProcAddress_v2")("cuMemAlloc", 3020)┴─> mem_alloc
//! ```
//!
//! A driver without some function still opens; only the call fails, by name.

pub mod layouts;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::error::CudaError;
use crate::resolve::{Resolve, Symbols};
use layouts::{AccessDescription, AllocationNode, HandleProperties, IpcHandle, PoolProperties, Solid};

/// A `CUdevice`.
pub type DeviceOrdinal = c_int;
/// A `CUdeviceptr`.
pub type DevicePtr = u64;
/// Any opaque handle of the driver (`CUcontext`, `CUstream`, `CUevent`, …). An integer, so that the
/// threads of one program can pass it around.
pub type Handle = usize;
/// A `CUhostFn`.
pub type HostFn = unsafe extern "C" fn(*mut c_void);

macro_rules! driver_functions {
    ($($row:ident = $base:literal + $suffix:literal @ $version:literal ($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The opened driver.
        #[derive(Debug)]
        pub struct Driver {
            $($row: Option<unsafe extern "C" fn($($ty),*) -> c_int>,)*
        }

        impl Driver {
            /// Opens `libcuda.so.1` and looks every function up.
            pub fn open(resolve: Resolve) -> Result<Self, CudaError> {
                let symbols = Symbols::open(resolve)?;
                Ok(Self {
                    $($row: symbols.find($base, concat!($base, $suffix), $version).map(|address| {
                        // SAFETY: the driver's headers give this name and version this signature.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> c_int>(address) }
                    }),)*
                })
            }

            $(
                #[doc = concat!("Calls `", $base, $suffix, "`.")]
                ///
                /// # Safety
                /// The arguments must be what the CUDA driver API manual asks for.
                #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
                pub unsafe fn $row(&self, $($arg: $ty),*) -> Result<(), CudaError> {
                    let Some(function) = self.$row else {
                        return Err(CudaError::Missing(concat!($base, $suffix)));
                    };
                    // SAFETY: the caller vouches for the arguments; the signature is the table's.
                    match unsafe { function($($arg),*) } {
                        0 => Ok(()),
                        code => Err(CudaError::Driver { call: concat!($base, $suffix), code, name: self.name_of(code) }),
                    }
                }
            )*
        }
    };
}

driver_functions! {
    init = "cuInit" + "" @ 2000 (flags: c_uint);
    driver_version = "cuDriverGetVersion" + "" @ 2020 (version: *mut c_int);
    error_name = "cuGetErrorName" + "" @ 6000 (code: c_int, name: *mut *const c_char);

    device_get = "cuDeviceGet" + "" @ 2000 (device: *mut DeviceOrdinal, ordinal: c_int);
    device_name = "cuDeviceGetName" + "" @ 2000 (name: *mut c_char, len: c_int, device: DeviceOrdinal);
    device_uuid = "cuDeviceGetUuid" + "_v2" @ 11040 (uuid: *mut [u8; 16], device: DeviceOrdinal);
    device_attribute = "cuDeviceGetAttribute" + "" @ 2000
        (value: *mut c_int, attribute: c_int, device: DeviceOrdinal);
    device_total_mem = "cuDeviceTotalMem" + "_v2" @ 3020 (bytes: *mut usize, device: DeviceOrdinal);

    primary_retain = "cuDevicePrimaryCtxRetain" + "" @ 7000 (context: *mut Handle, device: DeviceOrdinal);
    primary_release = "cuDevicePrimaryCtxRelease" + "_v2" @ 11000 (device: DeviceOrdinal);
    primary_reset = "cuDevicePrimaryCtxReset" + "_v2" @ 11000 (device: DeviceOrdinal);
    ctx_create = "cuCtxCreate" + "_v2" @ 3020 (context: *mut Handle, flags: c_uint, device: DeviceOrdinal);
    ctx_destroy = "cuCtxDestroy" + "_v2" @ 4000 (context: Handle);
    ctx_attach = "cuCtxAttach" + "" @ 2000 (context: *mut Handle, flags: c_uint);
    ctx_detach = "cuCtxDetach" + "" @ 2000 (context: Handle);
    green_ctx_create = "cuGreenCtxCreate" + "" @ 12040
        (part: *mut Handle, resources: Handle, device: DeviceOrdinal, flags: c_uint);
    green_ctx_destroy = "cuGreenCtxDestroy" + "" @ 12040 (part: Handle);
    ctx_from_green = "cuCtxFromGreenCtx" + "" @ 12040 (context: *mut Handle, part: Handle);
    ctx_set_current = "cuCtxSetCurrent" + "" @ 4000 (context: Handle);
    ctx_get_current = "cuCtxGetCurrent" + "" @ 4000 (context: *mut Handle);
    ctx_synchronize = "cuCtxSynchronize" + "" @ 2000 ();

    module_load_data = "cuModuleLoadData" + "" @ 2000 (module: *mut Handle, image: *const c_void);
    module_get_function = "cuModuleGetFunction" + "" @ 2000
        (function: *mut Handle, module: Handle, name: *const c_char);

    launch_kernel = "cuLaunchKernel" + "" @ 4000 (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
        stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    launch_kernel_ex = "cuLaunchKernelEx" + "" @ 11060 (
        config: *const LaunchConfig, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    launch_cooperative = "cuLaunchCooperativeKernel" + "" @ 9000 (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
        stream: Handle, params: *mut *mut c_void,
    );
    launch_host_func = "cuLaunchHostFunc" + "" @ 10000 (stream: Handle, function: HostFn, argument: *mut c_void);

    mem_alloc = "cuMemAlloc" + "_v2" @ 3020 (address: *mut DevicePtr, bytes: usize);
    mem_alloc_pitch = "cuMemAllocPitch" + "_v2" @ 3020
        (address: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    mem_alloc_managed = "cuMemAllocManaged" + "" @ 6000 (address: *mut DevicePtr, bytes: usize, flags: c_uint);
    mem_alloc_async = "cuMemAllocAsync" + "" @ 11020 (address: *mut DevicePtr, bytes: usize, stream: Handle);
    mem_alloc_from_pool_async = "cuMemAllocFromPoolAsync" + "" @ 11020
        (address: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle);
    mem_free_async = "cuMemFreeAsync" + "" @ 11020 (address: DevicePtr, stream: Handle);
    mem_pool_create = "cuMemPoolCreate" + "" @ 11020 (pool: *mut Handle, properties: *const PoolProperties);
    mem_pool_destroy = "cuMemPoolDestroy" + "" @ 11020 (pool: Handle);
    device_graph_mem_trim = "cuDeviceGraphMemTrim" + "" @ 11040 (device: DeviceOrdinal);
    mem_free = "cuMemFree" + "_v2" @ 3020 (address: DevicePtr);
    array_3d_create = "cuArray3DCreate" + "_v2" @ 3020 (array: *mut Handle, shape: *const Solid);
    array_destroy = "cuArrayDestroy" + "" @ 2000 (array: Handle);
    mipmapped_array_create = "cuMipmappedArrayCreate" + "" @ 5000
        (mipmap: *mut Handle, shape: *const Solid, levels: c_uint);
    mipmapped_array_destroy = "cuMipmappedArrayDestroy" + "" @ 5000 (mipmap: Handle);
    mem_create = "cuMemCreate" + "" @ 10020
        (handle: *mut u64, bytes: usize, properties: *const HandleProperties, flags: u64);
    mem_release = "cuMemRelease" + "" @ 10020 (handle: u64);
    mem_export_handle = "cuMemExportToShareableHandle" + "" @ 10020
        (shareable: *mut c_int, handle: u64, kind: c_int, flags: u64);
    mem_handle_properties = "cuMemGetAllocationPropertiesFromHandle" + "" @ 10020
        (properties: *mut HandleProperties, handle: u64);
    mem_retain_handle = "cuMemRetainAllocationHandle" + "" @ 11000 (handle: *mut u64, address: *const c_void);
    mem_address_reserve = "cuMemAddressReserve" + "" @ 10020
        (address: *mut DevicePtr, bytes: usize, alignment: usize, wish: DevicePtr, flags: u64);
    mem_address_free = "cuMemAddressFree" + "" @ 10020 (address: DevicePtr, bytes: usize);
    mem_map = "cuMemMap" + "" @ 10020 (address: DevicePtr, bytes: usize, offset: usize, handle: u64, flags: u64);
    mem_unmap = "cuMemUnmap" + "" @ 10020 (address: DevicePtr, bytes: usize);
    mem_set_access = "cuMemSetAccess" + "" @ 10020
        (address: DevicePtr, bytes: usize, access: *const AccessDescription, count: usize);
    ipc_get_mem_handle = "cuIpcGetMemHandle" + "" @ 4010 (handle: *mut IpcHandle, address: DevicePtr);
    ipc_open_mem_handle = "cuIpcOpenMemHandle" + "_v2" @ 11000
        (address: *mut DevicePtr, handle: IpcHandle, flags: c_uint);
    ipc_close_mem_handle = "cuIpcCloseMemHandle" + "" @ 4010 (address: DevicePtr);
    mem_host_alloc = "cuMemHostAlloc" + "" @ 2020 (memory: *mut DevicePtr, bytes: usize, flags: c_uint);
    mem_free_host = "cuMemFreeHost" + "" @ 2000 (memory: DevicePtr);
    mem_host_register = "cuMemHostRegister" + "_v2" @ 6050 (memory: DevicePtr, bytes: usize, flags: c_uint);
    mem_host_unregister = "cuMemHostUnregister" + "" @ 4000 (memory: DevicePtr);
    mem_prefetch_async = "cuMemPrefetchAsync" + "" @ 8000
        (address: DevicePtr, bytes: usize, device: DeviceOrdinal, stream: Handle);
    mem_range_attribute = "cuMemRangeGetAttribute" + "" @ 8000
        (data: *mut c_void, size: usize, attribute: c_int, address: DevicePtr, bytes: usize);
    mem_info = "cuMemGetInfo" + "_v2" @ 3020 (free: *mut usize, total: *mut usize);
    mem_address_range = "cuMemGetAddressRange" + "_v2" @ 3020
        (base: *mut DevicePtr, bytes: *mut usize, address: DevicePtr);
    pointer_attribute = "cuPointerGetAttribute" + "" @ 4000
        (data: *mut c_void, attribute: c_int, address: DevicePtr);

    memcpy_to_device = "cuMemcpyHtoD" + "_v2" @ 3020 (to: DevicePtr, from: *const c_void, bytes: usize);
    memcpy_to_host = "cuMemcpyDtoH" + "_v2" @ 3020 (to: *mut c_void, from: DevicePtr, bytes: usize);
    memcpy_on_device = "cuMemcpyDtoD" + "_v2" @ 3020 (to: DevicePtr, from: DevicePtr, bytes: usize);
    memcpy_to_device_async = "cuMemcpyHtoDAsync" + "_v2" @ 3020
        (to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle);
    memcpy_to_host_async = "cuMemcpyDtoHAsync" + "_v2" @ 3020
        (to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle);
    memset_d32 = "cuMemsetD32" + "_v2" @ 3020 (to: DevicePtr, value: c_uint, words: usize);
    memset_d32_async = "cuMemsetD32Async" + "" @ 3020 (to: DevicePtr, value: c_uint, words: usize, stream: Handle);

    stream_create = "cuStreamCreate" + "" @ 2000 (stream: *mut Handle, flags: c_uint);
    stream_destroy = "cuStreamDestroy" + "_v2" @ 4000 (stream: Handle);
    stream_synchronize = "cuStreamSynchronize" + "" @ 2000 (stream: Handle);
    stream_query = "cuStreamQuery" + "" @ 2000 (stream: Handle);
    stream_wait_event = "cuStreamWaitEvent" + "" @ 3020 (stream: Handle, event: Handle, flags: c_uint);
    stream_wait_value = "cuStreamWaitValue32" + "_v2" @ 11070
        (stream: Handle, address: DevicePtr, value: u32, flags: c_uint);
    stream_write_value = "cuStreamWriteValue32" + "_v2" @ 11070
        (stream: Handle, address: DevicePtr, value: u32, flags: c_uint);
    stream_begin_capture = "cuStreamBeginCapture" + "_v2" @ 10010 (stream: Handle, mode: c_int);
    stream_end_capture = "cuStreamEndCapture" + "" @ 10000 (stream: Handle, graph: *mut Handle);

    event_create = "cuEventCreate" + "" @ 2000 (event: *mut Handle, flags: c_uint);
    event_destroy = "cuEventDestroy" + "_v2" @ 4000 (event: Handle);
    event_record = "cuEventRecord" + "" @ 2000 (event: Handle, stream: Handle);
    event_query = "cuEventQuery" + "" @ 2000 (event: Handle);
    event_synchronize = "cuEventSynchronize" + "" @ 2000 (event: Handle);
    event_elapsed = "cuEventElapsedTime" + "" @ 2000 (milliseconds: *mut f32, from: Handle, to: Handle);

    graph_create = "cuGraphCreate" + "" @ 10000 (graph: *mut Handle, flags: c_uint);
    graph_add_mem_alloc_node = "cuGraphAddMemAllocNode" + "" @ 11040 (
        node: *mut Handle, graph: Handle, after: *const Handle, count: usize, parameters: *mut AllocationNode,
    );
    graph_instantiate = "cuGraphInstantiateWithFlags" + "" @ 11040 (exec: *mut Handle, graph: Handle, flags: u64);
    graph_update = "cuGraphExecUpdate" + "" @ 10020 (
        exec: Handle, graph: Handle, failed: *mut Handle, result: *mut c_uint,
    );
    graph_launch = "cuGraphLaunch" + "" @ 10000 (exec: Handle, stream: Handle);
    graph_destroy = "cuGraphDestroy" + "" @ 10000 (graph: Handle);
    graph_exec_destroy = "cuGraphExecDestroy" + "" @ 10000 (exec: Handle);
}

/// A `CUlaunchConfig` without attributes.
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: [c_uint; 3],
    /// Threads in x, y and z.
    pub block: [c_uint; 3],
    /// Dynamic shared memory.
    pub shared_bytes: c_uint,
    /// The stream.
    pub stream: Handle,
    /// `CUlaunchAttribute` array; null here.
    pub attributes: *const c_void,
    /// Length of the attribute array; zero here.
    pub attribute_count: c_uint,
}

impl Driver {
    /// The driver's own name of an error code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    fn name_of(&self, code: c_int) -> String {
        let mut name = std::ptr::null();
        if let Some(error_name) = self.error_name {
            // SAFETY: `name` is writable; on success the driver stores a string that lives as long as it
            // does.
            unsafe { error_name(code, &raw mut name) };
        }
        if name.is_null() {
            return format!("CUresult {code}");
        }
        // SAFETY: not null, so it is the driver's own NUL-terminated constant.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
