//! Physical memory and its mappings, as this process knows them.
//!
//! ```text
//! reserved   |............................................|   addresses that nobody may touch
//! mappings        |  handle A  |  handle B  |  handle A |     allocations, each with its access
//! ```
//!
//! A handle lives until it was released as often as it was made, retained and imported, and is mapped
//! nowhere.

use std::collections::HashMap;

use simgpu_card::ids::HandleId;
use simgpu_card::wire::{Kind, Request};

use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::handles::Tag;
use crate::location::{AccessDescription, CPU, Location, NO_ACCESS};
use crate::mapping::Reservation;
use crate::state::{Allocation, Source, State};

use simgpu_card::ids::ContextId;

/// Sizes and addresses of physical memory are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// A mapping belongs to no context.
const NO_CONTEXT: ContextId = ContextId(u32::MAX);

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) security: usize,
    pub(crate) compression: u8,
    pub(crate) rdma: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// A handle of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) len: u64,
    pub(crate) properties: Properties,
    pub(crate) references: u32,
    pub(crate) mappings: u32,
}

/// A mapping, and who may use it.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) handle: u32,
    access: HashMap<(u32, i32), u32>,
}

impl State {
    pub(crate) fn physical(&mut self, handle: u64) -> Answer<(u32, &mut Physical)> {
        let id = usize::try_from(handle).ok().and_then(|handle| Tag::Physical.id(handle));
        let id = id.ok_or(Code::INVALID_VALUE)?;
        let found = self.physical.get_mut(&id).filter(|found| found.references > 0);
        Ok((id, found.ok_or(Code::INVALID_VALUE)?))
    }

    /// The reservation around a range.
    fn reservation(&self, address: u64, len: u64) -> Answer<&Reservation> {
        let (_, found) = self.reserved.range(..=address).next_back().ok_or(Code::INVALID_VALUE)?;
        if found.holds(address, len) { Ok(found) } else { Err(Code::INVALID_VALUE) }
    }

    /// Starts of the mappings that make up a range exactly.
    fn mappings(&self, address: u64, len: u64) -> Answer<Vec<u64>> {
        let end = address
            .checked_add(len)
            .filter(|end| *end > address)
            .ok_or(Code::INVALID_VALUE)?;
        let mut next = address;
        let mut starts = Vec::new();
        for (&start, found) in self.allocations.range(address..end) {
            if start != next || !matches!(found.source, Source::Mapping(_)) {
                return Err(Code::INVALID_VALUE);
            }
            next = start + found.len;
            starts.push(start);
        }
        if next == end { Ok(starts) } else { Err(Code::INVALID_VALUE) }
    }

    /// Whether anything is mapped into a range.
    pub(crate) fn is_mapped(&self, address: u64, len: u64) -> bool {
        let before = self.allocations.range(..address.saturating_add(len)).next_back();
        before.is_some_and(|(start, found)| start + found.len > address)
    }

    /// Forgets a handle that nobody uses and says whether the card has to forget it too.
    fn forget_unused(&mut self, id: u32) -> bool {
        let unused = |found: &Physical| found.references == 0 && found.mappings == 0;
        let forgotten = self.physical.get(&id).is_some_and(unused);
        if forgotten {
            self.physical.remove(&id);
        }
        forgotten
    }

    /// Takes a mapping out of the tables. Returns its handle if that has to go too.
    fn remove_mapping(&mut self, start: u64) -> Option<u32> {
        let Some(Allocation { source: Source::Mapping(Mapping { handle, .. }), .. }) =
            self.allocations.remove(&start)
        else {
            return None;
        };
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mappings -= 1;
        }
        self.forget_unused(handle).then_some(handle)
    }
}

/// One user of a handle less. The last one waits until the card has ended the memory.
pub(crate) fn release(handle: u64) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    let mut state = driver.state();
    let (id, found) = state.physical(handle)?;
    found.references -= 1;
    let forgotten = state.forget_unused(id);
    drop(state);
    if forgotten {
        driver.call(Request::ReleaseHandle(HandleId(id)))?;
    }
    Ok(())
}

/// Maps the beginning of a handle's memory. The other threads go on while the card does it.
pub(crate) fn map(address: u64, len: u64, handle: u64) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    let mut state = driver.state();
    let (id, found) = state.physical(handle)?;
    let (whole, location) = (found.len, found.properties.location);
    let fits =
        len > 0 && len <= whole && len.is_multiple_of(GRANULARITY) && address.is_multiple_of(GRANULARITY);
    if !fits || state.is_mapped(address, len) {
        return Err(Code::INVALID_VALUE);
    }
    state.reservation(address, len)?;
    let device = location.device()?;
    let kind = if device == CPU { Kind::Pinned } else { Kind::Device };
    let mapping = Mapping { handle: id, access: HashMap::new() };
    let mapped = Allocation {
        len,
        kind,
        context: NO_CONTEXT,
        flags: 0,
        device: device.max(0),
        source: Source::Mapping(mapping),
    };
    state.allocations.insert(address, mapped);
    state.physical.get_mut(&id).ok_or(Code::INVALID_VALUE)?.mappings += 1;
    drop(state);
    let mapped = driver.call(Request::Map { address, len, handle: HandleId(id) });
    let mut state = driver.state();
    let placed = mapped.and_then(|reply| match reply.fd {
        Some(memory) => {
            let size = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
            state.reservation(address, len)?.place(address, size, &memory)
        }
        None => Ok(()),
    });
    if placed.is_err() {
        let forgotten = state.remove_mapping(address);
        drop(state);
        // Refused where the card has not mapped it.
        let _ = driver.call(Request::Unmap { address, len });
        if let Some(id) = forgotten {
            driver.call(Request::ReleaseHandle(HandleId(id)))?;
        }
    }
    placed
}

/// Takes whole mappings away, at once. The other threads go on while the card does it.
pub(crate) fn unmap(address: u64, len: u64) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    let mut state = driver.state();
    let starts = state.mappings(address, len)?;
    let size = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
    state.reservation(address, len)?.clear(address, size)?;
    let forgotten: Vec<u32> = starts.into_iter().filter_map(|start| state.remove_mapping(start)).collect();
    drop(state);
    driver.call(Request::Unmap { address, len })?;
    for id in forgotten {
        driver.call(Request::ReleaseHandle(HandleId(id)))?;
    }
    Ok(())
}

/// Says who may use the mappings of a range.
pub(crate) fn set_access(address: u64, len: u64, who: AccessDescription) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    let mut state = driver.state();
    let starts = state.mappings(address, len)?;
    let allowed = who.allows()?;
    let device = who.location.device()?;
    if device == CPU {
        let on_host =
            |start: &u64| state.allocations.get(start).is_some_and(|found| found.kind == Kind::Pinned);
        if !starts.iter().all(on_host) {
            return Err(Code::INVALID_DEVICE);
        }
        let size = usize::try_from(len).map_err(|_| Code::INVALID_VALUE)?;
        state.reservation(address, len)?.protect(address, size, allowed);
    } else {
        let gpu = driver.gpu(device)?.index;
        let request = Request::SetAccess { address, len, gpu, allowed };
        driver.call(request)?;
    }
    for start in starts {
        let found = state.allocations.get_mut(&start).map(|found| &mut found.source);
        if let Some(Source::Mapping(mapping)) = found {
            mapping.access.insert((who.location.kind, who.location.id), who.flags);
        }
    }
    Ok(())
}

/// Access that a place has to the mapping at an address.
pub(crate) fn access(address: u64, location: Location) -> Answer<u32> {
    let state = driver()?.state();
    let (_, found) = state.allocation_at(address).ok_or(Code::INVALID_VALUE)?;
    let Source::Mapping(mapping) = &found.source else {
        return Err(Code::INVALID_VALUE);
    };
    let flags = mapping.access.get(&(location.kind, location.id));
    Ok(flags.copied().unwrap_or(NO_ACCESS))
}
