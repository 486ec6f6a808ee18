//! Remapped blocks: device memory at addresses that gpushare has reserved (`remap/`).

use gpushare_proto::Bytes;

use super::allocations::{Block, Origin};
use super::{Memory, Table, lock};
use crate::driver::Driver;
use crate::driver::contexts::Contexts;
use crate::driver::types::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult};
use crate::remap::NotAllocated;

impl Memory {
    /// Allocates a remapped block on the current device, without its quota.
    pub(crate) fn allocate_remapped(
        &'static self,
        driver: &'static Driver,
        contexts: &'static Contexts,
        device: CUdevice,
        size: Bytes,
    ) -> Result<CUdeviceptr, NotAllocated> {
        self.remap.allocate(driver, contexts, device, self.peers(device), size)
    }

    /// Frees a remapped block, after the work of the current context, as the driver does. During a capture the free
    /// is put aside. Returns `None` for other memory.
    #[inline]
    pub(crate) fn free_remapped(
        &self,
        address: CUdeviceptr,
        is_capturing: impl FnOnce() -> bool,
    ) -> Option<CUresult> {
        if self.remap.is_used() { self.free_if_remapped(address, is_capturing()) } else { None }
    }

    #[cold]
    fn free_if_remapped(&self, address: CUdeviceptr, is_capturing: bool) -> Option<CUresult> {
        let is_own = |(start, block): &(_, Block)| *start == address && block.origin == Origin::Remapped;
        self.blocks.around(address).filter(is_own)?;
        let Some(block) = self.blocks.remove(address) else {
            return Some(CUDA_ERROR_INVALID_VALUE);
        };
        if is_capturing {
            lock(&self.aside).push((address, block));
            return Some(CUDA_SUCCESS);
        }
        // SAFETY: waits for the current context; has no arguments.
        let waited = unsafe { (self.driver.ctx_synchronize)() };
        if waited != CUDA_SUCCESS {
            self.record(Table::Blocks, address, block);
            return Some(waited);
        }
        let aside = std::mem::take(&mut *lock(&self.aside));
        let in_order = aside.into_iter().chain([(address, block)]);
        in_order.for_each(|(address, block)| self.end_remapped(address, block));
        self.collect_frees();
        Some(CUDA_SUCCESS)
    }

    /// Frees a block, all work on which is over.
    pub(super) fn end_remapped(&self, address: CUdeviceptr, block: Block) {
        self.remap.free(block.device, address);
        self.give_back_block(block);
    }
}
