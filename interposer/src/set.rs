//! Fills, asynchronous and synchronous. On managed memory the synchronous ones block like copies. The last ones are those
//! of CUDA 2, whose addresses and sizes have 32 bits.

use std::ffi::c_uint;

use gpushare_client::cuda::{CUdeviceptr, CUstream};

use crate::hook::hooks;

hooks! {
    [one: stream] cuMemsetD8Async(
        dst: CUdeviceptr, value: u8, count: usize, stream: CUstream
    ) = 3020 cuMemsetD8Async, 7000 ptsz cuMemsetD8Async_ptsz;
    [one: stream] cuMemsetD16Async(
        dst: CUdeviceptr, value: u16, count: usize, stream: CUstream
    ) = 3020 cuMemsetD16Async, 7000 ptsz cuMemsetD16Async_ptsz;
    [one: stream] cuMemsetD32Async(
        dst: CUdeviceptr, value: u32, count: usize, stream: CUstream
    ) = 3020 cuMemsetD32Async, 7000 ptsz cuMemsetD32Async_ptsz;
    [one: stream] cuMemsetD2D8Async(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream
    ) = 3020 cuMemsetD2D8Async, 7000 ptsz cuMemsetD2D8Async_ptsz;
    [one: stream] cuMemsetD2D16Async(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream
    ) = 3020 cuMemsetD2D16Async, 7000 ptsz cuMemsetD2D16Async_ptsz;
    [one: stream] cuMemsetD2D32Async(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream
    ) = 3020 cuMemsetD2D32Async, 7000 ptsz cuMemsetD2D32Async_ptsz;

    blocking cuMemsetD8(
        dst: CUdeviceptr, value: u8, count: usize
    ) = 3020 cuMemsetD8_v2, 7000 ptsz cuMemsetD8_v2_ptds;
    blocking cuMemsetD16(
        dst: CUdeviceptr, value: u16, count: usize
    ) = 3020 cuMemsetD16_v2, 7000 ptsz cuMemsetD16_v2_ptds;
    blocking cuMemsetD32(
        dst: CUdeviceptr, value: u32, count: usize
    ) = 3020 cuMemsetD32_v2, 7000 ptsz cuMemsetD32_v2_ptds;
    blocking cuMemsetD2D8(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize
    ) = 3020 cuMemsetD2D8_v2, 7000 ptsz cuMemsetD2D8_v2_ptds;
    blocking cuMemsetD2D16(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize
    ) = 3020 cuMemsetD2D16_v2, 7000 ptsz cuMemsetD2D16_v2_ptds;
    blocking cuMemsetD2D32(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize
    ) = 3020 cuMemsetD2D32_v2, 7000 ptsz cuMemsetD2D32_v2_ptds;

    blocking cuMemsetD8(dst: c_uint, value: u8, count: c_uint) = 2000 cuMemsetD8;
    blocking cuMemsetD16(dst: c_uint, value: u16, count: c_uint) = 2000 cuMemsetD16;
    blocking cuMemsetD32(dst: c_uint, value: u32, count: c_uint) = 2000 cuMemsetD32;
    blocking cuMemsetD2D8(
        dst: c_uint, pitch: c_uint, value: u8, width: c_uint, height: c_uint
    ) = 2000 cuMemsetD2D8;
    blocking cuMemsetD2D16(
        dst: c_uint, pitch: c_uint, value: u16, width: c_uint, height: c_uint
    ) = 2000 cuMemsetD2D16;
    blocking cuMemsetD2D32(
        dst: c_uint, pitch: c_uint, value: u32, width: c_uint, height: c_uint
    ) = 2000 cuMemsetD2D32;
}
