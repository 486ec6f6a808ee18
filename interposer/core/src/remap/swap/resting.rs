//! Chunks whose bytes rest in slots, so that a copy with the same bytes may take the place of the slot.

use super::{Engine, Entry};
use crate::remap::host::Slot;
use crate::remap::vmm::{HostAddress, Span};

/// Chunk whose bytes rest in a slot that nobody else uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resting {
    /// Addresses of the chunk.
    pub chunk: Span,
    /// Address of the slot.
    pub slot: HostAddress,
    /// Number of the rest. The bytes of the slot are the same as long as it lasts.
    rest: u64,
}

impl Engine {
    /// Returns the chunks whose bytes rest in slots that nobody else uses.
    pub fn resting(&self) -> Vec<Resting> {
        self.live().filter_map(Resting::of).collect()
    }

    /// Returns whether a chunk has rested since it was looked at.
    pub fn still_rests(&self, resting: &Resting) -> bool {
        let entry = self.chunks.get(resting.chunk.address);
        entry.and_then(Resting::of).as_ref() == Some(resting)
    }

    /// Puts a slot with the same bytes in the place of the slot of a chunk, if the chunk still rests. Returns the slot of
    /// which there is no use.
    pub fn exchange_slot(&mut self, resting: &Resting, other: Slot) -> Option<Slot> {
        if !self.still_rests(resting) {
            return Some(other);
        }
        let exchange = |entry: &mut Entry| entry.chunk.exchange_slot(other);
        self.chunks.change(resting.chunk.address, exchange)
    }
}

impl Resting {
    fn of(entry: &Entry) -> Option<Self> {
        let slot = entry.chunk.resting_slot().filter(|slot| !slot.is_shared())?;
        Some(Self { chunk: entry.chunk.span(), slot: slot.address(), rest: entry.rests })
    }
}
