//! Device memory: allocations that stay on the card.

use simgpu_card::ids::GpuIndex;
use simgpu_card::wire::{Answer as CardAnswer, Kind, Request};

use crate::api::prelude::*;
use crate::mapping::Reservation;
use crate::state::{Allocation, Source};

/// `CUipcMemHandle`, which is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u64; 8]);

/// Rows of pitched memory start at multiples of this.
const PITCH: usize = 512;

api! {
    fn cuMemGetInfo_v2("cuMemGetInfo", 3020)(free: Out<usize>, total: Out<usize>) {
        let (found_free, found_total) = room(driver()?.gpu(current::device()?)?.index)?;
        free.set(found_free)?;
        total.set(found_total)
    }

    fn cuMemAlloc_v2("cuMemAlloc", 3020)(address: Out<u64>, bytes: usize) {
        if address.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        address.set(allocate(bytes, Kind::Device, 0)?)
    }

    fn cuMemAllocPitch_v2("cuMemAllocPitch", 3020)(
        address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32,
    ) {
        if address.is_null() || pitch.is_null() || ![4, 8, 16].contains(&element) {
            return Err(Code::INVALID_VALUE);
        }
        let padded = width.checked_next_multiple_of(PITCH).ok_or(Code::OUT_OF_MEMORY)?;
        let bytes = padded.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        address.set(allocate(bytes, Kind::Device, 0)?)?;
        pitch.set(padded)
    }

    fn cuMemFree_v2("cuMemFree", 3020)(address: u64) {
        if address == 0 {
            return Ok(());
        }
        free(address, &[Kind::Device, Kind::Managed])
    }

    /// The handle opens nothing here: what a program asks before it hands memory out is all that is
    /// simulated.
    fn cuIpcGetMemHandle("cuIpcGetMemHandle", 4010)(handle: Out<[u64; 8]>, address: u64) {
        let state = driver()?.state();
        let (start, found) = state.allocation_at(address).ok_or(Code::INVALID_VALUE)?;
        if found.kind != Kind::Device || !matches!(found.source, Source::Own(_)) {
            return Err(Code::INVALID_VALUE);
        }
        handle.set([start, found.len, 0, 0, 0, 0, 0, 0])
    }

    /// Opens nothing, as the driver does with a handle that it does not know.
    fn cuIpcOpenMemHandle("cuIpcOpenMemHandle", 4010) = cuIpcOpenMemHandle_v2("cuIpcOpenMemHandle", 11000)(
        address: Out<u64>, _handle: IpcHandle, _flags: u32,
    ) {
        current::context()?;
        let _ = address;
        Err(Code::INVALID_VALUE)
    }

    /// Closes nothing, since nothing is open.
    fn cuIpcCloseMemHandle("cuIpcCloseMemHandle", 4010)(_address: u64) {
        current::context()?;
        Err(Code::INVALID_VALUE)
    }

    fn cuMemGetAddressRange_v2("cuMemGetAddressRange", 3020)(start: Out<u64>, len: Out<usize>, address: u64) {
        let state = driver()?.state();
        let (found, allocation) = state.allocation_at(address).ok_or(Code::NOT_FOUND)?;
        start.set_if_wanted(found);
        len.set_if_wanted(usize::try_from(allocation.len).map_err(|_| Code::UNKNOWN)?);
        Ok(())
    }
}

/// Makes an allocation in the current context: addresses here, bytes on the card, and for managed and
/// pinned memory the bytes at the addresses.
pub(crate) fn allocate(bytes: usize, kind: Kind, flags: u32) -> Answer<u64> {
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let context = current::context()?;
    let driver = driver()?;
    driver.state().unsafe_call()?;
    let addresses = Reservation::new(bytes)?;
    let (address, len) = (addresses.address, bytes as u64);
    let reply = driver.call(Request::Allocate { address, len, kind, context })?;
    if let Some(memory) = reply.fd
        && let Err(error) = addresses.fill(&memory)
    {
        driver.call(Request::Free(address))?;
        return Err(error);
    }
    let allocation = Allocation {
        len,
        kind,
        context,
        flags,
        device: current::device()?,
        source: Source::Own(addresses),
    };
    driver.state().allocations.insert(address, allocation);
    Ok(address)
}

/// Frees an allocation of one of these kinds, after all work.
pub(crate) fn free(address: u64, kinds: &[Kind]) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    {
        let mut state = driver.state();
        state
            .allocations
            .get(&address)
            .filter(|found| {
                kinds.contains(&found.kind)
                    && !matches!(found.source, Source::Mapping(_) | Source::Registered { .. })
            })
            .ok_or(Code::INVALID_VALUE)?;
        state.unsafe_call()?;
    }
    driver.call(Request::Free(address))?;
    let mut state = driver.state();
    let is_of_graph = |found: &Allocation| matches!(found.source, Source::Graph(_));
    if !state.allocations.get(&address).is_some_and(is_of_graph) {
        state.allocations.remove(&address);
    }
    Ok(())
}

/// Free and total bytes of a GPU.
fn room(gpu: GpuIndex) -> Answer<(usize, usize)> {
    let CardAnswer::Memory { free, total } = driver()?.call(Request::MemoryInfo(gpu))?.answer else {
        return Err(Code::UNKNOWN);
    };
    let size = |bytes| usize::try_from(bytes).map_err(|_| Code::UNKNOWN);
    Ok((size(free)?, size(total)?))
}
