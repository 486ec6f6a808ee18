//! Copies, asynchronous and synchronous. The last lines are those of CUDA 2, with addresses and sizes of 32
//! bits.

use std::ffi::c_uint;

use gpushare_client::driver::types::{CUarray, CUcontext, CUdeviceptr, CUstream};

use crate::hook::{Pointer, hooks};

hooks! {
    [one: stream] cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream
    );
    [one: stream] cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz(
        dst: CUdeviceptr, src: Pointer, bytes: usize, stream: CUstream
    );
    [one: stream] cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz(
        dst: Pointer, src: CUdeviceptr, bytes: usize, stream: CUstream
    );
    [one: stream] cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz(
        dst: CUarray, offset: usize, src: Pointer, bytes: usize, stream: CUstream
    );
    [one: stream] cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz(
        dst: Pointer, src: CUarray, offset: usize, bytes: usize, stream: CUstream
    );
    [one: stream] cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz(
        dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize, stream: CUstream
    );
    [one: stream] cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz
        cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz cuMemcpy2DAsync cuMemcpy3DAsync(
        copy: Pointer, stream: CUstream
    );
    [one: stream] cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz(
        dsts: Pointer, srcs: Pointer, sizes: Pointer, count: usize, attributes: Pointer, indices: Pointer,
        attribute_count: usize, failed: Pointer, stream: CUstream
    );
    [one: stream] cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz(
        dsts: Pointer, srcs: Pointer, sizes: Pointer, count: usize, attributes: Pointer, indices: Pointer,
        attribute_count: usize, stream: CUstream
    );
    [one: stream] cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz(
        count: usize, operations: Pointer, failed: Pointer, flags: u64, stream: CUstream
    );
    [one: stream] cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz cuFabricCpyBatchAsync
        cuFabricCpyBatchAsync_ptsz(count: usize, operations: Pointer, flags: u64, stream: CUstream);

    [one: stream] cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, attributes: Pointer, stream: CUstream
    );
    [one: stream] cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz(
        operation: Pointer, flags: u64, stream: CUstream
    );
    [one: stream] cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz(
        operations: Pointer, count: usize, flags: c_uint, failed: *mut usize, stream: CUstream
    );

    [at_once: cuMemcpyAsync(dst, src, bytes), dst, src] cuMemcpy(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize
    );
    [at_once: cuMemcpyAsync_ptsz(dst, src, bytes), dst, src] cuMemcpy_ptds(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize
    );
    [at_once: cuMemcpyDtoDAsync_v2(dst, src, bytes), dst, src] cuMemcpyDtoD_v2(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize
    );
    [at_once: cuMemcpyDtoDAsync_v2_ptsz(dst, src, bytes), dst, src] cuMemcpyDtoD_v2_ptds(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize
    );
    [staged: cuMemcpyHtoDAsync_v2(dst, src, bytes), dst, src, bytes] cuMemcpyHtoD_v2(
        dst: CUdeviceptr, src: Pointer, bytes: usize
    );
    [staged: cuMemcpyHtoDAsync_v2_ptsz(dst, src, bytes), dst, src, bytes] cuMemcpyHtoD_v2_ptds(
        dst: CUdeviceptr, src: Pointer, bytes: usize
    );
    blocking cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds(dst: Pointer, src: CUdeviceptr, bytes: usize);
    blocking cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds(
        dst: CUarray, offset: usize, src: CUdeviceptr, bytes: usize
    );
    blocking cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds(
        dst: CUdeviceptr, src: CUarray, offset: usize, bytes: usize
    );
    blocking cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds(dst: CUarray, offset: usize, src: Pointer, bytes: usize);
    blocking cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds(dst: Pointer, src: CUarray, offset: usize, bytes: usize);
    blocking cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds(
        dst: CUarray, to: usize, src: CUarray, from: usize, bytes: usize
    );
    blocking cuMemcpyPeer cuMemcpyPeer_ptds(
        dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize
    );
    blocking cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds
        cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpy3DPeer cuMemcpy3DPeer_ptds cuMemcpy2D cuMemcpy2DUnaligned
        cuMemcpy3D(copy: Pointer);

    [one: stream] cuMemcpyHtoDAsync(dst: c_uint, src: Pointer, bytes: c_uint, stream: CUstream);
    [one: stream] cuMemcpyDtoHAsync(dst: Pointer, src: c_uint, bytes: c_uint, stream: CUstream);
    [one: stream] cuMemcpyDtoDAsync(dst: c_uint, src: c_uint, bytes: c_uint, stream: CUstream);
    [one: stream] cuMemcpyHtoAAsync(
        dst: CUarray, offset: c_uint, src: Pointer, bytes: c_uint, stream: CUstream
    );
    [one: stream] cuMemcpyAtoHAsync(
        dst: Pointer, src: CUarray, offset: c_uint, bytes: c_uint, stream: CUstream
    );
    blocking cuMemcpyHtoD(dst: c_uint, src: Pointer, bytes: c_uint);
    blocking cuMemcpyDtoH(dst: Pointer, src: c_uint, bytes: c_uint);
    blocking cuMemcpyDtoD(dst: c_uint, src: c_uint, bytes: c_uint);
    blocking cuMemcpyDtoA(dst: CUarray, offset: c_uint, src: c_uint, bytes: c_uint);
    blocking cuMemcpyAtoD(dst: c_uint, src: CUarray, offset: c_uint, bytes: c_uint);
    blocking cuMemcpyHtoA(dst: CUarray, offset: c_uint, src: Pointer, bytes: c_uint);
    blocking cuMemcpyAtoH(dst: Pointer, src: CUarray, offset: c_uint, bytes: c_uint);
    blocking cuMemcpyAtoA(dst: CUarray, to: c_uint, src: CUarray, from: c_uint, bytes: c_uint);
}
