//! Managed memory: one address for host and card, pages that move.

use simgpu_card::ids::GpuIndex;
use simgpu_card::wire::{Advice, Answer as CardAnswer, Kind, Op, Request};

use crate::api::memory;
use crate::api::prelude::*;
use crate::location::{CPU, Location};

/// `CUmem_advise`.
const SET_PREFERRED_LOCATION: u32 = 3;
const SET_ACCESSED_BY: u32 = 5;

/// `CU_DEVICE_INVALID`: pages are in different places.
const NOWHERE: i32 = -2;

api! {
    fn cuMemAllocManaged("cuMemAllocManaged", 6000)(address: Out<u64>, bytes: usize, flags: u32) {
        const GLOBAL_OR_HOST: [u32; 2] = [1, 2];
        if address.is_null() || !GLOBAL_OR_HOST.contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        address.set(memory::allocate(bytes, Kind::Managed, flags)?)
    }

    fn cuMemPrefetchAsync("cuMemPrefetchAsync", 8000; "_ptsz", 8000)[default](
        address: u64, len: usize, device: i32, stream: Handle,
    ) {
        prefetch(address, len, gpu(device)?, current::stream(stream, default)?)
    }

    fn cuMemPrefetchAsync_v2("cuMemPrefetchAsync", 12020; "_ptsz", 12020)[default](
        address: u64, len: usize, location: Location, flags: u32, stream: Handle,
    ) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        prefetch(address, len, gpu(location.device()?)?, current::stream(stream, default)?)
    }

    /// Advice is checked and counted, and has no effect: pages go where they are used.
    fn cuMemAdvise("cuMemAdvise", 8000)(address: u64, len: usize, advice: u32, device: i32) {
        gpu(device)?;
        advise(address, len, advice)
    }

    fn cuMemAdvise_v2("cuMemAdvise", 12020)(address: u64, len: usize, advice: u32, location: Location) {
        if location.kind != 0 {
            gpu(location.device()?)?;
        }
        advise(address, len, advice)
    }

    fn cuMemRangeGetAttribute("cuMemRangeGetAttribute", 8000)(
        data: Out<Untyped>, size: usize, attribute: u32, address: u64, len: usize,
    ) {
        const READ_MOSTLY: u32 = 1;
        const PREFERRED_LOCATION: u32 = 2;
        const LAST_PREFETCH_LOCATION: u32 = 4;
        managed(address, len)?;
        if size != 4 {
            return Err(Code::INVALID_VALUE);
        }
        data.cast::<i32>().set(match attribute {
            READ_MOSTLY => 0,
            PREFERRED_LOCATION => NOWHERE,
            // Where the pages are: prefetched or faulted, they are at the place they were last sent to.
            LAST_PREFETCH_LOCATION => whereabouts(address, len)?,
            _ => return Err(Code::NOT_SUPPORTED),
        })
    }

    fn cuStreamAttachMemAsync("cuStreamAttachMemAsync", 6000; "_ptsz", 7000)[default](
        stream: Handle, address: u64, _len: usize, _flags: u32,
    ) {
        current::stream(stream, default)?;
        managed(address, 1)
    }
}

/// Stands where C writes `void`.
type Untyped = u8;

pub(crate) fn gpu(device: i32) -> Answer<Option<GpuIndex>> {
    if device == CPU {
        Ok(None)
    } else {
        driver()?.gpu(device).map(|gpu| Some(gpu.index))
    }
}

pub(crate) fn prefetch(
    address: u64,
    len: usize,
    to: Option<GpuIndex>,
    stream: simgpu_card::ids::StreamId,
) -> Answer {
    managed(address, len)?;
    work::submit(stream, Op::Prefetch { address, len: len as u64, to })
}

fn advise(address: u64, len: usize, advice: u32) -> Answer {
    managed(address, len)?;
    match advice {
        SET_PREFERRED_LOCATION => driver()?.tell(Request::Advise(Advice::Location)),
        SET_ACCESSED_BY => driver()?.tell(Request::Advise(Advice::Access)),
        1..=6 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Fails unless the range is managed memory of one allocation.
pub(crate) fn managed(address: u64, len: usize) -> Answer {
    let state = driver()?.state();
    let (start, allocation) = state.allocation_at(address).ok_or(Code::INVALID_VALUE)?;
    let inside = len > 0 && address - start + len as u64 <= allocation.len;
    if inside && allocation.kind == Kind::Managed {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}

fn whereabouts(address: u64, len: usize) -> Answer<i32> {
    let driver = driver()?;
    let CardAnswer::Resident(place) = driver.call(Request::WhereIs { address, len: len as u64 })?.answer
    else {
        return Err(Code::UNKNOWN);
    };
    let ordinal = place.and_then(|place| driver.gpus.iter().position(|gpu| gpu.index == place));
    Ok(ordinal.and_then(|ordinal| i32::try_from(ordinal).ok()).unwrap_or(CPU))
}
