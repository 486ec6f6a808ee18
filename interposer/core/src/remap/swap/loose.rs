//! Memory that the program creates by handle and maps itself (`cuMemCreate`). It is *loose* while it belongs
//! to no chunk: it counts as resident and immovable.
//!
//! ```text
//!   begin_loose ──▶ loose ── adopt ──▶ chunk at the program's address ── free ──▶ nothing
//!       end_loose ◀───┘ ◀── give_up ─────┘
//! ```

use gpushare_proto::Bytes;

use super::{Engine, Entry, Trouble};
use crate::driver::types::{CUdeviceptr, CUmemHandle};
use crate::remap::chunk::{Aim, Chunk};
use crate::remap::host::Slot;
use crate::remap::vmm::{Call, Span, VmmError};

/// Memory of a chunk that is no longer the engine's, and the slot that the chunk had.
pub type GivenUp = (CUmemHandle, Option<Slot>);

impl Engine {
    /// Counts memory of the card that is about to be created. Returns `false` if the goal has no room for it.
    pub fn begin_loose(&mut self, size: Bytes) -> bool {
        let has_room = self.room() >= size;
        if has_room {
            self.loose += size;
            self.is_settled = false;
        }
        has_room
    }

    /// Notes that loose memory was given back to the driver, or was not created.
    pub fn end_loose(&mut self, size: Bytes) {
        self.loose = self.loose.saturating_sub(size);
        self.is_settled = false;
    }

    /// Makes loose memory that is mapped and usable at `span` a chunk. The engine releases the handle from
    /// now on.
    pub fn adopt(&mut self, span: Span, handle: CUmemHandle) {
        let mut chunk = Chunk::adopted(span, handle, self.is_paranoid);
        if self.is_immovable {
            chunk.make_immovable();
        }
        self.end_loose(span.size);
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

    /// Makes the memory of a chunk loose again, which is on the card. Its mapping stays. Returns `None` while
    /// the memory is away or moves.
    pub fn give_up(&mut self, address: CUdeviceptr) -> Option<GivenUp> {
        let entry = self.chunks.get(address).filter(|entry| entry.lent == 0)?;
        let size = entry.chunk.span().size;
        let given_up = self.chunks.change(address, |entry| entry.chunk.take_memory())??;
        self.chunks.remove(address);
        self.loose += size;
        self.is_settled = false;
        Some(given_up)
    }
}
