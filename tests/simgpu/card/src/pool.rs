//! One memory pool: what it has reserved on its GPU, what of that is in use, and what comes back.
//!
//! ```text
//! reserved |######## used ########|## pending ##|     spare     |
//!           allocated               freed in a     the next one's, until a synchronise gives back
//!                                   stream, not    what is above the threshold
//!                                   yet reached
//! ```
//!
//! Memory that a stream has freed is that stream's at once, since its later work comes after the release;
//! for every other stream only when the release has been reached. What is neither is new memory of the GPU.

use std::collections::BTreeSet;

use crate::constants::PAGE;
use crate::ids::{GpuIndex, StreamId};
use crate::wire::PoolUse;

/// Blocks of a pool are multiples of this.
const BLOCK: u64 = 512;

#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub(crate) gpu: GpuIndex,
    /// The most it may reserve; 0 for no limit of its own.
    limit: u64,
    /// Bytes that a synchronise leaves reserved.
    pub(crate) threshold: u64,
    /// Other GPUs whose kernels reach the blocks.
    pub(crate) reached_from: BTreeSet<GpuIndex>,
    /// Whether the program has destroyed the pool. The pool lives on until its last block is free.
    pub(crate) ended: bool,
    usage: PoolUse,
    pending: Vec<Pending>,
    blocks: Vec<(u64, u64)>,
}

/// A block whose release is on its way in a stream.
#[derive(Debug, Clone)]
struct Pending {
    address: u64,
    stream: StreamId,
    /// Bytes that the stream has not used again.
    left: u64,
}

impl Pool {
    pub(crate) fn new(gpu: GpuIndex, limit: u64) -> Self {
        Self {
            gpu,
            limit,
            threshold: 0,
            reached_from: BTreeSet::new(),
            ended: false,
            usage: PoolUse::default(),
            pending: Vec::new(),
            blocks: Vec::new(),
        }
    }

    pub(crate) fn usage(&self) -> PoolUse {
        self.usage
    }

    /// How much the pool must reserve for a block of a stream, in whole pages; `None` beyond its limit.
    pub(crate) fn lacks(&self, stream: StreamId, len: u64) -> Option<u64> {
        let own: u64 = self
            .pending
            .iter()
            .filter(|pending| pending.stream == stream)
            .map(|p| p.left)
            .sum();
        let missing = blocks(len)?.saturating_sub(self.spare() + own);
        let lacks = missing.checked_next_multiple_of(PAGE)?;
        let fits = self.limit == 0 || self.usage.reserved.checked_add(lacks)? <= self.limit;
        fits.then_some(lacks)
    }

    /// Takes a block, after `grown` bytes have been reserved for it.
    pub(crate) fn take(&mut self, stream: StreamId, address: u64, len: u64, grown: u64) {
        let len = blocks(len).unwrap_or(len);
        self.usage.reserved += grown;
        self.usage.reserved_high = self.usage.reserved_high.max(self.usage.reserved);
        let mut again = len.saturating_sub(self.spare());
        for pending in self.pending.iter_mut().filter(|pending| pending.stream == stream) {
            let part = pending.left.min(again);
            pending.left -= part;
            again -= part;
        }
        self.usage.used += len;
        self.usage.used_high = self.usage.used_high.max(self.usage.used);
        self.blocks.push((address, len));
    }

    /// A stream frees a block. Answers whether it was one.
    pub(crate) fn release(&mut self, stream: StreamId, address: u64) -> bool {
        let Some(index) = self.blocks.iter().position(|(start, _)| *start == address) else {
            return false;
        };
        let (_, left) = self.blocks.swap_remove(index);
        self.usage.used -= left;
        self.pending.push(Pending { address, stream, left });
        true
    }

    /// The stream has reached the release: the block is everybody's.
    pub(crate) fn settle(&mut self, address: u64) {
        if let Some(index) = self.pending.iter().position(|pending| pending.address == address) {
            self.pending.remove(index);
        }
    }

    /// Gives back what is spare above `keep` and answers how much.
    pub(crate) fn trim(&mut self, keep: u64) -> u64 {
        let above = self.usage.reserved.saturating_sub(keep);
        let back = self.spare().min(above) / PAGE * PAGE;
        self.usage.reserved -= back;
        back
    }

    pub(crate) fn reset_high(&mut self) {
        self.usage.reserved_high = self.usage.reserved;
        self.usage.used_high = self.usage.used;
    }

    /// Whether no block is in use or on its way back.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.pending.is_empty()
    }

    pub(crate) fn has(&self, address: u64) -> bool {
        self.blocks.iter().any(|(start, _)| *start == address)
    }

    fn spare(&self) -> u64 {
        let pending: u64 = self.pending.iter().map(|pending| pending.left).sum();
        self.usage.reserved - self.usage.used - pending
    }
}

fn blocks(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: StreamId = StreamId(1);
    const OTHER: StreamId = StreamId(2);
    const MIB: u64 = 1 << 20;

    fn pool_with_a_freed_block() -> Pool {
        let mut pool = Pool::new(GpuIndex(0), 0);
        pool.take(ONE, 0x1000, 4 * MIB, 4 * MIB);
        assert!(pool.release(ONE, 0x1000));
        pool
    }

    #[test]
    fn a_stream_uses_again_at_once_what_it_freed_and_another_one_does_not() {
        let mut pool = pool_with_a_freed_block();
        assert_eq!(pool.lacks(ONE, 4 * MIB), Some(0));
        assert_eq!(pool.lacks(OTHER, 4 * MIB), Some(4 * MIB));
        pool.settle(0x1000);
        assert_eq!(pool.lacks(OTHER, 4 * MIB), Some(0));
    }

    #[test]
    fn what_was_used_again_does_not_come_back_twice() {
        let mut pool = pool_with_a_freed_block();
        pool.take(ONE, 0x2000, 3 * MIB, 0);
        pool.settle(0x1000);
        assert_eq!(pool.usage().used, 3 * MIB);
        assert_eq!(pool.lacks(OTHER, MIB), Some(0));
        assert_eq!(pool.lacks(OTHER, 2 * MIB), Some(2 * MIB));
    }

    #[test]
    fn a_trim_gives_back_what_is_spare_above_what_is_kept() {
        let mut pool = pool_with_a_freed_block();
        assert_eq!(pool.trim(0), 0);
        pool.settle(0x1000);
        assert_eq!(pool.trim(2 * MIB), 2 * MIB);
        assert_eq!(pool.trim(0), 2 * MIB);
        assert_eq!(pool.usage().reserved, 0);
        assert_eq!(pool.usage().reserved_high, 4 * MIB);
    }

    #[test]
    fn a_pool_with_a_limit_refuses_what_is_beyond() {
        let pool = Pool::new(GpuIndex(0), 4 * MIB);
        assert_eq!(pool.lacks(ONE, 4 * MIB), Some(4 * MIB));
        assert_eq!(pool.lacks(ONE, 4 * MIB + 1), None);
        assert_eq!(pool.lacks(ONE, u64::MAX), None);
    }
}
