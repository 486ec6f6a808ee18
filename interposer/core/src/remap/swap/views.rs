//! Views of the engine: what it tells the daemon, and whether the gate may open.

use gpushare_proto::Bytes;
use gpushare_proto::page::GoalNumber;

use super::chunks::Sum;
use super::{Engine, Entry, Guard, Phase, Trouble};
use crate::driver::types::CUdeviceptr;
use crate::remap::chunk::{Aim, Place};
use crate::remap::host::REGION;
use crate::remap::vmm::{Call, Span, Tier, VmmError};

/// Figures of one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of the last goal under which no older request is open.
    pub seen: GoalNumber,
    /// Bytes of the card: all handles there, also those of freed chunks, those that are being created, and those
    /// that the program has created and that are no chunks.
    pub resident: Bytes,
    /// Of them, bytes that must not move.
    pub immovable: Bytes,
    /// Bytes that are not on the card: in slots and in memory mapped from the host.
    pub hosted: Bytes,
    /// Of them, bytes that are mapped from the host, where work reaches them.
    pub mapped: Bytes,
    /// Bytes of chunks that have no memory at all.
    pub unbacked: Bytes,
    /// Bytes of chunks of which a call or a copy is under way.
    pub moving: Bytes,
    /// Bytes of slots of the host, also of those that chunks keep for the next move.
    pub slots: Bytes,
    /// Of them, bytes of slots without which data would be lost: those of chunks that have no handle on the
    /// card.
    pub needed_slots: Bytes,
    /// Bytes that were copied out so far.
    pub copied_out: Bytes,
}

/// Reason why the gate cannot open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Chunks are on their way.
    Moving,
    /// The goal has no room for all chunks. The number is what is missing.
    Goal(Bytes),
    /// A step failed.
    Failed(Trouble),
}

impl Engine {
    /// Returns the figures of the card.
    pub fn figures(&self) -> Figures {
        let bytes = |sum| self.chunks.bytes(sum);
        Figures {
            seen: self.seen,
            copied_out: self.copied_out,
            resident: self.present(),
            immovable: bytes(Sum::Immovable) + self.loose.device,
            hosted: bytes(Sum::Hosted) + self.loose.host,
            mapped: bytes(Sum::Mapped) + self.loose.host,
            unbacked: bytes(Sum::Unbacked),
            moving: bytes(Sum::Moving),
            slots: bytes(Sum::Slots),
            needed_slots: bytes(Sum::NeededSlots),
        }
    }

    /// Returns the most bytes of regions that slots for all chunks may need: an eighth more than the chunks,
    /// and two regions. The daemon believes a process as far.
    pub fn most_regions(&self) -> Bytes {
        let whole = self.chunks.bytes(Sum::Live);
        whole + Bytes(whole.0 / 8) + REGION + REGION
    }

    /// Returns whether the gate may open: no address is a hole, or the memory is lost, so that work on it
    /// gets an error wherever it is.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn can_open(&self) -> Result<(), Obstacle> {
        if self.lost.is_some() {
            return if self.guard == Guard::Clear { Ok(()) } else { Err(Obstacle::Moving) };
        }
        if self.chunks.count(Sum::Away) == 0 {
            return if self.guard == Guard::Clear { Ok(()) } else { Err(Obstacle::Moving) };
        }
        let holes = || self.live().filter(|entry| entry.chunk.is_hole());
        if let Some(trouble) = holes().find_map(|entry| entry.trouble) {
            return Err(Obstacle::Failed(trouble));
        }
        let is_away = |entry: &&Entry| entry.chunk.aim() == Aim::Away && !entry.chunk.is_busy();
        let missing: Bytes = holes().filter(is_away).map(|entry| entry.chunk.span().size).sum();
        let is_moving = self
            .live()
            .any(|entry| !matches!(entry.chunk.aim(), Aim::At(_)) || entry.chunk.is_hole());
        if self.phase == Phase::Entering && !missing.is_zero() && missing > self.room() {
            return Err(Obstacle::Goal(missing - self.room()));
        }
        if is_moving || self.guard != Guard::Clear || self.promotes() {
            return Err(Obstacle::Moving);
        }
        Ok(())
    }

    /// Returns whether chunks that are mapped from the host are to come to the card before the gate opens,
    /// and the goal has no room for them yet or they have not begun.
    pub fn awaits_room(&self) -> bool {
        !self.overflows && self.chunks.count(Sum::Promotable) > 0
    }

    /// Whether chunks that are mapped from the host are on their way to the card.
    fn promotes(&self) -> bool {
        let promotes = |entry: &Entry| entry.chunk.is_leaving() && entry.trouble.is_none();
        self.phase == Phase::Entering && self.live().any(promotes)
    }

    /// Returns the chunks that overlap a range, also freed ones of which something is left.
    pub fn chunks_in(&self, range: Span) -> Vec<Span> {
        let before_end = self.chunks.range(..range.end()).rev().map(|entry| entry.chunk.span());
        let mut chunks: Vec<_> = before_end.take_while(|chunk| chunk.end() > range.address).collect();
        chunks.reverse();
        chunks
    }

    /// Returns the place of the chunk at an address.
    pub fn place(&self, address: CUdeviceptr) -> Option<Place> {
        self.chunks.get(address).map(|entry| entry.chunk.place())
    }

    /// Returns whether work named the chunk at an address in any of the last spans.
    #[cfg(test)]
    pub fn is_used(&self, address: CUdeviceptr) -> bool {
        self.chunks.get(address).is_some_and(|entry| entry.uses.count() > 0)
    }

    /// Returns whether a copy is under way.
    pub fn is_copying(&self) -> bool {
        self.copies() > 0
    }

    /// Returns whether no call and no copy is under way, so that the engine's threads may end.
    pub fn is_quiet(&self) -> bool {
        !self.is_calling && self.chunks.bytes(Sum::Moving).is_zero()
    }

    /// Returns whether the process waits behind its closed gate, and none of its memory is to leave.
    pub fn rests(&self) -> bool {
        let has_left = self.is_settled && self.present() <= self.goal.bytes;
        self.phase == Phase::Drained && has_left && self.is_quiet()
    }

    /// Returns whether the gate is marked as evicting, so that it does not open onto a hole.
    pub fn is_guarded(&self) -> bool {
        self.guard == Guard::Set
    }

    /// Returns the size of a chunk for which the card has no memory although the goal has room, if one waits
    /// for it.
    pub fn refused(&self) -> Option<Bytes> {
        if self.chunks.count(Sum::Troubled) == 0 {
            return None;
        }
        let refused = Trouble::Driver(Call::Create(Tier::Device), VmmError::OutOfMemory);
        let waits = self.live().find(|entry| entry.trouble == Some(refused))?;
        Some(waits.chunk.span().size)
    }

    /// Returns the first failure because of which a chunk waits, for the report to the daemon. An allocation
    /// reports its own failures.
    pub fn trouble(&self) -> Option<Trouble> {
        if self.chunks.count(Sum::Troubled) == 0 {
            return None;
        }
        let settled = self.chunks.values().filter(|entry| !entry.is_unborn);
        settled.filter_map(|entry| entry.trouble).next()
    }
}
