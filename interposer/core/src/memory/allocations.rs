//! Memory that the process has allocated, by address or handle.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use gpushare_proto::Bytes;

use crate::daemon::MemoryKind;
use crate::driver::types::{CUcontext, CUdevice, CUdeviceptr};
use crate::process::lock;

/// Block of memory: one allocation, with the size that the application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of bytes that the application asked for, which its session is charged.
    pub size: Bytes,
    /// Device to which the allocation is charged.
    pub device: CUdevice,
    /// Address of the context whose end frees the allocation.
    pub context: usize,
    /// Kind of call and memory by which the block came to be.
    pub origin: Origin,
}

/// Kind of a block by the memory that the application asked for and the memory that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Managed memory in place of the device memory that the application asked for. Hooks hide the
    /// difference.
    Rewritten,
    /// Managed memory that the application itself asked for.
    Managed,
    /// Managed memory that the application asked for in a process whose device memory is remapped. It counts as if it
    /// stayed on the card: such a process moves its memory by the daemon's goals, and the driver knows none.
    FixedManaged,
    /// Device memory of the driver, which never leaves the card.
    Native,
    /// Device memory at an address that gpushare has reserved. Hooks hide the difference.
    Remapped,
    /// Memory of another process, which that process pays for (`memory/imports.rs`).
    Imported,
}

impl Origin {
    /// Returns whether the block is managed memory.
    const fn is_managed(self) -> bool {
        matches!(self, Self::Rewritten | Self::Managed | Self::FixedManaged)
    }

    /// Returns whether the block's bytes can leave the card.
    pub const fn kind(self) -> MemoryKind {
        match self {
            Self::Rewritten | Self::Managed | Self::Remapped => MemoryKind::Movable,
            Self::Native | Self::FixedManaged | Self::Imported => MemoryKind::Fixed,
        }
    }

    /// Returns whether the block is memory by handle that the application knows as memory of `cuMemAlloc`.
    pub const fn is_by_handle(self) -> bool {
        matches!(self, Self::Remapped | Self::Imported)
    }
}

/// Table of the process's blocks of memory, by address or handle.
#[derive(Debug, Default)]
pub struct Allocations {
    inner: Mutex<Inner>,
    /// Wakes threads that wait until `held` is cleared.
    released: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: BTreeMap<CUdeviceptr, Block>,
    /// Address of the block that the drainer prefetches now. A thread that frees the block waits meanwhile.
    held: Option<CUdeviceptr>,
}

impl Allocations {
    /// Adds a block to the table. Returns an outdated block at the same address, whose context was destroyed
    /// and which no thread has removed yet.
    #[must_use]
    #[inline]
    pub fn insert(&self, address: CUdeviceptr, block: Block) -> Option<Block> {
        lock(&self.inner).blocks.insert(address, block)
    }

    /// Removes the block that begins at `address`; `None` for an unknown address. Waits while the drainer
    /// prefetches the block.
    #[must_use]
    pub fn remove(&self, address: CUdeviceptr) -> Option<Block> {
        let mut inner = lock(&self.inner);
        while inner.held == Some(address) {
            inner = self.released.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.blocks.remove(&address)
    }

    /// Runs `ask` while the block that begins at `address` cannot be removed; `None` if the block is gone.
    /// Only the drainer calls this. A waiting free has not entered the driver, so it holds no lock that `ask`
    /// needs.
    pub fn hold<R>(&self, address: CUdeviceptr, ask: impl FnOnce() -> R) -> Option<R> {
        {
            let mut inner = lock(&self.inner);
            inner.blocks.contains_key(&address).then_some(())?;
            inner.held = Some(address);
        }
        let answer = ask();
        lock(&self.inner).held = None;
        self.released.notify_all();
        Some(answer)
    }

    /// Returns the managed memory that stands in for memory of a device.
    pub fn rewritten_on(&self, device: CUdevice) -> Vec<(CUdeviceptr, Bytes)> {
        let inner = lock(&self.inner);
        let own = |block: &Block| block.device == device && block.origin == Origin::Rewritten;
        let blocks = inner.blocks.iter().filter(|(_, block)| own(block));
        blocks.map(|(&address, block)| (address, block.size)).collect()
    }

    /// Returns the block that contains an address, and the block's beginning.
    pub fn around(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
        let inner = lock(&self.inner);
        let (&start, &block) = inner.blocks.range(..=address).next_back()?;
        (address - start < block.size.0).then_some((start, block))
    }

    /// Removes and returns all blocks that are freed with a context.
    #[must_use]
    pub fn remove_context(&self, context: CUcontext) -> Vec<Block> {
        let mut inner = lock(&self.inner);
        let blocks = std::mem::take(&mut inner.blocks).into_iter();
        let (dead, kept): (BTreeMap<_, _>, _) =
            blocks.partition(|(_, block)| block.context == context.addr());
        inner.blocks = kept;
        dead.into_values().collect()
    }

    /// Returns the remapped blocks of a context: their addresses and devices.
    pub fn remapped_in(&self, context: CUcontext) -> Vec<(CUdeviceptr, CUdevice)> {
        let own = |block: &Block| block.context == context.addr() && block.origin == Origin::Remapped;
        let inner = lock(&self.inner);
        let blocks = inner.blocks.iter().filter(|(_, block)| own(block));
        blocks.map(|(&address, block)| (address, block.device)).collect()
    }

    /// Assigns the blocks of one context to another.
    pub fn move_context(&self, from: CUcontext, to: CUcontext) {
        let mut inner = lock(&self.inner);
        let blocks = inner.blocks.values_mut().filter(|block| block.context == from.addr());
        blocks.for_each(|block| block.context = to.addr());
    }

    /// Returns whether any block is managed memory.
    pub fn has_managed(&self) -> bool {
        lock(&self.inner).blocks.values().any(|block| block.origin.is_managed())
    }

    /// Returns the managed ranges of a context, in the order of addresses.
    pub fn managed_ranges(&self, context: CUcontext) -> Vec<(CUdeviceptr, Bytes)> {
        let managed = |block: &Block| block.context == context.addr() && block.origin.is_managed();
        let inner = lock(&self.inner);
        let blocks = inner.blocks.iter().filter(|(_, block)| managed(block));
        blocks.map(|(&address, block)| (address, block.size)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size: u64, context: usize) -> Block {
        Block { size: Bytes(size), device: 0, context, origin: Origin::Rewritten }
    }

    #[test]
    fn an_address_inside_a_block_finds_it_and_one_past_it_does_not() {
        let blocks = Allocations::default();
        assert_eq!(blocks.insert(0x1000, block(0x100, 1)), None);
        assert_eq!(blocks.around(0x1000), Some((0x1000, block(0x100, 1))));
        assert_eq!(blocks.around(0x10ff), Some((0x1000, block(0x100, 1))));
        assert_eq!(blocks.around(0x1100), None);
        assert_eq!(blocks.around(0xfff), None);
    }

    #[test]
    fn a_block_that_is_held_is_removed_only_afterwards() {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::thread;
        use std::time::Duration;

        let blocks = Allocations::default();
        assert_eq!(blocks.insert(0x1000, block(0x100, 1)), None);
        assert_eq!(blocks.insert(0x2000, block(0x100, 1)), None);
        let asked = AtomicBool::new(false);
        thread::scope(|scope| {
            let held = blocks.hold(0x1000, || {
                let free = scope.spawn(|| (blocks.remove(0x1000), asked.load(Ordering::SeqCst)));
                assert_eq!(blocks.remove(0x2000), Some(block(0x100, 1)), "another block");
                thread::sleep(Duration::from_millis(20));
                assert!(!free.is_finished());
                asked.store(true, Ordering::SeqCst);
                free
            });
            let free = held.expect("the block was there").join().expect("no panic");
            assert_eq!(free, (Some(block(0x100, 1)), true));
        });
        assert_eq!(blocks.hold(0x1000, || ()), None);
    }

    #[test]
    fn only_the_beginning_of_a_block_is_freed_and_only_once() {
        let blocks = Allocations::default();
        assert_eq!(blocks.insert(0x1000, block(0x100, 1)), None);
        assert_eq!(blocks.remove(0x1001), None);
        assert_eq!(blocks.remove(0x1000), Some(block(0x100, 1)));
        assert_eq!(blocks.remove(0x1000), None);
    }

    #[test]
    fn an_address_given_out_again_replaces_a_dead_block() {
        let blocks = Allocations::default();
        assert_eq!(blocks.insert(0x1000, block(0x100, 1)), None);
        assert_eq!(blocks.insert(0x1000, block(0x200, 2)), Some(block(0x100, 1)));
        assert_eq!(blocks.remove_context(std::ptr::without_provenance_mut(1)), []);
        assert_eq!(blocks.remove(0x1000), Some(block(0x200, 2)));
    }

    #[test]
    fn moved_blocks_die_with_their_new_context() {
        let blocks = Allocations::default();
        let context = std::ptr::without_provenance_mut;
        assert_eq!(blocks.insert(0x1000, block(0x100, 1)), None);
        blocks.move_context(context(1), context(2));
        assert_eq!(blocks.remove_context(context(1)), []);
        assert_eq!(blocks.remove_context(context(2)), [block(0x100, 2)]);
    }

    #[test]
    fn a_contexts_blocks_die_with_it() {
        let blocks = Allocations::default();
        assert_eq!(blocks.insert(0x1000, block(0x100, 1)), None);
        assert_eq!(blocks.insert(0x2000, block(0x200, 2)), None);
        assert_eq!(blocks.remove_context(std::ptr::without_provenance_mut(1)), [block(0x100, 1)]);
        assert_eq!(blocks.managed_ranges(std::ptr::without_provenance_mut(2)), [(0x2000, Bytes(0x200))]);
    }
}
