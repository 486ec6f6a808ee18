//! Physical memory with handles: made without an address, mapped at as many as one likes, shared between
//! processes.
//!
//! ```text
//! handle of A ──┐
//! mapping of A ─┼── Physical: bytes, place, room on a GPU ── given back when the last of them is gone
//! handle of B ──┘   (B imported what A exported)
//! ```
//!
//! A process that exports gets the memfd; one that imports names its inode. A descriptor alone keeps
//! nothing alive.
//!
//! As with the driver, memory that several processes have counts for the one that made it, and for another one once
//! that is the only one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use super::access::Access;
use super::{Allocation, Backing, Memory};
use crate::bytes::SharedBytes;
use crate::constants::HandleRates;
use crate::ids::{ClientId, ContextId, GpuIndex, HandleId};
use crate::wire::{Failure, Kind, Place};

/// A piece of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) len: u64,
    pub(crate) place: Place,
    bytes: Rc<SharedBytes>,
    shareable: bool,
    maker: ClientId,
}

/// A mapping belongs to no context and outlives them all.
const NO_CONTEXT: ContextId = ContextId(u32::MAX);

/// Everybody's handles.
pub(crate) type Handles = BTreeMap<(ClientId, HandleId), Rc<Physical>>;

impl Memory {
    pub(crate) fn create_handle(
        &mut self,
        client: ClientId,
        handle: HandleId,
        len: u64,
        place: Place,
        shareable: bool,
    ) -> Result<(), Failure> {
        if self.handles.contains_key(&(client, handle)) {
            return Err(Failure::Unknown);
        }
        match place {
            Place::Gpu(gpu) => self.take(gpu, len)?,
            Place::Host => self.take_host(len)?,
        }
        let Ok(mut bytes) = SharedBytes::allocate(len) else {
            self.give_back_in(place, len);
            return Err(Failure::Host);
        };
        if !shareable && place != Place::Host {
            bytes.drop_fd();
        }
        let physical = Physical { len, place, bytes: Rc::new(bytes), shareable, maker: client };
        self.handles.insert((client, handle), Rc::new(physical));
        Ok(())
    }

    /// Takes a handle away and returns its memory, for [`Memory::let_go`].
    pub(crate) fn release_handle(
        &mut self,
        client: ClientId,
        handle: HandleId,
    ) -> Result<Rc<Physical>, Failure> {
        self.handles.remove(&(client, handle)).ok_or(Failure::Unknown)
    }

    pub(crate) fn share_handle(&self, client: ClientId, handle: HandleId) -> Result<OwnedFd, Failure> {
        let physical = self.handles.get(&(client, handle)).ok_or(Failure::Unknown)?;
        if !physical.shareable {
            return Err(Failure::Unknown);
        }
        physical.bytes.share().ok_or(Failure::Host)
    }

    /// Answers length and place of what was found.
    pub(crate) fn import_handle(
        &mut self,
        client: ClientId,
        handle: HandleId,
        inode: u64,
    ) -> Result<(u64, Place), Failure> {
        if self.handles.contains_key(&(client, handle)) {
            return Err(Failure::Unknown);
        }
        let handles = self.handles.values();
        let mapped =
            self.spaces.values().flat_map(BTreeMap::values).filter_map(|allocation| {
                match &allocation.backing {
                    Backing::Physical(physical) => Some(physical),
                    _ => None,
                }
            });
        let shared = |physical: &&Rc<Physical>| physical.shareable && physical.bytes.inode() == Some(inode);
        let found = handles.chain(mapped).find(shared).ok_or(Failure::Unknown)?.clone();
        let answer = (found.len, found.place);
        self.handles.insert((client, handle), found);
        Ok(answer)
    }

    /// Maps memory where nothing is yet. The descriptor of the answer is for the client.
    pub(crate) fn map(
        &mut self,
        client: ClientId,
        address: u64,
        len: u64,
        handle: HandleId,
    ) -> Result<(Place, Option<OwnedFd>), Failure> {
        let physical = self.handles.get(&(client, handle)).ok_or(Failure::Unknown)?.clone();
        let place = physical.place;
        if len > physical.len || !self.is_vacant(client, address, len) {
            return Err(Failure::Unknown);
        }
        let (kind, gpu, fd) = match physical.place {
            Place::Gpu(gpu) => (Kind::Device, gpu, None),
            Place::Host => (Kind::Pinned, GpuIndex(0), physical.bytes.share()),
        };
        let mapping = Allocation {
            len,
            kind,
            context: NO_CONTEXT,
            gpu,
            bytes: physical.bytes.clone(),
            backing: Backing::Physical(physical),
            access: Access::Only(BTreeSet::new()),
        };
        self.spaces.entry(client).or_default().insert(address, mapping);
        Ok((place, fd))
    }

    /// Takes the mappings of a range away. Returns the memory of each mapping, for [`Memory::let_go`].
    pub(crate) fn unmap(
        &mut self,
        client: ClientId,
        address: u64,
        len: u64,
    ) -> Result<Vec<Rc<Physical>>, Failure> {
        let starts = self.mappings(client, address, len)?;
        let space = self.spaces.entry(client).or_default();
        let removed = starts.into_iter().filter_map(|start| space.remove(&start));
        let physical = removed.filter_map(|mapping| match mapping.backing {
            Backing::Physical(physical) => Some(physical),
            Backing::Own | Backing::Pool(_) => None,
        });
        Ok(physical.collect())
    }

    /// Time to end the pieces that nobody but `taken` refers to any more.
    pub(crate) fn ending(&self, taken: &[Rc<Physical>]) -> Duration {
        let pieces: BTreeMap<_, _> = taken.iter().map(|physical| (Rc::as_ptr(physical), physical)).collect();
        let references = |piece| taken.iter().filter(|other| Rc::as_ptr(other) == piece).count();
        let last = pieces
            .iter()
            .filter(|(piece, found)| Rc::strong_count(found) == references(**piece));
        last.map(|(_, found)| self.handle_rates(found.place).release.time_for(found.len))
            .sum()
    }

    /// Rates of the calls about memory in this place.
    pub(crate) fn handle_rates(&self, place: Place) -> HandleRates {
        match place {
            Place::Gpu(_) => self.constants.device_handles,
            Place::Host => self.constants.host_handles,
        }
    }

    pub(crate) fn set_access(
        &mut self,
        client: ClientId,
        address: u64,
        len: u64,
        gpu: GpuIndex,
        allowed: bool,
    ) -> Result<(), Failure> {
        for start in self.mappings(client, address, len)? {
            let mapping = self.spaces.get_mut(&client).and_then(|space| space.get_mut(&start));
            if let Some(Access::Only(gpus)) = mapping.map(|mapping| &mut mapping.access) {
                if allowed {
                    gpus.insert(gpu);
                } else {
                    gpus.remove(&gpu);
                }
            }
        }
        Ok(())
    }

    /// Physical memory in a place that counts for a client, each piece once.
    pub(crate) fn physical_in(&self, client: ClientId, place: Place) -> u64 {
        let here = self.references(client).filter(|physical| physical.place == place);
        let counts = |physical: &&Rc<Physical>| {
            physical.maker == client
                || self.references(client).filter(|own| Rc::ptr_eq(own, physical)).count()
                    == Rc::strong_count(physical)
        };
        let each: BTreeMap<_, u64> = here
            .filter(counts)
            .map(|physical| (Rc::as_ptr(physical), physical.len))
            .collect();
        each.values().sum()
    }

    /// Handles and mappings of a client.
    fn references(&self, client: ClientId) -> impl Iterator<Item = &Rc<Physical>> {
        let all = (client, HandleId(0))..=(client, HandleId(u32::MAX));
        let handles = self.handles.range(all).map(|(_, physical)| physical);
        let space = self.spaces.get(&client).into_iter().flat_map(BTreeMap::values);
        let mapped = space.filter_map(|allocation| match &allocation.backing {
            Backing::Physical(physical) => Some(physical),
            _ => None,
        });
        handles.chain(mapped)
    }

    /// Whether another client has memory of this one, by a handle or a mapping.
    pub(crate) fn is_shared(&self, client: ClientId) -> bool {
        let pieces = |wanted: &dyn Fn(ClientId) -> bool| -> BTreeSet<*const Physical> {
            let handles = self.handles.iter().filter(|((owner, _), _)| wanted(*owner));
            let handles = handles.map(|(_, physical)| Rc::as_ptr(physical));
            let spaces = self.spaces.iter().filter(|(owner, _)| wanted(**owner));
            let mapped = spaces.flat_map(|(_, space)| space.values());
            let mapped = mapped.filter_map(|allocation| match &allocation.backing {
                Backing::Physical(physical) => Some(Rc::as_ptr(physical)),
                Backing::Own | Backing::Pool(_) => None,
            });
            handles.chain(mapped).collect()
        };
        let own = pieces(&|owner| owner == client);
        let others = pieces(&|owner| owner != client);
        !own.is_disjoint(&others)
    }

    /// Forgets all handles of a client.
    pub(crate) fn release_handles(&mut self, client: ClientId) {
        let all = (client, HandleId(0))..=(client, HandleId(u32::MAX));
        let handles: Vec<HandleId> = self.handles.range(all).map(|((_, handle), _)| *handle).collect();
        for handle in handles {
            if let Ok(physical) = self.release_handle(client, handle) {
                self.let_go(physical);
            }
        }
    }

    /// One reference less; the last one gives the room back.
    pub(crate) fn let_go(&mut self, physical: Rc<Physical>) {
        if let Some(Physical { place, len, .. }) = Rc::into_inner(physical) {
            self.give_back_in(place, len);
        }
    }

    fn give_back_in(&mut self, place: Place, len: u64) {
        match place {
            Place::Gpu(gpu) => self.give_back(gpu, len),
            Place::Host => self.give_back_host(len),
        }
    }

    /// The mappings that make up a range exactly.
    fn mappings(&self, client: ClientId, address: u64, len: u64) -> Result<Vec<u64>, Failure> {
        let end = address.checked_add(len).ok_or(Failure::Unknown)?;
        let space = self.spaces.get(&client).ok_or(Failure::Unknown)?;
        let mut next = address;
        let mut starts = Vec::new();
        for (&start, mapping) in space.range(address..end) {
            if start != next || !matches!(mapping.backing, Backing::Physical(_)) {
                return Err(Failure::Unknown);
            }
            next = start + mapping.len;
            starts.push(start);
        }
        if next == end { Ok(starts) } else { Err(Failure::Unknown) }
    }
}
