//! Remapped blocks: device memory at addresses that gpushare has reserved (`remap/`).

use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::{Duration, Instant};

use gpushare_proto::Bytes;
use gpushare_proto::page::Page;
use gpushare_sys::bell;

use super::allocations::{Block, Origin};
use super::{Memory, Table, undone_by_unwinding};
use crate::driver::Driver;
use crate::driver::contexts::Contexts;
use crate::driver::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult, REFUSED_FOR_CAPTURE,
};
use crate::gate::{listen, page};
use crate::remap::{NotAllocated, Want};

/// Longest pause between two looks at the goal by a thread that allocates.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(20);

impl Memory {
    /// Allocates a remapped block on the current device, without its quota.
    pub(crate) fn allocate_remapped(
        &'static self,
        parts: (&'static Driver, &'static Contexts),
        device: CUdevice,
        size: Bytes,
        want: &mut Option<Want>,
    ) -> Result<CUdeviceptr, NotAllocated> {
        self.begin_remap(parts, device)?;
        self.remap.allocate(device, size, want)
    }

    /// Begins to remap memory of the current device.
    pub(super) fn begin_remap(
        &'static self,
        (driver, contexts): (&'static Driver, &'static Contexts),
        device: CUdevice,
    ) -> Result<(), NotAllocated> {
        let parts = (driver, contexts, &*self.daemon);
        self.remap
            .begin(parts, device, self.peers(device))
            .map_err(NotAllocated::Failed)?;
        self.follow_daemon(page());
        Ok(())
    }

    /// Follows the daemon's words about remapped memory in the page.
    pub(crate) fn follow_daemon(&self, page: &'static Page) {
        self.remap.follow(page, |device| self.lease.gpu(device));
    }

    /// Asks the daemon to look at the lease, and waits a moment for a higher goal. Returns the duration of
    /// the wait.
    pub(crate) fn wait_for_room(&self) -> Duration {
        let (page, heard) = listen();
        let began = Instant::now();
        self.remap.report_again();
        let _ = bell::sleep(page, heard, Some(LOOK_FOR_ROOM));
        began.elapsed()
    }

    /// Frees a remapped block, after the work of its context, as the driver does. During a capture that
    /// allows it the free is put aside. Returns `None` for other memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_remapped(&self, address: CUdeviceptr, is_capturing: bool) -> Option<CUresult> {
        let is_own = |(start, block): &(_, Block)| *start == address && block.origin == Origin::Remapped;
        self.blocks.around(address).filter(is_own)?;
        let Some(block) = self.blocks.remove(address) else {
            return Some(CUDA_ERROR_INVALID_VALUE);
        };
        if is_capturing {
            if let Err(refused) = self.driver.allowed_beside_capture() {
                self.record(Table::Blocks, address, block);
                return Some(refused);
            }
            self.put_aside(address, block);
            return Some(CUDA_SUCCESS);
        }
        let aside = self.next_aside();
        let keep = || self.record(Table::Blocks, address, block);
        let waited = undone_by_unwinding(|| self.wait_for_work_of(block.context), keep);
        if waited != CUDA_SUCCESS {
            keep();
            return Some(waited);
        }
        self.end_remapped(address, block);
        self.end_aside_of(block.context, aside);
        for context in self.contexts_aside(aside) {
            // A context that fails has no work in flight, but one in which a capture has begun may have some.
            if !REFUSED_FOR_CAPTURE.contains(&self.wait_for_work_of(context)) {
                self.end_aside_of(context, aside);
            }
        }
        self.collect_frees();
        Some(CUDA_SUCCESS)
    }

    /// Waits for the work of the context at an address, which need not be the current one.
    pub(super) fn wait_for_work_of(&self, context: usize) -> CUresult {
        let driver = &self.driver;
        if context == driver.current_context().addr() {
            // SAFETY: waits for the current context; has no arguments.
            return unsafe { (driver.ctx_synchronize)() };
        }
        // SAFETY: a context that has memory is alive.
        match unsafe { (driver.ctx_push_current)(with_exposed_provenance_mut(context)) } {
            CUDA_SUCCESS => {}
            error => return error,
        }
        let mut popped = null_mut();
        // SAFETY: waits for the context that was pushed here, and pops it.
        unsafe {
            let waited = (driver.ctx_synchronize)();
            (driver.ctx_pop_current)(&raw mut popped);
            waited
        }
    }

    /// Frees a block, all work on which is over.
    pub(super) fn end_remapped(&self, address: CUdeviceptr, block: Block) {
        self.remap.free(block.device, address);
        self.give_back_block(block);
    }
}
