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

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::access::Access;
use super::{Allocation, Backing, Memory};
use crate::bytes::SharedBytes;
use crate::ids::{ClientId, ContextId, GpuIndex, HandleId};
use crate::wire::{Failure, Kind, Place};

/// A piece of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) len: u64,
    pub(crate) place: Place,
    bytes: Rc<SharedBytes>,
    shareable: bool,
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
        if let Place::Gpu(gpu) = place {
            self.take(gpu, len)?;
        }
        let Ok(mut bytes) = SharedBytes::allocate(len) else {
            if let Place::Gpu(gpu) = place {
                self.give_back(gpu, len);
            }
            return Err(Failure::Host);
        };
        if !shareable && place != Place::Host {
            bytes.drop_fd();
        }
        let physical = Physical { len, place, bytes: Rc::new(bytes), shareable };
        self.handles.insert((client, handle), Rc::new(physical));
        Ok(())
    }

    pub(crate) fn release_handle(&mut self, client: ClientId, handle: HandleId) -> Result<(), Failure> {
        let physical = self.handles.remove(&(client, handle)).ok_or(Failure::Unknown)?;
        self.let_go(physical);
        Ok(())
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
    ) -> Result<Option<OwnedFd>, Failure> {
        let physical = self.handles.get(&(client, handle)).ok_or(Failure::Unknown)?.clone();
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
        Ok(fd)
    }

    pub(crate) fn unmap(&mut self, client: ClientId, address: u64, len: u64) -> Result<(), Failure> {
        for start in self.mappings(client, address, len)? {
            self.free(client, start)?;
        }
        Ok(())
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

    /// Physical memory of a GPU that a client has handles of or has mapped, each piece once.
    pub(crate) fn physical_on(&self, client: ClientId, gpu: GpuIndex) -> u64 {
        let all = (client, HandleId(0))..=(client, HandleId(u32::MAX));
        let handles = self.handles.range(all).map(|(_, physical)| physical);
        let space = self.spaces.get(&client).into_iter().flat_map(BTreeMap::values);
        let mapped = space.filter_map(|allocation| match &allocation.backing {
            Backing::Physical(physical) => Some(physical),
            _ => None,
        });
        let here = handles.chain(mapped).filter(|physical| physical.place == Place::Gpu(gpu));
        let each: BTreeMap<_, u64> = here.map(|physical| (Rc::as_ptr(physical), physical.len)).collect();
        each.values().sum()
    }

    /// Forgets all handles of a client.
    pub(crate) fn release_handles(&mut self, client: ClientId) {
        let all = (client, HandleId(0))..=(client, HandleId(u32::MAX));
        let handles: Vec<HandleId> = self.handles.range(all).map(|((_, handle), _)| *handle).collect();
        for handle in handles {
            let _ = self.release_handle(client, handle);
        }
    }

    /// One reference less; the last one gives the room back.
    pub(crate) fn let_go(&mut self, physical: Rc<Physical>) {
        if let Some(Physical { place: Place::Gpu(gpu), len, .. }) = Rc::into_inner(physical) {
            self.give_back(gpu, len);
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
