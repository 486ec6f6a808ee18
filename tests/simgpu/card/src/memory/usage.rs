//! Memory of each process, for the statistics and for NVML.

use std::collections::BTreeMap;

use super::{Allocation, Backing, Memory};
use crate::ids::{ClientId, GpuIndex};
use crate::wire::{Failure, Kind, Place};

impl Memory {
    /// Takes memory of the host, which is refused beyond the limit.
    pub(crate) fn take_host(&mut self, bytes: u64) -> Result<(), Failure> {
        let used = self.host_used.checked_add(bytes);
        self.host_used = used
            .filter(|used| *used <= self.constants.host_memory)
            .ok_or(Failure::OutOfMemory)?;
        Ok(())
    }

    pub(crate) fn give_back_host(&mut self, bytes: u64) {
        self.host_used -= bytes;
    }

    /// Bytes of the host that are pinned, registered, or physical memory, of everybody.
    pub(crate) fn host_used(&self) -> u64 {
        self.host_used
    }

    /// Bytes of the host that are pinned, registered, or physical memory of a client.
    pub(crate) fn host_of(&self, client: ClientId) -> u64 {
        self.usage(client, Kind::Pinned) + self.physical_in(client, Place::Host)
    }

    /// Bytes of a client's own allocations of a kind.
    pub(crate) fn usage(&self, client: ClientId, kind: Kind) -> u64 {
        self.own(client, |allocation| allocation.kind == kind)
    }

    /// Bytes of a client that cannot move, on all GPUs.
    pub(crate) fn fixed_of(&self, client: ClientId) -> u64 {
        (0..).zip(&self.gpus).map(|(gpu, _)| self.fixed_on(client, GpuIndex(gpu))).sum()
    }

    /// Bytes of a client on a GPU that cannot move, its contexts not counted.
    pub(crate) fn fixed_on(&self, client: ClientId, gpu: GpuIndex) -> u64 {
        let own = self.own(client, |allocation| allocation.kind == Kind::Device && allocation.gpu == gpu);
        own + self.pooled_on(client, gpu) + self.physical_in(client, Place::Gpu(gpu))
    }

    fn own(&self, client: ClientId, chosen: impl Fn(&Allocation) -> bool) -> u64 {
        let allocations = self.spaces.get(&client).into_iter().flat_map(BTreeMap::values);
        let own = allocations.filter(|allocation| matches!(allocation.backing, Backing::Own));
        own.filter(|allocation| chosen(allocation))
            .map(|allocation| allocation.len)
            .sum()
    }

    /// Managed bytes of a client on any GPU.
    pub(crate) fn resident_of(&self, client: ClientId) -> u64 {
        self.gpus.iter().map(|gpu| gpu.resident_of(client)).sum()
    }
}
