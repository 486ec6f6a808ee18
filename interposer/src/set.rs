//! Fills, asynchronous and synchronous. A synchronous fill of device memory returns at once; one of managed
//! memory blocks. The last lines are those of CUDA 2, with addresses and sizes of 32 bits.

use std::ffi::c_uint;

use gpushare_client::driver::types::{CUdeviceptr, CUstream};

use crate::hook::hooks;

hooks! {
    [one: stream] cuMemsetD8Async cuMemsetD8Async_ptsz(
        dst: CUdeviceptr, value: u8, count: usize, stream: CUstream
    );
    [one: stream] cuMemsetD16Async cuMemsetD16Async_ptsz(
        dst: CUdeviceptr, value: u16, count: usize, stream: CUstream
    );
    [one: stream] cuMemsetD32Async cuMemsetD32Async_ptsz(
        dst: CUdeviceptr, value: u32, count: usize, stream: CUstream
    );
    [one: stream] cuMemsetD2D8Async cuMemsetD2D8Async_ptsz(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream
    );
    [one: stream] cuMemsetD2D16Async cuMemsetD2D16Async_ptsz(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream
    );
    [one: stream] cuMemsetD2D32Async cuMemsetD2D32Async_ptsz(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream
    );

    [at_once: cuMemsetD8Async(dst, value, count), dst] cuMemsetD8_v2(
        dst: CUdeviceptr, value: u8, count: usize
    );
    [at_once: cuMemsetD8Async_ptsz(dst, value, count), dst] cuMemsetD8_v2_ptds(
        dst: CUdeviceptr, value: u8, count: usize
    );
    [at_once: cuMemsetD16Async(dst, value, count), dst] cuMemsetD16_v2(
        dst: CUdeviceptr, value: u16, count: usize
    );
    [at_once: cuMemsetD16Async_ptsz(dst, value, count), dst] cuMemsetD16_v2_ptds(
        dst: CUdeviceptr, value: u16, count: usize
    );
    [at_once: cuMemsetD32Async(dst, value, count), dst] cuMemsetD32_v2(
        dst: CUdeviceptr, value: u32, count: usize
    );
    [at_once: cuMemsetD32Async_ptsz(dst, value, count), dst] cuMemsetD32_v2_ptds(
        dst: CUdeviceptr, value: u32, count: usize
    );
    [at_once: cuMemsetD2D8Async(dst, pitch, value, width, height), dst] cuMemsetD2D8_v2(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize
    );
    [at_once: cuMemsetD2D8Async_ptsz(dst, pitch, value, width, height), dst] cuMemsetD2D8_v2_ptds(
        dst: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize
    );
    [at_once: cuMemsetD2D16Async(dst, pitch, value, width, height), dst] cuMemsetD2D16_v2(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize
    );
    [at_once: cuMemsetD2D16Async_ptsz(dst, pitch, value, width, height), dst] cuMemsetD2D16_v2_ptds(
        dst: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize
    );
    [at_once: cuMemsetD2D32Async(dst, pitch, value, width, height), dst] cuMemsetD2D32_v2(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize
    );
    [at_once: cuMemsetD2D32Async_ptsz(dst, pitch, value, width, height), dst] cuMemsetD2D32_v2_ptds(
        dst: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize
    );

    blocking cuMemsetD8(dst: c_uint, value: u8, count: c_uint);
    blocking cuMemsetD16(dst: c_uint, value: u16, count: c_uint);
    blocking cuMemsetD32(dst: c_uint, value: u32, count: c_uint);
    blocking cuMemsetD2D8(dst: c_uint, pitch: c_uint, value: u8, width: c_uint, height: c_uint);
    blocking cuMemsetD2D16(dst: c_uint, pitch: c_uint, value: u16, width: c_uint, height: c_uint);
    blocking cuMemsetD2D32(dst: c_uint, pitch: c_uint, value: u32, width: c_uint, height: c_uint);
}
