//! Blocks of memory pools: their room is taken when they are asked for, their bytes are there when the
//! stream comes to them (`pool.rs` keeps the accounts).

use std::rc::Rc;

use super::access::Access;
use super::{Allocation, Backing, Memory};
use crate::bytes::SharedBytes;
use crate::ids::{ClientId, ContextId, GpuIndex, PoolId, StreamId};
use crate::pool::Pool;
use crate::wire::{Failure, Kind, Op, PoolUse};

impl Memory {
    pub(crate) fn create_pool(
        &mut self,
        client: ClientId,
        pool: PoolId,
        gpu: GpuIndex,
        limit: u64,
    ) -> Result<(), Failure> {
        self.room(gpu).ok_or(Failure::Unknown)?;
        if self.pools.contains_key(&(client, pool)) {
            return Err(Failure::Unknown);
        }
        self.pools.insert((client, pool), Pool::new(gpu, limit));
        Ok(())
    }

    /// Ends a pool for the program. Its blocks live on, and nobody can ask about the pool any more.
    pub(crate) fn destroy_pool(&mut self, client: ClientId, pool: PoolId) -> Result<(), Failure> {
        self.pool(client, pool)?.ended = true;
        self.shrink_ended_pools(client);
        Ok(())
    }

    /// Takes the pools of a client whose memory is gone.
    pub(crate) fn remove_pools(&mut self, client: ClientId) {
        let pools: Vec<PoolId> = self.pools_of(client).map(|((_, pool), _)| *pool).collect();
        for pool in pools {
            self.remove_pool(client, pool);
        }
    }

    /// Gives back what ended pools do not use, and removes those without blocks.
    pub(super) fn shrink_ended_pools(&mut self, client: ClientId) {
        let ended = self.pools_of(client).filter(|(_, pool)| pool.ended);
        let ended: Vec<PoolId> = ended.map(|((_, pool), _)| *pool).collect();
        for id in ended {
            let Some(pool) = self.pools.get_mut(&(client, id)) else { continue };
            let (gpu, back) = (pool.gpu, pool.trim(0));
            if pool.is_empty() {
                self.remove_pool(client, id);
            }
            self.give_back(gpu, back);
        }
    }

    fn remove_pool(&mut self, client: ClientId, pool: PoolId) {
        if let Some(removed) = self.pools.remove(&(client, pool)) {
            self.give_back(removed.gpu, removed.usage().reserved);
        }
    }

    /// A pool that the program has not destroyed.
    pub(crate) fn pool(&mut self, client: ClientId, pool: PoolId) -> Result<&mut Pool, Failure> {
        let found = self.pools.get_mut(&(client, pool)).filter(|pool| !pool.ended);
        found.ok_or(Failure::Unknown)
    }

    pub(crate) fn pool_use(&mut self, client: ClientId, pool: PoolId) -> Result<PoolUse, Failure> {
        self.pool(client, pool).map(|pool| pool.usage())
    }

    /// All that the pools of a client have reserved on a GPU.
    pub(crate) fn pooled_on(&self, client: ClientId, gpu: GpuIndex) -> u64 {
        let pools = self.pools_of(client).map(|(_, pool)| pool).filter(|pool| pool.gpu == gpu);
        pools.map(|pool| pool.usage().reserved).sum()
    }

    /// Notes what work on its way into a stream takes from pools and frees: all of it, or nothing if there
    /// is no room.
    pub(crate) fn note_blocks(
        &mut self,
        client: ClientId,
        stream: StreamId,
        ops: &[Op],
    ) -> Result<(), Failure> {
        if !ops.iter().any(|op| matches!(op, Op::Allocate { .. } | Op::Release(_))) {
            return Ok(());
        }
        let before: Vec<_> = self.pools_of(client).map(|(id, pool)| (*id, pool.clone())).collect();
        let noted = ops.iter().try_for_each(|op| match *op {
            Op::Allocate { address, len, pool } => self.reserve_block(client, stream, (address, len), pool),
            Op::Release(address) => self.release_block(client, stream, address),
            _ => Ok(()),
        });
        if noted.is_err() {
            for (id, pool) in before {
                let reserved = self.pools.get(&id).map_or(0, |pool| pool.usage().reserved);
                self.give_back(pool.gpu, reserved - pool.usage().reserved);
                self.pools.insert(id, pool);
            }
        }
        noted
    }

    fn pools_of(&self, client: ClientId) -> impl Iterator<Item = (&(ClientId, PoolId), &Pool)> {
        self.pools.range((client, PoolId(0))..=(client, PoolId(u32::MAX)))
    }

    /// Takes the room of a block.
    fn reserve_block(
        &mut self,
        client: ClientId,
        stream: StreamId,
        (address, len): (u64, u64),
        pool: PoolId,
    ) -> Result<(), Failure> {
        let found = self.pool(client, pool)?;
        if found.has(address) {
            return Err(Failure::Unknown);
        }
        let lacks = found.lacks(stream, len).ok_or(Failure::OutOfMemory)?;
        let gpu = found.gpu;
        self.take(gpu, lacks)?;
        self.pool(client, pool)?.take(stream, address, len, lacks);
        Ok(())
    }

    /// The stream comes to a block.
    pub(crate) fn make_block(
        &mut self,
        client: ClientId,
        (address, len): (u64, u64),
        pool: PoolId,
        context: ContextId,
    ) -> Result<(), Failure> {
        let gpu = self.pools.get(&(client, pool)).ok_or(Failure::Unknown)?.gpu;
        if !self.is_vacant(client, address, len) {
            return Err(Failure::Unknown);
        }
        let mut bytes = SharedBytes::allocate(len).map_err(|_| Failure::Host)?;
        bytes.drop_fd();
        let block = Allocation {
            len,
            kind: Kind::Device,
            context,
            gpu,
            bytes: Rc::new(bytes),
            backing: Backing::Pool(pool),
            access: Access::Pool,
        };
        self.spaces.entry(client).or_default().insert(address, block);
        Ok(())
    }

    /// A stream will free a block.
    fn release_block(&mut self, client: ClientId, stream: StreamId, address: u64) -> Result<(), Failure> {
        let all = (client, PoolId(0))..=(client, PoolId(u32::MAX));
        let mut pools = self.pools.range_mut(all);
        if pools.any(|(_, pool)| pool.release(stream, address)) {
            Ok(())
        } else {
            Err(Failure::Unknown)
        }
    }

    /// The stream comes to the release of a block. Whatever else has come to be at its address stays.
    pub(crate) fn end_block(&mut self, client: ClientId, address: u64) {
        let space = self.spaces.entry(client).or_default();
        if matches!(space.get(&address), Some(Allocation { backing: Backing::Pool(_), .. })) {
            space.remove(&address);
        }
        let all = (client, PoolId(0))..=(client, PoolId(u32::MAX));
        for (_, pool) in self.pools.range_mut(all) {
            pool.settle(address);
        }
        self.shrink_ended_pools(client);
    }

    /// Gives back what a pool does not use above `keep` bytes.
    pub(crate) fn trim_pool(&mut self, client: ClientId, pool: PoolId, keep: u64) -> Result<(), Failure> {
        let found = self.pool(client, pool)?;
        let (gpu, back) = (found.gpu, found.trim(keep));
        self.give_back(gpu, back);
        Ok(())
    }

    /// Trims every pool to its threshold, as a synchronise does.
    pub(crate) fn trim_pools(&mut self, client: ClientId) {
        let pools: Vec<(PoolId, u64)> =
            self.pools_of(client).map(|((_, id), pool)| (*id, pool.threshold)).collect();
        for (pool, threshold) in pools {
            let _ = self.trim_pool(client, pool, threshold);
        }
    }
}
