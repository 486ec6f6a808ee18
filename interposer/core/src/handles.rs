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

use crate::cuda::{CUdevice, CUdeviceptr, CUmemHandle};

/// All of it. The doors hold its lock across the driver's call, so that a handle or an address which the driver gives
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
    /// Level, layer and offsets, or layer and offset.
    pub place: [u32; 5],
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
        let gone: Vec<_> = self.mapped.range(address..end).map(|(&start, &(_, piece))| (start, piece)).collect();
        gone.into_iter()
            .filter_map(|(start, piece)| {
                self.mapped.remove(&start);
                self.unused(piece)
            })
            .collect()
    }

    /// A part of a sparse array has another memory, or none; what nobody uses any more.
    pub fn tile(&mut self, tile: Tile, handle: Option<CUmemHandle>) -> Option<Charge> {
        let new = handle.and_then(|handle| self.handles.get(&handle)).map(|named| named.piece);
        let before = match new {
            Some(piece) => {
                self.used(piece);
                self.tiles.insert(tile, piece)
            }
            None => self.tiles.remove(&tile),
        };
        self.unused(before?)
    }

    /// A sparse array is gone, and its parts with it; what nobody uses any more.
    pub fn end_array(&mut self, resource: u64) -> Vec<Charge> {
        let parts = |kind, place| Tile { resource, kind, place };
        let range = parts(0, [0; 5])..=parts(u32::MAX, [u32::MAX; 5]);
        let gone: Vec<_> = self.tiles.range(range).map(|(&tile, _)| tile).collect();
        gone.into_iter().filter_map(|tile| self.tile(tile, None)).collect()
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
        let tile = |offset| Tile { resource: 5, kind: 0, place: [0, 0, offset, 0, 0] };
        assert_eq!(handles.tile(tile(0), Some(7)), None);
        assert_eq!(handles.tile(tile(64), Some(8)), None);
        assert_eq!((handles.release(7), handles.release(8)), (None, None));
        assert_eq!(handles.tile(tile(0), None), Some(PIECE));
        assert_eq!(handles.end_array(4), []);
        assert_eq!(handles.end_array(5), [OTHER]);
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
