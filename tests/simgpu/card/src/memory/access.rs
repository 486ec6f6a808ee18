//! Which GPUs reach an allocation, and how fast.
//!
//! | memory | reached by kernels of |
//! |---|---|
//! | `cuMemAlloc` | its GPU, and those whose peer it was made |
//! | a block of a pool | its GPU, and those that the pool allows |
//! | a mapping of physical memory | those that were given access, and no other |
//! | managed, pinned | all |
//!
//! Copies ask nobody.

use std::collections::BTreeSet;

use super::{Backing, IllegalAddress, Memory};
use crate::constants::Rate;
use crate::ids::{ClientId, GpuIndex};
use crate::wire::Kind;

/// On which GPUs kernels reach an allocation.
#[derive(Debug)]
pub(crate) enum Access {
    /// On its own one and on those that were made its peers.
    Peers,
    /// On its own one and on those that its pool allows, peers or not.
    Pool,
    /// On these only, peers or not.
    Only(BTreeSet<GpuIndex>),
}

impl Memory {
    pub(crate) fn set_peer(&mut self, client: ClientId, from: GpuIndex, to: GpuIndex, allowed: bool) {
        if allowed {
            self.peers.insert((client, from, to));
        } else {
            self.peers.remove(&(client, from, to));
        }
    }

    /// Fails unless kernels on this GPU reach the memory at an address; answers how fast they do.
    pub(crate) fn reachable(
        &self,
        client: ClientId,
        gpu: GpuIndex,
        address: u64,
    ) -> Result<Rate, IllegalAddress> {
        let allocation = self.place(client, address, 1)?.allocation;
        let local = allocation.gpu == gpu || allocation.kind != Kind::Device;
        let pool = match allocation.backing {
            Backing::Pool(pool) => self.pools.get(&(client, pool)),
            _ => None,
        };
        let allowed = match &allocation.access {
            Access::Pool => local || pool.is_some_and(|pool| pool.reached_from.contains(&gpu)),
            Access::Peers => local || self.peers.contains(&(client, gpu, allocation.gpu)),
            Access::Only(gpus) => gpus.contains(&gpu),
        };
        match allocation.kind {
            _ if !allowed => Err(IllegalAddress),
            Kind::Pinned => Ok(self.constants.kernel_on_host),
            Kind::Device if !local => Ok(self.constants.peer),
            Kind::Device | Kind::Managed => Ok(self.constants.kernel),
        }
    }

    /// Whether two addresses are memory of two GPUs.
    pub(crate) fn between_gpus(&self, client: ClientId, one: u64, other: u64) -> bool {
        let gpu = |address| {
            let allocation = self.place(client, address, 1).ok()?.allocation;
            (allocation.kind == Kind::Device).then_some(allocation.gpu)
        };
        matches!((gpu(one), gpu(other)), (Some(one), Some(other)) if one != other)
    }
}
