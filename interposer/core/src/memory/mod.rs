//! Memory of the process: its allocations, and the session's quota for them.
//!
//! ```text
//!   a hook ──▶ quota ──▶ lease ──▶ the page's row of the device, or a question to the daemon
//!                │
//!                ▼ granted
//!           the driver ──▶ allocations · handles · pools     give the quota back later
//! ```

pub mod allocations;
mod created;
mod deferred;
pub(crate) mod handles;
mod headroom;
mod imports;
pub mod lease;
pub(crate) mod mapped;
mod placement;
pub(crate) mod pools;
mod quota;
mod remapped;
mod usage;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use gpushare_proto::page::{Goal, Page};
use gpushare_proto::{Backend, Bytes};

use crate::daemon::Daemon;
use crate::driver::Driver;
use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr, CUresult, CUstream,
};
use crate::remap::Remap;
use allocations::{Allocations, Block, Origin};
use handles::{Handles, Locked};
use mapped::Mapped;
use {deferred::Deferred, imports::Imports, lease::Lease, placement::Placement, pools::Pools};

#[derive(Debug)]
pub(crate) struct Memory {
    driver: Driver,
    daemon: Arc<Daemon>,
    placement: Placement,
    pub(crate) lease: Lease,
    /// Held by the thread that pays debts, which are bytes in use without a lease.
    paying: Mutex<()>,
    pub(crate) blocks: Allocations,
    arrays: Allocations,
    handles: Mutex<Handles>,
    pub(crate) mapped: Mapped,
    pools: Pools,
    deferred: Deferred,
    pub(crate) remap: Remap,
    pub(crate) imports: Imports,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    /// Table of allocated memory, by its addresses.
    Blocks,
    /// Table of arrays, by their handles.
    Arrays,
}

/// Part of a block of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Address at which the block begins.
    pub(crate) block: CUdeviceptr,
    /// Address at which the part begins.
    pub(crate) address: CUdeviceptr,
    pub(crate) size: Bytes,
}

impl Memory {
    pub(crate) fn new(driver: Driver, daemon: Arc<Daemon>) -> Self {
        Self {
            driver,
            daemon,
            placement: Placement::default(),
            lease: Lease::default(),
            paying: Mutex::default(),
            blocks: Allocations::default(),
            arrays: Allocations::default(),
            handles: Mutex::default(),
            mapped: Mapped::default(),
            pools: Pools::default(),
            deferred: Deferred::default(),
            remap: Remap::default(),
            imports: Imports::default(),
        }
    }

    /// Runs `call`, which allocates `size` bytes, with quota reserved, and records the block under `key()`.
    #[inline]
    pub(crate) fn allocate(
        &self,
        table: Table,
        device: CUdevice,
        size: Bytes,
        origin: Origin,
        call: impl FnMut() -> CUresult,
        key: impl FnOnce() -> u64,
    ) -> CUresult {
        let result = self.reserve_and_call(device, size, origin, call);
        if result == CUDA_SUCCESS {
            let context = self.driver.current_context().addr();
            self.record(table, key(), Block { size, device, context, origin });
        }
        result
    }

    /// Runs `call`, which frees the memory under `key`, and gives the quota back. Memory that the table does
    /// not have may belong to a pool, so the pools are checked. Memory of another process is closed, not
    /// freed.
    pub(crate) fn free(&self, table: Table, key: u64, call: impl FnOnce() -> CUresult) -> CUresult {
        if matches!(table, Table::Blocks) && (self.deferred.has(key) || self.is_import(key)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // Removed before the driver may give the address out again.
        let block = self.table(table).remove(key);
        let restore = || block.into_iter().for_each(|block| self.record(table, key, block));
        let result = undone_by_unwinding(call, restore);
        match (block, result, table) {
            (Some(block), CUDA_SUCCESS, _) => self.give_back_block(block),
            (Some(_), ..) => restore(),
            (None, CUDA_SUCCESS, Table::Blocks) => self.shrink_current_pools(),
            (None, ..) => {}
        }
        self.collect_frees();
        result
    }

    #[inline]
    fn record(&self, table: Table, key: u64, block: Block) {
        if let Some(dead) = self.table(table).insert(key, block) {
            self.give_back_block(dead);
        }
    }

    fn give_back_block(&self, block: Block) {
        // Whether and how much of it was charged, `imports` knows.
        if block.origin == Origin::Imported {
            return;
        }
        self.give_back(block.device, block.size, block.origin.kind());
    }

    #[inline]
    fn table(&self, table: Table) -> &Allocations {
        match table {
            Table::Blocks => &self.blocks,
            Table::Arrays => &self.arrays,
        }
    }

    /// Gives the quota of a dead context's memory back. Pools end with the last context of their device.
    pub(crate) fn end_context(&self, context: CUcontext, device: CUdevice, is_last: bool) {
        // A thread that has the dead context current must hear of it from the driver.
        self.lease.set_card_size(device, Bytes::ZERO);
        let freed = self.deferred.remove_context(context);
        let is_remapped = |(_, block): &&(_, Block)| block.origin == Origin::Remapped;
        let waiting = freed
            .iter()
            .filter(is_remapped)
            .map(|(address, block)| (*address, block.device));
        // Memory by handle belongs to no context, so the driver does not free it.
        for (address, device) in self.blocks.remapped_in(context).into_iter().chain(waiting) {
            self.remap.begin_free(device, address);
        }
        self.remap.end_context(context, device);
        self.end_imports(context);
        let dead = [self.blocks.remove_context(context), self.arrays.remove_context(context)];
        let all = dead.into_iter().flatten().chain(freed.into_iter().map(|(_, block)| block));
        all.for_each(|block| self.give_back_block(block));
        self.shrink_pools(device);
        if is_last {
            self.end_pools(device);
        }
    }

    pub(crate) fn move_context(&self, from: CUcontext, to: CUcontext) {
        self.blocks.move_context(from, to);
        self.arrays.move_context(from, to);
        self.deferred.move_context(from, to);
        self.move_imports(from, to);
    }

    /// Gives quota back for memory that pools and frees in stream order have returned to a device.
    pub(crate) fn reclaim(&self, device: CUdevice) {
        self.collect_frees();
        self.shrink_pools(device);
    }

    /// Asks the driver to move a part of a managed block to a device, in `stream`. Returns the number of
    /// bytes; zero if the block was freed or the driver refused.
    pub(crate) fn prefetch(&self, piece: Piece, device: CUdevice, stream: CUstream) -> Bytes {
        let Piece { block, address, size } = piece;
        let asked = self.blocks.hold(block, || {
            // SAFETY: the range is ours, and a thread that frees it waits.
            unsafe { (self.driver.mem_prefetch_async)(address, size.0 as usize, device, stream) }
        });
        if asked == Some(CUDA_SUCCESS) { size } else { Bytes::ZERO }
    }

    /// Returns the most bytes of managed memory that should stay on a device while the gate is closed, as the
    /// daemon says in the page; [`Bytes::MAX`] if it does not say so.
    pub(crate) fn managed_goal(&self, page: &Page, device: CUdevice) -> Bytes {
        // The goals of a process whose memory is remapped are about that memory.
        if self.backend() == Backend::Remap {
            return Bytes::MAX;
        }
        let gpu = self.lease.gpu(device);
        let word = gpu.and_then(|gpu| page.goals.get(usize::from(gpu.0)));
        let goal = word.map_or_else(Goal::default, |word| Goal::from_bits(word.load(Ordering::Acquire)));
        if goal.is_bound() { goal.bytes } else { Bytes::MAX }
    }

    /// Returns the most bytes of managed memory that a grant should bring to a device: the capacity of the card as the
    /// daemon wrote it, or [`Bytes::MAX`].
    pub(crate) fn capacity(&self, page: &Page, device: CUdevice) -> Bytes {
        let word = self.lease.gpu(device).and_then(|gpu| page.capacities.get(usize::from(gpu.0)));
        match word.map_or(0, |word| word.load(Ordering::Acquire)) {
            0 => Bytes::MAX,
            bytes => Bytes(bytes),
        }
    }

    /// Returns whether memory was ever given to another process, or opened.
    pub(crate) fn shares(&self) -> bool {
        self.imports.is_used() || self.remap.was_exported()
    }

    /// Locks the table of handles. The thread must not be its holder ([`handles::is_holder`]).
    pub(crate) fn handles(&self) -> Locked<'_> {
        Locked::new(&self.handles)
    }
}

/// Runs `work`. If `work` unwinds, as in a thread that is cancelled in the driver, runs `undo`.
fn undone_by_unwinding<T>(work: impl FnOnce() -> T, undo: impl FnOnce()) -> T {
    struct Undo<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for Undo<F> {
        fn drop(&mut self) {
            if let Some(undo) = self.0.take() {
                undo();
            }
        }
    }
    let mut guard = Undo(Some(undo));
    let result = work();
    guard.0 = None;
    result
}
