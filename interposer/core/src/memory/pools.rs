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
//! **Growth.** A call that may grow a pool holds a pledge of quota, and no lock. Afterwards the call's thread
//! charges `min(reserved − charged, pledge)` and gives the rest back. The quota suffices while
//! `reserved ≤ charged + Σ pledges`. If it does not, the thread takes more quota or undoes its allocation.
//!
//! **Destroyed pools.** The driver keeps the memory of a destroyed pool until its blocks are freed, and
//! answers no question about the pool any more. So the driver's pool is destroyed only when nothing of it is
//! left on the card. Until then its charge follows the reserved bytes as before.
//!
//! The memory of graphs counts as one more pool of each device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use gpushare_proto::Bytes;

use super::Memory;
use crate::daemon::MemoryKind;
use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdevice, CUmemoryPool, CUresult, GRAPH_MEM_RESERVED,
    POOL_RELEASE_THRESHOLD, POOL_RESERVED, POOL_USED,
};
use crate::driver::{Driver, answer};
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
        Self::Pool(handle.expose_provenance())
    }

    fn handle(self) -> Option<CUmemoryPool> {
        match self {
            Self::Pool(handle) => Some(std::ptr::with_exposed_provenance_mut(handle)),
            Self::Graphs(_) => None,
        }
    }

    /// Returns the bytes that the pool has reserved from the card; `None` if the driver does not say.
    fn reserved(self, driver: &Driver) -> Option<Bytes> {
        let Self::Graphs(device) = self else { return self.attribute(driver, POOL_RESERVED) };
        let mut value = 0_u64;
        let ask = driver.graph_mem_get_attribute?;
        // SAFETY: the attribute is one 64-bit number.
        let result = unsafe { ask(device, GRAPH_MEM_RESERVED, (&raw mut value).cast()) };
        (result == CUDA_SUCCESS).then_some(Bytes(value))
    }

    fn attribute(self, driver: &Driver, attribute: i32) -> Option<Bytes> {
        let (handle, ask) = self.handle().zip(driver.mem_pool_get_attribute)?;
        let mut value = 0_u64;
        // SAFETY: the attributes asked for are 64-bit numbers; the driver refuses a handle that is none.
        let result = driver.relaxed(|| unsafe { ask(handle, attribute, (&raw mut value).cast()) });
        (result == CUDA_SUCCESS).then_some(Bytes(value))
    }

    /// Returns to the card what the pool does not use.
    fn trim(self, driver: &Driver) {
        if let Some((handle, trim)) = self.handle().zip(driver.mem_pool_trim_to) {
            // SAFETY: the driver refuses a handle that is none.
            driver.relaxed(|| unsafe { trim(handle, 0) });
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    id: PoolId,
    pub(crate) device: CUdevice,
    pub(crate) kind: MemoryKind,
    /// Whether the application created the pool, and so may destroy it.
    is_own: bool,
    account: Mutex<Account>,
}

/// Quota of a pool. Locked for short moments, never during an allocation or a question to the daemon.
#[derive(Debug, Default)]
struct Account {
    /// Number of bytes charged for the pool.
    charged: Bytes,
    /// Number of bytes of quota that calls under way hold for the pool's growth.
    pledged: Bytes,
    /// Whether the application has destroyed the pool, which still has memory.
    is_destroyed: bool,
}

/// Quota held for the growth of a pool during a driver call. When dropped, it pays for the growth, and the
/// rest is given back.
#[derive(Debug)]
#[must_use = "a pledge that is dropped at once holds nothing"]
pub(crate) struct Pledge<'a> {
    memory: &'a Memory,
    pool: &'a Pool,
    bytes: Bytes,
    is_paid: bool,
}

impl<'a> Pledge<'a> {
    fn new(memory: &'a Memory, pool: &'a Pool, bytes: Bytes) -> Self {
        lock(&pool.account).pledged += bytes;
        Self { memory, pool, bytes, is_paid: false }
    }

    /// Pays for the pool's growth, and takes the quota that it lacks. A pool takes memory in large pieces, so
    /// it may grow by more than was asked for.
    ///
    /// # Errors
    /// The error for the application if the quota does not suffice.
    pub(crate) fn cover(mut self) -> Result<(), CUresult> {
        while let Err(missing) = self.pay() {
            self.memory.reserve(self.pool.device, missing, self.pool.kind)?;
            self.add(missing);
        }
        Ok(())
    }

    /// Does the same as [`Self::cover`], and takes even quota that the session does not have.
    pub(crate) fn cover_anyway(mut self) {
        if let Err(missing) = self.pay() {
            self.memory.charge(self.pool.device, missing, self.pool.kind);
            self.add(missing);
        }
    }

    /// Pays for the pool's growth. Returns the number of bytes for which no call holds quota, if there are any.
    fn pay(&mut self) -> Result<(), Bytes> {
        self.memory.settle_if_covered(self.pool, self.bytes)?;
        self.bytes = Bytes::ZERO;
        self.is_paid = true;
        Ok(())
    }

    fn add(&mut self, bytes: Bytes) {
        lock(&self.pool.account).pledged += bytes;
        self.bytes += bytes;
    }
}

impl Drop for Pledge<'_> {
    fn drop(&mut self) {
        if !self.is_paid {
            self.memory.settle_pool(self.pool, self.bytes);
        }
    }
}

impl Memory {
    /// Records a pool; a pool that is known already stays as it is.
    pub(crate) fn register_pool(&self, id: PoolId, device: CUdevice, kind: MemoryKind) -> Arc<Pool> {
        let new = || Arc::new(Pool::new(id, device, kind, false));
        lock(&self.pools.known).entry(id).or_insert_with(new).clone()
    }

    /// Records a pool that the application has just created.
    pub(crate) fn register_own_pool(&self, id: PoolId, device: CUdevice, kind: MemoryKind) {
        lock(&self.pools.known).insert(id, Arc::new(Pool::new(id, device, kind, true)));
    }

    /// Holds quota for an allocation of `bytes` from a pool, as far as the pool has too little unused memory.
    ///
    /// # Errors
    /// The error for the application if the quota does not suffice.
    pub(crate) fn pledge<'a>(&'a self, pool: &'a Pool, bytes: Bytes) -> Result<Pledge<'a>, CUresult> {
        if self.try_reserve(pool.device, bytes, pool.kind) {
            return Ok(Pledge::new(self, pool, bytes));
        }
        self.settle_pool(pool, Bytes::ZERO);
        let used = pool.id.attribute(&self.driver, POOL_USED).unwrap_or(Bytes::MAX);
        let missing = bytes - (lock(&pool.account).charged - used);
        if !missing.is_zero() {
            self.reserve(pool.device, missing, pool.kind)?;
        }
        Ok(Pledge::new(self, pool, missing))
    }

    /// Charges the session for all memory of a pool, even beyond the quota.
    pub(crate) fn charge_pool(&self, pool: &Pool) {
        Pledge::new(self, pool, Bytes::ZERO).cover_anyway();
    }

    /// Makes a pool's charge equal to its reserved bytes, as far as `pledge` covers growth, and gives the
    /// rest of the quota back.
    fn settle_pool(&self, pool: &Pool, pledge: Bytes) {
        let account = lock(&pool.account);
        let reserved = self.reserved(pool, &account);
        self.settle(pool, account, reserved, pledge);
    }

    /// Does the same as [`Self::settle_pool`] if all pledges together cover the pool's growth. Otherwise
    /// returns the number of bytes that they lack.
    fn settle_if_covered(&self, pool: &Pool, pledge: Bytes) -> Result<(), Bytes> {
        let account = lock(&pool.account);
        let reserved = self.reserved(pool, &account);
        let missing = reserved - account.charged - account.pledged;
        if !missing.is_zero() {
            return Err(missing);
        }
        self.settle(pool, account, reserved, pledge);
        Ok(())
    }

    fn reserved(&self, pool: &Pool, account: &Account) -> Bytes {
        if account.is_destroyed {
            pool.id.trim(&self.driver);
        }
        // Without an answer, memory of the pool may still be on the card.
        pool.id.reserved(&self.driver).unwrap_or(account.charged)
    }

    fn settle(&self, pool: &Pool, mut account: MutexGuard<'_, Account>, reserved: Bytes, pledge: Bytes) {
        let held = account.charged + pledge;
        let charge = reserved.min(held);
        let before = std::mem::replace(&mut account.charged, charge);
        account.pledged -= pledge;
        let is_over = account.is_destroyed && reserved.is_zero();
        drop(account);
        self.count_pools(before, charge);
        if held > charge {
            self.give_back(pool.device, held - charge, pool.kind);
        }
        if is_over
            && let Some((handle, destroy)) = self.remove_pool(pool.id).zip(self.driver.mem_pool_destroy)
        {
            // SAFETY: the application has given the pool up, and no other thread has removed it.
            unsafe { destroy(handle) };
        }
    }

    /// Destroys a pool for the application, by `destroy` if nothing of it is left on the card. Else the
    /// driver's pool is destroyed later.
    pub(crate) fn destroy_pool(&self, id: PoolId, destroy: impl FnOnce() -> CUresult) -> CUresult {
        let known = lock(&self.pools.known).get(&id).cloned();
        // The driver refuses to destroy a pool of its own.
        let Some(pool) = known.filter(|pool| pool.is_own) else { return destroy() };
        if lock(&pool.account).is_destroyed {
            return CUDA_ERROR_INVALID_VALUE;
        }
        id.trim(&self.driver);
        self.settle_pool(&pool, Bytes::ZERO);
        if lock(&pool.account).charged.is_zero() {
            self.remove_pool(id);
            return destroy();
        }
        self.replace_current_pool(&pool);
        let mut threshold = 0_u64;
        if let Some((handle, set)) = id.handle().zip(self.driver.mem_pool_set_attribute) {
            // SAFETY: the attribute is one 64-bit number; the pool is alive.
            unsafe { set(handle, POOL_RELEASE_THRESHOLD, (&raw mut threshold).cast()) };
        }
        lock(&pool.account).is_destroyed = true;
        self.settle_pool(&pool, Bytes::ZERO);
        CUDA_SUCCESS
    }

    /// Makes the device's default pool the current one in place of `pool`, as the driver does when a pool is
    /// destroyed.
    fn replace_current_pool(&self, pool: &Pool) {
        let (driver, device) = (&self.driver, pool.device);
        let pools = driver.device_get_mem_pool.zip(driver.device_get_default_mem_pool);
        let Some(((current, default), set)) = pools.zip(driver.device_set_mem_pool) else {
            return;
        };
        // SAFETY: the first two write one handle; the default pool is always alive.
        unsafe {
            if answer(std::ptr::null_mut(), |found| current(found, device)) == pool.id.handle()
                && let Some(default) = answer(std::ptr::null_mut(), |found| default(found, device))
            {
                set(device, default);
            }
        }
    }

    /// Removes a pool from the table and returns its handle; `None` if another thread has removed it.
    fn remove_pool(&self, id: PoolId) -> Option<CUmemoryPool> {
        lock(&self.pools.known).remove(&id)?.id.handle()
    }

    /// Gives quota back for memory that a known pool has returned to the card.
    pub(crate) fn shrink_pool(&self, id: PoolId) {
        let known = lock(&self.pools.known).get(&id).cloned();
        if let Some(pool) = known {
            self.settle_pool(&pool, Bytes::ZERO);
        }
    }

    pub(crate) fn shrink_current_pools(&self) {
        if self.pools_have_charge()
            && let Some(device) = self.driver.current_device()
        {
            self.shrink_pools(device);
        }
    }

    /// Gives quota back for memory that a device's pools have returned to the card.
    pub(crate) fn shrink_pools(&self, device: CUdevice) {
        for pool in self.charged_pools(device) {
            self.settle_pool(&pool, Bytes::ZERO);
        }
    }

    /// Gives the quota of pools back that ended with the last context of their device.
    pub(super) fn end_pools(&self, device: CUdevice) {
        for pool in self.charged_pools(device) {
            if pool.id.reserved(&self.driver).is_none() && self.remove_pool(pool.id).is_some() {
                let charged = std::mem::take(&mut lock(&pool.account).charged);
                self.count_pools(charged, Bytes::ZERO);
                self.give_back(device, charged, pool.kind);
            }
        }
    }

    fn charged_pools(&self, device: CUdevice) -> Vec<Arc<Pool>> {
        if !self.pools_have_charge() {
            return Vec::new();
        }
        // The table is not locked while accounts are.
        let all: Vec<_> = lock(&self.pools.known).values().cloned().collect();
        let is_charged = |pool: &Pool| pool.device == device && !lock(&pool.account).charged.is_zero();
        all.into_iter().filter(|pool| is_charged(pool)).collect()
    }

    /// Records that graphs of this process allocate memory of a device.
    pub(crate) fn note_graph_memory(&self, device: CUdevice) {
        self.register_pool(PoolId::Graphs(device), device, MemoryKind::Fixed);
        self.pools.has_graph_memory.store(true, Ordering::Relaxed);
    }

    /// Charges the session for the memory of its graphs, even beyond the quota.
    #[cold]
    pub(crate) fn charge_graphs(&self) {
        let all: Vec<_> = lock(&self.pools.known).values().cloned().collect();
        let is_of_graphs = |pool: &Pool| matches!(pool.id, PoolId::Graphs(_));
        for pool in all
            .iter()
            .filter(|pool| is_of_graphs(pool) && self.lease.gpu(pool.device).is_some())
        {
            self.charge_pool(pool);
        }
    }

    #[inline]
    pub(crate) fn has_graph_memory(&self) -> bool {
        self.pools.has_graph_memory.load(Ordering::Relaxed)
    }

    fn pools_have_charge(&self) -> bool {
        self.pools.charged.load(Ordering::Relaxed) > 0
    }

    fn count_pools(&self, before: Bytes, after: Bytes) {
        let change = after.0.wrapping_sub(before.0);
        if change != 0 {
            self.pools.charged.fetch_add(change, Ordering::Relaxed);
        }
    }
}

impl Pool {
    fn new(id: PoolId, device: CUdevice, kind: MemoryKind, is_own: bool) -> Self {
        Self { id, device, kind, is_own, account: Mutex::default() }
    }
}
