//! Frees in stream order of memory that belongs to no pool. The driver frees such memory only at once, so an
//! event marks the place of the free in its stream.
//!
//! ```text
//!   cuMemFreeAsync ──▶ event in the stream ──▶ reached? ──▶ the driver's free ──▶ quota is given back
//! ```
//!
//! Reached frees are collected by `cuMemFree`, before the daemon is asked for quota, and before free memory is
//! reported. The driver may wait there for other work, so `cuMemFreeAsync` itself collects nothing. A request
//! beyond the quota waits for frees that are not reached yet. A thread collects only in its current context,
//! which no other thread may destroy meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpushare_sys::unwind::{cancellation_point, uncancelled};

use super::allocations::Block;
use super::{Memory, Table};
use crate::driver::Driver;
use crate::driver::types::{
    CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUcontext, CUdeviceptr, CUevent, CUresult,
    CUstream,
};
use crate::process::lock;

/// Longest wait of a request for frees that are not reached. A kernel may wait for the requesting thread.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks at frees that are not reached.
const PAUSE: Duration = Duration::from_micros(100);

/// Frees whose place in their streams may not be reached yet.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    frees: Mutex<Vec<Free>>,
    /// Length of the list, readable without its lock.
    count: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
struct Free {
    address: CUdeviceptr,
    block: Block,
    /// Address of the context to which the event belongs.
    context: usize,
    /// Address of the event; `None` once the free is reached.
    event: Option<usize>,
}

impl Free {
    fn is_reached(&self, driver: &Driver) -> bool {
        let event = |address| std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the event's context is alive. Every answer but "not ready" ends the wait, because a context
        // with a sticky error runs nothing more.
        self.event
            .is_none_or(|address| unsafe { (driver.event_query)(event(address)) } != CUDA_ERROR_NOT_READY)
    }
}

impl Deferred {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Free>) -> T) -> T {
        let mut frees = lock(&self.frees);
        let answer = change(&mut frees);
        self.count.store(frees.len(), Ordering::Release);
        answer
    }

    /// Returns whether the application has freed the memory at `address`, which is not freed yet.
    pub(super) fn has(&self, address: CUdeviceptr) -> bool {
        !self.is_empty() && lock(&self.frees).iter().any(|free| free.address == address)
    }

    /// Removes and returns the blocks that ended with a context.
    pub(super) fn remove_context(&self, context: CUcontext) -> Vec<Block> {
        if self.is_empty() {
            return Vec::new();
        }
        let gone = context.addr();
        self.change(|frees| {
            let dead = frees.extract_if(.., |free| free.block.context == gone).map(|free| free.block);
            let dead = dead.collect();
            // Work of a context that was destroyed is over.
            for free in frees.iter_mut().filter(|free| free.context == gone) {
                (free.context, free.event) = (free.block.context, None);
            }
            dead
        })
    }

    /// Moves the blocks of one context to another. The first one is gone.
    pub(super) fn move_context(&self, from: CUcontext, to: CUcontext) {
        if !self.is_empty() {
            self.change(|frees| {
                for free in frees.iter_mut() {
                    if free.block.context == from.addr() {
                        free.block.context = to.addr();
                    }
                    if free.context == from.addr() {
                        (free.context, free.event) = (to.addr(), None);
                    }
                }
            });
        }
    }
}

impl Memory {
    /// Frees memory in the order of a stream; `None` for memory that the table does not have.
    pub(crate) fn free_in_order(&self, address: CUdeviceptr, stream: CUstream) -> Option<CUresult> {
        let block = self.blocks.remove(address)?;
        let context = self.driver.context_of(stream);
        let free = |event: CUevent| {
            let event = Some(event.expose_provenance());
            Free { address, block, context: context.addr(), event }
        };
        match self.mark(stream, context) {
            Ok(event) => {
                self.deferred.change(|frees| frees.push(free(event)));
                Some(CUDA_SUCCESS)
            }
            Err(error) => {
                self.record(Table::Blocks, address, block);
                Some(error)
            }
        }
    }

    fn mark(&self, stream: CUstream, context: CUcontext) -> Result<CUevent, CUresult> {
        let driver = &self.driver;
        let functions = driver.event_record.zip(driver.event_destroy);
        let (record, destroy) = functions.ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        let event = driver.create_event(context).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
        // SAFETY: the event is of the stream's context, and the stream is the application's.
        match unsafe { record(event, stream) } {
            CUDA_SUCCESS => Ok(event),
            error => {
                // SAFETY: the event is no longer used.
                unsafe { destroy(event) };
                Err(error)
            }
        }
    }

    /// Frees what the streams of the current context have reached, and gives its quota back.
    pub(crate) fn collect_frees(&self) {
        if self.deferred.is_empty() {
            return;
        }
        let (driver, context) = (&self.driver, self.driver.current_context().addr());
        driver.relaxed(|| {
            let is_due = |free: &mut Free| free.context == context && free.is_reached(driver);
            let due: Vec<_> = self.deferred.change(|frees| frees.extract_if(.., is_due).collect());
            due.into_iter().for_each(|free| self.end_free(free));
        });
    }

    fn end_free(&self, free: Free) {
        if let (Some(event), Some(destroy)) = (free.event, self.driver.event_destroy) {
            // SAFETY: the event is gpushare's own, and its context is alive.
            unsafe { destroy(std::ptr::with_exposed_provenance_mut(event)) };
        }
        // SAFETY: the application has given the memory up, and all work before the free is done.
        match unsafe { (self.driver.mem_free)(free.address) } {
            CUDA_SUCCESS => self.give_back_block(free.block),
            // The memory is still there, so it stays charged.
            _ => self.deferred.change(|frees| frees.push(Free { event: None, ..free })),
        }
    }

    /// Waits a moment for frees of the current context, and collects them. Returns `false` if there are none
    /// to wait for, or if `since` is too long ago.
    pub(super) fn await_frees(&self, since: Instant) -> bool {
        if self.deferred.is_empty() || since.elapsed() > PATIENCE {
            return false;
        }
        let context = self.driver.current_context().addr();
        if !lock(&self.deferred.frees)
            .iter()
            .any(|free| free.context == context && free.event.is_some())
        {
            return false;
        }
        cancellation_point();
        uncancelled(|| std::thread::sleep(PAUSE));
        self.collect_frees();
        true
    }
}
