//! Memory that the program creates by handle and maps itself (`cuMemCreate`). It is *loose* while it belongs
//! to no chunk. On the card it counts as resident and immovable. Memory that was mapped from the host when the program
//! got it back stays there, and counts as mapped.
//!
//! ```text
//!   begin_loose ──▶ loose ── adopt ──▶ chunk at the program's address ── free ──▶ nothing
//!       end_loose ◀───┘ ◀── give_up ─────┘
//! ```

use gpushare_proto::Bytes;

use super::{Engine, Entry, Trouble};
use crate::driver::types::CUdeviceptr;
use crate::remap::chunk::{Aim, Backing, Chunk};
use crate::remap::host::Slot;
use crate::remap::vmm::{Call, Span, Tier, VmmError};

/// Memory of a chunk that is no longer the engine's, and the slot that the chunk had.
pub type GivenUp = (Backing, Option<Slot>);

/// Bytes of loose memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Loose {
    /// On the card.
    pub(super) device: Bytes,
    /// In memory of the host.
    pub(super) host: Bytes,
}

impl Loose {
    const fn at(&mut self, tier: Tier) -> &mut Bytes {
        match tier {
            Tier::Device => &mut self.device,
            Tier::Host => &mut self.host,
        }
    }
}

impl Engine {
    /// Counts memory of the card that is about to be created. Returns `false` if the goal has no room for it.
    pub fn begin_loose(&mut self, size: Bytes) -> bool {
        let has_room = self.room() >= size;
        if has_room {
            self.loose.device += size;
            self.is_settled = false;
        }
        has_room
    }

    /// Notes that loose memory was given back to the driver, or was not created.
    pub fn end_loose(&mut self, tier: Tier, size: Bytes) {
        *self.loose.at(tier) -= size;
        self.is_settled = false;
    }

    /// Makes loose memory that is mapped and usable at `span` a chunk. The engine releases the handle from
    /// now on.
    pub fn adopt(&mut self, span: Span, backing: Backing) {
        let mut chunk = Chunk::adopted(span, backing, self.is_paranoid);
        if self.is_immovable {
            chunk.make_immovable();
        }
        self.end_loose(backing.tier, span.size);
        self.insert(chunk, false);
    }

    /// Returns how the free of an adopted chunk has ended, if it has. After an error the driver still has
    /// something of the chunk, which may be freed again.
    pub fn end_of(&self, address: CUdeviceptr) -> Option<Result<(), VmmError>> {
        let Some(Entry { chunk, trouble, .. }) = self.chunks.get(address) else {
            return Some(Ok(()));
        };
        match trouble {
            // The chunk ends by itself after any other failure.
            Some(Trouble::Driver(Call::Unmap | Call::Release(_), error)) if chunk.aim() == Aim::Gone => {
                Some(Err(*error))
            }
            _ => None,
        }
    }

    /// Makes the memory of a chunk loose again. Its mapping stays. Returns `None` while the memory is away or
    /// moves.
    pub fn give_up(&mut self, address: CUdeviceptr) -> Option<GivenUp> {
        let entry = self.chunks.get(address).filter(|entry| entry.lent == 0)?;
        let size = entry.chunk.span().size;
        let given_up = self.chunks.change(address, |entry| entry.chunk.take_memory())??;
        self.chunks.remove(address);
        *self.loose.at(given_up.0.tier) += size;
        self.is_settled = false;
        Some(given_up)
    }
}
