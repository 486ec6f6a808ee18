//! Copies, asynchronous and synchronous. The last ones are those of CUDA 2, whose addresses and sizes have 32 bits.

use std::ffi::c_uint;

use gpushare_client::cuda::{CUarray, CUcontext, CUdeviceptr, CUstream};

use crate::hook::{Pointer, hooks};

hooks! {
    [one: stream] cuMemcpyAsync(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream
    ) = 4000 cuMemcpyAsync, 7000 ptsz cuMemcpyAsync_ptsz;
    [one: stream] cuMemcpyHtoDAsync(
        dst: CUdeviceptr, src: Pointer, bytes: usize, stream: CUstream
    ) = 3020 cuMemcpyHtoDAsync_v2, 7000 ptsz cuMemcpyHtoDAsync_v2_ptsz;
    [one: stream] cuMemcpyDtoHAsync(
        dst: Pointer, src: CUdeviceptr, bytes: usize, stream: CUstream
    ) = 3020 cuMemcpyDtoHAsync_v2, 7000 ptsz cuMemcpyDtoHAsync_v2_ptsz;
    [one: stream] cuMemcpyDtoDAsync(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream
    ) = 3020 cuMemcpyDtoDAsync_v2, 7000 ptsz cuMemcpyDtoDAsync_v2_ptsz;
    [one: stream] cuMemcpyHtoAAsync(
        dst: CUarray, offset: usize, src: Pointer, bytes: usize, stream: CUstream
    ) = 3020 cuMemcpyHtoAAsync_v2, 7000 ptsz cuMemcpyHtoAAsync_v2_ptsz;
    [one: stream] cuMemcpyAtoHAsync(
        dst: Pointer, src: CUarray, offset: usize, bytes: usize, stream: CUstream
    ) = 3020 cuMemcpyAtoHAsync_v2, 7000 ptsz cuMemcpyAtoHAsync_v2_ptsz;
    [one: stream] cuMemcpyPeerAsync(
        dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize,
        stream: CUstream
    ) = 4000 cuMemcpyPeerAsync, 7000 ptsz cuMemcpyPeerAsync_ptsz;
    [one: stream] cuMemcpy2DAsync(
        copy: Pointer, stream: CUstream
    ) = 3020 cuMemcpy2DAsync_v2, 7000 ptsz cuMemcpy2DAsync_v2_ptsz;
    [one: stream] cuMemcpy3DAsync(
        copy: Pointer, stream: CUstream
    ) = 3020 cuMemcpy3DAsync_v2, 7000 ptsz cuMemcpy3DAsync_v2_ptsz;
    [one: stream] cuMemcpy3DPeerAsync(
        copy: Pointer, stream: CUstream
    ) = 4000 cuMemcpy3DPeerAsync, 7000 ptsz cuMemcpy3DPeerAsync_ptsz;
    [one: stream] cuMemcpyBatchAsync(
        dsts: Pointer, srcs: Pointer, sizes: Pointer, count: usize, attributes: Pointer,
        indices: Pointer, attribute_count: usize, failed: Pointer, stream: CUstream
    ) = 12080 cuMemcpyBatchAsync, 12080 ptsz cuMemcpyBatchAsync_ptsz;
    [one: stream] cuMemcpyBatchAsync(
        dsts: Pointer, srcs: Pointer, sizes: Pointer, count: usize, attributes: Pointer,
        indices: Pointer, attribute_count: usize, stream: CUstream
    ) = 13000 cuMemcpyBatchAsync_v2, 13000 ptsz cuMemcpyBatchAsync_v2_ptsz;
    [one: stream] cuMemcpy3DBatchAsync(
        count: usize, operations: Pointer, failed: Pointer, flags: u64, stream: CUstream
    ) = 12080 cuMemcpy3DBatchAsync, 12080 ptsz cuMemcpy3DBatchAsync_ptsz;
    [one: stream] cuMemcpy3DBatchAsync(
        count: usize, operations: Pointer, flags: u64, stream: CUstream
    ) = 13000 cuMemcpy3DBatchAsync_v2, 13000 ptsz cuMemcpy3DBatchAsync_v2_ptsz;

    [one: stream] cuMemcpyWithAttributesAsync(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, attributes: Pointer, stream: CUstream
    ) = 13020 cuMemcpyWithAttributesAsync, 13020 ptsz cuMemcpyWithAttributesAsync_ptsz;
    [one: stream] cuMemcpy3DWithAttributesAsync(
        operation: Pointer, flags: u64, stream: CUstream
    ) = 13020 cuMemcpy3DWithAttributesAsync, 13020 ptsz cuMemcpy3DWithAttributesAsync_ptsz;
    [one: stream] cuFabricCpyBatchAsync(
        count: usize, operations: Pointer, flags: u64, stream: CUstream
    ) = 13050 cuFabricCpyBatchAsync, 13050 ptsz cuFabricCpyBatchAsync_ptsz;
    [one: stream] cuMemBatchDecompressAsync(
        operations: Pointer, count: usize, flags: c_uint, failed: *mut usize, stream: CUstream
    ) = 12060 cuMemBatchDecompressAsync, 12060 ptsz cuMemBatchDecompressAsync_ptsz;

    blocking cuMemcpy(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize
    ) = 4000 cuMemcpy, 7000 ptsz cuMemcpy_ptds;
    blocking cuMemcpyHtoD(
        dst: CUdeviceptr, src: Pointer, bytes: usize
    ) = 3020 cuMemcpyHtoD_v2, 7000 ptsz cuMemcpyHtoD_v2_ptds;
    blocking cuMemcpyDtoH(
        dst: Pointer, src: CUdeviceptr, bytes: usize
    ) = 3020 cuMemcpyDtoH_v2, 7000 ptsz cuMemcpyDtoH_v2_ptds;
    blocking cuMemcpyDtoD(
        dst: CUdeviceptr, src: CUdeviceptr, bytes: usize
    ) = 3020 cuMemcpyDtoD_v2, 7000 ptsz cuMemcpyDtoD_v2_ptds;
    blocking cuMemcpyDtoA(
        dst: CUarray, offset: usize, src: CUdeviceptr, bytes: usize
    ) = 3020 cuMemcpyDtoA_v2, 7000 ptsz cuMemcpyDtoA_v2_ptds;
    blocking cuMemcpyAtoD(
        dst: CUdeviceptr, src: CUarray, offset: usize, bytes: usize
    ) = 3020 cuMemcpyAtoD_v2, 7000 ptsz cuMemcpyAtoD_v2_ptds;
    blocking cuMemcpyHtoA(
        dst: CUarray, offset: usize, src: Pointer, bytes: usize
    ) = 3020 cuMemcpyHtoA_v2, 7000 ptsz cuMemcpyHtoA_v2_ptds;
    blocking cuMemcpyAtoH(
        dst: Pointer, src: CUarray, offset: usize, bytes: usize
    ) = 3020 cuMemcpyAtoH_v2, 7000 ptsz cuMemcpyAtoH_v2_ptds;
    blocking cuMemcpyAtoA(
        dst: CUarray, to: usize, src: CUarray, from: usize, bytes: usize
    ) = 3020 cuMemcpyAtoA_v2, 7000 ptsz cuMemcpyAtoA_v2_ptds;
    blocking cuMemcpyPeer(
        dst: CUdeviceptr, to: CUcontext, src: CUdeviceptr, from: CUcontext, bytes: usize
    ) = 4000 cuMemcpyPeer, 7000 ptsz cuMemcpyPeer_ptds;
    blocking cuMemcpy2D(copy: Pointer) = 3020 cuMemcpy2D_v2, 7000 ptsz cuMemcpy2D_v2_ptds;
    blocking cuMemcpy2DUnaligned(
        copy: Pointer
    ) = 3020 cuMemcpy2DUnaligned_v2, 7000 ptsz cuMemcpy2DUnaligned_v2_ptds;
    blocking cuMemcpy3D(copy: Pointer) = 3020 cuMemcpy3D_v2, 7000 ptsz cuMemcpy3D_v2_ptds;
    blocking cuMemcpy3DPeer(copy: Pointer) = 4000 cuMemcpy3DPeer, 7000 ptsz cuMemcpy3DPeer_ptds;

    [one: stream] cuMemcpyHtoDAsync(
        dst: c_uint, src: Pointer, bytes: c_uint, stream: CUstream
    ) = 2000 cuMemcpyHtoDAsync;
    [one: stream] cuMemcpyDtoHAsync(
        dst: Pointer, src: c_uint, bytes: c_uint, stream: CUstream
    ) = 2000 cuMemcpyDtoHAsync;
    [one: stream] cuMemcpyDtoDAsync(
        dst: c_uint, src: c_uint, bytes: c_uint, stream: CUstream
    ) = 3000 cuMemcpyDtoDAsync;
    [one: stream] cuMemcpyHtoAAsync(
        dst: CUarray, offset: c_uint, src: Pointer, bytes: c_uint, stream: CUstream
    ) = 2000 cuMemcpyHtoAAsync;
    [one: stream] cuMemcpyAtoHAsync(
        dst: Pointer, src: CUarray, offset: c_uint, bytes: c_uint, stream: CUstream
    ) = 2000 cuMemcpyAtoHAsync;
    [one: stream] cuMemcpy2DAsync(copy: Pointer, stream: CUstream) = 2000 cuMemcpy2DAsync;
    [one: stream] cuMemcpy3DAsync(copy: Pointer, stream: CUstream) = 2000 cuMemcpy3DAsync;
    blocking cuMemcpyHtoD(dst: c_uint, src: Pointer, bytes: c_uint) = 2000 cuMemcpyHtoD;
    blocking cuMemcpyDtoH(dst: Pointer, src: c_uint, bytes: c_uint) = 2000 cuMemcpyDtoH;
    blocking cuMemcpyDtoD(dst: c_uint, src: c_uint, bytes: c_uint) = 2000 cuMemcpyDtoD;
    blocking cuMemcpyDtoA(
        dst: CUarray, offset: c_uint, src: c_uint, bytes: c_uint
    ) = 2000 cuMemcpyDtoA;
    blocking cuMemcpyAtoD(
        dst: c_uint, src: CUarray, offset: c_uint, bytes: c_uint
    ) = 2000 cuMemcpyAtoD;
    blocking cuMemcpyHtoA(
        dst: CUarray, offset: c_uint, src: Pointer, bytes: c_uint
    ) = 2000 cuMemcpyHtoA;
    blocking cuMemcpyAtoH(
        dst: Pointer, src: CUarray, offset: c_uint, bytes: c_uint
    ) = 2000 cuMemcpyAtoH;
    blocking cuMemcpyAtoA(
        dst: CUarray, to: c_uint, src: CUarray, from: c_uint, bytes: c_uint
    ) = 2000 cuMemcpyAtoA;
    blocking cuMemcpy2D(copy: Pointer) = 2000 cuMemcpy2D;
    blocking cuMemcpy2DUnaligned(copy: Pointer) = 2000 cuMemcpy2DUnaligned;
    blocking cuMemcpy3D(copy: Pointer) = 2000 cuMemcpy3D;
}
