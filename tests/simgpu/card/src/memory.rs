//! Everybody's allocations and where their pages are.
//!
//! Addresses are those of the client, which reserves them before it asks. What a kernel reaches is made
//! resident on its GPU first; what that takes is the answer, so that the engines only ever add durations.

mod access;
pub(crate) mod physical;
mod pooled;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use crate::bytes::SharedBytes;
use crate::constants::{Constants, PAGE};
use crate::ids::{ClientId, ContextId, GpuIndex, PoolId, StreamId};
use crate::pool::Pool;
use crate::residency::{Evicted, PageId, Residency};
use crate::stats::Counters;
use crate::wire::{Failure, Kind};
use access::Access;
use physical::{Handles, Physical};

/// Work touched an address that is not memory of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IllegalAddress;

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) len: u64,
    pub(crate) kind: Kind,
    pub(crate) context: ContextId,
    pub(crate) gpu: GpuIndex,
    pub(crate) bytes: Rc<SharedBytes>,
    pub(crate) backing: Backing,
    pub(crate) access: Access,
}

/// Whose the room on the card is.
#[derive(Debug)]
pub(crate) enum Backing {
    /// The allocation's own.
    Own,
    Pool(PoolId),
    Physical(Rc<Physical>),
}

/// A place inside an allocation.
pub(crate) struct Place<'a> {
    pub(crate) base: u64,
    pub(crate) offset: u64,
    pub(crate) allocation: &'a Allocation,
}

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) constants: Constants,
    pub(crate) counters: BTreeMap<ClientId, Counters>,
    pub(crate) spaces: BTreeMap<ClientId, BTreeMap<u64, Allocation>>,
    pub(crate) handles: Handles,
    pub(crate) pools: BTreeMap<(ClientId, PoolId), Pool>,
    /// Whose kernels on the first GPU reach memory of the second one.
    pub(crate) peers: BTreeSet<(ClientId, GpuIndex, GpuIndex)>,
    pub(crate) gpus: Vec<Residency>,
    /// Bytes of the host that the card keeps in place for everybody.
    host_used: u64,
}

impl Memory {
    pub(crate) fn new(constants: Constants, gpus: impl Iterator<Item = u64>) -> Self {
        let gpus = gpus.map(Residency::new).collect();
        Self {
            constants,
            gpus,
            spaces: BTreeMap::new(),
            handles: BTreeMap::new(),
            pools: BTreeMap::new(),
            peers: BTreeSet::new(),
            counters: BTreeMap::new(),
            host_used: 0,
        }
    }

    /// Free and total bytes of a GPU.
    pub(crate) fn room(&self, gpu: GpuIndex) -> Option<(u64, u64)> {
        self.gpus.get(gpu.0 as usize).map(|gpu| (gpu.free(), gpu.capacity()))
    }

    /// Takes bytes that cannot move, for a context.
    pub(crate) fn take(&mut self, gpu: GpuIndex, bytes: u64) -> Result<(), Failure> {
        let residency = self.gpus.get_mut(gpu.0 as usize).ok_or(Failure::Unknown)?;
        let evicted = residency.take(bytes).map_err(|_| Failure::OutOfMemory)?;
        self.count_evicted(&evicted);
        Ok(())
    }

    /// Counts bytes as on a GPU again that are about to be given back.
    pub(crate) fn count_again(&mut self, gpu: GpuIndex, bytes: u64) {
        if let Some(residency) = self.gpus.get_mut(gpu.0 as usize) {
            residency.count_again(bytes);
        }
    }

    pub(crate) fn give_back(&mut self, gpu: GpuIndex, bytes: u64) {
        if let Some(residency) = self.gpus.get_mut(gpu.0 as usize) {
            residency.give_back(bytes);
        }
    }

    /// Gives back what an allocation of this kind took by itself.
    fn give_back_own(&mut self, kind: Kind, gpu: GpuIndex, bytes: u64) {
        match kind {
            Kind::Device => self.give_back(gpu, bytes),
            Kind::Pinned => self.give_back_host(bytes),
            Kind::Managed => {}
        }
    }

    /// Makes an allocation. The descriptor of the answer is for the client.
    pub(crate) fn allocate(
        &mut self,
        client: ClientId,
        address: u64,
        len: u64,
        kind: Kind,
        context: (ContextId, GpuIndex),
    ) -> Result<Option<std::os::fd::OwnedFd>, Failure> {
        let (context, gpu) = context;
        if !self.is_vacant(client, address, len) {
            return Err(Failure::Unknown);
        }
        match kind {
            Kind::Device => self.take(gpu, len)?,
            Kind::Pinned => self.take_host(len)?,
            Kind::Managed => {}
        }
        let Ok(mut bytes) = SharedBytes::allocate(len) else {
            self.give_back_own(kind, gpu, len);
            return Err(Failure::Host);
        };
        let fd = if kind == Kind::Device { None } else { bytes.take_fd() };
        bytes.drop_fd();
        let allocation = Allocation {
            len,
            kind,
            context,
            gpu,
            bytes: Rc::new(bytes),
            backing: Backing::Own,
            access: Access::Peers,
        };
        self.spaces.entry(client).or_default().insert(address, allocation);
        Ok(fd)
    }

    /// Whether a range could get memory: it is one, and has none yet.
    pub(crate) fn is_vacant(&self, client: ClientId, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len).filter(|end| *end > address) else {
            return false;
        };
        let before = self.spaces.get(&client).and_then(|space| space.range(..end).next_back());
        before.is_none_or(|(start, found)| start + found.len <= address)
    }

    pub(crate) fn free(&mut self, client: ClientId, address: u64) -> Result<(), Failure> {
        let allocation = self
            .spaces
            .get_mut(&client)
            .and_then(|space| space.remove(&address))
            .ok_or(Failure::Unknown)?;
        match allocation.backing {
            Backing::Own => self.give_back_own(allocation.kind, allocation.gpu, allocation.len),
            Backing::Physical(physical) => self.let_go(physical),
            Backing::Pool(pool) => {
                if let Some(pool) = self.pools.get_mut(&(client, pool)) {
                    // Freed outside of all streams: nothing can come before it.
                    pool.release(StreamId(0), address);
                    pool.settle(address);
                }
                self.shrink_ended_pools(client);
            }
        }
        for gpu in &mut self.gpus {
            gpu.forget(client, address);
        }
        Ok(())
    }

    /// Frees what a predicate chooses of a client's allocations.
    pub(crate) fn free_where(&mut self, client: ClientId, chosen: impl Fn(&Allocation) -> bool) {
        let Some(space) = self.spaces.get(&client) else {
            return;
        };
        let addresses: Vec<u64> =
            space.iter().filter(|(_, a)| chosen(a)).map(|(address, _)| *address).collect();
        for address in addresses {
            let _ = self.free(client, address);
        }
    }

    /// All that a client ever had is gone.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.free_where(client, |_| true);
        self.release_handles(client);
        self.remove_pools(client);
        self.peers.retain(|(peer, _, _)| *peer != client);
    }

    /// How many bytes lie between an address and the end of its allocation.
    pub(crate) fn left(&self, client: ClientId, address: u64) -> Result<u64, IllegalAddress> {
        let place = self.place(client, address, 1)?;
        Ok(place.allocation.len - place.offset)
    }

    /// The kind of memory at an address.
    pub(crate) fn kind_at(&self, client: ClientId, address: u64) -> Option<Kind> {
        self.place(client, address, 1).ok().map(|place| place.allocation.kind)
    }

    /// The bytes behind a range that must lie in one allocation.
    pub(crate) fn bytes(
        &self,
        client: ClientId,
        address: u64,
        len: u64,
    ) -> Result<(&SharedBytes, u64), IllegalAddress> {
        let place = self.place(client, address, len)?;
        Ok((&place.allocation.bytes, place.offset))
    }

    /// Where the 2 MiB page of this address ends.
    pub(crate) fn page_end(&self, client: ClientId, address: u64) -> Result<u64, IllegalAddress> {
        let place = self.place(client, address, 1)?;
        let end = (place.offset / PAGE + 1) * PAGE;
        Ok(place.base + end.min(place.allocation.len))
    }

    /// Makes what a kernel touches resident on its GPU. Answers the time of the faults.
    pub(crate) fn reach(
        &mut self,
        client: ClientId,
        gpu: GpuIndex,
        address: u64,
        len: u64,
    ) -> Result<Duration, IllegalAddress> {
        let mut time = Duration::ZERO;
        for (page, len) in self.managed_pages(client, address, len)? {
            if self.gpus[gpu.0 as usize].holds(&page) {
                self.gpus[gpu.0 as usize].touch(page);
                continue;
            }
            if let Some(evicting) = self.bring(page, len, gpu) {
                let counters = self.counters.entry(client).or_default();
                counters.faults += 1;
                counters.fault_bytes += len;
                time += evicting + self.constants.fault_in.time_for(len);
            }
        }
        Ok(time)
    }

    /// Moves managed pages ahead of need. Answers the time it takes.
    pub(crate) fn prefetch(
        &mut self,
        client: ClientId,
        address: u64,
        len: u64,
        to: Option<GpuIndex>,
    ) -> Result<Duration, IllegalAddress> {
        let mut time = Duration::ZERO;
        for (page, len) in self.managed_pages(client, address, len)? {
            match to {
                Some(gpu) if self.gpus[gpu.0 as usize].holds(&page) => self.gpus[gpu.0 as usize].touch(page),
                Some(gpu) => {
                    if let Some(evicting) = self.bring(page, len, gpu) {
                        self.counters.entry(client).or_default().prefetched_in += len;
                        time += evicting + self.constants.prefetch_in.time_for(len);
                    }
                }
                None => {
                    let left: u64 = self.gpus.iter_mut().filter_map(|gpu| gpu.expel(&page)).sum();
                    self.counters.entry(client).or_default().prefetched_out += left;
                    time += self.constants.prefetch_out.time_for(left);
                }
            }
        }
        Ok(time)
    }

    /// The GPU on which every page of a managed range is.
    pub(crate) fn whereabouts(
        &self,
        client: ClientId,
        address: u64,
        len: u64,
    ) -> Result<Option<GpuIndex>, IllegalAddress> {
        let pages = self.managed_pages(client, address, len)?;
        let on = |gpu: &&Residency| !pages.is_empty() && pages.iter().all(|(page, _)| gpu.holds(page));
        let index = self.gpus.iter().position(|gpu| on(&gpu));
        Ok(index.and_then(|index| u32::try_from(index).ok()).map(GpuIndex))
    }

    /// Admits a page and answers the time of the evictions for it; `None` if the card has no room for it even
    /// then: the page stays on the host and is used from there.
    fn bring(&mut self, page: PageId, len: u64, gpu: GpuIndex) -> Option<Duration> {
        for other in &mut self.gpus {
            other.expel(&page);
        }
        let evicted = self.gpus[gpu.0 as usize].admit(page, len).ok()?;
        Some(self.count_evicted(&evicted))
    }

    fn count_evicted(&mut self, evicted: &Evicted) -> Duration {
        let mut bytes = 0;
        for (page, len) in evicted {
            let counters = self.counters.entry(page.client).or_default();
            counters.evictions += 1;
            counters.evicted_bytes += len;
            bytes += len;
        }
        self.constants.evict_out.time_for(bytes)
    }

    /// The managed pages under a range of one allocation, with their lengths; none for other kinds of memory.
    fn managed_pages(
        &self,
        client: ClientId,
        address: u64,
        len: u64,
    ) -> Result<Vec<(PageId, u64)>, IllegalAddress> {
        let place = self.place(client, address, len)?;
        if place.allocation.kind != Kind::Managed || len == 0 {
            return Ok(Vec::new());
        }
        let last = (place.offset + len - 1) / PAGE;
        let page = |index| {
            let page = PageId { client, base: place.base, index };
            (page, PAGE.min(place.allocation.len - index * PAGE))
        };
        Ok((place.offset / PAGE..=last).map(page).collect())
    }

    pub(crate) fn place(
        &self,
        client: ClientId,
        address: u64,
        len: u64,
    ) -> Result<Place<'_>, IllegalAddress> {
        let space = self.spaces.get(&client).ok_or(IllegalAddress)?;
        let (&base, allocation) = space.range(..=address).next_back().ok_or(IllegalAddress)?;
        let offset = address - base;
        if offset.checked_add(len).is_none_or(|end| end > allocation.len) {
            return Err(IllegalAddress);
        }
        Ok(Place { base, offset, allocation })
    }
}
