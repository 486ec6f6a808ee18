//! What a stream does itself, in order: writes, waits for a value or a signal, mappings.
//!
//! A wait in a stream never holds up the thread that asks for it, so to pass the gate is all that it costs. What it waits for
//! may come from a thread that sleeps at the gate; then the drop that closed the gate is undone, so that no wait
//! exists that would not be there without us. Events are not here: to record one, or to make a stream wait for one,
//! orders work and is none.

use std::ffi::c_uint;

use gpushare_client::cuda::{CUdeviceptr, CUstream};

use crate::hook::{Pointer, hooks};

hooks! {
    [ordered: stream] cuStreamWaitValue32(
        stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint
    ) = 8000 cuStreamWaitValue32, 8000 ptsz cuStreamWaitValue32_ptsz,
        11070 cuStreamWaitValue32_v2, 11070 ptsz cuStreamWaitValue32_v2_ptsz;
    [ordered: stream] cuStreamWaitValue64(
        stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint
    ) = 9000 cuStreamWaitValue64, 9000 ptsz cuStreamWaitValue64_ptsz,
        11070 cuStreamWaitValue64_v2, 11070 ptsz cuStreamWaitValue64_v2_ptsz;
    [ordered: stream] cuStreamWriteValue32(
        stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint
    ) = 8000 cuStreamWriteValue32, 8000 ptsz cuStreamWriteValue32_ptsz,
        11070 cuStreamWriteValue32_v2, 11070 ptsz cuStreamWriteValue32_v2_ptsz;
    [ordered: stream] cuStreamWriteValue64(
        stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint
    ) = 9000 cuStreamWriteValue64, 9000 ptsz cuStreamWriteValue64_ptsz,
        11070 cuStreamWriteValue64_v2, 11070 ptsz cuStreamWriteValue64_v2_ptsz;
    [ordered: stream] cuStreamBatchMemOp(
        stream: CUstream, count: c_uint, operations: Pointer, flags: c_uint
    ) = 8000 cuStreamBatchMemOp, 8000 ptsz cuStreamBatchMemOp_ptsz,
        11070 cuStreamBatchMemOp_v2, 11070 ptsz cuStreamBatchMemOp_v2_ptsz;

    [ordered: stream] cuSignalExternalSemaphoresAsync(
        semaphores: Pointer, parameters: Pointer, count: c_uint, stream: CUstream
    ) = 10000 cuSignalExternalSemaphoresAsync, 10000 ptsz cuSignalExternalSemaphoresAsync_ptsz;
    [ordered: stream] cuWaitExternalSemaphoresAsync(
        semaphores: Pointer, parameters: Pointer, count: c_uint, stream: CUstream
    ) = 10000 cuWaitExternalSemaphoresAsync, 10000 ptsz cuWaitExternalSemaphoresAsync_ptsz;

    gated cuStreamAttachMemAsync(
        stream: CUstream, address: CUdeviceptr, bytes: usize, flags: c_uint
    ) = 6000 cuStreamAttachMemAsync, 7000 ptsz cuStreamAttachMemAsync_ptsz;
    gated cuGraphicsMapResources(
        count: c_uint, resources: Pointer, stream: CUstream
    ) = 3000 cuGraphicsMapResources, 7000 ptsz cuGraphicsMapResources_ptsz;
    gated cuGraphicsUnmapResources(
        count: c_uint, resources: Pointer, stream: CUstream
    ) = 3000 cuGraphicsUnmapResources, 7000 ptsz cuGraphicsUnmapResources_ptsz;
}
