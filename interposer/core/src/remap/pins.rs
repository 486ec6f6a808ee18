//! Memory that must not move, because something remembers its physical pages or may use it unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use gpushare_proto::Bytes;

use super::vmm::Span;
use crate::driver::types::CUdeviceptr;

/// Reason why memory must not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Another process was given a handle of it (`cuIpcGetMemHandle`).
    Exported,
    /// Its pages were named to another device or driver (`cuMemGetHandleForAddressRange`, P2P tokens).
    NamedToDevice,
    /// Its copies are synchronous by an attribute that belongs to the pages (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`).
    SyncMemops,
    /// The application changed the mapping itself (`cuMemSetAccess`, `cuMemUnmap`, multicast).
    MappedByApplication,
    /// Work was in flight after the proof of idleness (`--paranoid`).
    WorkMissed,
    /// The process uses driver functions that gpushare does not know, so its work may pass the gate unseen.
    UnknownFunctions,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exported => "another process was given a handle of it",
            Self::NamedToDevice => "its pages were named to another device",
            Self::SyncMemops => "its copies were made synchronous by an attribute",
            Self::MappedByApplication => "the program changed its mapping",
            Self::WorkMissed => "work was found in flight after the program was drained",
            Self::UnknownFunctions => "the program uses driver functions that gpushare does not know",
        })
    }
}

/// Ranges that must not move, with the reasons.
#[derive(Debug, Default)]
pub struct Pins {
    ranges: BTreeMap<CUdeviceptr, (Bytes, BTreeSet<Reason>)>,
    whole: Option<Reason>,
}

impl Pins {
    /// Pins a block for ever, or until it is freed.
    pub fn pin(&mut self, block: Span, reason: Reason) {
        let (size, reasons) = self.ranges.entry(block.address).or_default();
        *size = block.size.max(*size);
        reasons.insert(reason);
    }

    /// Pins all memory of the process for ever. The first reason stays.
    pub fn pin_all(&mut self, reason: Reason) {
        self.whole.get_or_insert(reason);
    }

    /// Removes one reason of a block, whose cause has ended.
    pub fn unpin(&mut self, block: CUdeviceptr, reason: Reason) {
        if let Some((_, reasons)) = self.ranges.get_mut(&block) {
            reasons.remove(&reason);
            if reasons.is_empty() {
                self.ranges.remove(&block);
            }
        }
    }

    /// Removes all reasons of a block that was freed.
    pub fn forget(&mut self, block: CUdeviceptr) {
        self.ranges.remove(&block);
    }

    /// Returns a reason why a range must not move, if one of its bytes is pinned.
    pub fn reason(&self, range: Span) -> Option<Reason> {
        self.whole.or_else(|| {
            // Blocks do not overlap, so the last one that begins before the end decides.
            let (&start, (size, reasons)) = self.ranges.range(..range.end()).next_back()?;
            let overlaps = start.saturating_add(size.0) > range.address;
            reasons.first().copied().filter(|_| overlaps)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn span(address: CUdeviceptr, size: u64) -> Span {
        Span { address, size: Bytes(size) }
    }

    #[test]
    fn a_range_is_pinned_by_any_of_its_bytes() {
        let mut pins = Pins::default();
        pins.pin(span(0x1200, 0x100), Reason::Exported);
        assert_eq!(pins.reason(span(0x1000, 0x1000)), Some(Reason::Exported), "it surrounds the block");
        assert_eq!(pins.reason(span(0x12ff, 1)), Some(Reason::Exported));
        assert_eq!(pins.reason(span(0x1000, 0x200)), None, "it ends before the block");
        assert_eq!(pins.reason(span(0x1300, 0x100)), None);
    }

    #[test]
    fn a_block_moves_again_once_all_reasons_are_gone() {
        let mut pins = Pins::default();
        let block = span(0x1000, 0x100);
        pins.pin(block, Reason::Exported);
        pins.pin(block, Reason::SyncMemops);
        pins.unpin(block.address, Reason::Exported);
        assert_eq!(pins.reason(block), Some(Reason::SyncMemops));
        pins.unpin(block.address, Reason::SyncMemops);
        assert_eq!(pins.reason(block), None);
        pins.pin(block, Reason::NamedToDevice);
        pins.forget(block.address);
        assert_eq!(pins.reason(block), None, "the block was freed");
    }

    #[test]
    fn a_process_that_is_pinned_stays_so() {
        let mut pins = Pins::default();
        pins.pin_all(Reason::WorkMissed);
        pins.pin_all(Reason::UnknownFunctions);
        pins.forget(0x1000);
        assert_eq!(pins.reason(span(0x9000, 1)), Some(Reason::WorkMissed));
    }
}
