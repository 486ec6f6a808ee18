//! Blocks of one card: what the hooks of `cuMemAlloc` and `cuMemFree` ask for.
//!
//! ```text
//!   begin(size) ──▶ Ready(address)                     a piece of a shared block
//!              └──▶ Backing ──▶ take, done, … ──▶ finish ──▶ address
//!                               driver calls of the calling thread, without a lock
//!   end(address)                                       its work is over; chunks go, addresses return
//!   adopt(address)                                     memory that the program has mapped itself moves from now on
//!   export(address)                                    its memory stays, and other processes may have its handles
//! ```
//!
//! A block is a piece of the [`Arena`], or a range of the [`Space`] with chunks of its own. A shared block
//! that is made for a piece is seen by other threads only once it is backed.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::Bytes;
use gpushare_proto::sharing::Secret;

use super::arena::{Arena, Found, LARGEST_PIECE, least_block};
use super::chunk;
use super::names::Named;
use super::pins::{Pins, Reason};
use super::space::{Space, round_up};
use super::swap::{Birth, Engine, GivenUp, Loan, Trouble};
use super::vmm::{Answer, Call, Span, VmmError};
use crate::driver::types::CUdeviceptr;

/// Blocks of one card, with the engine that moves their chunks.
#[derive(Debug, Default)]
pub struct Blocks {
    space: Space,
    arena: Arena,
    pins: Pins,
    engine: Engine,
    blocks: BTreeMap<CUdeviceptr, Span>,
    exports: BTreeMap<CUdeviceptr, Export>,
    /// Number of exports so far.
    exported: u64,
    /// Numbers of exports that have ended, until they are reported.
    ended: Vec<u64>,
}

/// Memory that other processes may open: a block of its own, or a shared block as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Number of the export on this card.
    pub number: u64,
    /// Secret that whoever opens the memory must know.
    pub secret: Secret,
    /// Addresses of the memory.
    pub range: Span,
}

/// State of an allocation.
#[derive(Debug)]
pub enum Allocation {
    /// The block is usable at this address.
    Ready(CUdeviceptr),
    /// Chunks are to be backed first.
    Backing(Backing),
}

/// Range whose chunks the calling thread backs.
#[derive(Debug)]
pub struct Backing {
    range: Span,
    chunks: Vec<Span>,
    /// Size of the piece for which a shared block is made; `None` for a block of its own.
    piece: Option<Bytes>,
}

impl Backing {
    /// Returns the range that is being backed.
    pub const fn range(&self) -> Span {
        self.range
    }
}

/// Reason why an allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The goal has no room for these bytes, and the gate is open. The daemon is asked for a higher goal.
    #[error("the card has no room for {0} now")]
    NoRoom(Bytes),
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] VmmError),
}

impl Blocks {
    /// Creates the blocks of a card that `engine` moves.
    pub fn new(engine: Engine) -> Self {
        Self { engine, ..Self::default() }
    }

    /// Returns the engine, whose lanes move the chunks.
    pub const fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Begins an allocation. `reserve` reserves addresses, which is needed once for most programs.
    ///
    /// # Errors
    /// The goal has no room, or the driver refused addresses.
    pub fn begin(
        &mut self,
        size: Bytes,
        reserve: impl FnOnce(Bytes) -> Result<CUdeviceptr, VmmError>,
    ) -> Result<Allocation, AllocationError> {
        self.collect();
        match self.arena.take(size, self.engine.room()) {
            Found::Piece(piece) => {
                self.blocks.insert(piece.address, piece);
                Ok(Allocation::Ready(piece.address))
            }
            Found::NeedsBlock(block) => self.begin_range(block, Some(size), reserve),
            Found::TooLarge => self.begin_range(size, None, reserve),
        }
    }

    /// Returns whether a shared block has a free piece for a request.
    pub fn has_piece(&mut self, size: Bytes) -> bool {
        self.arena.has(size)
    }

    fn begin_range(
        &mut self,
        size: Bytes,
        piece: Option<Bytes>,
        reserve: impl FnOnce(Bytes) -> Result<CUdeviceptr, VmmError>,
    ) -> Result<Allocation, AllocationError> {
        let range = self.space.take(size, reserve)?;
        let chunks = self.engine.cut(range);
        let refused = chunks.iter().position(|&chunk| self.engine.add(chunk) == Birth::NoRoom);
        let Some(added) = refused else {
            return Ok(Allocation::Backing(Backing { range, chunks, piece }));
        };
        chunks[..added].iter().for_each(|chunk| self.engine.free(chunk.address));
        chunks[added..].iter().for_each(|&chunk| self.space.put(chunk));
        Err(AllocationError::NoRoom(range.size))
    }

    /// Returns the next driver call for an allocation, with the chunk's addresses. [`Self::done`] takes the
    /// answer. `None` says that all chunks are usable, or that one cannot be backed.
    pub fn take(&mut self, backing: &Backing) -> Option<(Span, Call)> {
        for &chunk in &backing.chunks {
            match self.engine.take_own(chunk.address) {
                Some(call) => return Some((chunk, call)),
                None if self.engine.has_failed(chunk.address) => return None,
                None => {}
            }
        }
        None
    }

    /// Notes the answer to a call.
    pub fn done(&mut self, chunk: Span, answer: Answer) {
        self.engine.done(chunk.address, answer);
    }

    /// Ends an allocation for which no call is left. `None` says that the allocation begins again: another
    /// thread has taken the piece meanwhile, or the goal has no room for the rest of the range any more, all
    /// of which is given back.
    ///
    /// # Errors
    /// The driver call that failed. All of the range is given back.
    pub fn finish(&mut self, backing: Backing) -> Result<Option<CUdeviceptr>, AllocationError> {
        let Backing { range, chunks, piece } = backing;
        let mut result = Ok(());
        for chunk in &chunks {
            result = self.engine.born(chunk.address).and(result);
        }
        if let Err(trouble) = result {
            chunks.iter().for_each(|chunk| self.engine.free(chunk.address));
            return match trouble {
                Trouble::Driver(_, error) => Err(error.into()),
                // `begin` decides what follows: a wait, a hole, or memory mapped from the host. No chunk
                // needs a slot before it is born.
                Trouble::NoRoom | Trouble::NoSlot => Ok(None),
            };
        }
        let Some(size) = piece else {
            self.blocks.insert(range.address, range);
            return Ok(Some(range.address));
        };
        self.arena.add(range);
        let Found::Piece(piece) = self.arena.take(size, Bytes::MAX) else { return Ok(None) };
        self.blocks.insert(piece.address, piece);
        Ok(Some(piece.address))
    }

    /// Ends the block that begins at an address, after all work on it. Returns `false` for an unknown
    /// address.
    pub fn end(&mut self, address: CUdeviceptr) -> bool {
        let Some(block) = self.blocks.remove(&address) else { return false };
        self.pins.forget(address);
        if self.arena.block_of(address).is_some() {
            if let Some(surplus) = self.arena.put(block) {
                self.free_chunks(surplus);
            }
        } else {
            self.free_chunks(block);
        }
        true
    }

    /// Makes memory that the program has created and mapped at its own addresses a block of one chunk.
    pub fn adopt(&mut self, block: Span, backing: chunk::Backing) {
        self.blocks.insert(block.address, block);
        self.engine.adopt(block, backing);
    }

    /// Leaves the memory of an adopted block to the program. Returns `None` while it is away or moves.
    pub fn give_up(&mut self, address: CUdeviceptr) -> Option<GivenUp> {
        let given_up = self.engine.give_up(address)?;
        self.forget(address);
        Some(given_up)
    }

    /// Forgets an adopted block, whose chunk has ended.
    pub fn forget(&mut self, address: CUdeviceptr) {
        self.blocks.remove(&address);
        self.pins.forget(address);
    }

    /// Returns the number of bytes of unused shared blocks.
    pub fn unused(&self) -> Bytes {
        self.arena.unused()
    }

    /// Gives the memory of unused shared blocks back, as when the card is full, and returns the blocks.
    pub fn end_unused(&mut self) -> Vec<Span> {
        let unused = self.arena.take_unused();
        unused.iter().for_each(|&block| self.free_chunks(block));
        unused
    }

    fn free_chunks(&mut self, range: Span) {
        self.ended
            .extend(self.exports.remove(&range.address).map(|export| export.number));
        for chunk in self.engine.chunks_in(range) {
            self.engine.free(chunk.address);
        }
    }

    /// Returns addresses of which nothing is left to the space.
    pub fn collect(&mut self) {
        for range in self.engine.take_gone() {
            self.space.put(range);
        }
    }

    /// Returns the block that contains an address.
    pub fn around(&self, address: CUdeviceptr) -> Option<Span> {
        let (_, &block) = self.blocks.range(..=address).next_back()?;
        (address < block.end()).then_some(block)
    }

    /// Keeps the block around an address on the card, with all that shares its chunks. Returns `false` for an
    /// unknown address.
    pub fn pin(&mut self, address: CUdeviceptr, reason: Reason) -> bool {
        let Some(block) = self.around(address) else { return false };
        self.pins.pin(block, reason);
        for chunk in self.engine.chunks_in(block) {
            self.engine.pin(chunk.address);
        }
        true
    }

    /// Keeps the block around an address where it is, so that other processes may open it. An export lasts as
    /// long as the memory. A shared block is exported as a whole, with all its pieces. `None` for an unknown
    /// address.
    pub fn export(&mut self, address: CUdeviceptr, secret: Secret) -> Option<Export> {
        let block = self.around(address)?;
        let range = self.arena.block_of(block.address).unwrap_or(block);
        self.pin(block.address, Reason::Exported);
        for chunk in self.engine.chunks_in(range) {
            self.engine.pin(chunk.address);
        }
        let export = self.exports.entry(range.address).or_insert_with(|| {
            self.exported += 1;
            Export { number: self.exported, secret, range }
        });
        Some(*export)
    }

    /// Returns whether an export has not ended.
    pub fn is_exported(&self, number: u64) -> bool {
        self.exports.values().any(|export| export.number == number)
    }

    /// Lends the handles of an export to a process that knows its secret. `None` if there is no such export.
    pub fn lend(&mut self, number: u64, secret: Secret) -> Option<Vec<Loan>> {
        let is_meant = |export: &&Export| (export.number, export.secret) == (number, secret);
        let range = self.exports.values().find(is_meant)?.range;
        self.engine.lend(range)
    }

    /// Takes the numbers of exports that have ended, since their memory was given back.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Keeps all blocks on the card, present and later ones.
    pub fn pin_all(&mut self, reason: Reason) {
        self.pins.pin_all(reason);
        self.engine.pin_all();
    }

    /// Notes which blocks kernels were given as arguments. Work may use any chunk of them.
    pub fn note_named(&mut self, named: &Named) {
        let blocks = self.blocks.values().filter(|block| named.has(**block));
        let chunks = blocks.flat_map(|block| self.engine.chunks_in(*block));
        let used: BTreeSet<_> = chunks.map(|chunk| chunk.address).collect();
        self.engine.note_uses(&used);
    }

    /// Returns why a range must not move, if so.
    pub fn reason(&self, range: Span) -> Option<Reason> {
        self.pins.reason(range)
    }
}

/// Least bytes of chunks for a request for which no shared block has room.
pub fn needed(size: Bytes) -> Bytes {
    if size <= LARGEST_PIECE {
        least_block(size)
    } else {
        round_up(size).unwrap_or(Bytes::MAX)
    }
}

#[cfg(test)]
mod tests;
