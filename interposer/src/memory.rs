//! Exported functions for memory: allocation, release, sizes, and questions about an address.

use std::ffi::{c_int, c_uint, c_ulonglong};

use gpushare_client::driver::types::{
    Access, AllocationProperties, CUarray, CUdevice, CUdeviceptr, CUmemHandle, CUpointerAttribute, CUstream,
};
use gpushare_client::hooks::allocation::{alloc, alloc_as, alloc_pitch, alloc_pitch_narrow, free};
use gpushare_client::hooks::array::{self, Flat, Solid, create_levels};
use gpushare_client::hooks::figures::{get_info, get_info_narrow, total_mem, total_mem_narrow};
use gpushare_client::hooks::identity::{address_range, attribute, attributes, range};
use gpushare_client::hooks::ipc::{close, export_handle, give_out, hand_out, open, prepare, share};
use gpushare_client::hooks::mapping::{
    self, bind, describe, free_addresses, give, map, release, retain, set_access, unmap,
};
use gpushare_client::hooks::peers::create_multicast;
use gpushare_client::hooks::sparse::{ArrayMap, map_arrays};
use gpushare_client::memory::allocations::Origin::{Managed, Native};
use gpushare_client::sharing::handle::RawHandle;

use crate::hook::{Pointer, hooks};

hooks! {
    [alloc: address, size] cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize);
    [alloc_pitch: address, pitch, width, height] cuMemAllocPitch_v2(
        address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint
    );
    [alloc_as: address, size, Managed] cuMemAllocManaged(address: *mut CUdeviceptr, size: usize, flags: c_uint);
    [free: address] cuMemFree_v2(address: CUdeviceptr);

    [alloc_as: address, size as usize, Native] cuMemAlloc(address: *mut u32, size: c_uint);
    [alloc_pitch_narrow: address, pitch, width, height] cuMemAllocPitch(
        address: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint
    );
    [free: address.into()] cuMemFree(address: u32);

    [array::create: array, descriptor] cuArrayCreate(array: *mut CUarray, descriptor: *const Flat<c_uint>);
    [array::create: array, descriptor] cuArrayCreate_v2(array: *mut CUarray, descriptor: *const Flat<usize>);
    [array::create: array, descriptor] cuArray3DCreate(array: *mut CUarray, descriptor: *const Solid<c_uint>);
    [array::create: array, descriptor] cuArray3DCreate_v2(
        array: *mut CUarray, descriptor: *const Solid<usize>
    );
    [array::destroy: array] cuArrayDestroy cuMipmappedArrayDestroy(array: CUarray);
    [create_levels: mipmap, descriptor, levels] cuMipmappedArrayCreate(
        mipmap: *mut CUarray, descriptor: *const Solid<usize>, levels: c_uint
    );

    [mapping::create: handle, size, properties] cuMemCreate(
        handle: *mut CUmemHandle, size: usize, properties: *const AllocationProperties, flags: c_ulonglong
    );
    [release: handle] cuMemRelease(handle: CUmemHandle);
    [handle => map: address, size] cuMemMap(
        address: CUdeviceptr, size: usize, offset: usize, handle: CUmemHandle, flags: c_ulonglong
    );
    [unmap: address, size] cuMemUnmap(address: CUdeviceptr, size: usize);
    [set_access: address, size, access, count] cuMemSetAccess(
        address: CUdeviceptr, size: usize, access: *const Access, count: usize
    );
    [free_addresses: address, size] cuMemAddressFree(address: CUdeviceptr, size: usize);
    [create_multicast:] cuMulticastCreate(object: *mut CUmemHandle, properties: Pointer);
    [bind: address, size] cuMulticastBindAddr(
        object: CUmemHandle, offset: usize, address: CUdeviceptr, size: usize, flags: c_ulonglong
    );
    [bind: address, size] cuMulticastBindAddr_v2(
        object: CUmemHandle, device: CUdevice, offset: usize, address: CUdeviceptr, size: usize, flags: c_ulonglong
    );
    [bind: address.addr() as CUdeviceptr, size as usize] cuLogicalEndpointBindAddr(
        endpoint: c_uint, device: CUdevice, offset: u64, address: Pointer, size: u64, flags: c_ulonglong
    );
    [memory => give:] cuMulticastBindMem(
        object: CUmemHandle, offset: usize, memory: CUmemHandle, from: usize, size: usize, flags: c_ulonglong
    );
    [memory => give:] cuMulticastBindMem_v2(
        object: CUmemHandle, device: CUdevice, offset: usize, memory: CUmemHandle, from: usize, size: usize,
        flags: c_ulonglong
    );
    [memory => give:] cuLogicalEndpointBindMem(
        endpoint: c_uint, device: CUdevice, offset: u64, memory: CUmemHandle, from: u64, size: u64,
        flags: c_ulonglong
    );
    [describe: properties, handle] cuMemGetAllocationPropertiesFromHandle(
        properties: *mut AllocationProperties, handle: CUmemHandle
    );
    [parts => map_arrays: count] cuMemMapArrayAsync cuMemMapArrayAsync_ptsz(
        parts: *mut ArrayMap, count: c_uint, stream: CUstream
    );
    [retain: handle, address.addr() as CUdeviceptr] cuMemRetainAllocationHandle(
        handle: *mut CUmemHandle, address: Pointer
    );

    [give_out: handle, address] cuIpcGetMemHandle(handle: *mut RawHandle, address: CUdeviceptr);
    [open: address, &handle, flags] cuIpcOpenMemHandle cuIpcOpenMemHandle_v2(
        address: *mut CUdeviceptr, handle: RawHandle, flags: c_uint
    );
    [close: address] cuIpcCloseMemHandle(address: CUdeviceptr);
    [hand_out: address, size] cuMemGetHandleForAddressRange(
        handle: Pointer, address: CUdeviceptr, size: usize, kind: c_int, flags: c_ulonglong
    );
    [prepare: address] cuPointerSetAttribute(
        value: Pointer, attribute: CUpointerAttribute, address: CUdeviceptr
    );
    [handle => export_handle:] cuMemExportToShareableHandle(
        shareable: Pointer, handle: CUmemHandle, kind: c_int, flags: c_ulonglong
    );
    [share:] cuMemImportFromShareableHandle(handle: *mut CUmemHandle, shareable: Pointer, kind: c_int);
    [share:] cuMemPoolExportToShareableHandle(
        shareable: Pointer, pool: Pointer, kind: c_int, flags: c_ulonglong
    );
    [share:] cuMemPoolImportFromShareableHandle(
        pool: Pointer, shareable: Pointer, kind: c_int, flags: c_ulonglong
    );
    [share:] cuIpcGetEventHandle(handle: Pointer, event: Pointer);
    [share:] cuIpcOpenEventHandle(event: Pointer, handle: RawHandle);
    [share:] cuImportExternalMemory cuImportExternalSemaphore(object: Pointer, description: Pointer);
    [range: address] cuMemRangeGetAttribute(
        data: Pointer, size: usize, attribute: c_int, address: CUdeviceptr, count: usize
    );
    [range: address] cuMemRangeGetAttributes(
        data: Pointer, sizes: Pointer, attributes: Pointer, number: usize, address: CUdeviceptr, count: usize
    );

    [get_info_narrow: free, total] cuMemGetInfo(free: *mut u32, total: *mut u32);
    [total_mem_narrow: total, device] cuDeviceTotalMem(total: *mut u32, device: CUdevice);
    [get_info: free, total] cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    [total_mem: total, device] cuDeviceTotalMem_v2(total: *mut usize, device: CUdevice);

    [address_range: base, size, address] cuMemGetAddressRange_v2(
        base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr
    );
    [attribute: data, wanted, address] cuPointerGetAttribute(
        data: Pointer, wanted: CUpointerAttribute, address: CUdeviceptr
    );
    [attributes: count, wanted, data, address] cuPointerGetAttributes(
        count: c_uint, wanted: *mut CUpointerAttribute, data: *mut Pointer, address: CUdeviceptr
    );
}
