//! Where managed memory is: prefetch and discard. `cuMemAdvise` is not here: it says where pages should be and moves none.

use std::ffi::{c_int, c_uint};

use gpushare_client::cuda::{CUdevice, CUdeviceptr, CUstream};

use crate::hook::{Pointer, hooks};

/// `CUmemLocation`, passed by value: a type and an id.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

hooks! {
    [one: stream] cuMemPrefetchAsync(
        address: CUdeviceptr, bytes: usize, device: CUdevice, stream: CUstream
    ) = 8000 cuMemPrefetchAsync, 8000 ptsz cuMemPrefetchAsync_ptsz;
    [one: stream] cuMemPrefetchAsync(
        address: CUdeviceptr, bytes: usize, location: Location, flags: c_uint, stream: CUstream
    ) = 12020 cuMemPrefetchAsync_v2, 12020 ptsz cuMemPrefetchAsync_v2_ptsz;
    [one: stream] cuMemPrefetchBatchAsync(
        addresses: Pointer, sizes: Pointer, count: usize, locations: Pointer, indices: Pointer,
        location_count: usize, flags: u64, stream: CUstream
    ) = 13000 cuMemPrefetchBatchAsync, 13000 ptsz cuMemPrefetchBatchAsync_ptsz;
    [one: stream] cuMemDiscardBatchAsync(
        addresses: Pointer, sizes: Pointer, count: usize, flags: u64, stream: CUstream
    ) = 13000 cuMemDiscardBatchAsync, 13000 ptsz cuMemDiscardBatchAsync_ptsz;
    [one: stream] cuMemDiscardAndPrefetchBatchAsync(
        addresses: Pointer, sizes: Pointer, count: usize, locations: Pointer, indices: Pointer,
        location_count: usize, flags: u64, stream: CUstream
    ) = 13000 cuMemDiscardAndPrefetchBatchAsync, 13000 ptsz cuMemDiscardAndPrefetchBatchAsync_ptsz;
}
