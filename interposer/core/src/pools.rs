//! The driver's memory pools as we charge them: by the bytes that a pool has taken from the card, not by what the
//! application has taken from the pool.
//!
//! ```text
//!   reserved (the driver's attribute) ── more than charged ──▶ quota is taken
//!                                     ── less than charged ──▶ quota is given back
//! ```
//!
//! A pool keeps what is freed, so most allocations take nothing from the card, and no quota. It shrinks when a
//! stream is waited for, when it is trimmed and when it dies; we look when it matters: after each allocation and free,
//! before anything is refused and before the application is told what is free.
//!
//! The memory of graphs is one more pool of each device, with an attribute of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use gpushare_proto::Bytes;

use crate::driver::Driver;
use crate::driver::types::{
    CUDA_SUCCESS, CUdevice, CUmemoryPool, GRAPH_MEM_RESERVED, POOL_RESERVED, POOL_USED,
};
use crate::leases::Kind;
use crate::lock;
use crate::process::State;

/// All pools that memory may have come from.
#[derive(Debug, Default)]
pub struct Pools {
    known: Mutex<BTreeMap<Source, Arc<Pool>>>,
    /// What all of them were charged: without anything there is nothing that a pool could have given back.
    charged: AtomicU64,
}

/// Whose bytes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A pool, by its handle's address.
    Pool(usize),
    /// The memory nodes of a device's graphs.
    Graphs(CUdevice),
}

impl Source {
    /// The pool of a handle.
    #[must_use]
    pub fn pool(handle: CUmemoryPool) -> Self {
        Self::Pool(handle.addr())
    }

    /// What it has taken from the card; `None` if the driver knows it no more.
    fn reserved(self, driver: &Driver) -> Option<Bytes> {
        match self {
            Self::Pool(_) => self.attribute(driver, POOL_RESERVED),
            Self::Graphs(device) => {
                let mut value = 0_u64;
                let ask = driver.graph_mem_get_attribute?;
                // SAFETY: the attribute is one 64-bit number.
                let result = unsafe { ask(device, GRAPH_MEM_RESERVED, (&raw mut value).cast()) };
                (result == CUDA_SUCCESS).then_some(Bytes(value))
            }
        }
    }

    /// What the application has of it.
    fn used(self, driver: &Driver) -> Option<Bytes> {
        self.attribute(driver, POOL_USED)
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

/// One pool.
#[derive(Debug)]
pub struct Pool {
    /// The card that it is charged to.
    pub device: CUdevice,
    /// Whether its memory moves.
    pub kind: Kind,
    /// What was charged. Held while the pool may grow, so that nobody takes another's growth for its own.
    charged: Mutex<Bytes>,
}

impl Pools {
    /// The pool, entered now if it is new.
    pub fn know(&self, source: Source, device: CUdevice, kind: Kind) -> Arc<Pool> {
        let mut known = lock(&self.known);
        let new = || Arc::new(Pool { device, kind, charged: Mutex::default() });
        known.entry(source).or_insert_with(new).clone()
    }

    /// The pool, if it is known.
    #[must_use]
    pub fn find(&self, source: Source) -> Option<Arc<Pool>> {
        lock(&self.known).get(&source).cloned()
    }

    /// The pools of a device.
    fn of(&self, device: CUdevice) -> Vec<(Source, Arc<Pool>)> {
        let known = lock(&self.known);
        let here = known.iter().filter(|(_, pool)| pool.device == device);
        here.map(|(&source, pool)| (source, pool.clone())).collect()
    }

    fn have_anything(&self) -> bool {
        self.charged.load(Ordering::Relaxed) > 0
    }

    fn forget(&self, source: Source) {
        lock(&self.known).remove(&source);
    }
}

/// A pool that nobody else grows meanwhile.
#[derive(Debug)]
pub struct Held<'a> {
    state: &'a State,
    source: Source,
    pool: &'a Pool,
    charged: MutexGuard<'a, Bytes>,
}

impl<'a> Held<'a> {
    /// Waits for whoever grows it now.
    pub fn new(state: &'a State, source: Source, pool: &'a Pool) -> Self {
        Self { state, source, pool, charged: lock(&pool.charged) }
    }

    fn try_new(state: &'a State, source: Source, pool: &'a Pool) -> Option<Self> {
        let charged = match pool.charged.try_lock() {
            Ok(charged) => charged,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Self { state, source, pool, charged })
    }

    /// What was charged.
    #[must_use]
    pub fn charged(&self) -> Bytes {
        *self.charged
    }

    /// How much more than it has unused the pool needs for `bytes`. It may have shrunk, so that is looked at first.
    pub fn lacks(&mut self, bytes: Bytes) -> Bytes {
        self.shrink();
        let used = self.source.used(&self.state.driver).unwrap_or(Bytes::MAX);
        bytes - (self.charged() - used)
    }

    /// Gives back what the pool no longer has.
    pub fn shrink(&mut self) {
        let reserved = self.source.reserved(&self.state.driver);
        let less = self.charged() - reserved.unwrap_or_default();
        if !less.is_zero() {
            self.discharge(less);
            self.state.give_back(self.pool.device, less, self.pool.kind);
        }
        if reserved.is_none() {
            self.state.pools.forget(self.source);
        }
    }

    /// The pool may have grown: `pledged` bytes were reserved for that, and what it did not need of them goes back.
    /// Whether all it has is charged now.
    #[must_use]
    pub fn grow(&mut self, pledged: Bytes) -> bool {
        let (device, kind) = (self.pool.device, self.pool.kind);
        let reserved = self.source.reserved(&self.state.driver).unwrap_or_default();
        let more = reserved - self.charged();
        if more > pledged {
            if self.state.reserve(device, more - pledged, kind).is_err() {
                self.state.give_back(device, pledged, kind);
                return false;
            }
        } else if more < pledged {
            self.state.give_back(device, pledged - more, kind);
        }
        self.charge(more);
        if more.is_zero() {
            let less = self.charged() - reserved;
            if !less.is_zero() {
                self.discharge(less);
                self.state.give_back(device, less, kind);
            }
        }
        true
    }

    /// Charges what the pool has, whether or not there is quota for it.
    pub fn accept(&mut self) {
        self.shrink();
        let reserved = self.source.reserved(&self.state.driver).unwrap_or_default();
        let more = reserved - self.charged();
        if !more.is_zero() {
            self.state.charge(self.pool.device, more, self.pool.kind);
            self.charge(more);
        }
    }

    fn charge(&mut self, bytes: Bytes) {
        *self.charged += bytes;
        self.state.pools.charged.fetch_add(bytes.0, Ordering::Relaxed);
    }

    fn discharge(&mut self, bytes: Bytes) {
        *self.charged -= bytes;
        self.state.pools.charged.fetch_sub(bytes.0, Ordering::Relaxed);
    }
}

impl State {
    /// [`Self::look_at_pools`] of the current device, for a process whose pools have anything.
    pub fn look_at_pools_here(&self) {
        if self.pools.have_anything()
            && let Some(device) = self.driver.current_device()
        {
            self.look_at_pools(device);
        }
    }

    /// Looks at the pools of a device that have anything and that nobody is growing now, and gives back what they no
    /// longer have.
    pub fn look_at_pools(&self, device: CUdevice) {
        if !self.pools.have_anything() {
            return;
        }
        for (source, pool) in self.pools.of(device) {
            if let Some(mut held) = Held::try_new(self, source, &pool)
                && !held.charged().is_zero()
            {
                held.shrink();
            }
        }
    }
}
