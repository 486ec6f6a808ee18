//! Physical memory: created without an address, mapped into reserved ones, shared by descriptor.

use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::MetadataExt;

use simgpu_card::ids::HandleId;
use simgpu_card::wire::{Answer as CardAnswer, Place, Request};

use crate::api::prelude::*;
use crate::location::{AccessDescription, Location};
use crate::mapping::Reservation;
use crate::physical::{self, GRANULARITY, Physical, Properties};
use crate::state::Source;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: u32 = 1;

api! {
    fn cuMemGetAllocationGranularity("cuMemGetAllocationGranularity", 10020)(
        granularity: Out<usize>, properties: In<Properties>, option: u32,
    ) {
        place(&properties.get()?)?;
        if option > 1 {
            return Err(Code::INVALID_VALUE);
        }
        granularity.set(usize::try_from(GRANULARITY).map_err(|_| Code::UNKNOWN)?)
    }

    /// The wished address is a hint that this driver never takes.
    fn cuMemAddressReserve("cuMemAddressReserve", 10020)(
        address: Out<u64>, size: usize, alignment: usize, _wish: u64, flags: u64,
    ) {
        let granularity = usize::try_from(GRANULARITY).map_err(|_| Code::UNKNOWN)?;
        let aligned = alignment == 0 || alignment.is_power_of_two();
        if address.is_null() || size == 0 || !size.is_multiple_of(granularity) || !aligned || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let reservation = Reservation::aligned(size, alignment.max(granularity))?;
        let start = reservation.address;
        driver()?.state().reserved.insert(start, reservation);
        address.set(start)
    }

    fn cuMemAddressFree("cuMemAddressFree", 10020)(address: u64, size: usize) {
        let mut state = driver()?.state();
        let exact = state.reserved.get(&address).is_some_and(|found| found.is(address, size));
        if !exact || state.is_mapped(address, size as u64) {
            return Err(Code::INVALID_VALUE);
        }
        state.reserved.remove(&address);
        Ok(())
    }

    fn cuMemCreate("cuMemCreate", 10020)(handle: Out<u64>, size: usize, properties: In<Properties>, flags: u64) {
        let properties = properties.get()?;
        let len = size as u64;
        if handle.is_null() || flags != 0 || len == 0 || !len.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        let place = place(&properties)?;
        let driver = driver()?;
        let id = driver.state().fresh();
        let shareable = properties.handle_types == DESCRIPTOR;
        if shareable && driver.gpus.iter().any(|gpu| gpu.description.refuses_exportable) {
            return Err(Code::NOT_SUPPORTED);
        }
        driver.call(Request::CreateHandle { handle: HandleId(id), len, place, shareable })?;
        handle.set(keep(id, len, properties)?)
    }

    fn cuMemRelease("cuMemRelease", 10020)(handle: u64) {
        physical::release(handle)
    }

    fn cuMemMap("cuMemMap", 10020)(address: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        if offset != 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        physical::map(address, size as u64, handle)
    }

    fn cuMemUnmap("cuMemUnmap", 10020)(address: u64, size: usize) {
        physical::unmap(address, size as u64)
    }

    fn cuMemSetAccess("cuMemSetAccess", 10020)(
        address: u64, size: usize, descriptions: In<AccessDescription>, count: usize,
    ) {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        (0..count).try_for_each(|index| physical::set_access(address, size as u64, descriptions.at(index)?))
    }

    fn cuMemGetAccess("cuMemGetAccess", 10020)(flags: Out<u64>, location: In<Location>, address: u64) {
        flags.set(physical::access(address, location.get()?)?.into())
    }

    fn cuMemExportToShareableHandle("cuMemExportToShareableHandle", 10020)(
        shared: Out<i32>, handle: u64, kind: u32, flags: u64,
    ) {
        let driver = driver()?;
        let (id, properties) = {
            let mut state = driver.state();
            let (id, found) = state.physical(handle)?;
            (id, found.properties)
        };
        if shared.is_null() || flags != 0 || kind != DESCRIPTOR || properties.handle_types != DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        let reply = driver.call(Request::ShareHandle(HandleId(id)))?;
        shared.set(reply.fd.ok_or(Code::UNKNOWN)?.into_raw_fd())
    }

    /// The descriptor is the number that C passes as a pointer; it stays the caller's.
    fn cuMemImportFromShareableHandle("cuMemImportFromShareableHandle", 10020)(
        handle: Out<u64>, shared: usize, kind: u32,
    ) {
        if handle.is_null() || kind != DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        let inode = inode(shared)?;
        let driver = driver()?;
        let id = driver.state().fresh();
        let reply = driver.call(Request::ImportHandle { handle: HandleId(id), inode })?;
        let CardAnswer::Imported { len, place } = reply.answer else {
            return Err(Code::UNKNOWN);
        };
        let location = match place {
            Place::Gpu(index) => {
                let device = driver.gpus.iter().position(|gpu| gpu.index == index).ok_or(Code::INVALID_DEVICE)?;
                Location::of_device(i32::try_from(device).map_err(|_| Code::INVALID_DEVICE)?)
            }
            Place::Host => Location { kind: Location::HOST_NUMA, id: 0 },
        };
        let properties = Properties {
            kind: PINNED, handle_types: DESCRIPTOR, location,
            security: 0, compression: 0, rdma: 0, usage: 0, reserved: [0; 4],
        };
        handle.set(keep(id, len, properties)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle("cuMemGetAllocationPropertiesFromHandle", 10020)(
        properties: Out<Properties>, handle: u64,
    ) {
        let found = driver()?.state().physical(handle)?.1.properties;
        properties.set(found)
    }

    /// Works for mapped memory only: what `cuMemAlloc` made has no handle.
    fn cuMemRetainAllocationHandle("cuMemRetainAllocationHandle", 11000)(handle: Out<u64>, address: u64) {
        let mut state = driver()?.state();
        let id = match state.allocation_at(address).map(|(_, found)| &found.source) {
            Some(Source::Mapping(mapping)) => mapping.handle,
            _ => return Err(Code::INVALID_VALUE),
        };
        state.physical.get_mut(&id).ok_or(Code::INVALID_VALUE)?.references += 1;
        handle.set(Tag::Physical.handle(id) as u64)
    }
}

fn keep(id: u32, len: u64, properties: Properties) -> Answer<u64> {
    let physical = Physical { len, properties, references: 1, mappings: 0 };
    driver()?.state().physical.insert(id, physical);
    Ok(Tag::Physical.handle(id) as u64)
}

fn place(properties: &Properties) -> Answer<Place> {
    if properties.kind != PINNED || properties.handle_types > DESCRIPTOR {
        return Err(Code::INVALID_VALUE);
    }
    match properties.location.kind {
        Location::DEVICE => Ok(Place::Gpu(driver()?.gpu(properties.location.id)?.index)),
        Location::HOST_NUMA if has_memory(properties.location.id)? => Ok(Place::Host),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Whether a NUMA node of the host has memory. All GPUs are next to the same one.
fn has_memory(node: i32) -> Answer<bool> {
    Ok(driver()?
        .gpus
        .iter()
        .any(|gpu| u32::try_from(node) == Ok(gpu.description.host_node)))
}

/// Inode of the memory behind a descriptor of the caller.
fn inode(descriptor: usize) -> Answer<u64> {
    let descriptor = i32::try_from(descriptor).map_err(|_| Code::INVALID_VALUE)?;
    if descriptor < 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: only looked at, and never closed: it is the caller's.
    let file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(descriptor) });
    file.metadata().map(|found| found.ino()).map_err(|_| Code::INVALID_VALUE)
}
