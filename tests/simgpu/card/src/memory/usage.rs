//! Memory of each process, for the statistics and for NVML.

use std::collections::BTreeMap;

use super::{Allocation, Backing, Memory};
use crate::ids::{ClientId, GpuIndex};
use crate::wire::Kind;

impl Memory {
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
        own + self.pooled_on(client, gpu) + self.physical_on(client, gpu)
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
