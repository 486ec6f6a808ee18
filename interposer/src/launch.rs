//! Exported functions that launch kernels, graphs, and host functions in stream order.
//!
//! A host function gives the card no work, but its stream waits while it runs. So the call passes the gate
//! like other work. If work in flight waits for a host function that sleeps at the gate, the drop (request to
//! give the lock back) is undone.

use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

use gpushare_client::driver::types::{CUfunction, CUgraph, CUgraphExec, CUstream};
use gpushare_client::hooks::work::{LaunchConfig, destroy_graph, instantiate, instantiate_and_upload};

use crate::hook::{Pointer, hooks};

hooks! {
    [kernel: f, parameters, gx, gy, gz, stream] cuLaunchKernel cuLaunchKernel_ptsz(
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream, parameters: Pointer, extra: Pointer
    );
    [configured: f, parameters, config] cuLaunchKernelEx cuLaunchKernelEx_ptsz(
        config: *const LaunchConfig, f: CUfunction, parameters: Pointer, extra: Pointer
    );
    [kernel: f, parameters, gx, gy, gz, stream] cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz(
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream, parameters: Pointer
    );
    gated cuLaunchCooperativeKernelMultiDevice(launches: Pointer, count: c_uint, flags: c_uint);
    [one: null_mut()] cuLaunch(f: CUfunction);
    [one: null_mut()] cuLaunchGrid(f: CUfunction, width: c_int, height: c_int);
    [one: stream] cuLaunchGridAsync(f: CUfunction, width: c_int, height: c_int, stream: CUstream);

    [graph: graph, stream] cuGraphLaunch cuGraphLaunch_ptsz(graph: CUgraphExec, stream: CUstream);
    gated cuGraphUpload cuGraphUpload_ptsz(graph: CUgraphExec, stream: CUstream);
    [instantiate: made, graph] cuGraphInstantiate cuGraphInstantiate_v2(
        made: *mut CUgraphExec, graph: CUgraph, wrong: Pointer, said: Pointer, room: usize
    );
    [instantiate: made, graph] cuGraphInstantiateWithFlags(
        made: *mut CUgraphExec, graph: CUgraph, flags: u64
    );
    [destroy_graph: graph] cuGraphExecDestroy(graph: CUgraphExec);
    [instantiate_and_upload: made, graph] cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz(
        made: *mut CUgraphExec, graph: CUgraph, parameters: Pointer
    );

    [ordered: stream] cuLaunchHostFunc cuLaunchHostFunc_ptsz(
        stream: CUstream, function: Pointer, data: Pointer
    );
    [ordered: stream] cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz cuStreamAddCallback
        cuStreamAddCallback_ptsz(stream: CUstream, function: Pointer, data: Pointer, mode: c_uint);
}
