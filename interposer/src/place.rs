//! Placement of managed memory: prefetch and discard. `cuMemAdvise` needs no hook: it moves no page, and
//! refuses device memory wherever that is.

use std::ffi::c_uint;

use gpushare_client::driver::types::{CUdevice, CUdeviceptr, CUstream};
use gpushare_client::hooks::location::Location;

use crate::hook::{Pointer, hooks};

hooks! {
    [one: stream] cuMemPrefetchAsync cuMemPrefetchAsync_ptsz(
        address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream
    );
    [one: stream] cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz(
        address: CUdeviceptr, bytes: usize, location: Location, flags: c_uint, stream: CUstream
    );
    [one: stream] cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz cuMemDiscardAndPrefetchBatchAsync
        cuMemDiscardAndPrefetchBatchAsync_ptsz(
        addresses: Pointer, sizes: Pointer, count: usize, locations: Pointer, indices: Pointer,
        location_count: usize, flags: u64, stream: CUstream
    );
    [one: stream] cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz(
        addresses: Pointer, sizes: Pointer, count: usize, flags: u64, stream: CUstream
    );
}
