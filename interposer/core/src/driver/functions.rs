//! The driver functions that we call ourselves: the real ones, looked up once past our own hooks. A thread may be
//! cancelled inside any of them, as in those that the application calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::driver::types::{
    CAPTURE_MODE_RELAXED, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphNode,
    CUgreenCtx, CUmemoryPool, CUresult, CUstream, KernelNode,
};

macro_rules! driver {
    (
        required { $( $(#[$rdoc:meta])* $rname:ident: fn($($rarg:ty),*) = $rexport:literal; )* }
        optional { $( $(#[$odoc:meta])* $oname:ident: fn($($oarg:ty),*) = $oexport:literal; )* }
    ) => {
        /// Real driver functions. Each field is the export of its name.
        #[derive(Clone, Copy, Debug)]
        pub struct Driver {
            $( $(#[$rdoc])* pub $rname: unsafe extern "C-unwind" fn($($rarg),*) -> CUresult, )*
            $( $(#[$odoc])* pub $oname: Option<unsafe extern "C-unwind" fn($($oarg),*) -> CUresult>, )*
        }

        impl Driver {
            /// Looks every function up; the name of the first required one that is missing otherwise.
            ///
            /// # Errors
            /// The missing symbol: not a CUDA driver, or one older than we support.
            pub fn load(lookup: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static CStr> {
                Ok(Self {
                    $( $rname: {
                        let address = lookup($rexport);
                        if address.is_null() {
                            return Err($rexport);
                        }
                        // SAFETY: the driver's export of this name has this type (CUDA driver API).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($rarg),*) -> CUresult>(address) }
                    }, )*
                    $( $oname: {
                        let address = lookup($oexport);
                        // SAFETY: as above; a null address becomes `None`.
                        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C-unwind" fn($($oarg),*) -> CUresult>>(address) }
                    }, )*
                })
            }
        }
    };
}

driver! {
    required {
        /// The device of the calling thread's context.
        ctx_get_device: fn(*mut CUdevice) = c"cuCtxGetDevice";
        /// The calling thread's context.
        ctx_get_current: fn(*mut CUcontext) = c"cuCtxGetCurrent";
        /// Makes a context current.
        ctx_push_current: fn(CUcontext) = c"cuCtxPushCurrent_v2";
        /// And takes it off again.
        ctx_pop_current: fn(*mut CUcontext) = c"cuCtxPopCurrent_v2";
        /// Waits for all work of the current context.
        ctx_synchronize: fn() = c"cuCtxSynchronize";
        /// A device's identity, 16 bytes.
        device_get_uuid: fn(*mut [u8; 16], CUdevice) = c"cuDeviceGetUuid";
        /// A device's name.
        device_get_name: fn(*mut c_char, c_int, CUdevice) = c"cuDeviceGetName";
        /// A device's memory.
        device_total_mem: fn(*mut usize, CUdevice) = c"cuDeviceTotalMem_v2";
        /// A device's primary context, with one more user.
        primary_ctx_retain: fn(*mut CUcontext, CUdevice) = c"cuDevicePrimaryCtxRetain";
        /// One user less of it.
        primary_ctx_release: fn(CUdevice) = c"cuDevicePrimaryCtxRelease_v2";
        /// Whether a device's primary context is alive.
        primary_ctx_get_state: fn(CUdevice, *mut c_uint, *mut c_int) = c"cuDevicePrimaryCtxGetState";
        /// The driver's CUDA version.
        driver_get_version: fn(*mut c_int) = c"cuDriverGetVersion";
        /// Managed memory.
        mem_alloc_managed: fn(*mut CUdeviceptr, usize, c_uint) = c"cuMemAllocManaged";
        /// Frees memory.
        mem_free: fn(CUdeviceptr) = c"cuMemFree_v2";
        /// Moves managed memory (the form without a location struct).
        mem_prefetch_async: fn(CUdeviceptr, usize, CUdevice, CUstream) = c"cuMemPrefetchAsync";
        /// A stream of our own.
        stream_create: fn(*mut CUstream, c_uint) = c"cuStreamCreate";
        /// Waits for a stream.
        stream_synchronize: fn(CUstream) = c"cuStreamSynchronize";
        /// Waits for a stream; null is the calling thread's own default stream.
        stream_synchronize_ptsz: fn(CUstream) = c"cuStreamSynchronize_ptsz";
        /// An event.
        event_create: fn(*mut CUevent, c_uint) = c"cuEventCreate";
        /// Whether an event's work is done.
        event_query: fn(CUevent) = c"cuEventQuery";
        /// The calling thread's capture mode: ours is relaxed, so that we break nobody's capture.
        thread_exchange_capture_mode: fn(*mut c_int) = c"cuThreadExchangeStreamCaptureMode";
    }
    optional {
        /// A pool's figures. CUDA 11.2.
        mem_pool_get_attribute: fn(CUmemoryPool, c_int, *mut c_void) = c"cuMemPoolGetAttribute";
        /// The pool that a device allocates from. CUDA 11.2.
        device_get_mem_pool: fn(*mut CUmemoryPool, CUdevice) = c"cuDeviceGetMemPool";
        /// Makes a pool give back what it does not use. CUDA 11.2.
        mem_pool_trim_to: fn(CUmemoryPool, usize) = c"cuMemPoolTrimTo";
        /// Frees in the order of a stream. CUDA 11.2.
        mem_free_async: fn(CUdeviceptr, CUstream) = c"cuMemFreeAsync";
        /// What graphs took for themselves. CUDA 11.4.
        graph_mem_get_attribute: fn(CUdevice, c_int, *mut c_void) = c"cuDeviceGetGraphMemAttribute";
        /// A device's identity; tells MIG instances apart. CUDA 11.4.
        device_get_uuid_v2: fn(*mut [u8; 16], CUdevice) = c"cuDeviceGetUuid_v2";
        /// Whether a stream captures. CUDA 10.0.
        stream_is_capturing: fn(CUstream, *mut c_int) = c"cuStreamIsCapturing";
        /// The context of a stream. CUDA 9.2.
        stream_get_ctx: fn(CUstream, *mut CUcontext) = c"cuStreamGetCtx";
        /// The context of a part of a card. CUDA 12.4.
        ctx_from_green_ctx: fn(*mut CUcontext, CUgreenCtx) = c"cuCtxFromGreenCtx";
        /// An event in a stream.
        event_record: fn(CUevent, CUstream) = c"cuEventRecord";
        /// An event in a stream; null is the calling thread's own default stream. CUDA 7.
        event_record_ptsz: fn(CUevent, CUstream) = c"cuEventRecord_ptsz";
        /// An event's end.
        event_destroy: fn(CUevent) = c"cuEventDestroy_v2";
        /// The nodes of a graph, or how many there are. CUDA 10.0.
        graph_get_nodes: fn(CUgraph, *mut CUgraphNode, *mut usize) = c"cuGraphGetNodes";
        /// What a node is. CUDA 10.0.
        graph_node_get_type: fn(CUgraphNode, *mut c_int) = c"cuGraphNodeGetType";
        /// The graph within a node. CUDA 10.0.
        graph_child_get_graph: fn(CUgraphNode, *mut CUgraph) = c"cuGraphChildGraphNodeGetGraph";
        /// What a kernel node launches. CUDA 12.0.
        graph_kernel_node_get_params: fn(CUgraphNode, *mut KernelNode) = c"cuGraphKernelNodeGetParams_v2";
        /// A function's name, kept by the driver. CUDA 12.3.
        func_get_name: fn(*mut *const c_char, CUfunction) = c"cuFuncGetName";
        /// The same of a kernel of a library. CUDA 12.3.
        kernel_get_name: fn(*mut *const c_char, CUfunction) = c"cuKernelGetName";
        /// An event after everything that a context has in flight. CUDA 12.5.
        ctx_record_event: fn(CUcontext, CUevent) = c"cuCtxRecordEvent";
    }
}

impl Driver {
    /// Asks in relaxed mode: questions of ours that the driver thinks unsafe beside a capture must not break one of the
    /// application's.
    pub fn relaxed<T>(&self, ask: impl FnOnce() -> T) -> T {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges one integer.
        unsafe { (self.thread_exchange_capture_mode)(&raw mut mode) };
        let answer = ask();
        // SAFETY: as above; the application's mode is back.
        unsafe { (self.thread_exchange_capture_mode)(&raw mut mode) };
        answer
    }

    /// The ordinal of the calling thread's current device, if it has a context.
    #[must_use]
    pub fn current_device(&self) -> Option<CUdevice> {
        let mut device = 0;
        // SAFETY: writes one integer.
        (unsafe { (self.ctx_get_device)(&raw mut device) } == 0).then_some(device)
    }

    /// The calling thread's current context; null if none.
    #[must_use]
    pub fn current_context(&self) -> CUcontext {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        unsafe { (self.ctx_get_current)(&raw mut context) };
        context
    }

    /// The driver's CUDA version (13000 is 13.0), or 0.
    #[must_use]
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
