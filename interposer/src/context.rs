//! Contexts, the code in them, and captures of their streams.

use std::ffi::{c_int, c_uint};

use gpushare_client::contexts::Kind::{Created, Primary};
use gpushare_client::cuda::{CUcontext, CUdevice, CUgraph, CUgreenCtx, CUstream};
use gpushare_client::hooks::capture::{begin, destroy as destroy_stream, end};
use gpushare_client::hooks::context::{
    attach, create, create_green, destroy, destroy_green, detach, release_primary,
};
use gpushare_client::hooks::module::{load, load_library};

use crate::hook::{Pointer, hooks};

hooks! {
    [create: Primary, context, device] cuDevicePrimaryCtxRetain(
        context: *mut CUcontext, device: CUdevice
    ) = 7000 cuDevicePrimaryCtxRetain;
    [release_primary: device] cuDevicePrimaryCtxRelease(device: CUdevice) =
        7000 cuDevicePrimaryCtxRelease, 11000 cuDevicePrimaryCtxRelease_v2;
    [release_primary: device] cuDevicePrimaryCtxReset(device: CUdevice) =
        7000 cuDevicePrimaryCtxReset, 11000 cuDevicePrimaryCtxReset_v2;

    [create: Created, context, device] cuCtxCreate(
        context: *mut CUcontext, flags: c_uint, device: CUdevice
    ) = 3020 cuCtxCreate_v2;
    [create: Created, context, device] cuCtxCreate(
        context: *mut CUcontext, affinities: Pointer, count: c_int, flags: c_uint, device: CUdevice
    ) = 11040 cuCtxCreate_v3;
    [create: Created, context, device] cuCtxCreate(
        context: *mut CUcontext, parameters: Pointer, flags: c_uint, device: CUdevice
    ) = 12050 cuCtxCreate_v4;
    [create: Created, context, device] cuCtxCreate(
        context: *mut CUcontext, flags: c_uint, device: CUdevice
    ) = 2000 cuCtxCreate;
    [create: Created, context, device] cuGLCtxCreate(
        context: *mut CUcontext, flags: c_uint, device: CUdevice
    ) = 2000 cuGLCtxCreate, 3020 cuGLCtxCreate_v2;
    [create: Created, context, device] cuVDPAUCtxCreate(
        context: *mut CUcontext, flags: c_uint, device: CUdevice, decoder: c_uint, lookup: Pointer
    ) = 3010 cuVDPAUCtxCreate, 3020 cuVDPAUCtxCreate_v2;
    [attach: context] cuCtxAttach(context: *mut CUcontext, flags: c_uint) = 2000 cuCtxAttach;
    [detach: context] cuCtxDetach(context: CUcontext) = 2000 cuCtxDetach;
    [create_green: part, device] cuGreenCtxCreate(
        part: *mut CUgreenCtx, description: Pointer, device: CUdevice, flags: c_uint
    ) = 12040 cuGreenCtxCreate;
    [destroy_green: part] cuGreenCtxDestroy(part: CUgreenCtx) = 12040 cuGreenCtxDestroy;
    [destroy: context] cuCtxDestroy(context: CUcontext) = 2000 cuCtxDestroy, 4000 cuCtxDestroy_v2;

    [load:] cuModuleLoad(module: Pointer, path: Pointer) = 2000 cuModuleLoad;
    [load:] cuModuleLoadData(module: Pointer, image: Pointer) = 2000 cuModuleLoadData;
    [load:] cuModuleLoadDataEx(
        module: Pointer, image: Pointer, count: c_uint, options: Pointer, values: Pointer
    ) = 2010 cuModuleLoadDataEx;
    [load:] cuModuleLoadFatBinary(module: Pointer, image: Pointer) = 2000 cuModuleLoadFatBinary;
    [load_library:] cuLibraryLoadData(
        library: Pointer, code: Pointer, jit: Pointer, jit_values: Pointer, jit_count: c_uint,
        options: Pointer, values: Pointer, count: c_uint
    ) = 12000 cuLibraryLoadData;
    [load_library:] cuLibraryLoadFromFile(
        library: Pointer, path: Pointer, jit: Pointer, jit_values: Pointer, jit_count: c_uint,
        options: Pointer, values: Pointer, count: c_uint
    ) = 12000 cuLibraryLoadFromFile;

    [begin: stream] cuStreamBeginCapture(stream: CUstream) =
        10000 cuStreamBeginCapture, 10000 ptsz cuStreamBeginCapture_ptsz;
    [begin: stream] cuStreamBeginCapture(stream: CUstream, mode: c_int) =
        10010 cuStreamBeginCapture_v2, 10010 ptsz cuStreamBeginCapture_v2_ptsz;
    [begin: stream] cuStreamBeginCaptureToGraph(
        stream: CUstream, graph: CUgraph, dependencies: Pointer, edges: Pointer, count: usize, mode: c_int
    ) = 12030 cuStreamBeginCaptureToGraph, 12030 ptsz cuStreamBeginCaptureToGraph_ptsz;
    [begin: stream] cuStreamBeginRecaptureToGraph(
        stream: CUstream, mode: c_int, graph: CUgraph, function: Pointer, data: Pointer
    ) = 13030 cuStreamBeginRecaptureToGraph, 13030 ptsz cuStreamBeginRecaptureToGraph_ptsz;
    [begin: stream] cuStreamBeginCaptureToCig(
        stream: CUstream, parameters: Pointer
    ) = 13010 cuStreamBeginCaptureToCig, 13010 ptsz cuStreamBeginCaptureToCig_ptsz;
    [end: stream] cuStreamEndCaptureToCig(
        stream: CUstream
    ) = 13010 cuStreamEndCaptureToCig, 13010 ptsz cuStreamEndCaptureToCig_ptsz;
    [end: stream] cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) =
        10000 cuStreamEndCapture, 10000 ptsz cuStreamEndCapture_ptsz;
    [destroy_stream: stream] cuStreamDestroy(stream: CUstream) = 2000 cuStreamDestroy, 4000 cuStreamDestroy_v2;
}
