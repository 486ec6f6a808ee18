//! Memory in the order of streams, pools, and memory of graphs.

use std::ffi::c_int;

use gpushare_client::cuda::{CUdevice, CUdeviceptr, CUgraph, CUmemoryPool, CUstream};
use gpushare_client::hooks::graph_memory::{AnyNode, NodeParameters, add_alloc_node, add_node, trim};
use gpushare_client::hooks::location::{Location, Properties};
use gpushare_client::hooks::pool::{
    alloc_async, alloc_from_pool_async, create, free_async, named_by_device, named_by_location, shrinks,
};
use gpushare_client::hooks::work::DefaultStream::{Legacy, PerThread};

use crate::hook::{Pointer, hooks};

hooks! {
    [alloc_async: address, size, stream, Legacy] cuMemAllocAsync(
        address: *mut CUdeviceptr, size: usize, stream: CUstream
    ) = 11020 cuMemAllocAsync;
    [alloc_async: address, size, stream, PerThread] cuMemAllocAsync(
        address: *mut CUdeviceptr, size: usize, stream: CUstream
    ) = 11020 ptsz cuMemAllocAsync_ptsz;
    [alloc_from_pool_async: address, size, pool, stream, Legacy] cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream
    ) = 11020 cuMemAllocFromPoolAsync;
    [alloc_from_pool_async: address, size, pool, stream, PerThread] cuMemAllocFromPoolAsync(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream
    ) = 11020 ptsz cuMemAllocFromPoolAsync_ptsz;
    [free_async: address, stream, Legacy] cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) = 11020 cuMemFreeAsync;
    [free_async: address, stream, PerThread] cuMemFreeAsync(
        address: CUdeviceptr, stream: CUstream
    ) = 11020 ptsz cuMemFreeAsync_ptsz;

    [create: pool, properties] cuMemPoolCreate(
        pool: *mut CUmemoryPool, properties: *const Properties
    ) = 11020 cuMemPoolCreate;
    [shrinks: pool] cuMemPoolDestroy(pool: CUmemoryPool) = 11020 cuMemPoolDestroy;
    [shrinks: pool] cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) = 11020 cuMemPoolTrimTo;
    [shrinks: pool] cuMemPoolSetAttribute(
        pool: CUmemoryPool, attribute: c_int, value: Pointer
    ) = 11020 cuMemPoolSetAttribute;
    [named_by_device: pool, device] cuDeviceGetMemPool(
        pool: *mut CUmemoryPool, device: CUdevice
    ) = 11020 cuDeviceGetMemPool;
    [named_by_device: pool, device] cuDeviceGetDefaultMemPool(
        pool: *mut CUmemoryPool, device: CUdevice
    ) = 11020 cuDeviceGetDefaultMemPool;
    [named_by_location: pool, location, kind] cuMemGetMemPool(
        pool: *mut CUmemoryPool, location: *const Location, kind: c_int
    ) = 13000 cuMemGetMemPool;
    [named_by_location: pool, location, kind] cuMemGetDefaultMemPool(
        pool: *mut CUmemoryPool, location: *const Location, kind: c_int
    ) = 13000 cuMemGetDefaultMemPool;

    [add_alloc_node: parameters] cuGraphAddMemAllocNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, parameters: *mut NodeParameters
    ) = 11040 cuGraphAddMemAllocNode;
    [add_node: parameters] cuGraphAddNode(
        node: Pointer, graph: CUgraph, after: Pointer, count: usize, parameters: *mut AnyNode
    ) = 12020 cuGraphAddNode;
    [add_node: parameters] cuGraphAddNode(
        node: Pointer, graph: CUgraph, after: Pointer, edges: Pointer, count: usize, parameters: *mut AnyNode
    ) = 12030 cuGraphAddNode_v2, 13040 cuGraphAddNode_v3;
    [trim: device] cuDeviceGraphMemTrim(device: CUdevice) = 11040 cuDeviceGraphMemTrim;
}
