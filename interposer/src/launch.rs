//! Kernels, graphs, and functions that the host calls in stream order.
//!
//! A host function is no work of the card, but what a stream waits for while it runs is: so it passes the gate like what
//! comes before and after it in its stream. If work in flight waits for the function, the drop is undone.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

use gpushare_client::cuda::{CUfunction, CUgraph, CUgraphExec, CUstream};
use gpushare_client::hooks::work::{LaunchConfig, destroy_graph, instantiate, instantiate_and_upload};

use crate::hook::{Pointer, hooks};

hooks! {
    [kernel: f, stream] cuLaunchKernel(
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: CUstream, parameters: Pointer, extra: Pointer
    ) = 4000 cuLaunchKernel, 7000 ptsz cuLaunchKernel_ptsz;
    [configured: f, config] cuLaunchKernelEx(
        config: *const LaunchConfig, f: CUfunction, parameters: Pointer, extra: Pointer
    ) = 11060 cuLaunchKernelEx, 11060 ptsz cuLaunchKernelEx_ptsz;
    [kernel: f, stream] cuLaunchCooperativeKernel(
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
        shared: c_uint, stream: CUstream, parameters: Pointer
    ) = 9000 cuLaunchCooperativeKernel, 9000 ptsz cuLaunchCooperativeKernel_ptsz;
    gated cuLaunchCooperativeKernelMultiDevice(
        launches: Pointer, count: c_uint, flags: c_uint
    ) = 9000 cuLaunchCooperativeKernelMultiDevice;
    [one: null_mut()] cuLaunch(f: CUfunction) = 2000 cuLaunch;
    [one: null_mut()] cuLaunchGrid(f: CUfunction, width: c_int, height: c_int) = 2000 cuLaunchGrid;
    [one: stream] cuLaunchGridAsync(
        f: CUfunction, width: c_int, height: c_int, stream: CUstream
    ) = 2000 cuLaunchGridAsync;

    [graph: graph, stream] cuGraphLaunch(
        graph: CUgraphExec, stream: CUstream
    ) = 10000 cuGraphLaunch, 10000 ptsz cuGraphLaunch_ptsz;
    gated cuGraphUpload(
        graph: CUgraphExec, stream: CUstream
    ) = 11010 cuGraphUpload, 11010 ptsz cuGraphUpload_ptsz;
    [instantiate: made, graph] cuGraphInstantiate(
        made: *mut CUgraphExec, graph: CUgraph, wrong: Pointer, said: Pointer, room: usize
    ) = 10000 cuGraphInstantiate, 11000 cuGraphInstantiate_v2;
    [instantiate: made, graph] cuGraphInstantiateWithFlags(
        made: *mut CUgraphExec, graph: CUgraph, flags: u64
    ) = 11040 cuGraphInstantiateWithFlags;
    [destroy_graph: graph] cuGraphExecDestroy(graph: CUgraphExec) = 10000 cuGraphExecDestroy;
    [instantiate_and_upload: made, graph] cuGraphInstantiateWithParams(
        made: *mut CUgraphExec, graph: CUgraph, parameters: Pointer
    ) = 12000 cuGraphInstantiateWithParams, 12000 ptsz cuGraphInstantiateWithParams_ptsz;

    [ordered: stream] cuLaunchHostFunc(
        stream: CUstream, function: Pointer, data: Pointer
    ) = 10000 cuLaunchHostFunc, 10000 ptsz cuLaunchHostFunc_ptsz;
    [ordered: stream] cuLaunchHostFunc(
        stream: CUstream, function: Pointer, data: Pointer, mode: c_uint
    ) = 13010 cuLaunchHostFunc_v2, 13010 ptsz cuLaunchHostFunc_v2_ptsz;
    [ordered: stream] cuStreamAddCallback(
        stream: CUstream, function: Pointer, data: Pointer, flags: c_uint
    ) = 5000 cuStreamAddCallback, 7000 ptsz cuStreamAddCallback_ptsz;
}
