//! Exported functions for stream-ordered memory, pools, and memory of graphs.

use std::ffi::c_int;

use gpushare_client::driver::types::DefaultStream::{Legacy, PerThread};
use gpushare_client::driver::types::{Access, CUdevice, CUdeviceptr, CUgraph, CUmemoryPool, CUstream};
use gpushare_client::hooks::graph_memory::{AnyNode, NodeParameters, add_alloc_node, add_node, trim};
use gpushare_client::hooks::location::{Location, Properties};
use gpushare_client::hooks::peers::set_pool_access;
use gpushare_client::hooks::pool::{
    alloc_async, create, destroy, free_async, named_by_device, named_by_location, shrinks,
};

use crate::hook::{Pointer, hooks};

hooks! {
    [alloc_async: address, size, None, stream, Legacy] cuMemAllocAsync(
        address: *mut CUdeviceptr, size: usize, stream: CUstream
    );
    [alloc_async: address, size, None, stream, PerThread] cuMemAllocAsync_ptsz(
        address: *mut CUdeviceptr, size: usize, stream: CUstream
    );
    [alloc_async: address, size, Some(pool), stream, Legacy] cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream
    );
    [alloc_async: address, size, Some(pool), stream, PerThread] cuMemAllocFromPoolAsync_ptsz(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream
    );
    [free_async: address, stream, Legacy] cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    [free_async: address, stream, PerThread] cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream);

    [create: pool, properties] cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const Properties);
    [destroy: pool] cuMemPoolDestroy(pool: CUmemoryPool);
    [shrinks: pool] cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    [shrinks: pool] cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: c_int, value: Pointer);
    [set_pool_access: pool, access, count] cuMemPoolSetAccess(
        pool: CUmemoryPool, access: *const Access, count: usize
    );
    [named_by_device: pool, device] cuDeviceGetMemPool cuDeviceGetDefaultMemPool(
        pool: *mut CUmemoryPool, device: CUdevice
    );
    [named_by_location: pool, location, kind] cuMemGetMemPool cuMemGetDefaultMemPool(
        pool: *mut CUmemoryPool, location: *const Location, kind: c_int
    );

    [add_alloc_node: parameters] cuGraphAddMemAllocNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, parameters: *mut NodeParameters
    );
    [add_node: parameters] cuGraphAddNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, parameters: *mut AnyNode
    );
    [add_node: parameters] cuGraphAddNode_v2 cuGraphAddNode_v3(
        node: Pointer, graph: CUgraph, after: Pointer, edges: Pointer, count: usize, parameters: *mut AnyNode
    );
    [trim: device] cuDeviceGraphMemTrim(device: CUdevice);
}
