//! Exported functions for contexts, the code in them, and captures of their streams.

use std::ffi::{c_int, c_uint};

use gpushare_client::driver::contexts::Kind::{Created, Primary};
use gpushare_client::driver::types::{CUcontext, CUdevice, CUgraph, CUgreenCtx, CUstream};
use gpushare_client::hooks::capture::{begin, end};
use gpushare_client::hooks::context::{
    attach, create, create_green, destroy, destroy_green, detach, release_primary,
};
use gpushare_client::hooks::module::load;
use gpushare_client::hooks::peers::enable;
use gpushare_client::hooks::stream::{create as create_stream, create_in_part, destroy as destroy_stream};

use crate::hook::{Pointer, hooks};

hooks! {
    [create: Primary, context, device] cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    [release_primary: device] cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset
        cuDevicePrimaryCtxReset_v2(device: CUdevice);

    [create: Created, context, device] cuCtxCreate_v2 cuCtxCreate cuGLCtxCreate cuGLCtxCreate_v2(
        context: *mut CUcontext, flags: c_uint, device: CUdevice
    );
    [create: Created, context, device] cuCtxCreate_v3(
        context: *mut CUcontext, affinities: Pointer, count: c_int, flags: c_uint, device: CUdevice
    );
    [create: Created, context, device] cuCtxCreate_v4(
        context: *mut CUcontext, parameters: Pointer, flags: c_uint, device: CUdevice
    );
    [create: Created, context, device] cuVDPAUCtxCreate cuVDPAUCtxCreate_v2(
        context: *mut CUcontext, flags: c_uint, device: CUdevice, decoder: c_uint, lookup: Pointer
    );
    [attach: context] cuCtxAttach(context: *mut CUcontext, flags: c_uint);
    [detach: context] cuCtxDetach(context: CUcontext);
    [create_green: part, device] cuGreenCtxCreate(
        part: *mut CUgreenCtx, description: Pointer, device: CUdevice, flags: c_uint
    );
    [destroy_green: part] cuGreenCtxDestroy(part: CUgreenCtx);
    [destroy: context] cuCtxDestroy cuCtxDestroy_v2(context: CUcontext);

    [enable: peer] cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);

    [load:] cuModuleLoad cuModuleLoadData cuModuleLoadFatBinary(module: Pointer, path: Pointer);
    [load:] cuModuleLoadDataEx(
        module: Pointer, image: Pointer, count: c_uint, options: Pointer, values: Pointer
    );
    [load:] cuLibraryLoadData cuLibraryLoadFromFile(
        library: Pointer, code: Pointer, jit: Pointer, jit_values: Pointer, jit_count: c_uint,
        options: Pointer, values: Pointer, count: c_uint
    );

    [begin: stream] cuStreamBeginCapture cuStreamBeginCapture_ptsz(stream: CUstream);
    [begin: stream] cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: c_int);
    [begin: stream] cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream, graph: CUgraph, dependencies: Pointer, edges: Pointer, count: usize, mode: c_int
    );
    [begin: stream] cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz(
        stream: CUstream, mode: c_int, graph: CUgraph, function: Pointer, data: Pointer
    );
    [begin: stream] cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz(
        stream: CUstream, parameters: Pointer
    );
    [end: stream] cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz(stream: CUstream);
    [end: stream] cuStreamEndCapture cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph);
    [create_stream: stream] cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    [create_stream: stream] cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    [create_in_part: stream, part] cuGreenCtxStreamCreate(
        stream: *mut CUstream, part: CUgreenCtx, flags: c_uint, priority: c_int
    );
    [destroy_stream: stream] cuStreamDestroy cuStreamDestroy_v2(stream: CUstream);
}
