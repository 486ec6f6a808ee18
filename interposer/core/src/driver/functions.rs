//! Driver functions that gpushare calls itself, looked up once past its own hooks. A thread may be cancelled
//! inside any of them, as inside those that the application calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::dynlink::name;
use super::types::{
    Access, AllocationProperties, CAPTURE_MODE_RELAXED, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr,
    CUevent, CUfunction, CUgraph, CUgraphNode, CUgreenCtx, CUmemHandle, CUmemoryPool, CUmodule,
    CUpointerAttribute, CUresult, CUstream, KernelNode, REFUSED_FOR_CAPTURE,
};

macro_rules! driver {
    (
        required { $($rname:ident: $rexport:ident($($rarg:ty),*);)* }
        optional { $($oname:ident: $oexport:ident($($oarg:ty),*);)* }
    ) => {
        /// Functions of the real driver. A function that an older driver may lack is an `Option`.
        #[derive(Clone, Copy, Debug)]
        pub struct Driver {
            $(
                #[doc = concat!("The driver's `", stringify!($rexport), "`.")]
                pub $rname: unsafe extern "C-unwind" fn($($rarg),*) -> CUresult,
            )*
            $(
                #[doc = concat!("The driver's `", stringify!($oexport), "`, if it has it.")]
                pub $oname: Option<unsafe extern "C-unwind" fn($($oarg),*) -> CUresult>,
            )*
        }

        impl Driver {
            /// Looks up every driver function that gpushare calls.
            ///
            /// # Errors
            /// Name of a required function that is missing, because there is no CUDA driver or an older one.
            pub fn load(lookup: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $( $rname: {
                        let name = name(concat!(stringify!($rexport), "\0"));
                        let address = lookup(name);
                        if address.is_null() {
                            return Err(name);
                        }
                        // SAFETY: the driver's export of this name has this type (CUDA driver API).
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($rarg),*) -> CUresult>(address)
                        }
                    }, )*
                    $( $oname: {
                        let address = lookup(name(concat!(stringify!($oexport), "\0")));
                        // SAFETY: the driver's export of this name has this type; a null address becomes
                        // `None`.
                        unsafe {
                            std::mem::transmute::<*mut c_void, Option<unsafe extern "C-unwind" fn($($oarg),*) -> CUresult>>(
                                address,
                            )
                        }
                    }, )*
                })
            }
        }
    };
}

driver! {
    required {
        ctx_get_device: cuCtxGetDevice(*mut CUdevice);
        ctx_get_current: cuCtxGetCurrent(*mut CUcontext);
        ctx_push_current: cuCtxPushCurrent_v2(CUcontext);
        ctx_pop_current: cuCtxPopCurrent_v2(*mut CUcontext);
        ctx_synchronize: cuCtxSynchronize();
        device_get_uuid: cuDeviceGetUuid(*mut [u8; 16], CUdevice);
        device_get_name: cuDeviceGetName(*mut c_char, c_int, CUdevice);
        device_total_mem: cuDeviceTotalMem_v2(*mut usize, CUdevice);
        primary_ctx_retain: cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        primary_ctx_release: cuDevicePrimaryCtxRelease_v2(CUdevice);
        primary_ctx_get_state: cuDevicePrimaryCtxGetState(CUdevice, *mut c_uint, *mut c_int);
        driver_get_version: cuDriverGetVersion(*mut c_int);
        mem_alloc_managed: cuMemAllocManaged(*mut CUdeviceptr, usize, c_uint);
        mem_alloc: cuMemAlloc_v2(*mut CUdeviceptr, usize);
        mem_free: cuMemFree_v2(CUdeviceptr);
        mem_prefetch_async: cuMemPrefetchAsync(CUdeviceptr, usize, CUdevice, CUstream);
        stream_create: cuStreamCreate(*mut CUstream, c_uint);
        stream_query: cuStreamQuery(CUstream);
        stream_synchronize: cuStreamSynchronize(CUstream);
        stream_synchronize_ptsz: cuStreamSynchronize_ptsz(CUstream);
        event_create: cuEventCreate(*mut CUevent, c_uint);
        event_query: cuEventQuery(CUevent);
        thread_exchange_capture_mode: cuThreadExchangeStreamCaptureMode(*mut c_int);
    }
    optional {
        device_get_count: cuDeviceGetCount(*mut c_int);
        device_get_attribute: cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
        event_record: cuEventRecord(CUevent, CUstream);
        event_elapsed_time: cuEventElapsedTime(*mut f32, CUevent, CUevent);
        event_destroy: cuEventDestroy_v2(CUevent);
        // Since CUDA 4.0.
        pointer_get_attribute: cuPointerGetAttribute(*mut c_void, CUpointerAttribute, CUdeviceptr);
        mem_host_unregister: cuMemHostUnregister(*mut c_void);
        mem_host_alloc: cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        module_load_data: cuModuleLoadData(*mut CUmodule, *const c_void);
        module_get_function: cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        launch_kernel: cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
            *mut *mut c_void
        );
        copy_out: cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        copy_in: cuMemcpyHtoDAsync_v2(CUdeviceptr, *mut c_void, usize, CUstream);
        // Since CUDA 6.5.
        mem_host_register: cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        // Since CUDA 7.
        event_record_ptsz: cuEventRecord_ptsz(CUevent, CUstream);
        // Since CUDA 8.0.
        mem_advise: cuMemAdvise(CUdeviceptr, usize, c_int, CUdevice);
        // Since CUDA 9.2.
        stream_get_ctx: cuStreamGetCtx(CUstream, *mut CUcontext);
        // Since CUDA 10.0.
        stream_is_capturing: cuStreamIsCapturing(CUstream, *mut c_int);
        graph_get_nodes: cuGraphGetNodes(CUgraph, *mut CUgraphNode, *mut usize);
        graph_node_get_type: cuGraphNodeGetType(CUgraphNode, *mut c_int);
        graph_child_get_graph: cuGraphChildGraphNodeGetGraph(CUgraphNode, *mut CUgraph);
        // Since CUDA 10.2.
        mem_address_reserve: cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
        mem_create: cuMemCreate(*mut CUmemHandle, usize, *const AllocationProperties, u64);
        mem_release: cuMemRelease(CUmemHandle);
        mem_map: cuMemMap(CUdeviceptr, usize, usize, CUmemHandle, u64);
        mem_unmap: cuMemUnmap(CUdeviceptr, usize);
        mem_set_access: cuMemSetAccess(CUdeviceptr, usize, *const Access, usize);
        mem_address_free: cuMemAddressFree(CUdeviceptr, usize);
        mem_export: cuMemExportToShareableHandle(*mut c_void, CUmemHandle, c_int, u64);
        mem_import: cuMemImportFromShareableHandle(*mut CUmemHandle, *mut c_void, c_int);
        // Since CUDA 11.2.
        mem_pool_get_access: cuMemPoolGetAccess(*mut c_int, CUmemoryPool, *mut [c_int; 2]);
        mem_pool_get_attribute: cuMemPoolGetAttribute(CUmemoryPool, c_int, *mut c_void);
        device_get_mem_pool: cuDeviceGetMemPool(*mut CUmemoryPool, CUdevice);
        device_get_default_mem_pool: cuDeviceGetDefaultMemPool(*mut CUmemoryPool, CUdevice);
        device_set_mem_pool: cuDeviceSetMemPool(CUdevice, CUmemoryPool);
        mem_pool_destroy: cuMemPoolDestroy(CUmemoryPool);
        mem_pool_set_attribute: cuMemPoolSetAttribute(CUmemoryPool, c_int, *mut c_void);
        mem_pool_trim_to: cuMemPoolTrimTo(CUmemoryPool, usize);
        mem_free_async: cuMemFreeAsync(CUdeviceptr, CUstream);
        // Since CUDA 11.4.
        graph_mem_get_attribute: cuDeviceGetGraphMemAttribute(CUdevice, c_int, *mut c_void);
        device_get_uuid_v2: cuDeviceGetUuid_v2(*mut [u8; 16], CUdevice);
        // Since CUDA 12.0.
        graph_kernel_node_get_params: cuGraphKernelNodeGetParams_v2(CUgraphNode, *mut KernelNode);
        // Since CUDA 12.3.
        func_get_name: cuFuncGetName(*mut *const c_char, CUfunction);
        kernel_get_name: cuKernelGetName(*mut *const c_char, CUfunction);
        // Since CUDA 12.4.
        func_get_param_info: cuFuncGetParamInfo(CUfunction, usize, *mut usize, *mut usize);
        kernel_get_param_info: cuKernelGetParamInfo(CUfunction, usize, *mut usize, *mut usize);
        ctx_from_green_ctx: cuCtxFromGreenCtx(*mut CUcontext, CUgreenCtx);
        // Since CUDA 12.5.
        ctx_record_event: cuCtxRecordEvent(CUcontext, CUevent);
    }
}

macro_rules! calls {
    ($(#[doc = $doc:literal])* $calls:ident { $($name:ident = $function:ident: $($arg:ty),*;)* }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $calls {
            $(
                #[doc = concat!("[`Driver::", stringify!($function), "`].")]
                pub $name: unsafe extern "C-unwind" fn($($arg),*) -> CUresult,
            )*
        }

        impl $calls {
            /// Returns the functions, if the driver has all of them.
            pub fn of(driver: &Driver) -> Option<Self> {
                Some(Self { $($name: driver.$function?),* })
            }
        }
    };
}

calls! {
    /// Functions of the driver that move memory at fixed addresses.
    MemoryCalls {
        address_reserve = mem_address_reserve: *mut CUdeviceptr, usize, usize, CUdeviceptr, u64;
        create = mem_create: *mut CUmemHandle, usize, *const AllocationProperties, u64;
        release = mem_release: CUmemHandle;
        map = mem_map: CUdeviceptr, usize, usize, CUmemHandle, u64;
        unmap = mem_unmap: CUdeviceptr, usize;
        set_access = mem_set_access: CUdeviceptr, usize, *const Access, usize;
        register = mem_host_register: *mut c_void, usize, c_uint;
        unregister = mem_host_unregister: *mut c_void;
        copy_out = copy_out: *mut c_void, CUdeviceptr, usize, CUstream;
        copy_in = copy_in: CUdeviceptr, *mut c_void, usize, CUstream;
    }
}

calls! {
    /// Functions of the driver that open memory of another process.
    ImportCalls {
        import = mem_import: *mut CUmemHandle, *mut c_void, c_int;
        address_reserve = mem_address_reserve: *mut CUdeviceptr, usize, usize, CUdeviceptr, u64;
        address_free = mem_address_free: CUdeviceptr, usize;
        map = mem_map: CUdeviceptr, usize, usize, CUmemHandle, u64;
        set_access = mem_set_access: CUdeviceptr, usize, *const Access, usize;
        unmap = mem_unmap: CUdeviceptr, usize;
        release = mem_release: CUmemHandle;
    }
}

/// Returns the value that `ask` writes over `unwritten`; `None` if the driver returns an error.
pub(crate) fn answer<T>(unwritten: T, ask: impl FnOnce(&mut T) -> CUresult) -> Option<T> {
    try_answer(unwritten, ask).ok()
}

/// Returns the value that `ask` writes over `unwritten`, or the error of the driver.
pub(crate) fn try_answer<T>(mut unwritten: T, ask: impl FnOnce(&mut T) -> CUresult) -> Result<T, CUresult> {
    match ask(&mut unwritten) {
        CUDA_SUCCESS => Ok(unwritten),
        error => Err(error),
    }
}

impl Driver {
    /// Runs `ask` with the calling thread's stream capture mode relaxed. Otherwise a forbidden driver call
    /// would invalidate a capture of the application.
    pub fn relaxed<T>(&self, ask: impl FnOnce() -> T) -> T {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges one integer.
        unsafe { (self.thread_exchange_capture_mode)(&raw mut mode) };
        let answer = ask();
        // SAFETY: exchanges one integer; this restores the application's mode.
        unsafe { (self.thread_exchange_capture_mode)(&raw mut mode) };
        answer
    }

    /// Returns whether a capture allows allocations and frees in the calling thread, as the driver answers for the least
    /// allocation. A call that the mode of the capture forbids invalidates the capture, as natively.
    pub fn allowed_beside_capture(&self) -> Result<(), CUresult> {
        let mut address = 0;
        // SAFETY: writes one address, and frees what was allocated.
        let answer = unsafe {
            match (self.mem_alloc)(&raw mut address, 1) {
                CUDA_SUCCESS => (self.mem_free)(address),
                error => error,
            }
        };
        if REFUSED_FOR_CAPTURE.contains(&answer) { Err(answer) } else { Ok(()) }
    }

    /// Returns the ordinal of the calling thread's current device, if a context is current.
    pub fn current_device(&self) -> Option<CUdevice> {
        // SAFETY: writes one integer.
        answer(0, |device| unsafe { (self.ctx_get_device)(device) })
    }

    /// Returns the calling thread's current context; null if there is none.
    pub fn current_context(&self) -> CUcontext {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { (self.ctx_get_current)(&raw mut context) };
        context
    }

    /// Returns the driver's CUDA version (13000 is 13.0), or 0 if the driver does not say.
    pub fn version(&self) -> c_int {
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { (self.driver_get_version)(&raw mut version) };
        version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_no_driver_names_what_it_lacks() {
        assert_eq!(Driver::load(|_| std::ptr::null_mut()).unwrap_err(), c"cuCtxGetDevice");
    }

    #[test]
    fn an_old_driver_lacks_only_what_is_optional() {
        let somewhere = std::ptr::without_provenance_mut(0x1000);
        let old = |name: &CStr| if name == c"cuCtxRecordEvent" { std::ptr::null_mut() } else { somewhere };
        let driver = Driver::load(old).unwrap();
        assert!(driver.ctx_record_event.is_none());
        assert!(driver.device_get_uuid_v2.is_some());
    }
}
