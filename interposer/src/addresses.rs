//! Exported functions in which the driver looks at addresses of device memory: nodes of graphs, textures, attributes
//! of streams and of nodes. They give the card no work. While remapped memory is away, its addresses are holes, so
//! these calls wait for it.
//!
//! The parameters of kernels and descriptors of tensors contain addresses too, but the driver only stores them.

use std::ffi::c_int;

use gpushare_client::driver::types::{CUcontext, CUdeviceptr, CUgraph, CUgraphExec, CUgraphNode, CUstream};
use gpushare_client::hooks::addresses::look;

use crate::hook::{Pointer, hooks};

hooks! {
    [look:] cuGraphAddMemcpyNode cuGraphAddMemsetNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, parameters: Pointer, context: CUcontext
    );
    [look:] cuGraphAddBatchMemOpNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, parameters: Pointer
    );
    [look:] cuGraphAddChildGraphNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, child: CUgraph
    );
    [look:] cuGraphMemcpyNodeSetParams cuGraphMemsetNodeSetParams cuGraphBatchMemOpNodeSetParams
        cuGraphNodeSetParams cuGraphNodeSetParams_v2(node: CUgraphNode, parameters: Pointer);
    [look:] cuGraphKernelNodeSetAttribute(node: CUgraphNode, attribute: c_int, value: Pointer);

    [look:] cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams(
        exec: CUgraphExec, node: CUgraphNode, parameters: Pointer, context: CUcontext
    );
    [look:] cuGraphExecBatchMemOpNodeSetParams cuGraphExecNodeSetParams(
        exec: CUgraphExec, node: CUgraphNode, parameters: Pointer
    );
    [look:] cuGraphExecChildGraphNodeSetParams(exec: CUgraphExec, node: CUgraphNode, child: CUgraph);
    [look:] cuGraphExecUpdate(exec: CUgraphExec, graph: CUgraph, node: Pointer, result: Pointer);
    [look:] cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: Pointer);

    [look:] cuTexObjectCreate(
        object: Pointer, resource: Pointer, texture: Pointer, view: Pointer
    );
    [look:] cuTexRefSetAddress_v2(
        offset: Pointer, texture: Pointer, address: CUdeviceptr, bytes: usize
    );
    [look:] cuTexRefSetAddress2D_v2 cuTexRefSetAddress2D_v3(
        texture: Pointer, descriptor: Pointer, address: CUdeviceptr, pitch: usize
    );

    [look:] cuStreamSetAttribute cuStreamSetAttribute_ptsz(stream: CUstream, attribute: c_int, value: Pointer);
    [look:] cuMemGetAccess(flags: Pointer, location: Pointer, address: CUdeviceptr);
}
