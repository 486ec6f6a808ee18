//! Operations in a stream: writes, waits for a value or a signal, mappings.
//!
//! A wait in a stream never blocks the calling thread, so it costs only passing the gate. The awaited value
//! may come from a thread that sleeps at the gate. Then the drop that closed the gate is undone, so that
//! gpushare adds no deadlock. Events need no hook, because they order work and add none.

use std::ffi::c_uint;

use gpushare_client::driver::types::{CUdeviceptr, CUstream};

use crate::hook::{Pointer, hooks};

hooks! {
    [ordered: stream] cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2
        cuStreamWaitValue32_v2_ptsz cuStreamWriteValue32 cuStreamWriteValue32_ptsz cuStreamWriteValue32_v2
        cuStreamWriteValue32_v2_ptsz(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
    [ordered: stream] cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2
        cuStreamWaitValue64_v2_ptsz cuStreamWriteValue64 cuStreamWriteValue64_ptsz cuStreamWriteValue64_v2
        cuStreamWriteValue64_v2_ptsz(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
    [ordered: stream] cuStreamBatchMemOp cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2
        cuStreamBatchMemOp_v2_ptsz(stream: CUstream, count: c_uint, operations: Pointer, flags: c_uint);

    [ordered: stream] cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz
        cuWaitExternalSemaphoresAsync cuWaitExternalSemaphoresAsync_ptsz(
        semaphores: Pointer, parameters: Pointer, count: c_uint, stream: CUstream
    );

    gated cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz(
        stream: CUstream, address: CUdeviceptr, bytes: usize, flags: c_uint
    );
    gated cuGraphicsMapResources cuGraphicsMapResources_ptsz cuGraphicsUnmapResources
        cuGraphicsUnmapResources_ptsz(count: c_uint, resources: Pointer, stream: CUstream);
}
