//! Physical memory that the application names by handle (`cuMemCreate`), and the uses of that memory.
//!
//! ```text
//!   created, retained ──▶ references of a handle ─┐
//!   mapped at an address ─────────────────────────┼─▶ uses of a piece ── none left ──▶ its quota is free
//!   mapped into a sparse array ───────────────────┘
//! ```
//!
//! The driver has the same rule: a released piece lives while it is mapped. Memory that another process
//! imports is charged to the process that created it, while that process uses it.
//!
//! Plain memory of a card that gpushare remaps has a *name* in place of the driver's handle, since that
//! changes when the memory moves (`own.rs`).

mod locked;
mod own;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use gpushare_proto::Bytes;

use crate::daemon::MemoryKind;
use crate::driver::types::{CUdevice, CUdeviceptr, CUmemHandle};
use crate::remap::chunk::Backing;
use crate::remap::vmm::Span;

pub(crate) use locked::{Locked, is_holder};
use own::Own;
pub(crate) use own::{Adopted, is_name};

/// Pieces of physical memory and their uses. Hooks lock this table during the driver's call, so that a reused
/// handle or address is never taken for the earlier one.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    pieces: BTreeMap<PieceId, Piece>,
    handles: BTreeMap<CUmemHandle, Named>,
    mapped: BTreeMap<CUdeviceptr, (Bytes, PieceId)>,
    tiles: BTreeMap<Tile, PieceId>,
    made: u64,
}

/// Number of a piece of physical memory. A piece may have several handles, and a handle may be reused later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PieceId(u64);

#[derive(Debug)]
struct Piece {
    charge: Charge,
    uses: u64,
    /// Facts about memory that has a name; `None` for memory that the application knows by the driver's
    /// handle.
    own: Option<Own>,
}

#[derive(Debug)]
struct Named {
    piece: PieceId,
    references: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub device: CUdevice,
    pub bytes: Bytes,
    pub kind: MemoryKind,
}

/// Piece of memory that has no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Quota to give back.
    pub charge: Charge,
    /// Memory that gpushare still has from the driver, if the piece had a name.
    pub held: Option<Backing>,
}

/// Part of a sparse array, as in `CUarrayMapInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tile {
    /// Handle of the array or mipmap.
    pub resource: u64,
    /// Kind of the part: a region of a mipmap level, or of the mip tail.
    pub kind: u32,
    /// Mipmap level (0 in the mip tail) and array layer of the part.
    pub plane: [u32; 2],
    /// Offset of the part in elements of each dimension, or in bytes within the mip tail.
    pub from: [u64; 3],
    /// Extent of the part in elements of each dimension, or in bytes within the mip tail.
    pub size: [u64; 3],
}

pub(crate) type Parts = Vec<(Tile, PieceId)>;

impl Tile {
    fn holds(&self, other: &Self) -> bool {
        let end = |tile: &Self, way: usize| tile.from[way].saturating_add(tile.size[way]);
        (0..3).all(|way| self.from[way] <= other.from[way] && end(other, way) <= end(self, way))
    }

    /// Returns a range, in the order of tiles, that contains all tiles within this one, and perhaps others.
    fn around(self) -> RangeInclusive<Self> {
        let last = [0, 1, 2].map(|way| self.from[way].saturating_add(self.size[way]));
        Self { size: [0; 3], ..self }..=Self { from: last, size: [u64::MAX; 3], ..self }
    }
}

impl Handles {
    pub(crate) fn create(&mut self, handle: CUmemHandle, charge: Charge) {
        let piece = self.add(charge, None);
        self.handles.insert(handle, Named { piece, references: 1 });
    }

    fn add(&mut self, charge: Charge, own: Option<Own>) -> PieceId {
        let piece = PieceId(self.made);
        self.made += 1;
        self.pieces.insert(piece, Piece { charge, uses: 1, own });
        piece
    }

    /// Adds a reference by `handle` to the piece of memory that is mapped around an address.
    pub(crate) fn retain(&mut self, handle: CUmemHandle, address: CUdeviceptr) {
        let Some(piece) = self.mapped_at(address) else { return };
        let named = self.handles.entry(handle).or_insert(Named { piece, references: 0 });
        if named.piece == piece {
            named.references += 1;
            self.add_use(piece);
        }
    }

    /// Removes a reference by a handle. Returns the piece if it has no further use.
    pub(crate) fn release(&mut self, handle: CUmemHandle) -> Option<Ended> {
        let named = self.handles.get_mut(&handle)?;
        let piece = named.piece;
        named.references -= 1;
        if named.references == 0 {
            self.handles.remove(&handle);
        }
        self.remove_use(piece)
    }

    /// Records that a handle is mapped at an address. Ignores imported handles and handles of host memory.
    pub(crate) fn map(&mut self, address: CUdeviceptr, bytes: Bytes, handle: CUmemHandle) {
        if let Some(piece) = self.handles.get(&handle).map(|named| named.piece) {
            self.mapped.insert(address, (bytes, piece));
            self.add_use(piece);
        }
    }

    /// Removes all mappings in an address range. Returns the pieces that have no further use.
    pub(crate) fn unmap(&mut self, address: CUdeviceptr, bytes: Bytes) -> Vec<Ended> {
        let end = address.saturating_add(bytes.0);
        let here = self.mapped.range(address..end);
        let gone: Vec<_> = here.map(|(&start, &(_, piece))| (start, piece)).collect();
        let unmap = |(start, piece)| {
            self.mapped.remove(&start);
            self.remove_use(piece)
        };
        gone.into_iter().filter_map(unmap).collect()
    }

    /// Maps a handle, or nothing, into a part of a sparse array, and ends the earlier mappings within that
    /// part. Returns the pieces that have no further use. A piece mapped beyond the part stays
    /// charged.
    pub(crate) fn tile(&mut self, tile: Tile, handle: Option<CUmemHandle>) -> Vec<Ended> {
        let gone = self.take_tiles(tile.around(), |known| tile.holds(known));
        if let Some(piece) = handle.and_then(|handle| self.handles.get(&handle)).map(|named| named.piece) {
            // Before the others are released, since it may be the same piece again.
            self.add_use(piece);
            self.tiles.insert(tile, piece);
        }
        self.end(gone)
    }

    /// Removes and returns the parts of a sparse array that is about to be destroyed.
    pub(crate) fn take_parts(&mut self, resource: u64) -> Parts {
        let first = Tile { resource, kind: 0, plane: [0; 2], from: [0; 3], size: [0; 3] };
        let (from, size) = ([u64::MAX; 3], [u64::MAX; 3]);
        let last = Tile { resource, kind: u32::MAX, plane: [u32::MAX; 2], from, size };
        self.take_tiles(first..=last, |_| true)
    }

    fn take_tiles(&mut self, range: RangeInclusive<Tile>, is_meant: impl Fn(&Tile) -> bool) -> Parts {
        let found = self.tiles.range(range).map(|(&tile, &piece)| (tile, piece));
        let gone: Parts = found.filter(|(tile, _)| is_meant(tile)).collect();
        for (tile, _) in &gone {
            self.tiles.remove(tile);
        }
        gone
    }

    /// Restores the parts of an array that the program failed to destroy.
    pub(crate) fn put_back(&mut self, parts: Parts) {
        self.tiles.extend(parts);
    }

    /// Ends the uses by an array's parts. Returns the pieces that have no further use.
    pub(crate) fn end(&mut self, parts: Parts) -> Vec<Ended> {
        parts.into_iter().filter_map(|(_, piece)| self.remove_use(piece)).collect()
    }

    /// Returns whether memory of another device than this one is mapped in a range.
    pub(crate) fn has_memory_elsewhere(&self, range: Span, device: CUdevice) -> bool {
        let pieces = mapped_in(&self.mapped, range).filter_map(|(_, piece)| self.pieces.get(&piece));
        pieces.map(|piece| piece.charge.device).any(|owner| owner != device)
    }

    fn mapped_at(&self, address: CUdeviceptr) -> Option<PieceId> {
        let (&start, &(bytes, piece)) = self.mapped.range(..=address).next_back()?;
        (address - start < bytes.0).then_some(piece)
    }

    fn add_use(&mut self, piece: PieceId) {
        if let Some(piece) = self.pieces.get_mut(&piece) {
            piece.uses += 1;
        }
    }

    fn remove_use(&mut self, id: PieceId) -> Option<Ended> {
        let piece = self.pieces.get_mut(&id)?;
        piece.uses -= 1;
        if piece.uses > 0 {
            return None;
        }
        let Piece { charge, own, .. } = self.pieces.remove(&id)?;
        Some(Ended { charge, held: own.and_then(Own::held) })
    }
}

/// Iterates over the mappings of which a part is in a range, from the last one to the first.
fn mapped_in(
    mapped: &BTreeMap<CUdeviceptr, (Bytes, PieceId)>,
    range: Span,
) -> impl Iterator<Item = (Span, PieceId)> {
    let before_end = mapped.range(..range.end()).rev();
    let spans = before_end.map(|(&address, &(size, piece))| (Span { address, size }, piece));
    spans.take_while(move |(span, _)| span.end() > range.address)
}

#[cfg(test)]
mod tests;
