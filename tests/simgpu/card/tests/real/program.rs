//! A program that uses the simulated driver as any program uses a real one: through dlopen.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

use crate::arrays::{Copy3d, Descriptor};
use crate::graphs::{AllocateNode, HostNode, KernelNode, MemsetNode};

/// The driver's library and the calls that the tests need.
pub(crate) struct Program {
    library: Library,
}

/// A handle of any kind.
pub(crate) type Handle = usize;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) place: [u32; 2],
    pub(crate) security: usize,
    pub(crate) flags: [u8; 8],
}

macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        impl Program {$(
            /// Calls the function of this name and answers its code.
            pub(crate) fn $name(&self, $($argument: $type),*) -> u32 {
                let function = self.symbol(stringify!($name)).expect("the library exports it");
                // SAFETY: the signature is the one of cuda.h; the arguments are what it asks for.
                let function: extern "C" fn($($type),*) -> u32 = unsafe { std::mem::transmute(function) };
                function($($argument),*)
            }
        )*}
    };
}

calls! {
    cuInit(flags: u32);
    cuDeviceGetCount(count: &mut i32);
    cuDevicePrimaryCtxRetain(context: &mut Handle, device: i32);
    cuCtxGetCurrent(context: &mut Handle);
    cuCtxEnablePeerAccess(peer: Handle, flags: u32);
    cuCtxDisablePeerAccess(peer: Handle);
    cuDeviceGetAttribute(value: &mut i32, attribute: u32, device: i32);
    cuDeviceCanAccessPeer(can: &mut i32, device: i32, peer: i32);
    cuCtxSetCurrent(context: Handle);
    cuCtxSynchronize();
    cuCtxRecordEvent(context: Handle, event: Handle);
    cuModuleLoadData(module: &mut Handle, text: *const i8);
    cuModuleGetFunction(function: &mut Handle, module: Handle, name: *const i8);
    cuMemAlloc_v2(address: &mut u64, bytes: usize);
    cuMemAllocManaged(address: &mut u64, bytes: usize, flags: u32);
    cuMemAllocHost_v2(address: &mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    cuMemHostRegister_v2(pointer: u64, bytes: usize, flags: u32);
    cuMemHostUnregister(pointer: u64);
    cuMemHostGetDevicePointer_v2(address: &mut u64, pointer: u64, flags: u32);
    cuMemHostGetFlags(flags: &mut u32, pointer: u64);
    cuMemFreeHost(pointer: u64);
    cuMemcpy(to: u64, from: u64, bytes: usize);
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle);
    cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize);
    cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize);
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, bytes: usize, stream: Handle);
    cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle);
    cuMemPrefetchAsync(address: u64, bytes: usize, device: i32, stream: Handle);
    cuPointerGetAttribute(data: &mut u32, attribute: u32, address: u64);
    cuStreamCreate(stream: &mut Handle, flags: u32);
    cuStreamSynchronize(stream: Handle);
    cuStreamQuery(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32);
    cuStreamWaitValue32_v2(stream: Handle, address: u64, value: u32, flags: u32);
    cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: u32);
    cuEventCreate(event: &mut Handle, flags: u32);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventQuery(event: Handle);
    cuEventSynchronize(event: Handle);
    cuEventElapsedTime_v2(milliseconds: &mut f32, from: Handle, to: Handle);
    cuLaunchHostFunc(stream: Handle, function: extern "C" fn(*mut c_void), data: *mut c_void);
    cuStreamBeginCapture_v2(stream: Handle, mode: u32);
    cuStreamIsCapturing(stream: Handle, status: &mut u32);
    cuStreamEndCapture(stream: Handle, graph: &mut Handle);
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: &mut usize);
    cuGraphInstantiateWithFlags(exec: &mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuMemAllocAsync(address: &mut u64, bytes: usize, stream: Handle);
    cuMemAllocFromPoolAsync(address: &mut u64, bytes: usize, pool: Handle, stream: Handle);
    cuMemFreeAsync(address: u64, stream: Handle);
    cuDeviceGetDefaultMemPool(pool: &mut Handle, device: i32);
    cuDeviceGetMemPool(pool: &mut Handle, device: i32);
    cuDeviceSetMemPool(device: i32, pool: Handle);
    cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: &mut u64);
    cuMemPoolCreate(pool: &mut Handle, properties: &[u64; 11]);
    cuMemPoolDestroy(pool: Handle);
    cuMemPoolTrimTo(pool: Handle, keep: usize);
    cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: &u64);
    cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: &mut u64);
    cuMemGetAllocationGranularity(granularity: &mut usize, properties: &Properties, option: u32);
    cuMemAddressReserve(address: &mut u64, bytes: usize, alignment: usize, wish: u64, flags: u64);
    cuMemAddressFree(address: u64, bytes: usize);
    cuMemCreate(handle: &mut u64, bytes: usize, properties: &Properties, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: u64, bytes: usize);
    cuMemSetAccess(address: u64, bytes: usize, who: &[u32; 3], count: usize);
    cuMemGetAccess(flags: &mut u64, place: &[u32; 2], address: u64);
    cuMemExportToShareableHandle(descriptor: &mut i32, handle: u64, kind: u32, flags: u64);
    cuMemImportFromShareableHandle(handle: &mut u64, descriptor: usize, kind: u32);
    cuMemRetainAllocationHandle(handle: &mut u64, address: u64);
    cuMemGetAllocationPropertiesFromHandle(properties: &mut Properties, handle: u64);
    cuGraphCreate(graph: &mut Handle, flags: u32);
    cuGraphClone(clone: &mut Handle, graph: Handle);
    cuGraphUpload(exec: Handle, stream: Handle);
    cuGraphAddKernelNode_v2(node: &mut Handle, graph: Handle, after: *const Handle, count: usize, params: &KernelNode);
    cuGraphAddMemsetNode(node: &mut Handle, graph: Handle, after: *const Handle, count: usize, params: &MemsetNode,
        context: Handle);
    cuGraphAddHostNode(node: &mut Handle, graph: Handle, after: *const Handle, count: usize, params: &HostNode);
    cuGraphAddEmptyNode(node: &mut Handle, graph: Handle, after: *const Handle, count: usize);
    cuGraphAddChildGraphNode(node: &mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle);
    cuGraphAddMemAllocNode(node: &mut Handle, graph: Handle, after: *const Handle, count: usize,
        params: &mut AllocateNode);
    cuGraphAddMemFreeNode(node: &mut Handle, graph: Handle, after: *const Handle, count: usize, address: u64);
    cuGraphAddNode_v2(node: &mut Handle, graph: Handle, after: *const Handle, edges: usize, count: usize,
        params: *mut c_void);
    cuGraphChildGraphNodeGetGraph(node: Handle, graph: &mut Handle);
    cuGraphMemsetNodeGetParams(node: Handle, params: &mut MemsetNode);
    cuGraphKernelNodeGetParams_v2(node: Handle, params: &mut KernelNode);
    cuFuncGetName(name: &mut *const c_char, function: Handle);
    cuGraphKernelNodeSetParams_v2(node: Handle, params: &KernelNode);
    cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, params: &KernelNode);
    cuGraphExecUpdate(exec: Handle, graph: Handle, node: &mut Handle, result: &mut u32);
    cuGraphAddDependencies(graph: Handle, from: &Handle, to: &Handle, count: usize);
    cuGraphRemoveDependencies(graph: Handle, from: &Handle, to: &Handle, count: usize);
    cuGraphNodeGetDependencies(node: Handle, nodes: &mut Handle, count: &mut usize);
    cuGraphNodeGetType(node: Handle, kind: &mut u32);
    cuGraphNodeFindInClone(found: &mut Handle, original: Handle, clone: Handle);
    cuGraphDestroyNode(node: Handle);
    cuGraphGetRootNodes(graph: Handle, nodes: *mut Handle, count: &mut usize);
    cuThreadExchangeStreamCaptureMode(mode: &mut u32);
    cuArray3DCreate_v2(array: &mut Handle, descriptor: &Descriptor);
    cuArray3DGetDescriptor_v2(descriptor: &mut Descriptor, array: Handle);
    cuArrayDestroy(array: Handle);
    cuMipmappedArrayCreate(mipmap: &mut Handle, descriptor: &Descriptor, levels: u32);
    cuMipmappedArrayGetLevel(array: &mut Handle, mipmap: Handle, level: u32);
    cuMipmappedArrayDestroy(mipmap: Handle);
    cuMemcpy3D_v2(what: &Copy3d);
    cuMemcpyAtoH_v2(to: *mut u8, from: Handle, offset: usize, bytes: usize);
    cuMemcpyHtoA_v2(to: Handle, offset: usize, from: *const u8, bytes: usize);
    cuCheckpointProcessGetState(pid: i32, state: &mut u32);
    cuCheckpointProcessGetRestoreThreadId(pid: i32, thread: &mut i32);
    cuCheckpointProcessLock(pid: i32, arguments: &[u32; 16]);
    cuCheckpointProcessCheckpoint(pid: i32, arguments: &[u32; 16]);
    cuCheckpointProcessRestore(pid: i32, arguments: &[u32; 16]);
    cuCheckpointProcessUnlock(pid: i32, arguments: &[u32; 16]);
    cuDriverGetVersion(version: &mut i32);
    cuGetProcAddress_v2(name: *const i8, pointer: &mut usize, version: i32, flags: u64, status: &mut u32);
}

#[allow(non_snake_case, reason = "the names are NVIDIA's")]
impl Program {
    /// Loads the driver without starting it.
    pub(crate) fn load() -> Self {
        // SAFETY: the library's load runs no code of its own.
        let library = unsafe { Library::new(library("simgpu-cuda")) }.expect("the driver loads");
        Self { library }
    }

    /// Loads and starts the driver, with the primary context of the first device current.
    pub(crate) fn start() -> Self {
        let program = Self::load();
        assert_eq!(program.cuInit(0), 0);
        let mut context = 0;
        assert_eq!(program.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(program.cuCtxSetCurrent(context), 0);
        program
    }

    /// The address of an exported name.
    pub(crate) fn symbol(&self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: read as a plain address, which the library keeps as long as `self` lives.
        let symbol = unsafe { self.library.get::<*const c_void>(name.to_bytes_with_nul()) };
        symbol.ok().map(|symbol| *symbol)
    }

    /// The kernels of the PTX text.
    pub(crate) fn kernels(&self) -> Handle {
        let text = CString::new(include_str!("../../../../workload/src/kernels.ptx")).unwrap();
        let mut module = 0;
        assert_eq!(self.cuModuleLoadData(&mut module, text.as_ptr()), 0);
        module
    }

    /// A function of the PTX text.
    pub(crate) fn function(&self, module: Handle, name: &str) -> Handle {
        let (name, mut function) = (CString::new(name).unwrap(), 0);
        assert_eq!(self.cuModuleGetFunction(&mut function, module, name.as_ptr()), 0);
        function
    }

    /// Launches a kernel of the PTX text and answers the code.
    pub(crate) fn launch(&self, module: Handle, name: &str, stream: Handle, parameters: &[u64]) -> u32 {
        type Launch = extern "C" fn(
            Handle,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            u32,
            Handle,
            *const *const u64,
            *const *const c_void,
        ) -> u32;
        let function = self.function(module, name);
        let pointers: Vec<*const u64> = parameters.iter().map(std::ptr::from_ref).collect();
        let launch = self.symbol("cuLaunchKernel").unwrap();
        // SAFETY: the signature is the one of cuda.h.
        let launch: Launch = unsafe { std::mem::transmute(launch) };
        launch(function, 8, 1, 1, 128, 1, 1, 0, stream, pointers.as_ptr(), std::ptr::null())
    }

    /// Reads device memory as words.
    pub(crate) fn words(&self, address: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0u8; count * 4];
        assert_eq!(self.cuMemcpyDtoH_v2(bytes.as_mut_ptr(), address, bytes.len()), 0);
        bytes
            .chunks(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }
}

/// The path of a library of the workspace, which is built first: `cargo test` does not build it.
pub(crate) fn library(package: &str) -> PathBuf {
    static BUILT: OnceLock<Vec<String>> = OnceLock::new();
    let files = BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "simgpu-cuda", "-p", "simgpu-nvml", "--message-format=json"]);
        let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).expect("cargo writes JSON");
        let artifacts = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let names =
            artifacts.flat_map(|artifact| artifact["filenames"].as_array().cloned().unwrap_or_default());
        names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
    });
    let name = format!("lib{}.so", package.replace("gpu-", ""));
    let found = files.iter().find(|file| file.ends_with(&name));
    PathBuf::from(found.unwrap_or_else(|| panic!("cargo built no {name}")))
}
