//! Several pieces of work by one call. They are done one after the other, which a batch allows and no
//! program may count on.

use crate::api::prelude::*;
use crate::api::{copy, launch, managed, stream};
use crate::copies::Wait;
use crate::current::Default;
use crate::location::Location;

/// `CUstreamBatchMemOpParams`, as waits and writes have it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryOperation {
    kind: u32,
    address: u64,
    value: u64,
    flags: u32,
    _alias: u64,
    _reserved: u64,
}

/// `CUDA_LAUNCH_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchParams {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    _shared_bytes: u32,
    stream: Handle,
    parameters: KernelParams,
}

api! {
    fn cuStreamBatchMemOp("cuStreamBatchMemOp", 8000; "_ptsz", 8000)
        = cuStreamBatchMemOp_v2("cuStreamBatchMemOp", 11070; "_ptsz", 11070)[default](
        stream: Handle, count: u32, operations: In<MemoryOperation>, flags: u32,
    ) {
        memory_operations(stream, default, count, operations, flags)
    }

    fn cuLaunchCooperativeKernelMultiDevice("cuLaunchCooperativeKernelMultiDevice", 9000)(
        launches: In<LaunchParams>, count: u32, _flags: u32,
    ) {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        (0..count as usize).try_for_each(|index| {
            let one = launches.at(index)?;
            launch::launch(one.function, (one.grid, one.block), one.stream, Default::Legacy, one.parameters, None)
        })
    }

    fn cuMemcpyBatchAsync("cuMemcpyBatchAsync", 12080; "_ptsz", 12080)[default](
        to: In<u64>, from: In<u64>, bytes: In<usize>, count: usize, _attributes: In<c_void>,
        _attribute_of: In<usize>, _attribute_count: usize, failed: Out<usize>, stream: Handle,
    ) {
        failed.set_if_wanted(usize::MAX);
        copies((to, from, bytes), count, stream, default)
    }

    fn cuMemcpyBatchAsync_v2("cuMemcpyBatchAsync", 13000; "_ptsz", 13000)[default](
        to: In<u64>, from: In<u64>, bytes: In<usize>, count: usize, _attributes: In<c_void>,
        _attribute_of: In<usize>, _attribute_count: usize, stream: Handle,
    ) {
        copies((to, from, bytes), count, stream, default)
    }

    fn cuMemPrefetchBatchAsync("cuMemPrefetchBatchAsync", 13000; "_ptsz", 13000)
        = cuMemDiscardAndPrefetchBatchAsync("cuMemDiscardAndPrefetchBatchAsync", 13000; "_ptsz", 13000)[default](
        addresses: In<u64>, bytes: In<usize>, count: usize, places: In<Location>, place_from: In<usize>,
        place_count: usize, flags: u64, stream: Handle,
    ) {
        none(flags)?;
        prefetches((addresses, bytes), count, (places, place_from, place_count), stream, default)
    }

    /// Discarded memory may keep its value, and does.
    fn cuMemDiscardBatchAsync("cuMemDiscardBatchAsync", 13000; "_ptsz", 13000)[default](
        addresses: In<u64>, bytes: In<usize>, count: usize, flags: u64, stream: Handle,
    ) {
        none(flags)?;
        current::stream(stream, default)?;
        (0..count).try_for_each(|index| managed::managed(addresses.at(index)?, bytes.at(index)?))
    }
}

fn none(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

fn memory_operations(
    stream: Handle,
    default: Default,
    count: u32,
    operations: In<MemoryOperation>,
    flags: u32,
) -> Answer {
    const WAIT: [u32; 2] = [1, 4];
    const WRITE: [u32; 2] = [2, 5];
    const NOTHING_HERE: [u32; 2] = [3, 6];
    const AT_MOST: u32 = 256;
    if flags != 0 || count > AT_MOST {
        return Err(Code::INVALID_VALUE);
    }
    let target = current::stream(stream, default)?;
    (0..count as usize).try_for_each(|index| {
        let one = operations.at(index)?;
        let wide = one.kind == WAIT[1] || one.kind == WRITE[1];
        let value = if wide { one.value } else { one.value & u64::from(u32::MAX) };
        match one.kind {
            kind if WAIT.contains(&kind) => stream::wait_value(target, one.address, value, one.flags, wide),
            kind if WRITE.contains(&kind) => stream::write_value(target, one.address, value, one.flags, wide),
            // Barriers and flushes: this card's writes are seen in order.
            kind if NOTHING_HERE.contains(&kind) => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    })
}

fn copies(
    (to, from, bytes): (In<u64>, In<u64>, In<usize>),
    count: usize,
    stream: Handle,
    default: Default,
) -> Answer {
    // Batches have an order, and the default stream of CUDA 2 is no place for them.
    if current::stream(stream, default)? == current::stream(0, Default::Legacy)? {
        return Err(Code::INVALID_VALUE);
    }
    (0..count).try_for_each(|index| {
        copy::row(stream, default, to.at(index)?, from.at(index)?, bytes.at(index)?, Wait::Never)
    })
}

fn prefetches(
    (addresses, bytes): (In<u64>, In<usize>),
    count: usize,
    (places, place_from, place_count): (In<Location>, In<usize>, usize),
    stream: Handle,
    default: Default,
) -> Answer {
    let stream = current::stream(stream, default)?;
    let mut place = 0;
    (0..count).try_for_each(|index| {
        while place + 1 < place_count && place_from.at(place + 1)? <= index {
            place += 1;
        }
        let to = managed::gpu(places.at(place)?.device()?)?;
        managed::prefetch(addresses.at(index)?, bytes.at(index)?, to, stream)
    })
}
