//! Memory: allocation, release, figures, identity.

use std::ffi::c_uint;

use gpushare_client::cuda::{CUdevice, CUdeviceptr, CUpointerAttribute};
use gpushare_client::doors::allocation::{alloc, alloc_managed, alloc_pitch, free};
use gpushare_client::doors::figures::{get_info, total_mem};
use gpushare_client::doors::identity::{address_range, attribute, attributes};

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
