//! Memory: allocation, release, figures, identity.

use std::ffi::{c_int, c_uint, c_ulonglong};

use gpushare_client::cuda::{CUarray, CUdevice, CUdeviceptr, CUmemHandle, CUpointerAttribute, CUstream};
use gpushare_client::hooks::allocation::{
    alloc, alloc_managed, alloc_narrow, alloc_pitch, alloc_pitch_narrow, free,
};
use gpushare_client::hooks::array::{self, Flat, Solid, create_levels};
use gpushare_client::hooks::figures::{get_info, get_info_narrow, total_mem, total_mem_narrow};
use gpushare_client::hooks::identity::{address_range, attribute, attributes, range};
use gpushare_client::hooks::ipc::{hand_out, prepare};
use gpushare_client::hooks::location::Properties;
use gpushare_client::hooks::mapping::{self, ArrayMap, map, map_arrays, release, retain, unmap};

use crate::hook::{Pointer, hooks};

hooks! {
    [alloc: address, size] cuMemAlloc(address: *mut CUdeviceptr, size: usize) = 3020 cuMemAlloc_v2;
    [alloc_pitch: address, pitch, width, height] cuMemAllocPitch(
        address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint
    ) = 3020 cuMemAllocPitch_v2;
    [alloc_managed: address, size] cuMemAllocManaged(
        address: *mut CUdeviceptr, size: usize, flags: c_uint
    ) = 6000 cuMemAllocManaged;
    [free: address] cuMemFree(address: CUdeviceptr) = 3020 cuMemFree_v2;

    [alloc_narrow: address, size] cuMemAlloc(address: *mut u32, size: c_uint) = 2000 cuMemAlloc;
    [alloc_pitch_narrow: address, pitch, width, height] cuMemAllocPitch(
        address: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint
    ) = 2000 cuMemAllocPitch;
    [free: address.into()] cuMemFree(address: u32) = 2000 cuMemFree;

    [array::create: array, descriptor] cuArrayCreate(
        array: *mut CUarray, descriptor: *const Flat<c_uint>
    ) = 2000 cuArrayCreate;
    [array::create: array, descriptor] cuArrayCreate(
        array: *mut CUarray, descriptor: *const Flat<usize>
    ) = 3020 cuArrayCreate_v2;
    [array::create: array, descriptor] cuArray3DCreate(
        array: *mut CUarray, descriptor: *const Solid<c_uint>
    ) = 2000 cuArray3DCreate;
    [array::create: array, descriptor] cuArray3DCreate(
        array: *mut CUarray, descriptor: *const Solid<usize>
    ) = 3020 cuArray3DCreate_v2;
    [array::destroy: array] cuArrayDestroy(array: CUarray) = 2000 cuArrayDestroy;
    [create_levels: mipmap, descriptor, levels] cuMipmappedArrayCreate(
        mipmap: *mut CUarray, descriptor: *const Solid<usize>, levels: c_uint
    ) = 5000 cuMipmappedArrayCreate;
    [array::destroy: mipmap] cuMipmappedArrayDestroy(mipmap: CUarray) = 5000 cuMipmappedArrayDestroy;

    [mapping::create: handle, size, properties] cuMemCreate(
        handle: *mut CUmemHandle, size: usize, properties: *const Properties, flags: c_ulonglong
    ) = 10020 cuMemCreate;
    [release: handle] cuMemRelease(handle: CUmemHandle) = 10020 cuMemRelease;
    [map: address, size, handle] cuMemMap(
        address: CUdeviceptr, size: usize, offset: usize, handle: CUmemHandle, flags: c_ulonglong
    ) = 10020 cuMemMap;
    [unmap: address, size] cuMemUnmap(address: CUdeviceptr, size: usize) = 10020 cuMemUnmap;
    [map_arrays: parts, count] cuMemMapArrayAsync(
        parts: *mut ArrayMap, count: c_uint, stream: CUstream
    ) = 11010 cuMemMapArrayAsync, 11010 ptsz cuMemMapArrayAsync_ptsz;
    [retain: handle, address.addr() as CUdeviceptr] cuMemRetainAllocationHandle(
        handle: *mut CUmemHandle, address: Pointer
    ) = 11000 cuMemRetainAllocationHandle;

    [hand_out: address] cuIpcGetMemHandle(handle: Pointer, address: CUdeviceptr) = 4010 cuIpcGetMemHandle;
    [hand_out: address] cuMemGetHandleForAddressRange(
        handle: Pointer, address: CUdeviceptr, size: usize, kind: c_int, flags: c_ulonglong
    ) = 11070 cuMemGetHandleForAddressRange;
    [prepare: address] cuPointerSetAttribute(
        value: Pointer, attribute: CUpointerAttribute, address: CUdeviceptr
    ) = 6000 cuPointerSetAttribute;
    [range: address] cuMemRangeGetAttribute(
        data: Pointer, size: usize, attribute: c_int, address: CUdeviceptr, count: usize
    ) = 8000 cuMemRangeGetAttribute;
    [range: address] cuMemRangeGetAttributes(
        data: Pointer, sizes: Pointer, attributes: Pointer, number: usize, address: CUdeviceptr, count: usize
    ) = 8000 cuMemRangeGetAttributes;

    [get_info_narrow: free, total] cuMemGetInfo(free: *mut u32, total: *mut u32) = 2000 cuMemGetInfo;
    [total_mem_narrow: total, device] cuDeviceTotalMem(total: *mut u32, device: CUdevice) = 2000 cuDeviceTotalMem;
    [get_info: free, total] cuMemGetInfo(free: *mut usize, total: *mut usize) = 3020 cuMemGetInfo_v2;
    [total_mem: total, device] cuDeviceTotalMem(
        total: *mut usize, device: CUdevice
    ) = 3020 cuDeviceTotalMem_v2;

    [address_range: base, size, address] cuMemGetAddressRange(
        base: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr
    ) = 3020 cuMemGetAddressRange_v2;
    [attribute: data, wanted, address] cuPointerGetAttribute(
        data: Pointer, wanted: CUpointerAttribute, address: CUdeviceptr
    ) = 4000 cuPointerGetAttribute;
    [attributes: count, wanted, data, address] cuPointerGetAttributes(
        count: c_uint, wanted: *mut CUpointerAttribute, data: *mut Pointer, address: CUdeviceptr
    ) = 7000 cuPointerGetAttributes;
}
