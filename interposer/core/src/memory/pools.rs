//! Memory pools of the driver. The session is charged for the bytes that a pool has reserved from the card,
//! not for those that the application has allocated from the pool.
//!
//! ```text
//!   reserved (attribute of the driver) ── more than charged ──▶ quota is taken
//!                                      ── less than charged ──▶ quota is given back
//! ```
//!
//! A pool keeps freed memory, so most allocations take nothing from the card. The pool shrinks when a stream
//! is waited for, and when the pool is trimmed or destroyed. Its reserved bytes are read after each
//! allocation and free, before a refusal, and before the application asks for free memory.
//!
//! The memory of graphs counts as one more pool of each device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use gpushare_proto::Bytes;

use super::Memory;
use crate::daemon::MemoryKind;
use crate::driver::Driver;
use crate::driver::types::{
    CUDA_SUCCESS, CUdevice, CUmemoryPool, GRAPH_MEM_RESERVED, POOL_RESERVED, POOL_USED,
};
use crate::process::lock;

#[derive(Debug, Default)]
pub(super) struct Pools {
    known: Mutex<BTreeMap<PoolId, Arc<Pool>>>,
    /// Number of bytes charged for all pools. While the number is zero, no pool can have shrunk.
    charged: AtomicU64,
    has_graph_memory: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PoolId {
    /// Pool of the driver, by the address of its handle.
    Pool(usize),
    /// Memory of the graphs on a device.
    Graphs(CUdevice),
}

impl PoolId {
    pub(crate) fn of(handle: CUmemoryPool) -> Self {
        Self::Pool(handle.addr())
    }

    /// Returns the bytes that the pool has reserved from the card; `None` if the driver does not know the
    /// pool.
    fn reserved(self, driver: &Driver) -> Option<Bytes> {
        let Self::Graphs(device) = self else { return self.attribute(driver, POOL_RESERVED) };
        let mut value = 0_u64;
        let ask = driver.graph_mem_get_attribute?;
        // SAFETY: the attribute is one 64-bit number.
        let result = unsafe { ask(device, GRAPH_MEM_RESERVED, (&raw mut value).cast()) };
        (result == CUDA_SUCCESS).then_some(Bytes(value))
    }

    fn attribute(self, driver: &Driver, attribute: i32) -> Option<Bytes> {
        let Self::Pool(handle) = self else { return None };
        let mut value = 0_u64;
        let handle = std::ptr::with_exposed_provenance_mut(handle);
        let ask = driver.mem_pool_get_attribute?;
        // SAFETY: the attributes asked for are 64-bit numbers; the driver refuses a handle that is none.
        let result = driver.relaxed(|| unsafe { ask(handle, attribute, (&raw mut value).cast()) });
        (result == CUDA_SUCCESS).then_some(Bytes(value))
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    id: PoolId,
    pub(crate) device: CUdevice,
    pub(crate) kind: MemoryKind,
    /// Number of bytes charged for the pool. Locked while the pool may grow, so that each thread sees its own
    /// growth.
    charged: Mutex<Bytes>,
}

/// Pool that no other thread can grow during the lock's lifetime.
#[derive(Debug)]
pub(crate) struct LockedPool<'a> {
    memory: &'a Memory,
    pool: &'a Pool,
    pub(crate) charged: MutexGuard<'a, Bytes>,
}

impl LockedPool<'_> {
    /// Returns the number of bytes that the pool must reserve from the card to allocate `bytes`.
    pub(crate) fn missing(&mut self, bytes: Bytes) -> Bytes {
        self.shrink();
        let used = self.pool.id.attribute(&self.memory.driver, POOL_USED).unwrap_or(Bytes::MAX);
        bytes - (*self.charged - used)
    }

    /// Gives quota back for memory that the pool has returned to the card.
    pub(crate) fn shrink(&mut self) {
        let reserved = self.pool.id.reserved(&self.memory.driver);
        self.give_back_beyond(reserved.unwrap_or_default());
        if reserved.is_none() {
            lock(&self.memory.pools.known).remove(&self.pool.id);
        }
    }

    /// Charges the pool's growth against `pledged` bytes of quota and gives the remaining quota back. Returns
    /// `false`, and charges nothing, if the quota does not suffice for the growth.
    pub(crate) fn grow(&mut self, pledged: Bytes) -> bool {
        let (memory, device, kind) = (self.memory, self.pool.device, self.pool.kind);
        let reserved = self.pool.id.reserved(&memory.driver).unwrap_or_default();
        let more = reserved - *self.charged;
        if more > pledged {
            if memory.reserve(device, more - pledged, kind).is_err() {
                memory.give_back(device, pledged, kind);
                return false;
            }
        } else if more < pledged {
            memory.give_back(device, pledged - more, kind);
        }
        self.charge(more);
        if more.is_zero() {
            self.give_back_beyond(reserved);
        }
        true
    }

    /// Charges the session for all memory of the pool, even beyond the quota.
    pub(crate) fn charge_all(&mut self) {
        self.shrink();
        let reserved = self.pool.id.reserved(&self.memory.driver).unwrap_or_default();
        let more = reserved - *self.charged;
        if !more.is_zero() {
            self.memory.charge(self.pool.device, more, self.pool.kind);
            self.charge(more);
        }
    }

    fn charge(&mut self, bytes: Bytes) {
        *self.charged += bytes;
        self.memory.pools.charged.fetch_add(bytes.0, Ordering::Relaxed);
    }

    fn give_back_beyond(&mut self, reserved: Bytes) {
        let less = *self.charged - reserved;
        if !less.is_zero() {
            *self.charged -= less;
            self.memory.pools.charged.fetch_sub(less.0, Ordering::Relaxed);
            self.memory.give_back(self.pool.device, less, self.pool.kind);
        }
    }
}

impl Memory {
    pub(crate) fn register_pool(&self, id: PoolId, device: CUdevice, kind: MemoryKind) -> Arc<Pool> {
        let new = || Arc::new(Pool { id, device, kind, charged: Mutex::default() });
        lock(&self.pools.known).entry(id).or_insert_with(new).clone()
    }

    pub(crate) fn lock_pool<'a>(&'a self, pool: &'a Pool) -> LockedPool<'a> {
        LockedPool { memory: self, pool, charged: lock(&pool.charged) }
    }

    /// Gives quota back for memory that a known pool has returned to the card.
    pub(crate) fn shrink_pool(&self, id: PoolId) {
        let known = lock(&self.pools.known).get(&id).cloned();
        if let Some(pool) = known {
            self.lock_pool(&pool).shrink();
        }
    }

    pub(crate) fn shrink_current_pools(&self) {
        if self.pools_have_charge()
            && let Some(device) = self.driver.current_device()
        {
            self.shrink_pools(device);
        }
    }

    /// Gives quota back for memory that a device's pools have returned to the card. Skips pools that are
    /// growing.
    pub(crate) fn shrink_pools(&self, device: CUdevice) {
        if !self.pools_have_charge() {
            return;
        }
        let pools: Vec<_> = lock(&self.pools.known).values().cloned().collect();
        for pool in pools.iter().filter(|pool| pool.device == device) {
            let charged = match pool.charged.try_lock() {
                Ok(charged) => charged,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if !charged.is_zero() {
                LockedPool { memory: self, pool, charged }.shrink();
            }
        }
    }

    pub(crate) fn note_graph_memory(&self) {
        self.pools.has_graph_memory.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn has_graph_memory(&self) -> bool {
        self.pools.has_graph_memory.load(Ordering::Relaxed)
    }

    fn pools_have_charge(&self) -> bool {
        self.pools.charged.load(Ordering::Relaxed) > 0
    }
}
