//! Physical memory that the application names by handle (`cuMemCreate`), and what keeps it alive.
//!
//! ```text
//!   created, retained ──▶ references of a handle ─┐
//!   mapped at an address ─────────────────────────┼─▶ uses of a piece ── none left ──▶ its quota is free
//!   mapped into a sparse array ───────────────────┘
//! ```
//!
//! The driver counts in the same way: a piece that was released lives on while it is mapped. What another process imports is
//! charged to the process that made it, as long as that has a use of its own.

use std::collections::BTreeMap;

use gpushare_proto::Bytes;

use crate::driver::types::{CUdevice, CUdeviceptr, CUmemHandle};

/// All of it. The hooks hold its lock across the driver's call, so that a handle or an address which the driver gives
/// out again is never taken for the one before.
#[derive(Debug, Default)]
pub struct Handles {
    pieces: BTreeMap<PieceId, Piece>,
    handles: BTreeMap<CUmemHandle, Named>,
    mapped: BTreeMap<CUdeviceptr, (Bytes, PieceId)>,
    tiles: BTreeMap<Tile, PieceId>,
    made: u64,
}

/// One piece of memory. The driver may give several handles for it, and the same handle again for another piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PieceId(u64);

#[derive(Debug)]
struct Piece {
    charge: Charge,
    uses: u64,
}

#[derive(Debug)]
struct Named {
    piece: PieceId,
    references: u64,
}

/// What a piece is charged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The card.
    pub device: CUdevice,
    /// How much.
    pub bytes: Bytes,
}

/// A part of a sparse array, in the words of `CUarrayMapInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    /// The array or the mipmap.
    pub resource: u64,
    /// Which kind of part it is.
    pub kind: u32,
    /// Level (0 in a tail) and layer.
    pub plane: [u32; 2],
    /// Where it begins in each direction, or in a tail.
    pub from: [u64; 3],
    /// How far it reaches from there.
    pub size: [u64; 3],
}

/// What was in a sparse array when its end began.
#[derive(Debug, Default)]
pub struct Parts(Vec<(Tile, PieceId)>);

impl Parts {
    /// Whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Tile {
    fn holds(&self, other: &Self) -> bool {
        let end = |tile: &Self, way: usize| tile.from[way].saturating_add(tile.size[way]);
        (0..3).all(|way| self.from[way] <= other.from[way] && end(other, way) <= end(self, way))
    }

    /// Where tiles that it holds may be in the order of tiles, and others too.
    fn around(self) -> std::ops::RangeInclusive<Self> {
        let last = [0, 1, 2].map(|way| self.from[way].saturating_add(self.size[way]));
        Self { size: [0; 3], ..self }..=Self { from: last, size: [u64::MAX; 3], ..self }
    }
}

impl Handles {
    /// A new piece, by its first handle.
    pub fn create(&mut self, handle: CUmemHandle, charge: Charge) {
        let piece = PieceId(self.made);
        self.made += 1;
        self.pieces.insert(piece, Piece { charge, uses: 1 });
        self.handles.insert(handle, Named { piece, references: 1 });
    }

    /// The memory that is mapped around an address was given this handle.
    pub fn retain(&mut self, handle: CUmemHandle, address: CUdeviceptr) {
        let Some(piece) = self.mapped_at(address) else { return };
        let named = self.handles.entry(handle).or_insert(Named { piece, references: 0 });
        if named.piece == piece {
            named.references += 1;
            self.used(piece);
        }
    }

    /// One reference of a handle less; what nobody uses any more.
    pub fn release(&mut self, handle: CUmemHandle) -> Option<Charge> {
        let named = self.handles.get_mut(&handle)?;
        let piece = named.piece;
        named.references -= 1;
        if named.references == 0 {
            self.handles.remove(&handle);
        }
        self.unused(piece)
    }

    /// A handle is mapped at an address. One that is not ours (imported, or on the host) is nobody's charge here.
    pub fn map(&mut self, address: CUdeviceptr, bytes: Bytes, handle: CUmemHandle) {
        if let Some(piece) = self.handles.get(&handle).map(|named| named.piece) {
            self.mapped.insert(address, (bytes, piece));
            self.used(piece);
        }
    }

    /// Everything mapped in a range is mapped no more; what nobody uses any more.
    pub fn unmap(&mut self, address: CUdeviceptr, bytes: Bytes) -> Vec<Charge> {
        let end = address.saturating_add(bytes.0);
        let gone: Vec<_> = self
            .mapped
            .range(address..end)
            .map(|(&start, &(_, piece))| (start, piece))
            .collect();
        gone.into_iter()
            .filter_map(|(start, piece)| {
                self.mapped.remove(&start);
                self.unused(piece)
            })
            .collect()
    }

    /// A part of a sparse array has another memory, or none; what nobody uses any more. Whatever was mapped within it is
    /// gone; what reaches beyond it is still in use there, and is charged until that goes too or the array ends.
    pub fn tile(&mut self, tile: Tile, handle: Option<CUmemHandle>) -> Vec<Charge> {
        let around = self.tiles.range(tile.around()).map(|(&known, &piece)| (known, piece));
        let gone = Parts(around.filter(|(known, _)| tile.holds(known)).collect());
        for (known, _) in &gone.0 {
            self.tiles.remove(known);
        }
        if let Some(piece) = handle.and_then(|handle| self.handles.get(&handle)).map(|named| named.piece) {
            // Before the others are let go: it may be the same piece again.
            self.used(piece);
            self.tiles.insert(tile, piece);
        }
        self.end(gone)
    }

    /// A sparse array is about to end: what is in it, which nobody else finds there any more.
    pub fn take_parts(&mut self, resource: u64) -> Parts {
        let first = Tile { resource, kind: 0, plane: [0; 2], from: [0; 3], size: [0; 3] };
        let last = Tile {
            resource,
            kind: u32::MAX,
            plane: [u32::MAX; 2],
            from: [u64::MAX; 3],
            size: [u64::MAX; 3],
        };
        let gone: Vec<_> = self.tiles.range(first..=last).map(|(&tile, &piece)| (tile, piece)).collect();
        for (tile, _) in &gone {
            self.tiles.remove(tile);
        }
        Parts(gone)
    }

    /// It did not end.
    pub fn put_back(&mut self, parts: Parts) {
        self.tiles.extend(parts.0);
    }

    /// It has ended; what nobody uses any more.
    pub fn end(&mut self, parts: Parts) -> Vec<Charge> {
        parts.0.into_iter().filter_map(|(_, piece)| self.unused(piece)).collect()
    }

    fn mapped_at(&self, address: CUdeviceptr) -> Option<PieceId> {
        let (&start, &(bytes, piece)) = self.mapped.range(..=address).next_back()?;
        (address - start < bytes.0).then_some(piece)
    }

    fn used(&mut self, piece: PieceId) {
        if let Some(piece) = self.pieces.get_mut(&piece) {
            piece.uses += 1;
        }
    }

    fn unused(&mut self, id: PieceId) -> Option<Charge> {
        let piece = self.pieces.get_mut(&id)?;
        piece.uses -= 1;
        if piece.uses > 0 {
            return None;
        }
        self.pieces.remove(&id).map(|piece| piece.charge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Charge = Charge { device: 0, bytes: Bytes(0x1000) };
    const OTHER: Charge = Charge { device: 1, bytes: Bytes(0x2000) };

    fn one() -> Handles {
        let mut handles = Handles::default();
        handles.create(7, PIECE);
        handles
    }

    fn tile(from: u64, size: u64) -> Tile {
        Tile { resource: 5, kind: 0, plane: [0; 2], from: [from, 0, 0], size: [size, 64, 1] }
    }

    #[test]
    fn a_piece_lives_until_its_handle_is_released() {
        let mut handles = one();
        assert_eq!(handles.release(7), Some(PIECE));
        assert_eq!(handles.release(7), None);
    }

    #[test]
    fn a_released_piece_lives_on_while_it_is_mapped() {
        let mut handles = one();
        handles.map(0x10000, Bytes(0x1000), 7);
        handles.map(0x20000, Bytes(0x1000), 7);
        assert_eq!(handles.release(7), None);
        assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), []);
        assert_eq!(handles.unmap(0x20000, Bytes(0x1000)), [PIECE]);
    }

    #[test]
    fn one_range_may_hold_several_pieces() {
        let mut handles = one();
        handles.create(8, OTHER);
        handles.map(0x10000, Bytes(0x1000), 7);
        handles.map(0x11000, Bytes(0x2000), 8);
        assert_eq!((handles.release(7), handles.release(8)), (None, None));
        assert_eq!(handles.unmap(0x10000, Bytes(0x3000)), [PIECE, OTHER]);
    }

    #[test]
    fn a_handle_given_out_again_names_the_new_piece() {
        let mut handles = one();
        handles.map(0x10000, Bytes(0x1000), 7);
        assert_eq!(handles.release(7), None);
        handles.create(7, OTHER);
        assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), [PIECE]);
        assert_eq!(handles.release(7), Some(OTHER));
    }

    #[test]
    fn a_retained_handle_keeps_its_piece() {
        let mut handles = one();
        handles.map(0x10000, Bytes(0x1000), 7);
        handles.retain(9, 0x10fff);
        handles.retain(9, 0x11000);
        assert_eq!(handles.release(7), None);
        assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), []);
        assert_eq!(handles.release(9), Some(PIECE));
    }

    #[test]
    fn a_sparse_array_keeps_what_is_in_it_until_it_is_taken_out_or_ends() {
        let mut handles = one();
        handles.create(8, OTHER);
        assert_eq!(handles.tile(tile(0, 64), Some(7)), []);
        assert_eq!(handles.tile(tile(64, 64), Some(8)), []);
        assert_eq!((handles.release(7), handles.release(8)), (None, None));
        assert_eq!(handles.tile(tile(0, 64), None), [PIECE]);
        assert!(handles.take_parts(4).is_empty());
        let parts = handles.take_parts(5);
        assert_eq!(handles.end(parts), [OTHER]);
    }

    #[test]
    fn what_was_mapped_by_parts_may_be_taken_out_at_once() {
        let mut handles = one();
        handles.create(8, OTHER);
        handles.tile(tile(0, 64), Some(7));
        handles.tile(tile(64, 64), Some(8));
        handles.tile(Tile { plane: [1, 0], ..tile(0, 64) }, Some(8));
        assert_eq!((handles.release(7), handles.release(8)), (None, None));
        assert_eq!(handles.tile(tile(0, 128), None), [PIECE]);
        assert_eq!(handles.tile(Tile { plane: [1, 0], ..tile(0, 128) }, None), [OTHER]);
    }

    #[test]
    fn what_was_mapped_at_once_is_charged_while_a_part_of_it_is_there() {
        let mut handles = one();
        handles.tile(tile(0, 128), Some(7));
        assert_eq!(handles.release(7), None);
        assert_eq!(handles.tile(tile(0, 64), None), []);
        let parts = handles.take_parts(5);
        assert_eq!(handles.end(parts), [PIECE]);
    }

    #[test]
    fn an_array_that_took_the_place_of_one_that_ends_keeps_what_is_in_it() {
        let mut handles = one();
        handles.create(8, OTHER);
        handles.tile(tile(0, 64), Some(7));
        let parts = handles.take_parts(5);
        handles.tile(tile(0, 64), Some(8));
        assert_eq!((handles.release(7), handles.release(8)), (None, None));
        assert_eq!(handles.end(parts), [PIECE]);
        let parts = handles.take_parts(5);
        handles.put_back(parts);
        assert_eq!(handles.tile(tile(0, 64), None), [OTHER]);
    }

    #[test]
    fn what_is_not_ours_is_nobodys_charge() {
        let mut handles = Handles::default();
        handles.map(0x10000, Bytes(0x1000), 7);
        handles.retain(7, 0x10000);
        assert_eq!(handles.unmap(0x10000, Bytes(0x1000)), []);
        assert_eq!(handles.release(7), None);
    }
}
