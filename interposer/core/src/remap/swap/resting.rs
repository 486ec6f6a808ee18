//! Chunks whose bytes rest in slots, so that a copy with the same bytes may take the place of the slot.

use gpushare_proto::copies::CopyName;

use super::{Engine, Entry};
use crate::remap::host::Slot;
use crate::remap::vmm::{HostAddress, Span};

/// Chunk whose bytes rest in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resting {
    /// Addresses of the chunk.
    pub chunk: Span,
    /// Address of the slot.
    pub slot: HostAddress,
    /// Number of the copy that filled the slot. The slot has the same bytes until the next one, also while
    /// the chunk is on the card meanwhile.
    fill: u64,
}

impl Engine {
    /// Returns the chunks whose bytes rest in slots.
    pub fn resting(&self) -> Vec<Resting> {
        self.live().filter_map(Resting::of).collect()
    }

    /// Returns whether a chunk rests with the bytes that it had when it was looked at.
    pub fn still_rests(&self, resting: &Resting) -> bool {
        self.entry_of(resting).is_some()
    }

    /// Returns the name of the bytes of a chunk, if it is known and the chunk still rests.
    pub fn name_of(&self, resting: &Resting) -> Option<CopyName> {
        self.entry_of(resting)?.name
    }

    /// Notes the name of the bytes of a chunk, until others are copied into its slot. Returns `false` if the
    /// chunk rests with these bytes no more.
    pub fn set_name(&mut self, resting: &Resting, name: CopyName) -> bool {
        let still_rests = self.still_rests(resting);
        if still_rests {
            self.chunks.change(resting.chunk.address, |entry| entry.name = Some(name));
        }
        still_rests
    }

    /// Puts a slot with the same bytes in the place of the slot of a chunk, if the chunk still rests. Returns
    /// the slot of which there is no use.
    pub fn exchange_slot(&mut self, resting: &Resting, other: Slot) -> Option<Slot> {
        if !self.still_rests(resting) {
            return Some(other);
        }
        let exchange = |entry: &mut Entry| entry.chunk.exchange_slot(other);
        self.chunks.change(resting.chunk.address, exchange)
    }

    fn entry_of(&self, resting: &Resting) -> Option<&Entry> {
        let entry = self.chunks.get(resting.chunk.address)?;
        (Resting::of(entry).as_ref() == Some(resting)).then_some(entry)
    }
}

impl Resting {
    fn of(entry: &Entry) -> Option<Self> {
        let slot = entry.chunk.resting_slot()?;
        Some(Self { chunk: entry.chunk.span(), slot: slot.address(), fill: entry.fill })
    }
}
