//! Small requests, served from shared blocks. A mapping costs several driver calls and at least a granule, so
//! small pieces share one.
//!
//! Blocks grow with the arena, from one granule to [`LARGEST_BLOCK`]: a program with little memory takes little
//! of the card, and one with much has few blocks. On a card that is nearly full a block is as small as its request. One unused block is kept, so that a program that allocates
//! and frees in turns maps nothing. A piece is rounded up to [`UNIT`], the alignment of the driver's own memory.

use std::collections::BTreeMap;
use std::ops::Range;

use gpushare_proto::Bytes;
use range_alloc::RangeAllocator;

use super::space::GRANULE;
use super::vmm::Span;
use crate::driver::types::CUdeviceptr;

/// Alignment of pieces in bytes.
pub const UNIT: Bytes = Bytes(512);
/// Largest block.
pub const LARGEST_BLOCK: Bytes = Bytes::mib(32);
/// Largest request that is served from a shared block.
pub const LARGEST_PIECE: Bytes = Bytes::mib(8);

/// Result of a request for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Piece of a shared block.
    Piece(Span),
    /// No block has room. [`Arena::add`] takes a block of this size, and the request is made again.
    NeedsBlock(Bytes),
    /// The request is too large to share a block.
    TooLarge,
}

/// Shared blocks, and the pieces in use.
#[derive(Debug, Default)]
pub struct Arena {
    blocks: BTreeMap<CUdeviceptr, Block>,
}

#[derive(Debug)]
struct Block {
    size: Bytes,
    pieces: RangeAllocator<CUdeviceptr>,
}

impl Arena {
    /// Takes a piece of `size` bytes. A new block should have at most `room` bytes.
    pub fn take(&mut self, size: Bytes, room: Bytes) -> Found {
        let Some(size) = size_of_piece(size) else { return Found::TooLarge };
        let of_block =
            |(_, range): (_, Range<CUdeviceptr>)| Found::Piece(Span { address: range.start, size });
        let found = self.find(size).map(of_block);
        found.unwrap_or_else(|| Found::NeedsBlock(self.next_block(size, room)))
    }

    /// Returns whether a block has a free piece for a request of `size` bytes.
    pub fn has(&mut self, size: Bytes) -> bool {
        let found = size_of_piece(size).and_then(|size| self.find(size));
        found.map(|(block, range)| block.pieces.free_range(range)).is_some()
    }

    /// Takes a range out of a block with room, the fullest of them, so that others become unused.
    fn find(&mut self, size: Bytes) -> Option<(&mut Block, Range<CUdeviceptr>)> {
        let free = |block: &Block| Bytes(block.pieces.total_available());
        let mut fitting: Vec<_> = self.blocks.values_mut().filter(|block| free(block) >= size).collect();
        fitting.sort_by_key(|block| free(block));
        fitting.into_iter().find_map(|block| {
            let range = block.pieces.allocate_range(size.0).ok()?;
            Some((block, range))
        })
    }

    /// Returns the size of the next block: as large as all blocks together, within bounds.
    fn next_block(&self, size: Bytes, room: Bytes) -> Bytes {
        let whole: Bytes = self.blocks.values().map(|block| block.size).sum();
        let wanted = whole.min(room).min(LARGEST_BLOCK);
        Bytes(wanted.0 / GRANULE.0 * GRANULE.0).max(least_block(size))
    }

    /// Adds a block, whose memory is usable.
    pub fn add(&mut self, block: Span) {
        let pieces = RangeAllocator::new(block.address..block.end());
        self.blocks.insert(block.address, Block { size: block.size, pieces });
    }

    /// Returns the block that contains an address.
    pub fn block_of(&self, address: CUdeviceptr) -> Option<Span> {
        let (&start, block) = self.blocks.range(..=address).next_back()?;
        let span = Span { address: start, size: block.size };
        (address < span.end()).then_some(span)
    }

    /// Takes a piece back. Returns a block that is no longer needed: the caller unmaps it. Ignores a piece that
    /// no block has.
    pub fn put(&mut self, piece: Span) -> Option<Span> {
        let block = self.block_of(piece.address).filter(|block| piece.end() <= block.end())?;
        let pieces = &mut self.blocks.get_mut(&block.address)?.pieces;
        pieces.free_range(piece.address..piece.end());
        let unused = self.blocks.iter().filter(|(_, block)| block.pieces.is_empty());
        // Of two unused blocks the larger one stays, which serves more.
        let mut unused: Vec<_> = unused.map(|(&address, block)| Span { address, size: block.size }).collect();
        unused.sort_by_key(|block| block.size);
        let surplus = (unused.len() > 1).then(|| unused[0])?;
        self.blocks.remove(&surplus.address);
        Some(surplus)
    }

    /// Returns the number of bytes of unused blocks.
    pub fn unused(&self) -> Bytes {
        let unused = self.blocks.values().filter(|block| block.pieces.is_empty());
        unused.map(|block| block.size).sum()
    }

    /// Removes and returns all unused blocks, as when the card is full.
    pub fn take_unused(&mut self) -> Vec<Span> {
        let is_unused = |block: &Block| block.pieces.is_empty();
        let unused = self.blocks.iter().filter(|(_, block)| is_unused(block));
        let unused: Vec<_> = unused.map(|(&address, block)| Span { address, size: block.size }).collect();
        self.blocks.retain(|_, block| !is_unused(block));
        unused
    }

    /// Returns the number of bytes of all blocks, and of the pieces in use.
    pub fn sizes(&self) -> (Bytes, Bytes) {
        let whole: Bytes = self.blocks.values().map(|block| block.size).sum();
        let free = self.blocks.values().map(|block| Bytes(block.pieces.total_available())).sum();
        (whole, whole - free)
    }
}

/// Returns the size of the piece for a request; `None` if it cannot share a block.
fn size_of_piece(size: Bytes) -> Option<Bytes> {
    let size = size.0.checked_next_multiple_of(UNIT.0).map(Bytes)?;
    (!size.is_zero() && size <= LARGEST_PIECE).then_some(size)
}

/// Size of the smallest block for a request that can share one.
pub fn least_block(size: Bytes) -> Bytes {
    Bytes(size.0.max(1).next_multiple_of(GRANULE.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes a piece, with a block from `next` if one is needed.
    fn take(arena: &mut Arena, size: Bytes, next: &mut CUdeviceptr) -> Option<Span> {
        loop {
            match arena.take(size, Bytes::MAX) {
                Found::Piece(piece) => return Some(piece),
                Found::TooLarge => return None,
                Found::NeedsBlock(size) => {
                    arena.add(Span { address: *next, size });
                    *next += size.0;
                }
            }
        }
    }

    #[test]
    fn blocks_grow_with_the_arena() {
        let (mut arena, mut next) = (Arena::default(), 1 << 40);
        let mut sizes = Vec::new();
        for _ in 0..64 {
            let before = arena.sizes().0;
            take(&mut arena, Bytes::mib(2), &mut next).unwrap();
            sizes.push(arena.sizes().0 - before);
        }
        sizes.retain(|size| !size.is_zero());
        assert_eq!(sizes, [2, 2, 4, 8, 16, 32, 32, 32].map(Bytes::mib));
    }

    #[test]
    fn a_block_is_as_small_as_its_request_where_the_card_has_no_room_for_more() {
        let (mut arena, mut next) = (Arena::default(), 1 << 40);
        // Blocks of 8, 8, 16 and 32 MiB, which are full then.
        for _ in 0..8 {
            take(&mut arena, Bytes::mib(8), &mut next).unwrap();
        }
        assert_eq!(arena.sizes(), (Bytes::mib(64), Bytes::mib(64)));
        assert_eq!(arena.take(Bytes(8), Bytes::MAX), Found::NeedsBlock(LARGEST_BLOCK));
        assert_eq!(arena.take(Bytes(8), Bytes::mib(9)), Found::NeedsBlock(Bytes::mib(8)));
        assert_eq!(arena.take(Bytes(8), Bytes::ZERO), Found::NeedsBlock(GRANULE));
        assert_eq!(arena.take(Bytes::mib(7), Bytes::mib(3)), Found::NeedsBlock(Bytes::mib(8)));
    }

    #[test]
    fn a_request_above_the_bound_has_memory_of_its_own() {
        let mut arena = Arena::default();
        assert_eq!(arena.take(LARGEST_PIECE, Bytes::MAX), Found::NeedsBlock(LARGEST_PIECE));
        assert_eq!(arena.take(LARGEST_PIECE + Bytes(1), Bytes::MAX), Found::TooLarge);
        assert_eq!(arena.take(Bytes::MAX, Bytes::MAX), Found::TooLarge);
        assert_eq!(arena.take(Bytes::ZERO, Bytes::MAX), Found::TooLarge);
    }

    #[test]
    fn to_ask_for_a_piece_takes_none() {
        let (mut arena, mut next) = (Arena::default(), 1 << 40);
        let pieces = [(); 3].map(|()| take(&mut arena, Bytes::mib(4), &mut next).unwrap());
        assert_eq!(arena.sizes(), (Bytes::mib(16), Bytes::mib(12)), "blocks of 4, 4 and 8 MiB");
        let has = |arena: &mut Arena| [1, 4 << 20, (4 << 20) + 1].map(|size| arena.has(Bytes(size)));
        assert_eq!(has(&mut arena), [true, true, false]);
        assert_eq!(has(&mut arena), [true, true, false]);
        arena.put(pieces[1]);
        assert!(!arena.has(Bytes::mib(8)), "two pieces of different blocks");
        assert!(
            ![Bytes::ZERO, LARGEST_PIECE + Bytes(1), Bytes::MAX]
                .into_iter()
                .any(|size| arena.has(size))
        );
        assert_eq!(arena.sizes(), (Bytes::mib(16), Bytes::mib(8)));
    }

    #[test]
    fn one_unused_block_is_kept() {
        let (mut arena, mut next) = (Arena::default(), 1 << 40);
        let first = take(&mut arena, Bytes::mib(2), &mut next).unwrap();
        let second = take(&mut arena, Bytes::mib(2), &mut next).unwrap();
        assert_eq!(arena.put(first), None);
        let again = take(&mut arena, Bytes(1), &mut next).unwrap();
        assert_eq!((again.address, again.size), (first.address, UNIT));
        assert_eq!(arena.put(again), None);
        assert_eq!(arena.put(second), Some(first), "the smaller of two, or the first");
        assert_eq!(arena.sizes(), (GRANULE, Bytes::ZERO));
        assert_eq!(arena.take_unused(), [second]);
        assert_eq!(arena.put(second), None, "unknown by now");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn pieces_never_overlap_and_all_of_them_come_back(
            steps in prop::collection::vec((any::<bool>(), 1_u64..10 << 20, any::<usize>()), 1..200)
        ) {
            let (mut arena, mut next) = (Arena::default(), 1 << 40);
            let mut pieces: BTreeMap<CUdeviceptr, Span> = BTreeMap::new();
            let mut gone = Vec::new();
            for (takes, size, index) in steps {
                if takes {
                    // Small sizes are more frequent.
                    let size = if index % 3 == 0 { size } else { size % 70_000 + 1 };
                    let Some(piece) = take(&mut arena, Bytes(size), &mut next) else {
                        prop_assert!(Bytes(size) > LARGEST_PIECE);
                        continue;
                    };
                    prop_assert!(piece.size.0 >= size && piece.address % UNIT.0 == 0);
                    let block = arena.block_of(piece.address).unwrap();
                    prop_assert!(piece.end() <= block.end() && !gone.contains(&block));
                    let before = pieces.range(..piece.end()).next_back();
                    prop_assert!(before.is_none_or(|(_, piece_before)| piece_before.end() <= piece.address));
                    pieces.insert(piece.address, piece);
                } else if !pieces.is_empty() {
                    let key = *pieces.keys().nth(index % pieces.len()).unwrap();
                    let piece = pieces.remove(&key).unwrap();
                    if let Some(block) = arena.put(piece) {
                        prop_assert!(pieces.values().all(|piece| piece.end() <= block.address || block.end() <= piece.address));
                        gone.push(block);
                    }
                }
                prop_assert_eq!(arena.sizes().1, pieces.values().map(|piece| piece.size).sum());
            }
            for piece in pieces.into_values() {
                arena.put(piece);
            }
            prop_assert!(arena.take_unused().len() <= 1);
            prop_assert_eq!(arena.sizes(), (Bytes::ZERO, Bytes::ZERO));
        }
    }
}
